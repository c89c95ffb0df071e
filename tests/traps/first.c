/* Programs until their first socket, at which the library wakes: what they do before, and what else goes on just then. */
#include "traps.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* A program without sockets makes no system call but its own: those that only the library would make end it. */
static void a_program_without_sockets(void) {
    const int calls[] = {SYS_getpid, SYS_gettid, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_madvise, SYS_socket,
                         SYS_setsockopt, SYS_sendmsg, SYS_clock_gettime};
    enum { CALLS = sizeof calls / sizeof *calls };
    struct sock_filter filter[2 * CALLS + 2];
    int length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < CALLS; i++) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    pid_t child = vfork();
    if (child == 0) {
        syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    observe("ended with %d", status_of(child));
    child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    observe("without a filter: %d", status_of(child));
}

enum { ROUNDS = 3000 };
static _Thread_local volatile int last;
static void first_handler(int number) { (void)number, last = 1; }
static void second_handler(int number) { (void)number, last = 2; }

/* Whose handler is the one that was installed last, each time. */
static void *change_handlers(void *wrong) {
    void (*const handlers[])(int) = {first_handler, second_handler};
    for (int i = 0; i < ROUNDS; i++) {
        struct sigaction action = {.sa_handler = handlers[i % 2]}, before = {0};
        must(sigaction(SIGUSR1, &action, &before) == 0, "sigaction");
        if (i > 0 && before.sa_handler != handlers[(i - 1) % 2])
            ++*(int *)wrong;
        raise(SIGUSR1);
        if (last != i % 2 + 1)
            ++*(int *)wrong;
    }
    return NULL;
}

static void the_first_socket_beside_changes_of_handlers(void) {
    int wrong = 0;
    pthread_t changer;
    must(pthread_create(&changer, NULL, change_handlers, &wrong) == 0, "pthread_create");
    usleep(300);
    Pair pair = connected();
    talk_until_on_ring(pair, 1);
    pthread_join(changer, NULL);
    observe("%d were wrong", wrong);
}

static void *make_children(void *failed) {
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) {
            Pair pair = connected();
            talk(pair.near, pair.far);
            talk(pair.far, pair.near);
            _exit(0);
        }
        *(int *)failed += status_of(child) != 0;
    }
    return NULL;
}

static void the_first_socket_beside_forks(void) {
    int failed[2] = {0};
    pthread_t makers[2];
    for (int i = 0; i < 2; i++)
        must(pthread_create(&makers[i], NULL, make_children, &failed[i]) == 0, "pthread_create");
    usleep(500);
    Pair pair = connected();
    for (int i = 0; i < 20; i++)
        talk(pair.near, pair.far);
    for (int i = 0; i < 2; i++)
        pthread_join(makers[i], NULL);
    observe("%d failed", failed[0] + failed[1]);
}

static void *connect_and_talk(void *nothing) {
    Pair pair = connected();
    talk(pair.near, pair.far);
    return nothing;
}

static void the_first_sockets_of_several_threads(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        must(pthread_create(&threads[i], NULL, connect_and_talk, NULL) == 0, "pthread_create");
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    Pair pair = on_the_ring();
    talk(pair.near, pair.far);
}

static Pair by_handler;
static void connect_in_handler(int number) { (void)number, by_handler = connected(); }

static void the_first_socket_in_a_handler(void) {
    handle(SIGUSR1, connect_in_handler, 0);
    raise(SIGUSR1);
    talk_until_on_ring(by_handler, 1);
    raise(SIGUSR1);
    talk_until_on_ring(by_handler, 2);
}

static void the_first_socket_in_a_child_of_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        close(fd);
        _exit(fd < 0);
    }
    observe("ended with %d", status_of(child));
    talk_until_on_ring(on_the_ring(), 1);
}

static int interrupted;
static void interrupt(int number) { (void)number, interrupted++; }

/* Handlers that were there before are handlers that interrupt a wait. */
static void handlers_from_before(void) {
    char byte;
    handle(SIGALRM, interrupt, 0);
    signal(SIGUSR2, interrupt);
    Pair pair = on_the_ring();
    for (int i = 0; i < 3; i++) {
        struct itimerval timer = {.it_value.tv_usec = 20000};
        must(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
        observe_result("recv", recv(pair.far, &byte, 1, 0));
    }
    observe("interrupted %d times", interrupted);
    struct sigaction now;
    for (int number = SIGHUP; number <= SIGUSR2; number++) {
        must(sigaction(number, NULL, &now) == 0, "sigaction");
        observe("%d: %d %x", number, now.sa_handler == interrupt ? 2 : now.sa_handler != SIG_DFL, now.sa_flags);
    }
}

static void hidden_from_before(void) {
    must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "prctl");
    Pair pair = connected();
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
}

static void a_filter_from_before(void) {
    struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    observe_result("filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    Pair pair = connected();
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
}

/* With no memory left, the kernel makes a socket all the same. */
static void the_first_socket_without_memory(void) {
    const int resources[] = {RLIMIT_AS, RLIMIT_DATA};
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit limit = {1 << 20, 1 << 20};
            setrlimit(resources[i], &limit);
            _exit(socket(AF_INET, SOCK_STREAM, 0) < 0);
        }
        observe("ended with %d", status_of(child));
    }
}

static void fork_in_handler(int number) {
    (void)number;
    int before = errno;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    errno = before;
}

static void the_first_socket_after_forks_within_forks(void) {
    struct timespec began, now;
    handle(SIGALRM, fork_in_handler, SA_RESTART);
    timer_every_us(1500);
    for (int i = 0; i < 300; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    struct itimerval none = {0};
    must(setitimer(ITIMER_REAL, &none, NULL) == 0, "setitimer");
    clock_gettime(CLOCK_MONOTONIC, &began);
    Pair pair = connected();
    clock_gettime(CLOCK_MONOTONIC, &now);
    observe("at once: %d", now.tv_sec - began.tv_sec + (now.tv_nsec - began.tv_nsec) / 1e9 < 0.15);
    talk_until_on_ring(pair, 1);
}

static void *ask_and_end(void *near) {
    char bytes[64] = "a message";
    for (int i = 0; i < 1000; i++) {
        must(send(*(int *)near, bytes, sizeof bytes, 0) == sizeof bytes, "send");
        must(recv(*(int *)near, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "recv");
    }
    shutdown(*(int *)near, SHUT_WR);
    return NULL;
}

/* Answers what comes by a connection that it waits for by this set. */
static void by_a_set(int set) {
    Pair pair = connected();
    struct epoll_event event = {.events = EPOLLIN, .data.fd = pair.far};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    pthread_t asker = start_thread(ask_and_end, &pair.near);
    size_t bytes = 0;
    for (;;) {
        char buffer[256];
        int count = epoll_wait(set, &event, 1, 3000);
        ssize_t got = count == 1 ? recv(pair.far, buffer, sizeof buffer, 0) : -1;
        if (got <= 0) {
            observe("%d events, %zd at the end, %zu before", count, got, bytes);
            break;
        }
        bytes += got;
        must(send(pair.far, buffer, got, 0) == got, "send");
    }
    pthread_join(asker, NULL);
}

static void a_set_made_past_the_library(void) {
#ifdef __x86_64__
    long set;
    __asm__ volatile("syscall" : "=a"(set) : "a"(SYS_epoll_create1), "D"(0L) : "rcx", "r11", "memory");
    by_a_set(set);
#endif
}

enum { LISTENER = 77, SET = 78 };

static void waits_by_the_set_that_it_was_started_with(void) {
    struct epoll_event event;
    if (epoll_wait(SET, &event, 1, 0) < 0)
        return observe_result("epoll_wait", -1);
    by_a_set(SET);
}

static void a_program_with_a_set(void) {
    must(dup2(epoll_create1(0), SET) == SET, "dup2");
    execl("/proc/self/exe", "first", "waits_by_the_set_that_it_was_started_with", NULL);
}

/* Sends back what comes by the first connection of the listener that the program was started with, if it was. */
static void accepts_by_what_it_was_started_with(void) {
    char bytes[64];
    int fd = accept(LISTENER, NULL, NULL);
    if (fd < 0)
        return observe_result("accept", fd);
    while (recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes)
        must(send(fd, bytes, sizeof bytes, 0) == sizeof bytes, "send");
}

static void a_program_with_a_listener(void) {
    struct sockaddr_in address;
    must(dup2(listen_here(&address, 1), LISTENER) == LISTENER, "dup2");
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "first", "accepts_by_what_it_was_started_with", NULL);
        _exit(9);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0), rings = 0;
    must(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    for (int i = 0; i < 5000 && !rings; i++) {
        char bytes[64] = "a message";
        must(send(fd, bytes, sizeof bytes, 0) == sizeof bytes, "send");
        must(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "recv");
        rings = i % 100 == 99 && on_ring() > 0;
    }
    observe("on the ring: %d", rings);
    close(fd);
    observe("ended with %d", status_of(child));
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(a_program_without_sockets),
        CASE(the_first_socket_beside_changes_of_handlers),
        CASE(the_first_socket_beside_forks),
        CASE(the_first_sockets_of_several_threads),
        CASE(the_first_socket_in_a_handler),
        CASE(the_first_socket_in_a_child_of_vfork),
        CASE(handlers_from_before),
        CASE(hidden_from_before),
        CASE(a_filter_from_before),
        CASE(the_first_socket_without_memory),
        CASE(the_first_socket_after_forks_within_forks),
        CASE(a_set_made_past_the_library),
        CASE(waits_by_the_set_that_it_was_started_with),
        CASE(a_program_with_a_set),
        CASE(accepts_by_what_it_was_started_with),
        CASE(a_program_with_a_listener),
        {0},
    };
    return run_cases(cases, argc, argv);
}
