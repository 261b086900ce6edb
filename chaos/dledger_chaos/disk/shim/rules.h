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
