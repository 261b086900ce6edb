/*
 * Load generator for RocketMQ brokers: one thread, one epoll loop, closed loop.
 *
 * Every connection keeps a fixed number of requests in flight and sends the next one when an answer arrives. Send frames
 * are encoded once, as a Java client would (JSON header, one-letter field names), and kept per slot. Before a frame is
 * sent only its opaque and its UNIQ_KEYs are patched in place. The generator thus uses little of the CPU that it shares
 * with the measured brokers.
 *
 *   send   SEND_MESSAGE_V2 (310), or SEND_BATCH_MESSAGE (320) with --batch k > 1. Connection c writes queue c mod queues;
 *          with --spread 1, each frame in flight goes to the next queue instead. With --other-topic, a second topic has
 *          every other turn of 100 ms (in the order 1 2 2 1), so that other work on the machine disturbs both alike. With
 *          --delay-s n, the messages are due n seconds later.
 *   pull   PULL_MESSAGE (11) without long polling. Connection c reads the queues q with q mod connections = c, with one
 *          pull in flight per queue. Each pull starts at the nextBeginOffset of its predecessor. At the end of a queue it
 *          starts again at the queue's first offset, so that a backlog of any size fills the measured time.
 *
 * Answers are checked: response code and opaque, and for pulled records size, magic and consecutive queue offsets. An
 * answer other than success counts as an error under its code and never as a message.
 *
 * Standard output: {"event":"start"} at the end of the warm-up, {"event":"end"} at the end of the measured time, then one
 * JSON object with the result. With --messages n it stops after n acknowledged messages; --seconds is then the time limit.
 * Exit status: 0 measured, 1 a connection failed or was closed, 2 bad arguments, 3 nothing was answered in time or
 * (with --messages) not everything.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "shared.h"

enum {
    OPAQUE_BASE = 1000000000,
    OPAQUE_RANGE = 1000000000,
    RECORD_FIXED = 91,
    MESSAGE_MAX = 4 << 20,
    SLOTS_MAX = 4096,
    CONNECTIONS_MAX = 4096,
    QUEUES_MAX = 65536,
    TURN_NS = 100000000,
    TURNS_MAX = 36100, /* the turns of an hour, and of its last answers */
    IOV_BATCH = 64,
};
static const char KEY_DIGITS[] = "000000000000"; /* patched per message; the rest of a key is the same in a run */

typedef struct {
    char *frame;
    size_t frame_bytes;
    char *opaque_digits;  /* ten digits inside the frame */
    char **key_digits;    /* twelve hex digits inside the frame, one pointer per message */
} Form;

typedef struct {
    Form forms[2];        /* of the requests to the first and to the other topic */
    Form *form;           /* of the request in flight */
    uint32_t opaque;
    uint64_t sent_ns;
    bool in_flight;
    int queue;            /* pull: the queue this slot reads */
    int64_t next_offset;  /* pull: where the next pull begins */
    int64_t first_offset; /* pull: where to start over */
} Slot;

typedef struct {
    int fd;
    Slot *slots;
    int slot_count;
    int *unsent; /* ring of slots whose frames wait for the socket */
    int unsent_head, unsent_count;
    size_t head_sent; /* bytes of the first waiting frame that are sent */
    bool wants_write;
    Received received;
    uint32_t sequence;
} Connection;

static struct {
    const char *mode, *host, *topic, *other_topic, *group;
    int port, connections, window, batch, queues, spread, body_bytes, max_messages_per_pull, delay_s;
    double seconds, warmup;
    uint64_t messages;
} options = {
    .mode = "send", .host = "127.0.0.1", .topic = "bench", .group = "bench-group", .port = 10911, .connections = 1,
    .window = 64, .batch = 1, .queues = 4, .body_bytes = 1024, .max_messages_per_pull = 32, .seconds = 5, .warmup = 1,
};

static struct {
    uint64_t begin_ns, requests, messages, bytes_in, bytes_out;
    uint64_t messages_of_turn[TURNS_MAX];
    Latencies latencies;
} measured;
static uint64_t acknowledged_total, issued_total;
static uint32_t key_counter;
static bool pulling, measuring;
static int epoll_fd;

/* --- frames ---------------------------------------------------------------------------------------------------------- */

static void make_send_frame(Form *form, const char *topic, int queue, const char *key_prefix) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    bool batched = options.batch > 1;
    char properties[128], batch_properties[80], delay[32] = "";
    int properties_bytes = snprintf(batch_properties, sizeof batch_properties, "UNIQ_KEY\x01%s%s\x02WAIT\x01true",
                                    key_prefix, KEY_DIGITS);
    if (options.delay_s) snprintf(delay, sizeof delay, "\\u0002TIMER_DELAY_SEC\\u0001%d", options.delay_s);
    snprintf(properties, sizeof properties, "UNIQ_KEY\\u0001%s%s\\u0002WAIT\\u0001true%s", key_prefix, KEY_DIGITS, delay);
    size_t message_bytes = 20 + (size_t)options.body_bytes + 2 + (size_t)properties_bytes;
    size_t body_bytes = batched ? message_bytes * (size_t)options.batch : (size_t)options.body_bytes;

    form->frame = allocate(1, 1024 + strlen(topic) + strlen(options.group) + body_bytes);
    form->key_digits = allocate((size_t)options.batch, sizeof *form->key_digits);
    char *header = form->frame + 8;
    int header_bytes = sprintf(
        header,
        "{\"code\":%d,\"extFields\":{\"a\":\"%s\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\",\"f\":\"0\","
        "\"g\":\"%" PRId64 "\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\"},\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}",
        batched ? CODE_SEND_BATCH : CODE_SEND_V2, options.group, topic, options.queues, queue,
        (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000, batched ? "" : properties, batched ? "true" : "false",
        OPAQUE_BASE);
    form->opaque_digits = strstr(header, "\"opaque\":") + strlen("\"opaque\":");
    char *body = header + header_bytes;
    if (batched) {
        for (int i = 0; i < options.batch; i++, body += message_bytes) {
            char *p = body;
            put_u32(p, (uint32_t)message_bytes); /* then magic, body CRC and flag: 0 */
            put_u32(p + 16, (uint32_t)options.body_bytes);
            fill_body(p + 20, options.body_bytes);
            p += 20 + options.body_bytes;
            put_u16(p, (uint16_t)properties_bytes);
            memcpy(p + 2, batch_properties, (size_t)properties_bytes);
            form->key_digits[i] = p + 2 + strlen("UNIQ_KEY\x01") + strlen(key_prefix);
        }
    } else {
        fill_body(body, options.body_bytes);
        form->key_digits[0] = strstr(header, "UNIQ_KEY\\u0001") + strlen("UNIQ_KEY\\u0001") + strlen(key_prefix);
    }
    form->frame_bytes = finish_frame(form->frame, header_bytes, body_bytes);
}

static void make_pull_frame(Slot *slot) {
    int header_bytes = sprintf(
        slot->form->frame + 8,
        "{\"code\":%d,\"extFields\":{\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%" PRId64
        "\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\","
        "\"subscription\":\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":%" PRIu32 ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}",
        CODE_PULL, options.group, options.topic, slot->queue, slot->next_offset, options.max_messages_per_pull,
        slot->opaque);
    slot->form->frame_bytes = finish_frame(slot->form->frame, header_bytes, 0);
}

static void patch_send_frame(Slot *slot) {
    uint32_t value = slot->opaque;
    for (int i = 9; i >= 0; i--, value /= 10) slot->form->opaque_digits[i] = (char)('0' + value % 10);
    for (int m = 0; m < options.batch; m++) {
        uint64_t key = slot->sent_ns / 1000000 << 16 | (key_counter++ & 0xFFFF);
        for (int i = 11; i >= 0; i--, key >>= 4) slot->form->key_digits[m][i] = "0123456789ABCDEF"[key & 15];
    }
}

/* --- sending --------------------------------------------------------------------------------------------------------- */

static void watch(Connection *c, int operation, bool wants_write) {
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0u), .data.ptr = c};
    if (epoll_ctl(epoll_fd, operation, c->fd, &event)) fail(1, "epoll_ctl");
    c->wants_write = wants_write;
}

/* Returns the number of the turn at a time; 0 before the measured time. */
static uint64_t turn_at(uint64_t ns) { return measuring ? (ns - measured.begin_ns) / TURN_NS : 0; }

/* Puts the slot's next request on the connection's list, which flush_frames() sends. */
static void issue(Connection *c, int slot_index) {
    if (options.messages && !pulling && issued_total >= options.messages) return;
    Slot *slot = &c->slots[slot_index];
    uint32_t laps = OPAQUE_RANGE / SLOTS_MAX; /* the opaque encodes the slot, and is not reused for long */
    slot->opaque = OPAQUE_BASE + (c->sequence++ % laps) * SLOTS_MAX + (uint32_t)slot_index;
    slot->sent_ns = now_ns();
    slot->form = &slot->forms[options.other_topic ? (turn_at(slot->sent_ns) + 1) / 2 % 2 : 0];
    if (pulling) make_pull_frame(slot);
    else patch_send_frame(slot);
    slot->in_flight = true;
    issued_total += (uint64_t)options.batch;
    c->unsent[(c->unsent_head + c->unsent_count++) % c->slot_count] = slot_index;
}

static void flush_frames(Connection *c) {
    while (c->unsent_count) {
        struct iovec parts[IOV_BATCH];
        int count = c->unsent_count < IOV_BATCH ? c->unsent_count : IOV_BATCH;
        for (int i = 0; i < count; i++) {
            const Form *form = c->slots[c->unsent[(c->unsent_head + i) % c->slot_count]].form;
            size_t skip = i ? 0 : c->head_sent;
            parts[i] = (struct iovec){form->frame + skip, form->frame_bytes - skip};
        }
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) fail(1, "send");
            if (!c->wants_write) watch(c, EPOLL_CTL_MOD, true);
            return;
        }
        if (measuring) measured.bytes_out += (uint64_t)sent;
        c->head_sent += (size_t)sent;
        for (; c->unsent_count; c->unsent_count--) {
            size_t frame_bytes = c->slots[c->unsent[c->unsent_head]].form->frame_bytes;
            if (c->head_sent < frame_bytes) break;
            c->head_sent -= frame_bytes;
            c->unsent_head = (c->unsent_head + 1) % c->slot_count;
        }
    }
    if (c->wants_write) watch(c, EPOLL_CTL_MOD, false);
}

/* --- receiving ------------------------------------------------------------------------------------------------------- */

/* Counts the records of a pull's body and checks that they continue the queue; -1 if one is malformed. */
static int count_records(const char *body, size_t bytes, int64_t next_offset) {
    int count = 0;
    for (size_t at = 0; at < bytes; count++) {
        size_t size = sound_record(body + at, bytes - at, RECORD_FIXED, next_offset + count);
        if (!size) return -1;
        at += size;
    }
    return count;
}

/* Returns the number of messages that this answer brought or acknowledged. Counts an error and returns 0 if it failed. */
static int accept_answer(Slot *slot, const Answer *answer) {
    int64_t code = answer_number(answer, "\"code\":", ERROR_OTHER_CODE);
    if (!pulling) {
        if (code == ANSWER_OK) return options.batch;
        issued_total -= (uint64_t)options.batch; /* another one is sent instead, if a number of messages is wanted */
        count_error(code);
        return 0;
    }
    int64_t next = answer_number(answer, "\"nextBeginOffset\":", slot->next_offset);
    if (code == ANSWER_PULL_NOT_FOUND) {
        slot->next_offset = slot->first_offset;
        return 0;
    }
    if (code == ANSWER_OK) {
        int count = count_records(answer->body, answer->body_bytes, slot->next_offset);
        if (count < 0) errors[ERROR_RECORD]++;
        slot->next_offset = next;
        return count < 0 ? 0 : count;
    }
    if (code != ANSWER_PULL_RETRY) count_error(code);
    slot->next_offset = next;
    return 0;
}

static void on_answer(void *connection, const Answer *answer, uint64_t now) {
    Connection *c = connection;
    int64_t opaque = answer_number(answer, "\"opaque\":", -1);
    int64_t slot_index = opaque < OPAQUE_BASE ? -1 : (opaque - OPAQUE_BASE) % SLOTS_MAX;
    if (slot_index < 0 || slot_index >= c->slot_count || !c->slots[slot_index].in_flight ||
        c->slots[slot_index].opaque != opaque) {
        errors[ERROR_OPAQUE]++;
        return;
    }
    Slot *slot = &c->slots[slot_index];
    slot->in_flight = false;
    int messages = accept_answer(slot, answer);
    acknowledged_total += (uint64_t)messages;
    if (measuring && messages) {
        measured.requests++;
        measured.messages += (uint64_t)messages;
        if (slot->sent_ns >= measured.begin_ns) measured.messages_of_turn[turn_at(slot->sent_ns)] += (uint64_t)messages;
        add_latency(&measured.latencies, now - slot->sent_ns);
    }
    issue(c, (int)slot_index);
}

static void on_readable(Connection *c) {
    size_t got = receive_answers(c->fd, &c->received, on_answer, c);
    if (measuring) measured.bytes_in += got;
    flush_frames(c);
}

/* --- set-up, run, report --------------------------------------------------------------------------------------------- */

static void open_connection(Connection *c, int index, const char *key_prefix) {
    c->slot_count = options.window;
    if (pulling) c->slot_count = (options.queues - index + options.connections - 1) / options.connections;
    c->slots = allocate((size_t)c->slot_count, sizeof *c->slots);
    c->unsent = allocate((size_t)c->slot_count, sizeof *c->unsent);
    c->received = make_received(1 << 20);
    for (int s = 0; s < c->slot_count; s++) {
        if (pulling) {
            c->slots[s].queue = index + s * options.connections;
            c->slots[s].forms[0].frame = allocate(1, 1024 + strlen(options.topic) + strlen(options.group));
        } else {
            int queue = (options.spread ? index * options.window + s : index) % options.queues;
            make_send_frame(&c->slots[s].forms[0], options.topic, queue, key_prefix);
            if (options.other_topic) make_send_frame(&c->slots[s].forms[1], options.other_topic, queue, key_prefix);
        }
    }
    struct in_addr host;
    if (inet_pton(AF_INET, options.host, &host) != 1) errno = 0, fail(2, "--host must be an IPv4 address");
    c->fd = connect_to(host, options.port);
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK)) fail(1, "O_NONBLOCK");
    watch(c, EPOLL_CTL_ADD, false);
}

static void report(double seconds, double cpu) {
    printf("{\"seconds\":%.4f,\"requests\":%" PRIu64 ",\"messages\":%" PRIu64 ",\"messages_per_s\":%.1f,"
           "\"acknowledged_total\":%" PRIu64 ",\"received_mb_per_s\":%.2f,\"sent_mb_per_s\":%.2f,\"p50_us\":%.1f,"
           "\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,\"generator_cpu_s\":%.4f,\"errors\":{",
           seconds, measured.requests, measured.messages, (double)measured.messages / seconds, acknowledged_total,
           (double)measured.bytes_in / seconds / 1e6, (double)measured.bytes_out / seconds / 1e6, quantile_us(&measured.latencies, 0.50),
           quantile_us(&measured.latencies, 0.99), quantile_us(&measured.latencies, 0.999), (double)measured.latencies.max_ns / 1000.0, cpu);
    print_errors();
    printf("},\"messages_of_turn\":[");
    for (int turn = 0; options.other_topic && turn < (int)(options.seconds * 1e9 / TURN_NS); turn++)
        printf("%s%" PRIu64, turn ? "," : "", measured.messages_of_turn[turn]);
    printf("]}\n");
}

static int run(Connection *connections) {
    uint64_t start = now_ns(), measure_at = start + (uint64_t)(options.warmup * 1e9), end_at = 0;
    double cpu_before = 0;
    for (int i = 0; i < options.connections; i++) {
        for (int s = 0; s < connections[i].slot_count; s++) issue(&connections[i], s);
        flush_frames(&connections[i]);
    }
    for (;;) {
        uint64_t now = now_ns();
        if (!measuring && now >= measure_at) {
            measuring = true;
            measured.begin_ns = measure_at = now;
            end_at = now + (uint64_t)(options.seconds * 1e9);
            cpu_before = cpu_seconds();
            announce("start");
        }
        bool complete = options.messages && acknowledged_total >= options.messages;
        if (measuring && (now >= end_at || complete)) {
            double cpu = cpu_seconds() - cpu_before;
            announce("end");
            report((double)(now - measure_at) / 1e9, cpu);
            return measured.requests == 0 || (options.messages && !complete) ? 3 : 0;
        }
        uint64_t deadline = measuring ? end_at : measure_at;
        struct epoll_event events[256];
        int wait_ms = (int)((deadline - now) / 1000000u) + 1;
        int count = epoll_wait(epoll_fd, events, 256, wait_ms < 100 ? wait_ms : 100);
        if (count < 0 && errno != EINTR) fail(1, "epoll_wait");
        for (int i = 0; i < count; i++) {
            Connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush_frames(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
        }
    }
}

static void parse_options(int argc, char **argv) {
    static const struct option names[] = {
        {"mode", 1, 0, 'm'},       {"host", 1, 0, 'h'},    {"port", 1, 0, 'p'},       {"topic", 1, 0, 't'},
        {"other-topic", 1, 0, 'o'},
        {"group", 1, 0, 'g'},      {"queues", 1, 0, 'q'},  {"connections", 1, 0, 'c'}, {"window", 1, 0, 'w'},
        {"batch", 1, 0, 'b'},      {"body", 1, 0, 's'},    {"per-pull", 1, 0, 'n'},   {"seconds", 1, 0, 'd'},
        {"warmup", 1, 0, 'u'},     {"messages", 1, 0, 'k'}, {"spread", 1, 0, 'r'},   {"delay-s", 1, 0, 'y'},
        {0, 0, 0, 0},
    };
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "", names, &index)) != -1) {
        const char *name = names[index].name;
        switch (option) {
        case 'm': options.mode = optarg; break;
        case 'h': options.host = optarg; break;
        case 't': options.topic = optarg; break;
        case 'o': options.other_topic = optarg; break;
        case 'g': options.group = optarg; break;
        case 'p': options.port = (int)number(name, optarg, 1, 65535); break;
        case 'q': options.queues = (int)number(name, optarg, 1, QUEUES_MAX); break;
        case 'y': options.delay_s = (int)number(name, optarg, 1, 40 * 86400); break;
        case 'r': options.spread = (int)number(name, optarg, 0, 1); break;
        case 'c': options.connections = (int)number(name, optarg, 1, CONNECTIONS_MAX); break;
        case 'w': options.window = (int)number(name, optarg, 1, SLOTS_MAX); break;
        case 'b': options.batch = (int)number(name, optarg, 1, 4096); break;
        case 's': options.body_bytes = (int)number(name, optarg, 1, MESSAGE_MAX); break;
        case 'n': options.max_messages_per_pull = (int)number(name, optarg, 1, 4096); break;
        case 'd': options.seconds = number(name, optarg, 0.01, 3600); break;
        case 'u': options.warmup = number(name, optarg, 0, 600); break;
        case 'k': options.messages = (uint64_t)number(name, optarg, 1, 1e12); break;
        default: exit(2);
        }
    }
    errno = 0;
    pulling = !strcmp(options.mode, "pull");
    if (!pulling && strcmp(options.mode, "send")) fail(2, "--mode must be send or pull");
    if (pulling && options.connections > options.queues) fail(2, "--connections: a puller without a queue does nothing");
    if (pulling && options.other_topic) fail(2, "--other-topic: only sends take turns");
    if (options.delay_s && options.batch > 1) fail(2, "--delay-s: messages of a batch cannot be delayed");
    if (pulling) options.batch = 1;
    if ((double)options.batch * (options.body_bytes + 128.0) > FRAME_MAX / 2) fail(2, "--batch × --body exceeds 8 MiB");
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    /* UNIQ_KEY as Java's client makes it, 32 hex digits. The prefix made here has address, process and a number of the run.
       Each message adds the millisecond in eight digits and a counter in four. */
    char key_prefix[21];
    snprintf(key_prefix, sizeof key_prefix, "7F000001%04X%08" PRIX32, (unsigned)getpid() & 0xFFFF,
             (uint32_t)(now_ns() / 1000));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) fail(1, "epoll_create1");
    Connection *connections = allocate((size_t)options.connections, sizeof *connections);
    for (int i = 0; i < options.connections; i++) open_connection(&connections[i], i, key_prefix);
    return run(connections);
}
