/* How full the file system is, where a rule says so: as if others had filled it.  Part of shim.c. */

int statvfs(const char *restrict path, struct statvfs *restrict out) {
    char full[PATH_MAX];
    if (!real_statvfs) load();
    int done = real_statvfs(path, out);
    if (done || !root_len || !absolute(AT_FDCWD, path, full) || !watched(full)) return done;
    unsigned long used = (unsigned long)told("space", "used", full), most = out->f_blocks / 1000 * (1000 - used);
    if (used && out->f_bfree > most) out->f_bfree = most;
    if (used && out->f_bavail > most) out->f_bavail = most;
    return 0;
}
int statvfs64(const char *restrict path, struct statvfs64 *restrict out) {
    _Static_assert(sizeof(struct statvfs) == sizeof(struct statvfs64), "one layout on 64-bit systems");
    return statvfs(path, (struct statvfs *)out);
}
