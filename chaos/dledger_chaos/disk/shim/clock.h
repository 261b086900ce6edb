/* The wall clock.  Part of shim.c. */

static int64_t shifted(int64_t ns) {
    int64_t drift = control->drift_ppm ? (ns - control->since_ns) / 1000000 * control->drift_ppm : 0;
    return ns + control->offset_ns + drift;
}

int clock_gettime(clockid_t id, struct timespec *out) {
    if (!real_clock_gettime) load();
    int done = real_clock_gettime(id, out);
    if (done || !control || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return done;
    int64_t ns = shifted((int64_t)out->tv_sec * 1000000000 + out->tv_nsec);
    *out = (struct timespec){ns / 1000000000, ns % 1000000000};
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
