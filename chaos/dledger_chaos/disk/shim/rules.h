/* Calls that fail or are late because a rule says so.  Part of shim.c. */

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

/* The value of the rule with this action for `call` on `path`, or 0. */
static long told(const char *call, const char *action, const char *path) {
    long value = 0;
    if (!control || (control->generation == rules_generation && !n_rules)) return 0;
    pthread_mutex_lock(&rules_lock);
    if (control->generation != rules_generation) {
        rules_generation = control->generation;
        parse_rules();
    }
    for (int i = 0; i < n_rules; i++) {
        const struct rule *r = &rules[i];
        if (!strcmp(r->call, call) && !strcmp(r->action, action) && (!r->part[0] || strstr(path, r->part))) value = r->value;
    }
    pthread_mutex_unlock(&rules_lock);
    return value;
}

/* The errno that `call` on `path` has to fail with, or 0; waits first, where a rule says so. */
static int fault(const char *call, const char *path) {
    long delay_ms = told(call, "delay", path);
    if (delay_ms) nanosleep(&(struct timespec){delay_ms / 1000, delay_ms % 1000 * 1000000}, NULL);
    return (int)told(call, "error", path);
}

#define FAIL(call, path) do { int e_ = fault(call, path); if (e_) { errno = e_; return -1; } } while (0)
