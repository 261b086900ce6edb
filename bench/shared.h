/*
 * What the generators share: bytes of a frame, clocks, a histogram of latencies, options. Each program is one source file
 * that includes this one.
 */
#ifndef BENCH_SHARED_H
#define BENCH_SHARED_H

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum {
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

/* Writes length, header length and header; returns the frame's bytes. Room for the body must follow the header. */
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

/* The number after `name` (which ends in a colon), with or without quotes; `missing` if it is not there. */
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
