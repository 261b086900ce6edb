/*
 * Parts that the generators share: connections and their answers, clocks, a histogram of latencies, errors, options. Each
 * program is one source file that includes this one.
 */
#ifndef BENCH_SHARED_H
#define BENCH_SHARED_H

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CODE_PULL = 11,
    CODE_MAX_OFFSET = 30,
    CODE_SEND_V2 = 310,
    CODE_SEND_BATCH = 320,
    ANSWER_OK = 0,
    ANSWER_PULL_NOT_FOUND = 19,
    ANSWER_PULL_RETRY = 20,
    /* Counters beside the response codes, which reach 4999 in RocketMQ. */
    ERROR_OTHER_CODE = 5000,
    ERROR_OPAQUE,
    ERROR_RECORD,
    ERROR_KINDS,
    FRAME_MAX = 16777216,
    SUB_BUCKET_BITS = 6,
    SUB_BUCKETS = 1 << SUB_BUCKET_BITS,
    BUCKETS = (64 - SUB_BUCKET_BITS + 1) * SUB_BUCKETS,
};

typedef struct {
    uint64_t count, max_ns;
    uint64_t histogram[BUCKETS];
} Latencies;

static inline void fail(int status, const char *what) {
    if (errno) perror(what);
    else fprintf(stderr, "%s\n", what);
    exit(status);
}

static inline void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory) fail(1, "out of memory");
    return memory;
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void put_u16(char *p, uint16_t v) { v = htons(v); memcpy(p, &v, 2); }
static inline void put_u32(char *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static inline uint32_t get_u32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static inline int64_t get_i64(const char *p) { return (int64_t)((uint64_t)get_u32(p) << 32 | get_u32(p + 4)); }

/* --- latency histogram: SUB_BUCKETS per power of two, so a bucket is at most 1/64 wide ------------------------------ */

static inline int bucket_of(uint64_t ns) {
    if (ns < SUB_BUCKETS) return (int)ns;
    int exponent = 63 - __builtin_clzll(ns) - SUB_BUCKET_BITS;
    return ((exponent + 1) << SUB_BUCKET_BITS) + (int)((ns >> exponent) & (SUB_BUCKETS - 1));
}

static inline uint64_t bucket_top_ns(int bucket) {
    if (bucket < SUB_BUCKETS) return (uint64_t)bucket;
    int exponent = (bucket >> SUB_BUCKET_BITS) - 1;
    return ((uint64_t)(SUB_BUCKETS + (bucket & (SUB_BUCKETS - 1))) << exponent) + ((1ull << exponent) - 1);
}

static inline void add_latency(Latencies *all, uint64_t ns) {
    all->count++;
    all->histogram[bucket_of(ns)]++;
    if (ns > all->max_ns) all->max_ns = ns;
}

static inline double quantile_us(const Latencies *all, double q) {
    uint64_t rank = (uint64_t)(q * (double)all->count), seen = 0;
    for (int b = 0; b < BUCKETS; b++) {
        seen += all->histogram[b];
        if (seen > rank) {
            uint64_t top = bucket_top_ns(b);
            return (double)(top < all->max_ns ? top : all->max_ns) / 1000.0;
        }
    }
    return (double)all->max_ns / 1000.0;
}

/* --- frames and headers ---------------------------------------------------------------------------------------------- */

/* Writes the lengths before the header; returns the size of the frame. Room for the body must follow the header. */
static inline size_t finish_frame(char *frame, int header_bytes, size_t body_bytes) {
    put_u32(frame, (uint32_t)(4 + (size_t)header_bytes + body_bytes));
    put_u32(frame + 4, (uint32_t)header_bytes); /* high byte 0: JSON */
    return 8 + (size_t)header_bytes + body_bytes;
}

static inline void fill_body(char *p, int bytes) {
    static uint32_t state = 2463534242u;
    for (int i = 0; i < bytes; i++) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        p[i] = (char)(' ' + state % 95);
    }
}

/* Returns the number after `name` (which ends in a colon), with or without quotes; `missing` if it is not there. */
static inline int64_t header_number(const char *header, size_t bytes, const char *name, int64_t missing) {
    const char *at = memmem(header, bytes, name, strlen(name)), *end = header + bytes;
    if (!at) return missing;
    at += strlen(name);
    if (at < end && *at == '"') at++;
    bool negative = at < end && *at == '-';
    int64_t value = 0;
    for (at += negative; at < end && *at >= '0' && *at <= '9'; at++) value = value * 10 + (*at - '0');
    return negative ? -value : value;
}

/* --- receiving -------------------------------------------------------------------------------------------------------- */

/* Received bytes of a connection that are no whole frame yet. */
typedef struct {
    char *bytes;
    size_t count, capacity;
} Received;

typedef struct {
    const char *header, *body;
    size_t header_bytes, body_bytes;
} Answer;

static inline Received make_received(size_t capacity) {
    return (Received){.bytes = allocate(1, capacity), .capacity = capacity};
}

static inline Answer answer_of(const char *frame, size_t frame_bytes) {
    uint32_t word = get_u32(frame + 4);
    size_t header_bytes = word & 0xFFFFFF;
    if (word >> 24 || header_bytes > frame_bytes - 8) errno = 0, fail(1, "the answer's header is not JSON");
    return (Answer){frame + 8, frame + 8 + header_bytes, header_bytes, frame_bytes - 8 - header_bytes};
}

/* Receives once and passes each complete answer to `on_answer`; returns the number of received bytes. */
static inline size_t receive_answers(int fd, Received *received,
                                     void (*on_answer)(void *connection, const Answer *answer, uint64_t now),
                                     void *connection) {
    ssize_t got = recv(fd, received->bytes + received->count, received->capacity - received->count, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got < 0) fail(1, "recv");
    if (got == 0) errno = 0, fail(1, "the broker closed the connection");
    received->count += (size_t)got;
    uint64_t now = now_ns();
    size_t at = 0;
    while (received->count - at >= 4) {
        size_t frame_bytes = (size_t)get_u32(received->bytes + at) + 4;
        if (frame_bytes < 8 || frame_bytes > FRAME_MAX) errno = 0, fail(1, "an answer has an impossible length");
        if (received->count - at < frame_bytes) {
            if (frame_bytes > received->capacity) {
                received->capacity = frame_bytes * 2;
                if (!(received->bytes = realloc(received->bytes, received->capacity))) fail(1, "out of memory");
            }
            break;
        }
        Answer answer = answer_of(received->bytes + at, frame_bytes);
        on_answer(connection, &answer, now);
        at += frame_bytes;
    }
    memmove(received->bytes, received->bytes + at, received->count - at);
    received->count -= at;
    return (size_t)got;
}

static inline int64_t answer_number(const Answer *answer, const char *name, int64_t missing) {
    return header_number(answer->header, answer->header_bytes, name, missing);
}

/* Returns the size of the first record if it has at least `least` bytes, is complete, and has this offset in its queue;
   else 0. */
static inline size_t sound_record(const char *records, size_t bytes, size_t least, int64_t offset) {
    if (bytes < least) return 0;
    uint32_t size = get_u32(records), magic = get_u32(records + 4);
    if (size < least || size > bytes || (magic != 0xDAA320A7u && magic != 0xDAA320ABu)) return 0;
    return get_i64(records + 20) == offset ? size : 0;
}

static inline int connect_to(struct in_addr host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = host};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail(1, "connect");
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail(1, "TCP_NODELAY");
    return fd;
}

/* --- errors, by code ---------------------------------------------------------------------------------------------------- */

static uint64_t errors[ERROR_KINDS];

static inline void count_error(int64_t code) { errors[code >= 0 && code < ERROR_OTHER_CODE ? code : ERROR_OTHER_CODE]++; }

/* Prints the errors as members of a JSON object. */
static inline void print_errors(void) {
    const char *comma = "";
    for (int kind = 0; kind < ERROR_KINDS; kind++) {
        if (!errors[kind]) continue;
        if (kind == ERROR_OPAQUE) printf("%s\"opaque\":%" PRIu64, comma, errors[kind]);
        else if (kind == ERROR_RECORD) printf("%s\"record\":%" PRIu64, comma, errors[kind]);
        else if (kind == ERROR_OTHER_CODE) printf("%s\"other\":%" PRIu64, comma, errors[kind]);
        else printf("%s\"%d\":%" PRIu64, comma, kind, errors[kind]);
        comma = ",";
    }
}

/* --- use of the processor, options ------------------------------------------------------------------------------------ */

static inline double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static inline void announce(const char *event) {
    printf("{\"event\":\"%s\"}\n", event);
    fflush(stdout);
}

static inline double number(const char *name, const char *text, double least, double most) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || value < least || value > most) {
        fprintf(stderr, "--%s %s: a number from %g to %g expected\n", name, text, least, most);
        exit(2);
    }
    return value;
}

#endif
