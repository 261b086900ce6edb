/* A disk that forgets, fails and dawdles, and a wall clock that jumps, for one process: an LD_PRELOAD library for Linux.

   Environment:  SHIM_ROOT    directory of the cluster; a process whose command line has an argument below
                              SHIM_ROOT/NODE/ is node NODE, every other process is left alone
                 SHIM_NODE    says which node it is, whatever the command line
                 SHIM_STATE   directory of what this library keeps, on the same file system as SHIM_ROOT
                 SHIM_IGNORE  names directly below SHIM_ROOT/NODE that are not watched, separated by colons

   STATE/NODE/undo/DEV-INO    what the unsynced writes of a file replaced, so that it can be taken back (see `undo.py`)
   STATE/NODE/names           creations, renames and removals, and which directories were synced since
   STATE/NODE/kept/N          a removed or replaced file, until its directory is synced
   STATE/NODE/control         4096 bytes, written by the rig while the process runs (see `control.py`):
       0  u32 generation, changed after everything else    8  i64 offset of the wall clock, ns
      16  i64 drift of the wall clock, ppm                24  i64 the real time at which the drift began, ns
      32  rules, one a line, NUL at the end:  CALL ACTION VALUE [PATH-PART]
          CALL    read write extend allocate create truncate sync rename
          ACTION  error ERRNO | delay MILLISECONDS

   An undo file is a header of 4096 bytes { char magic[8]; u64 synced; u64 end; } and records from byte 4096 on:
   { i64 offset, size of the file before, bytes written, bytes kept, 1 if the kept bytes are zeros and left out }, bytes.
   Records below `synced` are of writes that are durable.  `end` below `synced` means that only what lies from 4096 to
   `end` counts.  A sync makes durable what was written before it *began*; one that fails makes nothing durable.

   Not seen: mmap stores, io_uring, sendfile and copy_file_range, raw system calls, descriptors from dup and fcntl,
   links, and a second process that writes the same file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS 65536
#define BUCKETS 4096
#define START 4096
#define MAGIC "DLSHIM1"
#define COMPACT_BYTES (16 << 20)
#define RULES 32

struct header { char magic[8]; volatile uint64_t synced, end; };
struct record { int64_t offset, old_size, written, kept, zeros; };

struct file {                     /* a watched file or directory; lives as long as it is open or has unsynced writes */
    struct file *next;
    dev_t dev;
    ino_t ino;
    int refs, undo, reader, directory, dead;
    struct header *head;
    pthread_mutex_t lock;         /* over a record and the write that it belongs to */
    char *path;
};
struct change { struct change *next; long serial; char *dirs[2]; char *kept; };
struct control { volatile uint32_t generation, unused; volatile int64_t offset_ns, drift_ppm, since_ns; char rules[4064]; };
struct rule { char call[16], action[16], part[256]; long value; };

static char root[PATH_MAX], state[PATH_MAX];
static size_t root_len;
static const char *ignored = "";
static struct control *control;
static struct rule rules[RULES];
static volatile int n_rules;
static uint32_t rules_generation;
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *table[BUCKETS];
static struct file *volatile open_files[FDS];
static unsigned char durable_writes[FDS], appending[FDS];
static struct change *changes;
static long change_serial;
static int names = -1;

/* The functions behind ours: looked up once, before main. */
#define REAL(type, name, ...) static type (*real_##name)(__VA_ARGS__)
REAL(int, open, const char *, int, ...);
REAL(int, openat, int, const char *, int, ...);
REAL(int, close, int);
REAL(ssize_t, write, int, const void *, size_t);
REAL(ssize_t, writev, int, const struct iovec *, int);
REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
REAL(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int);
REAL(ssize_t, pread, int, void *, size_t, off_t);
REAL(ssize_t, preadv, int, const struct iovec *, int, off_t);
REAL(ssize_t, preadv2, int, const struct iovec *, int, off_t, int);
REAL(int, ftruncate, int, off_t);
REAL(int, posix_fallocate, int, off_t, off_t);
REAL(int, fdatasync, int);
REAL(int, fsync, int);
REAL(int, renameat, int, const char *, int, const char *);
REAL(int, unlinkat, int, const char *, int);
REAL(int, mkdirat, int, const char *, mode_t);
REAL(int, clock_gettime, clockid_t, struct timespec *);

static void die(const char *what) {
    dprintf(2, "disk shim: %s: %s\n", what, strerror(errno));
    abort();
}

static void load(void) {
#define LOAD(name) real_##name = dlsym(RTLD_NEXT, #name)
    LOAD(open); LOAD(openat); LOAD(close); LOAD(write); LOAD(writev); LOAD(pwrite); LOAD(pwritev); LOAD(pwritev2);
    LOAD(pread); LOAD(preadv); LOAD(preadv2); LOAD(ftruncate); LOAD(posix_fallocate); LOAD(fdatasync); LOAD(fsync);
    LOAD(renameat); LOAD(unlinkat); LOAD(mkdirat); LOAD(clock_gettime);
}

/* The node that this process is, from its command line; 0 if it is none. */
static int find_node(const char *base, char *node, size_t size) {
    char line[16384];
    int fd = real_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0) real_close(fd);
    size_t length = strlen(base);
    for (char *at = line; n > 0 && at < line + n; at += strlen(at) + 1) {
        line[n] = 0;
        if (strncmp(at, base, length) || at[length] != '/') continue;
        const char *name = at + length + 1, *end = strchr(name, '/');
        if (end && end > name && (size_t)(end - name) < size) {
            snprintf(node, size, "%.*s", (int)(end - name), name);
            return 1;
        }
    }
    return 0;
}

static void continue_names(const char *path);

__attribute__((constructor)) static void init(void) {
    char base[PATH_MAX], node[NAME_MAX], path[PATH_MAX + 16];
    const char *r = getenv("SHIM_ROOT"), *s = getenv("SHIM_STATE"), *i = getenv("SHIM_IGNORE");
    load();
    const char *named = getenv("SHIM_NODE");
    if (!r || !s || !realpath(r, base)) return;
    if (named) snprintf(node, sizeof node, "%s", named);
    else if (!find_node(base, node, sizeof node)) return;
    if (snprintf(root, sizeof root, "%s/%s", base, node) >= (int)sizeof root) return;
    if (snprintf(state, sizeof state, "%s/%s", s, node) >= (int)sizeof state) return;
    if (i) ignored = i;
    mkdir(s, 0755);
    mkdir(state, 0755);
    snprintf(path, sizeof path, "%s/undo", state); mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/kept", state); mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/control", state);
    int fd = real_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || real_ftruncate(fd, sizeof *control)) die(path);
    control = mmap(0, sizeof *control, PROT_READ, MAP_SHARED, fd, 0);
    real_close(fd);
    if (control == MAP_FAILED) die(path);
    snprintf(path, sizeof path, "%s/names", state);
    names = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (names < 0) die(path);
    continue_names(path);
    root_len = strlen(root);
}

/* ------------------------------------------------------------------ which file it is */

/* 1 if `path` (absolute) is below the node's directory and watched. */
static int watched(const char *path) {
    if (!root_len || strncmp(path, root, root_len) || (path[root_len] != '/' && path[root_len])) return 0;
    const char *name = path + root_len + (path[root_len] == '/');
    size_t length = strcspn(name, "/");
    for (const char *at = ignored; *at;) {
        size_t n = strcspn(at, ":");
        if (n && n == length && !strncmp(at, name, n)) return 0;
        at += n + (at[n] == ':');
    }
    return 1;
}

static int path_of_fd(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n <= 0 || *out != '/') return 0;
    out[n] = 0;
    return 1;
}

/* The absolute path of `path` relative to `dirfd`; 0 if it cannot be told. */
static int absolute(int dirfd, const char *path, char *out) {
    if (*path == '/') return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX;
    char base[PATH_MAX];
    if (dirfd == AT_FDCWD ? !getcwd(base, sizeof base) : !path_of_fd(dirfd, base)) return 0;
    return snprintf(out, PATH_MAX, "%s/%s", base, path) < PATH_MAX;
}

static struct file **bucket(dev_t dev, ino_t ino) { return &table[(dev * 31 + ino) % BUCKETS]; }

static struct file *find(dev_t dev, ino_t ino) {          /* under table_lock */
    struct file *f = *bucket(dev, ino);
    while (f && (f->dev != dev || f->ino != ino)) f = f->next;
    return f;
}

static void undo_path(const struct file *f, char *out, size_t size) {
    snprintf(out, size, "%s/undo/%lx-%lx", state, (unsigned long)f->dev, (unsigned long)f->ino);
}

static int pending(const struct file *f) { return f->head && f->head->end != f->head->synced; }

static void close_undo(struct file *f) {
    if (f->head) munmap(f->head, START);
    if (f->undo >= 0) real_close(f->undo);
    if (f->reader >= 0) real_close(f->reader);
    f->head = NULL;
    f->undo = f->reader = -1;
}

static void forget(struct file *f) {                      /* under table_lock */
    char path[PATH_MAX + 64];
    struct file **at = bucket(f->dev, f->ino);
    while (*at && *at != f) at = &(*at)->next;
    if (*at) *at = f->next;
    undo_path(f, path, sizeof path);
    pthread_mutex_lock(&f->lock);
    if (f->head) real_unlinkat(AT_FDCWD, path, 0);
    close_undo(f);
    f->dead = 1;
    pthread_mutex_unlock(&f->lock);
    if (!f->refs) { free(f->path); free(f); }
}

static void watch(int fd, int flags) {
    char path[PATH_MAX];
    struct stat st;
    if (fd >= FDS || !path_of_fd(fd, path) || !watched(path) || fstat(fd, &st)) return;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return;
    pthread_mutex_lock(&table_lock);
    struct file *f = find(st.st_dev, st.st_ino);
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f) die("calloc");
        f->dev = st.st_dev; f->ino = st.st_ino; f->undo = f->reader = -1; f->directory = S_ISDIR(st.st_mode);
        pthread_mutex_init(&f->lock, NULL);
        f->next = *bucket(f->dev, f->ino);
        *bucket(f->dev, f->ino) = f;
    }
    if (!f->path || strcmp(f->path, path)) { free(f->path); f->path = strdup(path); }
    f->refs++;
    durable_writes[fd] = (flags & (O_DSYNC | O_SYNC)) != 0;
    appending[fd] = (flags & O_APPEND) != 0;
    open_files[fd] = f;
    pthread_mutex_unlock(&table_lock);
}

static void unwatch(int fd) {
    pthread_mutex_lock(&table_lock);
    struct file *f = open_files[fd];
    open_files[fd] = NULL;
    if (f && --f->refs == 0) {
        if (f->dead) { free(f->path); free(f); }
        else if (!pending(f)) forget(f);
    }
    pthread_mutex_unlock(&table_lock);
}

static struct file *file_of(int fd) { return root_len && fd >= 0 && fd < FDS ? open_files[fd] : NULL; }

/* ------------------------------------------------------------------ rules */

static void parse_rules(void) {
    char text[sizeof control->rules + 1], *line, *rest = text;
    int n = 0;
    memcpy(text, control->rules, sizeof control->rules);
    text[sizeof control->rules] = 0;
    while (n < RULES && (line = strsep(&rest, "\n"))) {
        rules[n].part[0] = 0;
        if (sscanf(line, "%15s %15s %ld %255s", rules[n].call, rules[n].action, &rules[n].value, rules[n].part) >= 3) n++;
    }
    n_rules = n;
}

/* The errno that `call` on `path` has to fail with, or 0; waits first, where a rule says so. */
static int fault(const char *call, const char *path) {
    if (!control) return 0;
    if (control->generation == rules_generation && !n_rules) return 0;
    int error = 0;
    long delay_ms = 0;
    pthread_mutex_lock(&rules_lock);
    if (control->generation != rules_generation) {
        rules_generation = control->generation;
        parse_rules();
    }
    for (int i = 0; i < n_rules; i++) {
        const struct rule *r = &rules[i];
        if (strcmp(r->call, call) || (r->part[0] && !strstr(path, r->part))) continue;
        if (!strcmp(r->action, "error")) error = (int)r->value;
        else if (!strcmp(r->action, "delay")) delay_ms = r->value;
    }
    pthread_mutex_unlock(&rules_lock);
    if (delay_ms) nanosleep(&(struct timespec){delay_ms / 1000, delay_ms % 1000 * 1000000}, NULL);
    return error;
}

#define FAIL(call, path) do { int e_ = fault(call, path); if (e_) { errno = e_; return -1; } } while (0)

/* ------------------------------------------------------------------ contents */

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

static void continue_undo(struct file *f) {
    char path[PATH_MAX + 64];
    undo_path(f, path, sizeof path);
    pthread_mutex_lock(&f->lock);
    if (!f->head && !access(path, F_OK)) open_undo(f);
    pthread_mutex_unlock(&f->lock);
}

static int all_zeros(const char *bytes, size_t n) { return !n || (!*bytes && !memcmp(bytes, bytes + 1, n - 1)); }

/* Keep what a change of [offset, offset + length) replaces, `cut` bytes more at the end of the file; under f->lock. */
static void remember(struct file *f, int fd, int64_t offset, size_t length, int64_t old_size, size_t cut) {
    if (f->dead) return;
    if (!f->head) open_undo(f);
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

static int64_t size_of(int fd) {
    struct stat st;
    if (fstat(fd, &st)) die("fstat");
    return st.st_size;
}

/* Before a write: what it replaces is kept, unless the descriptor makes it durable by itself. */
static int before_write(struct file *f, int fd, int64_t offset, size_t length) {
    int64_t size = size_of(fd);
    int error = fault("write", f->path);
    if (!error && offset + (int64_t)length > size) error = fault("extend", f->path);
    if (error) { errno = error; return -1; }
    pthread_mutex_lock(&f->lock);
    if (!durable_writes[fd]) remember(f, fd, offset, length, size, 0);
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
static void make_durable(struct file *f, uint64_t upto) {
    pthread_mutex_lock(&f->lock);
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

static void directory_synced(const char *path, long upto);

static int synced(int fd, int (*real)(int)) {
    struct file *f = file_of(fd);
    if (!f) return real(fd);
    pthread_mutex_lock(&f->lock);
    uint64_t upto = f->head ? f->head->end : 0;
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_lock(&names_lock);
    long serial = change_serial;
    pthread_mutex_unlock(&names_lock);
    FAIL("sync", f->path);
    int done = real(fd);
    if (!done) {
        if (f->directory) directory_synced(f->path, serial);
        else make_durable(f, upto);
    }
    return done;
}
int fdatasync(int fd) { return synced(fd, real_fdatasync); }
int fsync(int fd) { return synced(fd, real_fsync); }

/* ------------------------------------------------------------------ names */

static void parent_of(const char *path, char *out) {
    snprintf(out, PATH_MAX, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash && slash != out) *slash = 0;
}

static void note(const char *format, ...) {
    char line[4 * PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (n >= (int)sizeof line || real_write(names, line, (size_t)n) != n) die("names");
}

static void add_change(const char *from, const char *to, const char *kept) {     /* under names_lock */
    char dir[PATH_MAX];
    struct change *c = calloc(1, sizeof *c);
    if (!c) die("calloc");
    c->serial = change_serial;
    parent_of(from, dir);
    c->dirs[0] = strdup(dir);
    if (to) {
        parent_of(to, dir);
        if (strcmp(dir, c->dirs[0])) c->dirs[1] = strdup(dir);
    }
    if (kept) c->kept = strdup(kept);
    c->next = changes;
    changes = c;
}

/* A hard link to what is about to lose its name; "-" if there is nothing. */
static void keep(const char *path, char *out) {
    struct stat st;
    snprintf(out, PATH_MAX + 64, "%s/kept/%d-%ld", state, (int)getpid(), change_serial);
    if (lstat(path, &st) || !S_ISREG(st.st_mode) || link(path, out)) strcpy(out, "-");
}

static void drop_kept(const char *kept) {
    struct stat st;
    pthread_mutex_lock(&table_lock);
    if (!lstat(kept, &st) && st.st_nlink == 1) {
        struct file *f = find(st.st_dev, st.st_ino);
        if (f) forget(f);                         /* its number may soon be another file's */
    }
    real_unlinkat(AT_FDCWD, kept, 0);
    pthread_mutex_unlock(&table_lock);
}

static void settle(const char *path, long upto) {                                /* under names_lock */
    for (struct change **at = &changes; *at;) {
        struct change *c = *at;
        for (int i = 0; i < 2; i++)
            if (c->serial <= upto && c->dirs[i] && !strcmp(c->dirs[i], path)) { free(c->dirs[i]); c->dirs[i] = NULL; }
        if (c->dirs[0] || c->dirs[1]) { at = &c->next; continue; }
        *at = c->next;
        if (c->kept) { drop_kept(c->kept); free(c->kept); }
        free(c);
    }
}

static void directory_synced(const char *path, long upto) {
    pthread_mutex_lock(&names_lock);
    note("synced\t%ld\t%s\n", upto, path);
    settle(path, upto);
    if (!changes && real_ftruncate(names, 0)) die("names");
    pthread_mutex_unlock(&names_lock);
}

/* A directory got another name: what still waits for a sync of it, or of a directory in it, waits under the new one. */
static void rename_waiting(const char *from, const char *to) {                   /* under names_lock */
    size_t length = strlen(from);
    char renamed[2 * PATH_MAX];
    for (struct change *c = changes; c; c = c->next)
        for (int i = 0; i < 2; i++) {
            if (!c->dirs[i] || strncmp(c->dirs[i], from, length)) continue;
            if (c->dirs[i][length] && c->dirs[i][length] != '/') continue;
            snprintf(renamed, sizeof renamed, "%s%s", to, c->dirs[i] + length);
            free(c->dirs[i]);
            c->dirs[i] = strdup(renamed);
        }
}

/* Read back what processes before this one noted: their changes still wait for a sync. */
static void continue_names(const char *path) {
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    while (file && getline(&line, &size, file) > 0) {
        char *word[6] = {0}, *rest = line;
        int n = 0;
        line[strcspn(line, "\n")] = 0;
        while (n < 6 && (word[n] = strsep(&rest, "\t"))) n++;
        if (n < 3) continue;
        change_serial = atol(word[1]) > change_serial ? atol(word[1]) : change_serial;
        long newest = change_serial;
        if (!strcmp(word[0], "synced")) { settle(word[2], atol(word[1])); continue; }
        change_serial = atol(word[1]);
        if (n == 6) {
            rename_waiting(word[3], word[4]);
            add_change(word[3], word[4], *word[5] == '-' ? NULL : word[5]);
        } else add_change(word[2], NULL, n < 4 || *word[3] == '-' ? NULL : word[3]);
        change_serial = newest;
    }
    free(line);
    if (file) fclose(file);
}

static int open_watched(int dirfd, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    struct stat st;
    int creates = 0;
    if (!root_len || !absolute(dirfd, path, full) || !watched(full)) return real_openat(dirfd, path, flags, mode);
    if (flags & O_CREAT && lstat(full, &st)) {
        FAIL("create", full);
        creates = 1;
        pthread_mutex_lock(&names_lock);
        change_serial++;
        note("create\t%ld\t%s\n", change_serial, full);
    }
    int fd = real_openat(dirfd, path, flags & ~O_TRUNC, mode);
    if (creates) {
        if (fd >= 0) add_change(full, NULL, NULL);
        pthread_mutex_unlock(&names_lock);
    }
    if (fd < 0) return fd;
    watch(fd, flags);
    if (file_of(fd) && !file_of(fd)->directory) continue_undo(file_of(fd));
    if (flags & O_TRUNC && ftruncate(fd, 0)) { close(fd); return -1; }
    return fd;
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }
int open(const char *path, int flags, ...) { MODE return open_watched(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_watched(AT_FDCWD, path, flags, mode); }
int openat(int dirfd, const char *path, int flags, ...) { MODE return open_watched(dirfd, path, flags, mode); }
int openat64(int dirfd, const char *path, int flags, ...) { MODE return open_watched(dirfd, path, flags, mode); }

int close(int fd) {
    if (file_of(fd)) unwatch(fd);
    return real_close(fd);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    char source[PATH_MAX], target[PATH_MAX], kept[PATH_MAX + 64];
    struct stat st;
    if (!root_len || !absolute(from_dir, from, source) || !absolute(to_dir, to, target) || !watched(source) ||
        !watched(target) || lstat(source, &st))
        return real_renameat(from_dir, from, to_dir, to);
    FAIL("rename", target);
    pthread_mutex_lock(&names_lock);
    change_serial++;
    keep(target, kept);
    note("rename\t%ld\t%lx\t%s\t%s\t%s\n", change_serial, (unsigned long)st.st_ino, source, target, kept);
    int done = real_renameat(from_dir, from, to_dir, to);
    if (!done) {
        if (S_ISDIR(st.st_mode)) rename_waiting(source, target);
        add_change(source, target, *kept == '-' ? NULL : kept);
    }
    pthread_mutex_unlock(&names_lock);
    return done;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int dirfd, const char *path, int flags) {
    char full[PATH_MAX], kept[PATH_MAX + 64];
    if (!root_len || !absolute(dirfd, path, full) || !watched(full)) return real_unlinkat(dirfd, path, flags);
    pthread_mutex_lock(&names_lock);
    change_serial++;
    int directory = flags & AT_REMOVEDIR;
    if (directory) strcpy(kept, "-"); else keep(full, kept);
    note("%s\t%ld\t%s\t%s\n", directory ? "rmdir" : "unlink", change_serial, full, kept);
    int done = real_unlinkat(dirfd, path, flags);
    if (!done) add_change(full, NULL, *kept == '-' ? NULL : kept);
    else if (*kept != '-') real_unlinkat(AT_FDCWD, kept, 0);
    pthread_mutex_unlock(&names_lock);
    return done;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int dirfd, const char *path, mode_t mode) {
    char full[PATH_MAX];
    struct stat st;
    if (!root_len || !absolute(dirfd, path, full) || !watched(full) || !lstat(full, &st))
        return real_mkdirat(dirfd, path, mode);
    FAIL("create", full);
    pthread_mutex_lock(&names_lock);
    change_serial++;
    note("mkdir\t%ld\t%s\n", change_serial, full);
    int done = real_mkdirat(dirfd, path, mode);
    if (!done) add_change(full, NULL, NULL);
    pthread_mutex_unlock(&names_lock);
    return done;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* ------------------------------------------------------------------ the wall clock */

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
