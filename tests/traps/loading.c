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

typedef int Submit(void *, long, void *);

/* A library that comes with a plug-in goes with it, and comes back in another place. */
static void library_loaded_again_elsewhere(void) {
    for (int round = 0; round < 3; round++) {
        Dl_info about;
        void *library = dlopen("libaio.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (library == NULL) {
            observe("skipped: there is no libaio");
            return;
        }
        Submit *submit = (Submit *)dlsym(RTLD_DEFAULT, "io_submit");
        must(submit != NULL && dladdr(dlsym(library, "io_submit"), &about) != 0, "io_submit");
        observe("io_submit: %d", submit(NULL, 0, NULL));
        observe("dlclose: %d", dlclose(library));
        /* Nothing comes where it was, if it has gone: whoever looked its function up like this may keep it. */
        mmap(about.dli_fbase, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
}

/* The C library's own handle, whatever its name is. */
static void *c_library(void) {
    Dl_info about;
    must(dladdr(dlsym(RTLD_DEFAULT, "printf"), &about) != 0, "dladdr");
    void *library = dlopen(about.dli_fname, RTLD_NOW);
    must(library != NULL, "dlopen");
    return library;
}

typedef ssize_t Transfer(int, void *, size_t, int);
typedef int Poll(struct pollfd *, nfds_t, int);
typedef int Close(int);

/* Foreign-function interfaces look functions up in the C library itself. */
static void functions_of_the_library_itself(void) {
    void *library = c_library();
    Transfer *receive = (Transfer *)dlsym(library, "recv"), *transmit = (Transfer *)dlsym(library, "send");
    Poll *await = (Poll *)dlsym(library, "poll");
    Close *end = (Close *)dlsym(library, "close");
    must(receive != NULL && transmit != NULL && await != NULL && end != NULL, "dlsym");
    Pair pair = on_the_ring();
    char bytes[64];
    for (int i = 0; i < 50; i++) {
        struct pollfd entry = {.fd = pair.far, .events = POLLIN};
        must(send(pair.near, "one", 3, 0) == 3 && transmit(pair.near, "two", 3, 0) == 3, "send");
        must(await(&entry, 1, 5000) == 1, "poll");
        must(receive(pair.far, bytes, 6, MSG_WAITALL) == 6 && memcmp(bytes, "onetwo", 6) == 0, "recv");
    }
    must(send(pair.near, "last", 4, 0) == 4, "send");
    observe("close: %d", end(pair.near));
    observe_result("recv", receive(pair.far, bytes, sizeof bytes, 0));
    observe_result("recv", receive(pair.far, bytes, sizeof bytes, 0));
    observe("close: %d", end(pair.far));
}

/* What is asked for in other ways is what it was. */
static void functions_found_in_other_ways(void) {
    void *library = c_library(), *all = dlopen(NULL, RTLD_NOW);
    observe("the same: %d", dlsym(all, "recv") == dlsym(RTLD_DEFAULT, "recv"));
    observe("the same: %d", dlsym(library, "strlen") == dlsym(RTLD_NEXT, "strlen"));
    observe("nothing: %d", dlsym(library, "millrace_is_no_function") == NULL);
    observe("told: %d", dlerror() != NULL);
    observe("nothing: %d", dlsym(RTLD_NEXT, "millrace_is_no_function") == NULL);
    observe("nothing: %d", dlsym(RTLD_DEFAULT, "millrace_is_no_function") == NULL);
    Transfer *next = (Transfer *)dlsym(RTLD_NEXT, "recv");
    observe_result("recv", next(-1, NULL, 0, 0));
}

#ifdef RTLD_DEEPBIND
/* A library that looks its names up in what it needs first calls the C library's own functions. */
static void library_bound_to_what_it_needs(void) {
    Pair pair = on_the_ring();
    char bytes[64];
    must(send(pair.near, "before, ", 8, 0) == 8, "send");
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_DEEPBIND);
    must(library != NULL, "dlopen");
    Transfer *receive = (Transfer *)dlsym(library, "recv");
    must(receive != NULL, "dlsym");
    must(send(pair.near, "after", 5, 0) == 5, "send");
    observe_result("recv", receive(pair.far, bytes, 13, MSG_WAITALL));
    observe("%.13s", bytes);
    Pair later = connected();
    for (int i = 0; i < 10; i++) {
        talk(later.near, later.far);
        talk(later.far, later.near);
        pause_ms(5);
    }
    must(send(later.near, "later", 5, 0) == 5, "send");
    observe_result("recv", receive(later.far, bytes, 5, MSG_WAITALL));
}
#endif

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(no_error_is_told_at_the_start),
        CASE(a_file_of_commands_is_no_program),
        CASE(threads_leave_while_others_talk),
        CASE(library_loaded_again_elsewhere),
        CASE(functions_of_the_library_itself),
        CASE(functions_found_in_other_ways),
#ifdef RTLD_DEEPBIND
        CASE(library_bound_to_what_it_needs),
#endif
        {0},
    };
    return run_cases(cases, argc, argv);
}
