/* A disk that forgets, fails and dawdles, and a wall clock that jumps, for one process: an LD_PRELOAD library for Linux.

   Environment:  SHIM_ROOT    directory of the cluster; a process whose command line has an argument below
                              SHIM_ROOT/NODE/ is node NODE, every other process is left alone
                 SHIM_NODE    says which node it is, whatever the command line
                 SHIM_STATE   directory of what this library keeps, on the same file system as SHIM_ROOT
                 SHIM_IGNORE  names directly below SHIM_ROOT/NODE that are not watched, separated by colons

   STATE/NODE/undo/DEV-INO    what the unsynced writes of a file replaced, so that it can be taken back (see `undo.py`)
   STATE/NODE/lost/DEV-INO    what a failed sync was to make durable, and will never be: later syncs do not write it
   STATE/NODE/names           creations, renames and removals, and which directories were synced since
   STATE/NODE/kept/N          a removed or replaced file, until its directory is synced
   STATE/NODE/control         4096 bytes, written by the rig while the process runs (see `control.py`):
       0  u32 generation, changed after everything else    8  i64 offset of the wall clock, ns
      16  i64 drift of the wall clock, ppm                24  i64 the real time at which the drift began, ns
      32  rules, one a line, NUL at the end:  CALL ACTION VALUE [PATH-PART]
          CALL    read write extend allocate create truncate sync rename
          ACTION  error ERRNO | delay MILLISECONDS
          or      open limit FILES:      no more watched files are opened while so many are open (EMFILE)
                  space used PERMILLE:   so much of the file system is used, as statvfs tells it

   An undo file is a header of 4096 bytes { char magic[8]; u64 synced; u64 end; } and records from byte 4096 on:
   { i64 offset, size of the file before, bytes written, bytes kept, 1 if the kept bytes are zeros and left out }, bytes.
   Records below `synced` are of writes that are durable.  `end` below `synced` means that only what lies from 4096 to
   `end` counts.  A sync makes durable what was written before it *began*; one that fails makes nothing durable.
   A lost file has records of the same form: those that a failed sync left, and, told by the number of bytes kept, what was
   written since (-1) and syncs that did not fail (-2), each with where in the lost file it began as its offset.

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
#include <sys/statvfs.h>
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
#define REWRITTEN -1
#define SYNCED -2

struct header { char magic[8]; volatile uint64_t synced, end; };
struct record { int64_t offset, old_size, written, kept, zeros; };

struct file {                     /* a watched file or directory; lives as long as it is open or has unsynced writes */
    struct file *next;
    dev_t dev;
    ino_t ino;
    int refs, undo, lost, reader, directory, dead;
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
static volatile long n_open;             /* descriptors in `open_files`; under table_lock */
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
REAL(int, statvfs, const char *, struct statvfs *);

static void die(const char *what) {
    dprintf(2, "disk shim: %s: %s\n", what, strerror(errno));
    abort();
}

static void load(void) {
#define LOAD(name) real_##name = dlsym(RTLD_NEXT, #name)
    LOAD(open); LOAD(openat); LOAD(close); LOAD(write); LOAD(writev); LOAD(pwrite); LOAD(pwritev); LOAD(pwritev2);
    LOAD(pread); LOAD(preadv); LOAD(preadv2); LOAD(ftruncate); LOAD(posix_fallocate); LOAD(fdatasync); LOAD(fsync);
    LOAD(renameat); LOAD(unlinkat); LOAD(mkdirat); LOAD(clock_gettime); LOAD(statvfs);
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
    snprintf(path, sizeof path, "%s/lost", state); mkdir(path, 0755);
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

#include "files.h"
#include "rules.h"
#include "contents.h"
#include "names.h"
#include "space.h"
#include "clock.h"
