/* Which file a call is about, and whether it is watched.  Part of shim.c. */

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

/* 1 if `path` is the directory in which the node's directory has its name: a sync of it keeps that name. */
static int holds_root(const char *path) {
    const char *slash = strrchr(root, '/');
    return root_len && slash && strlen(path) == (size_t)(slash - root) && !strncmp(path, root, strlen(path));
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

static void lost_path(const struct file *f, char *out, size_t size) {
    snprintf(out, size, "%s/lost/%lx-%lx", state, (unsigned long)f->dev, (unsigned long)f->ino);
}

/* What is noted of a file that is gone: its number may soon be another file's. */
static void drop_notes(const struct file *f) {
    char path[PATH_MAX + 64];
    undo_path(f, path, sizeof path);
    real_unlinkat(AT_FDCWD, path, 0);
    lost_path(f, path, sizeof path);
    real_unlinkat(AT_FDCWD, path, 0);
}

static int pending(const struct file *f) { return f->head && f->head->end != f->head->synced; }

static void close_undo(struct file *f) {
    if (f->head) munmap(f->head, START);
    if (f->undo >= 0) real_close(f->undo);
    if (f->lost >= 0) real_close(f->lost);
    if (f->reader >= 0) real_close(f->reader);
    f->head = NULL;
    f->undo = f->lost = f->reader = -1;
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
    if (fd >= FDS || !path_of_fd(fd, path) || !(watched(path) || holds_root(path)) || fstat(fd, &st)) return;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return;
    pthread_mutex_lock(&table_lock);
    struct file *f = find(st.st_dev, st.st_ino);
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f) die("calloc");
        f->dev = st.st_dev; f->ino = st.st_ino; f->undo = f->lost = f->reader = -1; f->directory = S_ISDIR(st.st_mode);
        pthread_mutex_init(&f->lock, NULL);
        f->next = *bucket(f->dev, f->ino);
        *bucket(f->dev, f->ino) = f;
    }
    if (!f->path || strcmp(f->path, path)) { free(f->path); f->path = strdup(path); }
    f->refs++;
    durable_writes[fd] = (flags & (O_DSYNC | O_SYNC)) != 0;
    appending[fd] = (flags & O_APPEND) != 0;
    open_files[fd] = f;
    n_open++;
    pthread_mutex_unlock(&table_lock);
}

static void unwatch(int fd) {
    pthread_mutex_lock(&table_lock);
    struct file *f = open_files[fd];
    open_files[fd] = NULL;
    if (f) n_open--;
    if (f && --f->refs == 0) {
        if (f->dead) { free(f->path); free(f); }
        else if (!pending(f)) forget(f);
    }
    pthread_mutex_unlock(&table_lock);
}

static struct file *file_of(int fd) { return root_len && fd >= 0 && fd < FDS ? open_files[fd] : NULL; }
