/* What unsynced writes replaced, and the calls that write and sync.  Part of shim.c. */

/* What a process before this one had not synced is still there: a restart syncs nothing. */
static void open_undo(struct file *f) {
    char path[PATH_MAX + 64];
    struct stat st;
    undo_path(f, path, sizeof path);
    f->undo = real_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f->undo < 0 || fstat(f->undo, &st) || (st.st_size < START && real_ftruncate(f->undo, START))) die(path);
    f->head = mmap(0, START, PROT_READ | PROT_WRITE, MAP_SHARED, f->undo, 0);
    if (f->head == MAP_FAILED) die(path);
    if (memcmp(f->head->magic, MAGIC, sizeof f->head->magic)) {
        f->head->synced = f->head->end = START;
        memcpy(f->head->magic, MAGIC, sizeof f->head->magic);
    } else if (f->head->end < f->head->synced) f->head->synced = START;
}

static void open_lost(struct file *f, int flags) {
    char path[PATH_MAX + 64];
    lost_path(f, path, sizeof path);
    if (f->lost < 0) f->lost = real_open(path, O_RDWR | O_APPEND | O_CLOEXEC | flags, 0644);
}

static void continue_undo(struct file *f) {
    char path[PATH_MAX + 64];
    undo_path(f, path, sizeof path);
    pthread_mutex_lock(&f->lock);
    if (!f->head && !access(path, F_OK)) open_undo(f);
    open_lost(f, 0);
    pthread_mutex_unlock(&f->lock);
}

static int64_t size_of(int fd) {
    struct stat st;
    if (fstat(fd, &st)) die("fstat");
    return st.st_size;
}

/* Something happened to a file of which something was lost; under f->lock. */
static void note_lost(struct file *f, int64_t kind, int64_t offset, size_t length) {
    struct record r = {offset, 0, (int64_t)length, kind, 0};
    if (f->lost >= 0 && real_write(f->lost, &r, sizeof r) != sizeof r) die("lost file");
}

static int all_zeros(const char *bytes, size_t n) { return !n || (!*bytes && !memcmp(bytes, bytes + 1, n - 1)); }

/* Keep what a change of [offset, offset + length) replaces, `cut` bytes more at the end of the file; under f->lock. */
static void remember(struct file *f, int fd, int64_t offset, size_t length, int64_t old_size, size_t cut) {
    if (f->dead) return;
    if (!f->head) open_undo(f);
    note_lost(f, REWRITTEN, offset, length + cut);
    size_t touched = length + cut;
    size_t kept = offset >= old_size ? 0 : (size_t)(old_size - offset) < touched ? (size_t)(old_size - offset) : touched;
    struct record *r = malloc(sizeof *r + kept);
    if (!r) die("malloc");
    if (kept && f->reader < 0) {                  /* `fd` may be for writing only */
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        f->reader = real_open(path, O_RDONLY | O_CLOEXEC);
    }
    if (kept && real_pread(f->reader, r + 1, kept, offset) != (ssize_t)kept) die(f->path);
    *r = (struct record){offset, old_size, (int64_t)length, (int64_t)kept, all_zeros((char *)(r + 1), kept)};
    size_t size = sizeof *r + (r->zeros ? 0 : kept);
    if (real_pwrite(f->undo, r, size, (off_t)f->head->end) != (ssize_t)size) die("undo file");
    free(r);
    __sync_synchronize();
    f->head->end += size;
}

/* Before a write: what it replaces is kept, unless the descriptor makes it durable by itself. */
static int before_write(struct file *f, int fd, int64_t offset, size_t length) {
    int64_t size = size_of(fd);
    int error = fault("write", f->path);
    if (!error && offset + (int64_t)length > size) error = fault("extend", f->path);
    if (error) { errno = error; return -1; }
    pthread_mutex_lock(&f->lock);
    if (!durable_writes[fd]) remember(f, fd, offset, length, size, 0);
    else if (f->lost >= 0) {
        note_lost(f, REWRITTEN, offset, length);
        note_lost(f, SYNCED, size_of(f->lost), 0);
    }
    return 0;
}

static int64_t position_of(int fd) { return appending[fd] ? size_of(fd) : lseek(fd, 0, SEEK_CUR); }

static size_t total(const struct iovec *parts, int count) {
    size_t n = 0;
    while (count--) n += parts[count].iov_len;
    return n;
}

#define WRITE(fd, at, length, call) do { \
    struct file *f = file_of(fd); \
    if (!f || f->directory) return call; \
    if (before_write(f, fd, at, length)) return -1; \
    ssize_t done = call; \
    pthread_mutex_unlock(&f->lock); \
    return done; \
} while (0)

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at) { WRITE(fd, at, n, real_pwrite(fd, bytes, n, at)); }
ssize_t pwrite64(int fd, const void *bytes, size_t n, off_t at) { return pwrite(fd, bytes, n, at); }
ssize_t write(int fd, const void *bytes, size_t n) {
    if (!file_of(fd)) return real_write(fd, bytes, n);
    WRITE(fd, position_of(fd), n, real_write(fd, bytes, n));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!file_of(fd)) return real_writev(fd, parts, count);
    size_t n = total(parts, count);
    WRITE(fd, position_of(fd), n, real_writev(fd, parts, count));
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    size_t n = total(parts, count);
    WRITE(fd, at, n, real_pwritev(fd, parts, count, at));
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev(fd, parts, count, at); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    size_t n = total(parts, count);
    WRITE(fd, at < 0 ? position_of(fd) : at, n, real_pwritev2(fd, parts, count, at, flags));
}
ssize_t pwritev64v2(int fd, const struct iovec *p, int count, off_t at, int flags) { return pwritev2(fd, p, count, at, flags); }

#define READ(fd, call) do { struct file *f = file_of(fd); if (f) FAIL("read", f->path); return call; } while (0)
ssize_t pread(int fd, void *bytes, size_t n, off_t at) { READ(fd, real_pread(fd, bytes, n, at)); }
ssize_t pread64(int fd, void *bytes, size_t n, off_t at) { return pread(fd, bytes, n, at); }
ssize_t preadv(int fd, const struct iovec *p, int count, off_t at) { READ(fd, real_preadv(fd, p, count, at)); }
ssize_t preadv64(int fd, const struct iovec *p, int count, off_t at) { return preadv(fd, p, count, at); }
ssize_t preadv2(int fd, const struct iovec *p, int c, off_t at, int flags) { READ(fd, real_preadv2(fd, p, c, at, flags)); }
ssize_t preadv64v2(int fd, const struct iovec *p, int count, off_t at, int flags) { return preadv2(fd, p, count, at, flags); }

int ftruncate(int fd, off_t size) {
    struct file *f = file_of(fd);
    if (!f || f->directory) return real_ftruncate(fd, size);
    FAIL("truncate", f->path);
    pthread_mutex_lock(&f->lock);
    int64_t old = size_of(fd);
    remember(f, fd, size, 0, old, old > size ? (size_t)(old - size) : 0);
    int done = real_ftruncate(fd, size);
    pthread_mutex_unlock(&f->lock);
    return done;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t length) {
    struct file *f = file_of(fd);
    if (!f || f->directory) return real_posix_fallocate(fd, offset, length);
    int64_t old = size_of(fd);
    int error = offset + length > old ? fault("allocate", f->path) : 0;
    if (error) return error;
    pthread_mutex_lock(&f->lock);
    if (offset + length > old) remember(f, fd, old, 0, old, 0);
    int done = real_posix_fallocate(fd, offset, length);
    pthread_mutex_unlock(&f->lock);
    return done;
}
int posix_fallocate64(int fd, off_t offset, off_t length) { return posix_fallocate(fd, offset, length); }

/* What was recorded before a sync began is durable after it.  Records written meanwhile stay. */
static void make_durable(struct file *f, uint64_t upto, int64_t lost) {
    pthread_mutex_lock(&f->lock);
    note_lost(f, SYNCED, lost, 0);
    if (f->head && !f->dead && upto > f->head->synced) {
        f->head->synced = upto;
        uint64_t left = f->head->end - upto;
        if (!left) {
            f->head->end = START;                 /* below `synced`: nothing counts */
            __sync_synchronize();
            f->head->synced = START;
        } else if (upto - START > COMPACT_BYTES && left < upto - START) {
            char *rest = malloc(left);
            if (!rest || real_pread(f->undo, rest, left, (off_t)upto) != (ssize_t)left) die("undo file");
            if (real_pwrite(f->undo, rest, left, START) != (ssize_t)left) die("undo file");
            free(rest);
            __sync_synchronize();
            f->head->end = START + left;          /* below `synced`: from here on the copy counts */
            __sync_synchronize();
            f->head->synced = START;
        }
    }
    pthread_mutex_unlock(&f->lock);
}

/* A sync has failed: what was recorded before it began is clean now for the kernel, which never writes it. */
static void lose(struct file *f, uint64_t upto) {
    pthread_mutex_lock(&f->lock);
    uint64_t from = f->head && f->head->end >= f->head->synced ? f->head->synced : START;
    if (f->head && !f->dead && upto > from) {
        open_lost(f, O_CREAT);
        char *records = malloc(upto - from);
        ssize_t size = (ssize_t)(upto - from);
        if (!records || f->lost < 0 || real_pread(f->undo, records, (size_t)size, (off_t)from) != size) die("lost file");
        if (real_write(f->lost, records, (size_t)size) != size) die("lost file");
        free(records);
    }
    pthread_mutex_unlock(&f->lock);
}

static void directory_synced(const char *path, long upto);

static int synced(int fd, int (*real)(int)) {
    struct file *f = file_of(fd);
    if (!f) return real(fd);
    pthread_mutex_lock(&f->lock);
    uint64_t upto = f->head ? f->head->end : 0;
    int64_t lost = f->lost >= 0 ? size_of(f->lost) : 0;
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_lock(&names_lock);
    long serial = change_serial;
    pthread_mutex_unlock(&names_lock);
    int error = fault("sync", f->path), done = error ? -1 : real(fd);
    if (error) errno = error;
    if (f->directory) {
        if (!done) directory_synced(f->path, serial);
    } else if (done) {
        error = errno;
        lose(f, upto);
        errno = error;
    } else make_durable(f, upto, lost);
    return done;
}
int fdatasync(int fd) { return synced(fd, real_fdatasync); }
int fsync(int fd) { return synced(fd, real_fsync); }

/* Not here: what is lost with the power is known of single files. */
int syncfs(int fd) {
    (void)fd;
    errno = ENOSYS;
    return -1;
}
