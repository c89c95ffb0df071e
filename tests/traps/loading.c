/* What a program sees of the libraries that it has, and of functions that only some C libraries have. */
#include "traps.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/stat.h>

extern char **environ;

/* Nobody but the program has asked for anything. */
static void no_error_is_told_at_the_start(void) {
    const char *error = dlerror();
    observe("dlerror: %s", error == NULL ? "none" : error);
}

/* `posix_spawn` refuses a file without a first line that says what it is; a version for old programs gives it to a shell. */
static void a_file_of_commands_is_no_program(void) {
    char name[] = "commands-XXXXXX", *arguments[] = {name, NULL};
    int fd = mkstemp(name), status = 0;
    pid_t child = 0;
    must(fd >= 0 && write(fd, "exit 7\n", 7) == 7 && fchmod(fd, 0700) == 0 && close(fd) == 0, "file");
    char path[64];
    snprintf(path, sizeof path, "./%s", name);
    errno = posix_spawn(&child, path, NULL, NULL, arguments, environ);
    observe_result("posix_spawn", errno == 0 ? 0 : -1);
    if (errno == 0)
        must(waitpid(child, &status, 0) == child, "waitpid");
    observe("status %x", status);
    unlink(path);
}

static void *leave(void *argument) {
    pthread_exit(argument);
}

/* The first end of a thread loads the unwinder, if the program has none. */
static void threads_leave_while_others_talk(void) {
    Pair pair = on_the_ring();
    for (int round = 0; round < 50; round++) {
        pthread_t thread;
        void *left = NULL;
        must(pthread_create(&thread, NULL, leave, &pair) == 0, "thread");
        talk(pair.near, pair.far);
        must(pthread_join(thread, &left) == 0 && left == &pair, "join");
    }
    observe("done");
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(no_error_is_told_at_the_start),
        CASE(a_file_of_commands_is_no_program),
        CASE(threads_leave_while_others_talk),
        {0},
    };
    return run_cases(cases, argc, argv);
}
