/* SIGSEGV and SIGBUS: the program's own are its own. */
#include "traps.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* sigset */

static void *volatile nowhere = (void *)24;
static sigjmp_buf way_out;
static volatile sig_atomic_t handled;
static void *volatile fault_address;
static volatile int fault_code;

static void count(int number) {
    (void)number;
    handled++;
}

static void leave(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    fault_address = info->si_addr;
    fault_code = info->si_code;
    siglongjmp(way_out, 1);
}

static void read_nowhere(void) {
    *(volatile char *)nowhere;
}

/* How a child ends that does this with a connection in hand. */
static void child_does(const char *what, void (*work)(void)) {
    Pair pair = on_the_ring();
    pid_t child = fork();
    if (child == 0) {
        talk(pair.near, pair.far);
        work();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    observe("%s: exit %d, signal %d", what, WEXITSTATUS(status), WTERMSIG(status));
    talk(pair.near, pair.far);
    close(pair.near);
    close(pair.far);
}

static void raise_segv(void) { raise(SIGSEGV); }
static void raise_bus(void) { kill(getpid(), SIGBUS); pause_ms(50); }
static void ignore_and_raise(void) { signal(SIGSEGV, SIG_IGN); raise(SIGSEGV); }
static void ignore_and_fault(void) { signal(SIGSEGV, SIG_IGN); read_nowhere(); }
static void default_and_fault(void) { handle(SIGSEGV, count, 0); signal(SIGSEGV, SIG_DFL); read_nowhere(); }
static void count_once(void) { handle(SIGSEGV, count, SA_RESETHAND); raise(SIGSEGV); raise(SIGSEGV); }
static void count_twice(void) { handle(SIGSEGV, count, 0); raise(SIGSEGV); raise(SIGSEGV); _exit(handled); }

static void fault_when_blocked(void) {
    sigset_t set;
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    read_nowhere();
}

static volatile int depth;

static int descend(void) {
    volatile char frame[1 << 16];
    frame[depth % 2] = 1;
    return ++depth < 1 << 20 ? descend() + frame[0] : 0;
}

static void overflow_the_stack(void) { _exit(descend()); }

static void programs_die_as_they_did(void) {
    child_does("fault", read_nowhere);
    child_does("raised", raise_segv);
    child_does("raised bus", raise_bus);
    child_does("ignored and raised", ignore_and_raise);
    child_does("ignored, fault", ignore_and_fault);
    child_does("default again", default_and_fault);
    child_does("counted once", count_once);
    child_does("counted twice", count_twice);
    child_does("blocked, fault", fault_when_blocked);
    child_does("stack", overflow_the_stack);
}

/* A program that handles its own faults, and whose buffers are not there, tells the two apart. */
static void handlers_get_their_own_faults_only(void) {
    Pair pair = on_the_ring();
    struct sigaction action = {.sa_sigaction = leave, .sa_flags = SA_SIGINFO | SA_NODEFER};
    must(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(send(pair.near, page, 100, 0) == 100, "send");
    syscall(SYS_mprotect, page, 4096, PROT_NONE);
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(way_out, 1) == 0)
            read_nowhere();
        observe("address %p, code %d", fault_address, fault_code);
        observe_result("send", send(pair.near, page, 100, 0));
        observe_result("recv", recv(pair.far, page, 100, 0));
    }
    char buffer[200];
    observe_result("rest", recv(pair.far, buffer, sizeof buffer, 0));
}

static void show(const char *when) {
    int numbers[] = {SIGSEGV, SIGBUS};
    for (int i = 0; i < 2; i++) {
        struct sigaction action;
        must(sigaction(numbers[i], NULL, &action) == 0, "sigaction");
        const char *handler = action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored" : "its own";
        observe("%s: %s, flags %x", when, handler, action.sa_flags);
    }
}

static void actions_are_the_program_s(void) {
    Pair pair = on_the_ring();
    show("at first");
    handle(SIGSEGV, count, SA_RESTART | SA_ONSTACK);
    handle(SIGBUS, count, SA_RESETHAND);
    show("handled");
    raise(SIGBUS);
    show("once");
    signal(SIGSEGV, SIG_IGN);
    show("ignored");
    signal(SIGSEGV, SIG_DFL);
    show("default again");
    observe("%s", signal(SIGSEGV, count) == SIG_DFL ? "default before" : "something before");
    talk(pair.near, pair.far);
}

/* sigset is of System V. */
static void old_functions_keep_copies_safe(void) {
    Pair pair = on_the_ring();
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(send(pair.near, page, 100, 0) == 100, "send");
    void (*before)(int) = sigset(SIGSEGV, count);
    observe("%s", before == SIG_DFL ? "default before" : "something before");
    show("set");
    syscall(SYS_mprotect, page, 4096, PROT_NONE);
    observe_result("recv", recv(pair.far, page, 100, 0));
    observe("handled %d", (int)handled);
    raise(SIGSEGV);
    observe("handled %d", (int)handled);
    observe("%s", sigset(SIGSEGV, SIG_HOLD) == count ? "as before" : "another");
    raise(SIGSEGV);
    observe("held: handled %d", (int)handled);
    observe("%s", sigset(SIGSEGV, count) == SIG_HOLD ? "held before" : "not held before");
    observe("handled %d", (int)handled);
    observe("%s", sigset(SIGSEGV, SIG_DFL) == count ? "as before" : "another");
    observe("%s", sigset(-1, count) == SIG_ERR ? strerrorname_np(errno) : "no error");
    show("default again");
    observe_result("recv", recv(pair.far, page, 100, 0));
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(programs_die_as_they_did),
        CASE(handlers_get_their_own_faults_only),
        CASE(actions_are_the_program_s),
        CASE(old_functions_keep_copies_safe),
        {0},
    };
    return run_cases(cases, argc, argv);
}
