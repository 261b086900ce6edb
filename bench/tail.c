/*
 * Load generator for consumers that wait at the end of a queue: one thread, one epoll loop, an open loop.
 *
 * One connection sends --rate messages a second (SEND_MESSAGE_V2, 310) to the queues in turn, whatever becomes of them:
 * a message that leaves late counts from when it was due. Every one of --consumers has a connection and a long poll
 * (PULL_MESSAGE, 11) of its own; consumer c reads queue c mod queues from its end on, so that each message reaches all
 * consumers of its queue. What is measured is the time from when a message was due to its receipt by each of them.
 *
 * Records are checked as gen.c checks them; a message that is not acknowledged counts as an error under its code.
 * Standard output, exit status: as of gen.c; a "message" is one receipt.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "shared.h"

enum {
    CODE_PULL = 11,
    CODE_MAX_OFFSET = 30,
    CODE_SEND_V2 = 310,
    ANSWER_OK = 0,
    ANSWER_PULL_NOT_FOUND = 19,
    ANSWER_PULL_RETRY = 20,
    /* Counters beside the response codes, which reach 4999 in RocketMQ. */
    ERROR_OTHER_CODE = 5000,
    ERROR_RECORD,
    ERROR_KINDS,
    RECORD_BODY = 88, /* with IPv4 addresses, as all here are */
    HEADER_MAX = 1024,
    CONSUMERS_MAX = 20000,
    SUSPEND_MS = 15000,
    SPARE_FILES = 64,
};
static const uint32_t RECORD_MAGIC_V1 = 0xDAA320A7u, RECORD_MAGIC_V2 = 0xDAA320ABu;

typedef struct {
    int fd;
    int queue; /* that a consumer reads */
    int64_t next_offset;
    bool consumes;
    char *received;
    size_t received_bytes, received_capacity;
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
static uint64_t errors[ERROR_KINDS], received_total, sent_total;
static bool measuring;
static uint64_t measure_at_ns;
static char *send_frame;
static char key_prefix[21];

/* Sends all of a frame; only a service that has stopped reading makes this wait. */
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

/* Takes the times out of a pull's records; false if one is malformed or does not continue the queue. */
static bool take_records(const Connection *c, const char *records, size_t bytes, uint64_t now) {
    int64_t offset = c->next_offset;
    for (size_t at = 0; at < bytes; offset++) {
        if (bytes - at < RECORD_BODY + sizeof(uint64_t)) return false;
        uint32_t size = get_u32(records + at), magic = get_u32(records + at + 4);
        if (size < RECORD_BODY + sizeof(uint64_t) || size > bytes - at) return false;
        if (magic != RECORD_MAGIC_V1 && magic != RECORD_MAGIC_V2) return false;
        if (get_i64(records + at + 20) != offset) return false;
        uint64_t due_ns;
        memcpy(&due_ns, records + at + RECORD_BODY, sizeof due_ns);
        received_total++;
        if (measuring && due_ns >= measure_at_ns) add_latency(&measured.latencies, now - due_ns);
        at += size;
    }
    return true;
}

static void count_error(int64_t code) { errors[code >= 0 && code < ERROR_OTHER_CODE ? code : ERROR_OTHER_CODE]++; }

static void on_frame(Connection *c, const char *frame, size_t frame_bytes, uint64_t now) {
    uint32_t word = get_u32(frame + 4);
    size_t header_bytes = word & 0xFFFFFF;
    if (word >> 24 || header_bytes > frame_bytes - 8) errno = 0, fail(1, "the answer's header is not JSON");
    const char *header = frame + 8, *body = header + header_bytes;
    int64_t code = header_number(header, header_bytes, "\"code\":", ERROR_OTHER_CODE);
    if (!c->consumes) {
        if (code != ANSWER_OK) count_error(code);
        return;
    }
    if (code == ANSWER_OK) {
        if (!take_records(c, body, frame_bytes - 8 - header_bytes, now)) errors[ERROR_RECORD]++;
    } else if (code != ANSWER_PULL_NOT_FOUND && code != ANSWER_PULL_RETRY) {
        count_error(code);
    }
    c->next_offset = header_number(header, header_bytes, "\"nextBeginOffset\":", c->next_offset);
    put_pull(c);
}

static void on_readable(Connection *c) {
    ssize_t got = recv(c->fd, c->received + c->received_bytes, c->received_capacity - c->received_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0) fail(1, "recv");
    if (got == 0) errno = 0, fail(1, "the broker closed the connection");
    c->received_bytes += (size_t)got;
    if (measuring) measured.bytes_in += (uint64_t)got;
    uint64_t now = now_ns();
    size_t at = 0;
    while (c->received_bytes - at >= 8) {
        size_t frame_bytes = (size_t)get_u32(c->received + at) + 4;
        if (frame_bytes < 8 || frame_bytes > FRAME_MAX) errno = 0, fail(1, "an answer has an impossible length");
        if (c->received_bytes - at < frame_bytes) {
            if (frame_bytes > c->received_capacity) {
                c->received_capacity = frame_bytes * 2;
                if (!(c->received = realloc(c->received, c->received_capacity))) fail(1, "out of memory");
            }
            break;
        }
        on_frame(c, c->received + at, frame_bytes, now);
        at += frame_bytes;
    }
    memmove(c->received, c->received + at, c->received_bytes - at);
    c->received_bytes -= at;
}

static void open_connection(Connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail(1, "connect");
    if (setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail(1, "TCP_NODELAY");
    c->received_capacity = 1 << 14;
    c->received = allocate(1, c->received_capacity);
}

/* The end of a queue, asked on a connection on which nothing is in flight. */
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
    const char *comma = "";
    for (int kind = 0; kind < ERROR_KINDS; kind++) {
        if (!errors[kind]) continue;
        if (kind == ERROR_RECORD) printf("%s\"record\":%" PRIu64, comma, errors[kind]);
        else if (kind == ERROR_OTHER_CODE) printf("%s\"other\":%" PRIu64, comma, errors[kind]);
        else printf("%s\"%d\":%" PRIu64, comma, kind, errors[kind]);
        comma = ",";
    }
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

/* A descriptor for each consumer is more than what many shells allow at first. */
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
