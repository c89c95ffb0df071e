/* Children that others do not hear of: they register in sets of their parent, and have its descriptors or its memory alone. */
#include "traps.h"
#include <sched.h>

/* How a child begins: by the C library's `fork`, or past it with these flags of `clone`. */
#define BY_FORK (-1L)
#define BARE 0L

static pid_t begin(long how) { return how == BY_FORK ? fork() : (pid_t)syscall(SYS_clone, how | SIGCHLD, 0, 0, 0, 0); }

static void end(int status) { syscall(SYS_exit_group, status); }

/* What a wait on the set and a look at the connection find after a byte has been sent, some times. */
static void observe_waits(Pair pair, int set) {
    for (int i = 0; i < 5; i++) {
        struct epoll_event got = {0};
        char byte;
        must(send(pair.near, "x", 1, 0) == 1, "send");
        int ready = epoll_wait(set, &got, 1, 200);
        observe("epoll_wait: %d, %u", ready, ready > 0 ? got.data.u32 : 0);
        observe_result("recv", recv(pair.far, &byte, 1, MSG_DONTWAIT));
    }
}

/* A child changes the set, and ends, or lives on with it until it is told. */
static void a_child_changes(int operation, long how, int is_on_ring, int lives) {
    Pair pair = is_on_ring ? on_the_ring() : connected();
    int set = epoll_create1(0), done[2], over[2];
    char byte = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 5};
    must(pipe(done) == 0 && pipe(over) == 0, "pipe");
    if (operation != EPOLL_CTL_ADD)
        must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    pid_t child = begin(how);
    if (child == 0) {
        event.data.u32 = 9;
        int result = epoll_ctl(set, operation, pair.far, &event);
        must(write(done[1], &byte, 1) == 1, "write");
        if (lives)
            must(read(over[0], &byte, 1) == 1, "read");
        end(result != 0);
    }
    must(read(done[0], &byte, 1) == 1, "read");
    if (!lives)
        observe("child: %d", status_of(child));
    observe_waits(pair, set);
    must(write(over[1], &byte, 1) == 1, "write");
    if (lives)
        observe("child: %d", status_of(child));
    for (int i = 0; i < 2; i++) {
        close(done[i]);
        close(over[i]);
    }
    close(pair.near);
    close(pair.far);
    close(set);
}

static void a_set_that_children_change(void) {
    static const int operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
    for (int operation = 0; operation < 3; operation++)
        for (long way = BY_FORK; way <= BARE; way++)
            for (int rest = 0; rest < 4; rest++) {
                observe("operation %d, way %ld, %d", operation, way, rest);
                a_child_changes(operations[operation], way, rest % 2, rest / 2);
            }
}

static void added_by_a_child_with_the_same_descriptors(void) { a_child_changes(EPOLL_CTL_ADD, CLONE_FILES, 1, 1); }
static void deleted_by_a_child_with_the_same_descriptors(void) { a_child_changes(EPOLL_CTL_DEL, CLONE_FILES, 1, 0); }

/* The parent sleeps on the set while a child registers what it has read from a moment ago. */
static void a_child_registers_under_a_sleeper(void) {
    for (long how = BY_FORK; how <= BARE; how++) {
        Pair pair = on_the_ring();
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = 5}, got = {0};
        pid_t child = begin(how);
        if (child == 0) {
            pause_ms(50);
            int result = epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event);
            pause_ms(20);
            result |= send(pair.near, "x", 1, 0) != 1;
            end(result);
        }
        int ready = epoll_wait(set, &got, 1, 1000);
        observe("epoll_wait: %d, %u", ready, got.data.u32);
        observe("child: %d", status_of(child));
    }
}

enum Deed { CLOSES, COPIES_A_PIPE, COPIES_ANOTHER, SENDS };

/* A child that has the descriptors, and not the memory, does something with a connection's number. */
static void a_child_with_the_same_descriptors(enum Deed deed) {
    Pair pair = on_the_ring(), other = on_the_ring();
    int through[2];
    char got[16];
    must(pipe2(through, O_NONBLOCK) == 0, "pipe2");
    pid_t child = begin(CLONE_FILES);
    if (child == 0) {
        switch (deed) {
        case CLOSES: close(pair.near); break;
        case COPIES_A_PIPE: dup2(through[1], pair.near); break;
        case COPIES_ANOTHER: dup2(other.near, pair.near); break;
        case SENDS: send(pair.near, "child", 5, 0); break;
        }
        end(0);
    }
    observe("child: %d", status_of(child));
    observe_result("write", write(pair.near, "bytes", 5));
    pause_ms(100);
    observe_result("pipe", read(through[0], got, sizeof got));
    observe_result("far", recv(pair.far, got, sizeof got, MSG_DONTWAIT));
    observe_result("other's far", recv(other.far, got, sizeof got, MSG_DONTWAIT));
}

static void closed_by_it(void) { a_child_with_the_same_descriptors(CLOSES); }
static void a_pipe_put_there_by_it(void) { a_child_with_the_same_descriptors(COPIES_A_PIPE); }
static void another_put_there_by_it(void) { a_child_with_the_same_descriptors(COPIES_ANOTHER); }
static void sent_by_it(void) { a_child_with_the_same_descriptors(SENDS); }

/* The kernel has not heard of the last change when a child of vfork is made, which lets go of the set and becomes a program. */
static void let_go_of_by_a_child_of_vfork(int closes) {
    Pair pair = on_the_ring();
    int set = epoll_create1(0), result[2];
    struct epoll_event event = {.events = EPOLLIN}, none = {0}, got;
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event) == 0, "epoll_ctl");
    for (int round = 0; round < 3; round++) {
        result[0] = epoll_ctl(set, EPOLL_CTL_MOD, pair.near, &none);
        observe("epoll_wait: %d", epoll_wait(set, &got, 1, 10));
        result[1] = epoll_ctl(set, EPOLL_CTL_MOD, pair.near, &event);
        observe("epoll_ctl: %d %d", result[0], result[1]);
        pid_t child = vfork();
        if (child == 0) {
            if (closes)
                close(set);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        observe("child: %d", status_of(child));
        pid_t sender = fork();
        if (sender == 0) {
            pause_ms(100);
            _exit(send(pair.far, "x", 1, 0) != 1);
        }
        observe("epoll_wait: %d", epoll_wait(set, &got, 1, 2000));
        char byte;
        observe_result("recv", recv(pair.near, &byte, 1, 0));
        observe("sender: %d", status_of(sender));
    }
}

static void a_set_that_a_child_of_vfork_closes(void) { let_go_of_by_a_child_of_vfork(1); }
static void a_set_that_a_child_of_vfork_keeps(void) { let_go_of_by_a_child_of_vfork(0); }

static char stack[1 << 16] __attribute__((aligned(16)));
static Pair of_both;
static atomic_int stage;

static int read_when_closed(void *unused) {
    (void)unused;
    char got[16];
    while (stage == 0)
        usleep(100);
    return (int)recv(of_both.far, got, sizeof got, MSG_DONTWAIT);
}

/* A child that has the memory, and not the descriptors, reads what its parent has closed. */
static void memory_without_descriptors(void) {
    char byte;
    of_both = on_the_ring();
    pid_t child = clone(read_when_closed, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    must(send(of_both.near, "ten bytes.", 10, 0) == 10, "send");
    observe_result("close", close(of_both.far));
    stage = 1;
    observe("child: %d", WEXITSTATUS(status_of(child)));
    observe_result("recv", recv(of_both.near, &byte, 1, MSG_DONTWAIT));
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    static const Case cases[] = {
        CASE(a_set_that_children_change),
        CASE(a_child_registers_under_a_sleeper),
        CASE(added_by_a_child_with_the_same_descriptors),
        CASE(deleted_by_a_child_with_the_same_descriptors),
        CASE(closed_by_it),
        CASE(a_pipe_put_there_by_it),
        CASE(another_put_there_by_it),
        CASE(sent_by_it),
        CASE(a_set_that_a_child_of_vfork_closes),
        CASE(a_set_that_a_child_of_vfork_keeps),
        CASE(memory_without_descriptors),
        {0},
    };
    return run_cases(cases, argc, argv);
}
