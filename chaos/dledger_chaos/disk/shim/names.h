/* Creations, renames and removals, and the calls that make them.  Part of shim.c. */

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
        if (f) forget(f);
        drop_notes(&(struct file){.dev = st.st_dev, .ino = st.st_ino});  /* also those of a process before this one */
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
    if (root_len && flags & O_DIRECTORY) {        /* its path is looked up: this one may end with a dot */
        int dir = real_openat(dirfd, path, flags, mode);
        if (dir >= 0) watch(dir, flags);
        return dir;
    }
    if (!root_len || !absolute(dirfd, path, full) || !watched(full)) return real_openat(dirfd, path, flags, mode);
    long most = told("open", "limit", full);
    if (most && n_open >= most) { errno = EMFILE; return -1; }
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
