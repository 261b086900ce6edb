/*
 * Load generator for consumers that wait at the end of a queue: one thread, one epoll loop, an open loop.
 *
 * One connection sends --rate messages a second (SEND_MESSAGE_V2, 310) to the queues in turn, and does not wait for
 * answers. The time of a message that leaves late counts from when it was due. Every one of --consumers has a connection
 * and a long poll (PULL_MESSAGE, 11) of its own. Consumer c reads queue c mod queues from its end on, so that each message
 * reaches all consumers of its queue. The measured time of each receipt begins when the message was due.
 *
 * Records are checked as in gen.c. A message that is not acknowledged counts as an error under its code. Standard output
 * and exit status are those of gen.c; a "message" is one receipt.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "shared.h"

enum {
    RECORD_BODY = 88, /* with IPv4 addresses, which all records here have */
    HEADER_MAX = 1024,
    CONSUMERS_MAX = 20000,
    SUSPEND_MS = 15000,
    SPARE_FILES = 64,
};

typedef struct {
    int fd;
    int queue; /* the queue that a consumer reads */
    int64_t next_offset;
    bool consumes;
    Received received;
} Connection;

static struct {
    const char *topic, *group;
    int port, consumers, queues, body_bytes, rate;
    double seconds, warmup;
} options = {.topic = "bench", .group = "bench-tail", .port = 10911, .consumers = 1, .queues = 4, .body_bytes = 1024,
             .rate = 1000, .seconds = 5, .warmup = 1};

static struct {
    uint64_t bytes_in, bytes_out;
    Latencies latencies;
} measured;
static uint64_t received_total, sent_total;
static bool measuring;
static uint64_t measure_at_ns;
static char *send_frame;
static char key_prefix[21];

/* Sends a whole frame; waits only if the service has stopped reading. */
static void put_all(Connection *c, const char *bytes, size_t count) {
    if (measuring) measured.bytes_out += count;
    while (count) {
        ssize_t sent = send(c->fd, bytes, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) fail(1, "send");
        bytes += sent, count -= (size_t)sent;
    }
}

static void put_pull(Connection *c) {
    char frame[HEADER_MAX];
    int header_bytes = snprintf(
        frame + 8, sizeof frame - 8,
        "{\"code\":%d,\"extFields\":{\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%" PRId64
        "\",\"maxMsgNums\":\"32\",\"sysFlag\":\"6\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"%d\","
        "\"subscription\":\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":1,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}",
        CODE_PULL, options.group, options.topic, c->queue, c->next_offset, SUSPEND_MS);
    put_all(c, frame, finish_frame(frame, header_bytes, 0));
}

static void put_message(Connection *c, uint64_t due_ns) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int header_bytes = snprintf(
        send_frame + 8, HEADER_MAX,
        "{\"code\":%d,\"extFields\":{\"a\":\"%s\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\",\"f\":\"0\","
        "\"g\":\"%" PRId64 "\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001%s%012" PRIX64 "\\u0002WAIT\\u0001true\",\"j\":\"0\","
        "\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":1,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}",
        CODE_SEND_V2, options.group, options.topic, options.queues, (int)(sent_total % (uint64_t)options.queues),
        (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000, key_prefix, sent_total);
    char *body = send_frame + 8 + header_bytes;
    fill_body(body, options.body_bytes);
    memcpy(body, &due_ns, sizeof due_ns);
    put_all(c, send_frame, finish_frame(send_frame, header_bytes, (size_t)options.body_bytes));
    sent_total++;
}

/* Adds the latencies of a pull's records; false if one is malformed or does not continue the queue. */
static bool take_records(const Connection *c, const char *records, size_t bytes, uint64_t now) {
    int64_t offset = c->next_offset;
    for (size_t at = 0; at < bytes; offset++) {
        size_t size = sound_record(records + at, bytes - at, RECORD_BODY + sizeof(uint64_t), offset);
        if (!size) return false;
        uint64_t due_ns;
        memcpy(&due_ns, records + at + RECORD_BODY, sizeof due_ns);
        received_total++;
        if (measuring && due_ns >= measure_at_ns) add_latency(&measured.latencies, now - due_ns);
        at += size;
    }
    return true;
}

static void on_answer(void *connection, const Answer *answer, uint64_t now) {
    Connection *c = connection;
    int64_t code = answer_number(answer, "\"code\":", ERROR_OTHER_CODE);
    if (!c->consumes) {
        if (code != ANSWER_OK) count_error(code);
        return;
    }
    if (code == ANSWER_OK) {
        if (!take_records(c, answer->body, answer->body_bytes, now)) errors[ERROR_RECORD]++;
    } else if (code != ANSWER_PULL_NOT_FOUND && code != ANSWER_PULL_RETRY) {
        count_error(code);
    }
    c->next_offset = answer_number(answer, "\"nextBeginOffset\":", c->next_offset);
    put_pull(c);
}

static void on_readable(Connection *c) {
    size_t got = receive_answers(c->fd, &c->received, on_answer, c);
    if (measuring) measured.bytes_in += got;
}

static void open_connection(Connection *c) {
    c->fd = connect_to((struct in_addr){htonl(INADDR_LOOPBACK)}, options.port);
    c->received = make_received(1 << 14);
}

/* Returns the end of a queue. No request may be in flight on the connection. */
static int64_t end_of_queue(Connection *c, int queue) {
    char frame[HEADER_MAX], answer[HEADER_MAX * 4];
    int header_bytes = snprintf(
        frame + 8, sizeof frame - 8,
        "{\"code\":%d,\"extFields\":{\"topic\":\"%s\",\"queueId\":\"%d\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":1,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}",
        CODE_MAX_OFFSET, options.topic, queue);
    put_all(c, frame, finish_frame(frame, header_bytes, 0));
    if (recv(c->fd, answer, 8, MSG_WAITALL) != 8) fail(1, "the end of a queue");
    size_t rest = (size_t)get_u32(answer) - 4;
    if (rest > sizeof answer || recv(c->fd, answer, rest, MSG_WAITALL) != (ssize_t)rest) fail(1, "the end of a queue");
    int64_t offset = header_number(answer, rest, "\"offset\":", -1);
    if (offset < 0) errno = 0, fail(1, "the broker does not know the topic");
    return offset;
}

static void report(double seconds, double cpu) {
    uint64_t count = measured.latencies.count;
    printf("{\"seconds\":%.4f,\"requests\":%" PRIu64 ",\"messages\":%" PRIu64 ",\"messages_per_s\":%.1f,"
           "\"acknowledged_total\":%" PRIu64 ",\"received_mb_per_s\":%.2f,\"sent_mb_per_s\":%.2f,\"p50_us\":%.1f,"
           "\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,\"generator_cpu_s\":%.4f,\"errors\":{",
           seconds, count, count, (double)count / seconds, received_total, (double)measured.bytes_in / seconds / 1e6,
           (double)measured.bytes_out / seconds / 1e6, quantile_us(&measured.latencies, 0.50),
           quantile_us(&measured.latencies, 0.99), quantile_us(&measured.latencies, 0.999),
           (double)measured.latencies.max_ns / 1000.0, cpu);
    print_errors();
    printf("}}\n");
}

static int start_ticking(uint64_t interval_ns) {
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct timespec interval = {(time_t)(interval_ns / 1000000000u), (long)(interval_ns % 1000000000u)};
    if (timer < 0 || timerfd_settime(timer, 0, &(struct itimerspec){interval, interval}, 0)) fail(1, "timerfd");
    return timer;
}

static int run(Connection *sender, Connection *consumers, int epoll_fd) {
    uint64_t interval_ns = 1000000000u / (uint64_t)options.rate, due_ns = now_ns() + interval_ns;
    uint64_t begin_ns = due_ns + (uint64_t)(options.warmup * 1e9), end_ns = begin_ns + (uint64_t)(options.seconds * 1e9);
    int timer = start_ticking(interval_ns);
    struct epoll_event tick = {.events = EPOLLIN, .data.ptr = &timer};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer, &tick)) fail(1, "epoll_ctl");
    double cpu_before = 0;
    for (int i = 0; i < options.consumers; i++) put_pull(&consumers[i]);
    for (;;) {
        struct epoll_event events[256];
        int count = epoll_wait(epoll_fd, events, 256, 1000);
        if (count < 0 && errno != EINTR) fail(1, "epoll_wait");
        for (int i = 0; i < count; i++) {
            uint64_t ticks;
            if (events[i].data.ptr != &timer) on_readable(events[i].data.ptr);
            else if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) fail(1, "timerfd");
        }
        for (uint64_t now = now_ns(); due_ns <= now; due_ns += interval_ns) {
            if (!measuring && due_ns >= begin_ns) {
                measuring = true;
                measure_at_ns = due_ns;
                cpu_before = cpu_seconds();
                announce("start");
            }
            if (due_ns >= end_ns) {
                double cpu = cpu_seconds() - cpu_before;
                announce("end");
                report((double)(now_ns() - measure_at_ns) / 1e9, cpu);
                return measured.latencies.count ? 0 : 3;
            }
            put_message(sender, due_ns);
        }
    }
}

static void parse_options(int argc, char **argv) {
    static const struct option names[] = {
        {"port", 1, 0, 'p'},   {"topic", 1, 0, 't'}, {"consumers", 1, 0, 'c'}, {"queues", 1, 0, 'q'}, {"body", 1, 0, 's'},
        {"rate", 1, 0, 'r'}, {"seconds", 1, 0, 'd'},   {"warmup", 1, 0, 'u'}, {0, 0, 0, 0},
    };
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "", names, &index)) != -1) {
        const char *name = names[index].name;
        switch (option) {
        case 't': options.topic = optarg; break;
        case 'p': options.port = (int)number(name, optarg, 1, 65535); break;
        case 'c': options.consumers = (int)number(name, optarg, 1, CONSUMERS_MAX); break;
        case 'q': options.queues = (int)number(name, optarg, 1, 65536); break;
        case 's': options.body_bytes = (int)number(name, optarg, 8, 4 << 20); break;
        case 'r': options.rate = (int)number(name, optarg, 1, 1000000); break;
        case 'd': options.seconds = number(name, optarg, 0.01, 3600); break;
        case 'u': options.warmup = number(name, optarg, 0, 600); break;
        default: exit(2);
        }
    }
    errno = 0;
    if (strlen(options.topic) > 127) fail(2, "--topic: at most 127 characters");
}

/* Raises the limit of open files: many shells allow fewer than one for each consumer. */
static void allow_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) fail(1, "getrlimit");
    rlim_t wanted = (rlim_t)options.consumers + SPARE_FILES;
    if (limit.rlim_cur >= wanted) return;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) fail(1, "setrlimit");
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    allow_files();
    snprintf(key_prefix, sizeof key_prefix, "7F000001%04X%08" PRIX32, (unsigned)getpid() & 0xFFFF,
             (uint32_t)(now_ns() / 1000));
    send_frame = allocate(1, 8 + HEADER_MAX + (size_t)options.body_bytes);
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) fail(1, "epoll_create1");
    Connection sender = {0}, *consumers = allocate((size_t)options.consumers, sizeof *consumers);
    int64_t *ends = allocate((size_t)options.queues, sizeof *ends);
    open_connection(&sender);
    for (int queue = 0; queue < options.queues; queue++) ends[queue] = end_of_queue(&sender, queue);
    for (int i = 0; i <= options.consumers; i++) {
        Connection *c = i < options.consumers ? &consumers[i] : &sender;
        if (c != &sender) {
            open_connection(c);
            c->consumes = true;
            c->queue = i % options.queues;
            c->next_offset = ends[c->queue];
        }
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event)) fail(1, "epoll_ctl");
    }
    return run(&sender, consumers, epoll_fd);
}
