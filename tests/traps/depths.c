/* Calls from where there is little room, in time or in memory: coroutines, handlers, threads between other threads' calls. */
#include "traps.h"

#include <sys/resource.h>
#include <ucontext.h>

/* ---- Little stack. ---- */

enum { COROUTINE_BYTES = 8192, PAGE = 4096 };

static Pair the_pair;
static int the_set;
static ucontext_t outside, inside;

/* Every call on the ring that a coroutine is likely to make. */
static void calls_on_a_small_stack(void) {
    char bytes[64] = "from a coroutine";
    struct iovec vector = {bytes, 16};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    struct epoll_event event;
    struct pollfd entry = {the_pair.far, POLLIN | POLLOUT, 0};
    fd_set set;
    int value;
    for (int i = 0; i < 20; i++) {
        must(send(the_pair.near, bytes, 16, 0) == 16, "send");
        must(epoll_wait(the_set, &event, 1, 1000) == 1, "epoll_wait");
        must(poll(&entry, 1, 1000) == 1, "poll");
        FD_ZERO(&set);
        FD_SET(the_pair.far, &set);
        must(select(the_pair.far + 1, &set, NULL, NULL, NULL) == 1, "select");
        must(ioctl(the_pair.far, FIONREAD, &value) == 0 && value == 16, "FIONREAD");
        must(recv(the_pair.far, bytes, sizeof bytes, MSG_PEEK) == 16, "peek");
        must(recv(the_pair.far, bytes, sizeof bytes, 0) == 16, "recv");
        must(sendmsg(the_pair.near, &header, 0) == 16 && recvmsg(the_pair.far, &header, 0) == 16, "messages");
        must(write(the_pair.near, bytes, 16) == 16 && read(the_pair.far, bytes, 16) == 16, "write, read");
        must(writev(the_pair.near, &vector, 1) == 16 && readv(the_pair.far, &vector, 1) == 16, "vectors");
        int copy = dup(the_pair.near);
        must(copy >= 0 && close(copy) == 0, "dup");
        must(recv(the_pair.far, bytes, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "nothing");
        must(epoll_wait(the_set, &event, 1, 1) == 0, "epoll_wait");
        must(poll(&(struct pollfd){the_pair.far, POLLIN, 0}, 1, 1) == 0, "poll");
    }
}

/* A stack of so many bytes, of which the page below is not there. */
static char *small_stack(size_t bytes) {
    char *memory = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED && mprotect(memory, PAGE, PROT_NONE) == 0, "mmap");
    return memory + PAGE;
}

static void run_inside(void (*work)(void)) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = small_stack(COROUTINE_BYTES);
    inside.uc_stack.ss_size = COROUTINE_BYTES;
    inside.uc_link = &outside;
    makecontext(&inside, work, 0);
    swapcontext(&outside, &inside);
}

static void coroutines_on_the_ring(void) {
    the_pair = on_the_ring();
    struct epoll_event event = {.events = EPOLLIN};
    the_set = epoll_create1(0);
    must(epoll_ctl(the_set, EPOLL_CTL_ADD, the_pair.far, &event) == 0, "epoll_ctl");
    run_inside(calls_on_a_small_stack);
    observe("all returned");
}

/* A connection that is made, joins and ends there. */
static void live_on_a_small_stack(void) {
    for (int i = 0; i < 3; i++) {
        Pair pair = connected();
        for (int j = 0; j < 4; j++)
            talk(pair.near, pair.far), talk(pair.far, pair.near);
        must(shutdown(pair.near, SHUT_WR) == 0, "shutdown");
        close(pair.near), close(pair.far);
    }
}

static void coroutines_with_connections_of_their_own(void) {
    run_inside(live_on_a_small_stack);
    observe("all ended");
}

/* ---- Handlers. ---- */

static volatile sig_atomic_t handled, wrong;
static int spare, at_end;

static void call_on_the_handlers_stack(int number) {
    (void)number;
    int before = errno;
    char bytes[16] = "handler";
    handled++;
    wrong += send(the_pair.near, bytes, 8, MSG_DONTWAIT) != 8;
    errno = before;
}

static void handlers_with_a_stack_of_their_own(void) {
    stack_t stack = {.ss_sp = small_stack(SIGSTKSZ), .ss_size = SIGSTKSZ};
    char bytes[4096];
    long got = 0, sent = 0;
    the_pair = on_the_ring();
    must(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    handle(SIGALRM, call_on_the_handlers_stack, SA_ONSTACK | SA_RESTART);
    timer_every_us(200);
    for (int i = 0; i < 20000 || handled < 100; i++) {
        must(send(the_pair.near, bytes, 100, 0) == 100, "send");
        sent += 100;
        ssize_t part = recv(the_pair.far, bytes, sizeof bytes, 0);
        must(part > 0, "recv");
        got += part;
    }
    timer_every_us(0);
    ssize_t part;
    while ((part = recv(the_pair.far, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        got += part;
    observe("missing %ld, wrong %d", sent + 8L * handled - got, (int)wrong);
}

static void replace_it(int number) {
    (void)number;
    int before = errno;
    wrong += dup2(spare, the_pair.near) != the_pair.near;
    handled++;
    errno = before;
}

/* A handler puts a copy in the place of the descriptor that the interrupted call uses. */
static void replaced_by_a_handler(void) {
    char bytes[4096];
    long got = 0, sent = 0;
    the_pair = on_the_ring();
    spare = dup(the_pair.near);
    handle(SIGALRM, replace_it, SA_RESTART);
    timer_every_us(100);
    for (int i = 0; i < 20000 || handled < 100; i++) {
        ssize_t part = send(the_pair.near, bytes, 1000, 0);
        must(part == 1000, "send");
        sent += part;
        part = recv(the_pair.far, bytes, sizeof bytes, 0);
        must(part > 0, "recv");
        got += part;
    }
    timer_every_us(0);
    shutdown(spare, SHUT_WR);
    ssize_t part;
    while ((part = recv(the_pair.far, bytes, sizeof bytes, 0)) > 0)
        got += part;
    observe("missing %ld, wrong %d", sent - got, (int)wrong);
}

static void close_it(int number) {
    (void)number;
    int before = errno;
    if (!at_end)
        wrong += close(the_pair.near) != 0;
    at_end = 1;
    errno = before;
}

/* A handler closes the descriptor that the interrupted call uses. */
static void closed_by_a_handler(void) {
    int odd = 0;
    handle(SIGALRM, close_it, SA_RESTART);
    for (int round = 0; round < 60; round++) {
        char bytes[4096];
        long got = 0, sent = 0;
        Pair pair = the_pair = connected();
        talk(pair.near, pair.far), talk(pair.far, pair.near), talk(pair.near, pair.far);
        at_end = 0;
        struct itimerval once = {{0, 0}, {0, 100 + 17 * round}};
        setitimer(ITIMER_REAL, &once, NULL);
        ssize_t part;
        while ((part = send(pair.near, bytes, 700, MSG_NOSIGNAL)) > 0) {
            sent += part;
            if ((part = recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
                got += part;
        }
        odd += errno != EBADF;
        while ((part = recv(pair.far, bytes, sizeof bytes, 0)) > 0)
            got += part;
        odd += part != 0 || got < sent || got > sent + 700;
        close(pair.far);
    }
    observe("odd %d, wrong %d", odd, (int)wrong);
}

/* ---- A call that waits, and what others do meanwhile. ---- */

typedef struct {
    int fd, flags;
    size_t wanted;
    ssize_t result;
    int error;
    pthread_t thread;
} Call;

static void *receive_all_of_it(void *argument) {
    Call *call = argument;
    char bytes[256];
    call->result = recv(call->fd, bytes, call->wanted, call->flags);
    call->error = errno;
    return NULL;
}

static void do_nothing(int number) { (void)number; }

static void observe_call(const char *what, Call *call) {
    pthread_join(call->thread, NULL);
    errno = call->error;
    observe_result(what, call->result);
}

/* A call has a part of what it waits for when another thread closes its descriptor, or puts another in its place: it has the file. */
static void taken_from_below_a_wait_for_all(int flags, int way) {
    if (flags >= 0)
        handle(SIGUSR1, do_nothing, flags);
    Pair pair = on_the_ring(), other = connected();
    must(send(pair.near, "some", 4, 0) == 4, "send");
    Call call = {.fd = pair.far, .flags = MSG_WAITALL, .wanted = 10};
    call.thread = start_thread(receive_all_of_it, &call);
    pause_ms(50);
    if (way == 0)
        close(pair.far);
    else
        must(dup2(other.far, pair.far) == pair.far, "dup2");
    pause_ms(100);
    observe_result("send", send(pair.near, "more..", 6, MSG_NOSIGNAL));
    observe_call("recv", &call);
    pause_ms(20);
    observe_result("send", send(pair.near, "x", 1, MSG_NOSIGNAL));
    pause_ms(20);
    observe_result("send", send(pair.near, "x", 1, MSG_NOSIGNAL));
}

static void closed_below_a_wait_for_all(void) { taken_from_below_a_wait_for_all(-1, 0); }
static void replaced_below_a_wait_for_all(void) { taken_from_below_a_wait_for_all(-1, 1); }
static void closed_below_a_wait_that_restarts(void) { taken_from_below_a_wait_for_all(SA_RESTART, 0); }
static void replaced_below_a_wait_that_restarts(void) { taken_from_below_a_wait_for_all(SA_RESTART, 1); }

/* As above; then the other end ends. */
static void ended_below_a_wait_that_restarts(void) {
    handle(SIGUSR1, do_nothing, SA_RESTART);
    for (int way = 0; way < 2; way++) {
        Pair pair = on_the_ring();
        must(send(pair.near, "some", 4, 0) == 4, "send");
        Call call = {.fd = pair.far, .flags = MSG_WAITALL, .wanted = 10};
        call.thread = start_thread(receive_all_of_it, &call);
        pause_ms(50);
        close(pair.far);
        pause_ms(100);
        if (way == 0)
            shutdown(pair.near, SHUT_WR);
        else
            close(pair.near);
        observe_call("recv", &call);
        if (way == 0)
            close(pair.near);
    }
}

static sigjmp_buf out;

static void jump_out(int number) {
    (void)number;
    siglongjmp(out, 1);
}

static void *leave_a_wait_for_all(void *argument) {
    char bytes[16];
    if (sigsetjmp(out, 1) == 0)
        recv(*(int *)argument, bytes, 10, MSG_WAITALL);
    return NULL;
}

/* A child has no part in a call that waits, and one that was left by a jump keeps nothing: the other end sees the end. */
static void nobody_else_has_what_waits(void) {
    handle(SIGUSR1, do_nothing, SA_RESTART);
    handle(SIGUSR2, jump_out, SA_RESTART);
    char byte;
    for (int way = 0; way < 2; way++) {
        Pair pair = on_the_ring();
        pthread_t thread;
        must(send(pair.near, "some", 4, 0) == 4, "send");
        must(pthread_create(&thread, NULL, leave_a_wait_for_all, &pair.far) == 0, "thread");
        pause_ms(50);
        pid_t child = way == 0 ? fork() : 0;
        if (way == 0 && child == 0) {
            close(pair.near), close(pair.far);
            pause_ms(20000);
            _exit(0);
        }
        pthread_kill(thread, way == 0 ? SIGUSR1 : SIGUSR2);
        pthread_join(thread, NULL);
        close(pair.far);
        observe("ends: %d", poll(&(struct pollfd){pair.near, POLLIN, 0}, 1, 3000));
        observe_result("recv", recv(pair.near, &byte, 1, MSG_DONTWAIT));
        close(pair.near);
        if (way == 0) {
            kill(child, SIGKILL);
            observe("child %d", status_of(child));
        }
    }
}

enum { RECEIVES, WAITS, POLLS, SENDS, WAYS };

typedef struct {
    int way, fd, set;
    ssize_t result;
    pthread_t thread;
} Sleeper;

static void *sleep_in_a_call(void *argument) {
    Sleeper *sleeper = argument;
    static char bytes[8 << 20];
    struct epoll_event event;
    struct pollfd entry = {sleeper->fd, POLLIN, 0};
    if (sleeper->way == RECEIVES)
        sleeper->result = recv(sleeper->fd, bytes, sizeof bytes, 0);
    else if (sleeper->way == WAITS)
        sleeper->result = epoll_wait(sleeper->set, &event, 1, 10000);
    else if (sleeper->way == POLLS)
        sleeper->result = poll(&entry, 1, 10000);
    else
        sleeper->result = send(sleeper->fd, bytes, sizeof bytes, 0);
    return NULL;
}

/* Another thread forks while this one sleeps in a call on the ring. The child closes, uses or leaves what it has. */
static void forks_beside_sleepers(void) {
    for (int i = 0; i < WAYS * 3; i++) {
        int way = i % WAYS, child_does = i / WAYS;
        Pair pair = on_the_ring();
        Sleeper sleeper = {.way = way, .fd = pair.far, .set = epoll_create1(0)};
        struct epoll_event event = {.events = EPOLLIN};
        must(epoll_ctl(sleeper.set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
        sleeper.thread = start_thread(sleep_in_a_call, &sleeper);
        pause_ms(30);
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            if (child_does == 0)
                close(pair.near), close(pair.far), close(sleeper.set);
            else if (child_does == 1 && way != SENDS)
                must(send(pair.near, "of the child", 12, 0) == 12, "send");
            _exit(0);
        }
        observe("child %d", status_of(child));
        if (way == SENDS) {
            static char bytes[1 << 20];
            size_t got = 0;
            while (got < (8 << 20)) {
                ssize_t part = recv(pair.near, bytes, sizeof bytes, 0);
                must(part > 0, "recv");
                got += part;
            }
            observe("got %zu", got);
        } else if (child_does != 1) {
            must(send(pair.near, "of the parent", 13, 0) == 13, "send");
        }
        pthread_join(sleeper.thread, NULL);
        observe("way %d, child %d: %zd", way, child_does, sleeper.result);
        close(pair.near), close(pair.far), close(sleeper.set);
    }
}

/* ---- Descriptors. ---- */

static void closed_on_exec_by_a_range(void) {
    Pair pair = on_the_ring();
    char bytes[16];
    int low = pair.near < pair.far ? pair.near : pair.far, high = pair.near < pair.far ? pair.far : pair.near;
    observe_result("close_range", syscall(SYS_close_range, low, high, 4 /* CLOSE_RANGE_CLOEXEC */));
    observe("flags %d %d", fcntl(pair.near, F_GETFD), fcntl(pair.far, F_GETFD));
    talk(pair.near, pair.far), talk(pair.far, pair.near);
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    observe("child %d", status_of(child));
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    talk(pair.near, pair.far), talk(pair.far, pair.near);
    child = fork();
    if (child == 0) {
        int result = syscall(SYS_close_range, 3, ~0u, 2 /* CLOSE_RANGE_UNSHARE */);
        _exit(result);
    }
    observe("child %d", status_of(child));
    talk(pair.near, pair.far), talk(pair.far, pair.near);
    close(pair.near);
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
}

static void a_child_of_vfork_closes(void) {
    Pair pair = on_the_ring();
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        if (child == 0) {
            close(pair.near), close(pair.far);
            if (i == 1)
                dup2(0, pair.near);
            if (i == 2)
                execl("/bin/true", "true", NULL);
            _exit(0);
        }
        observe("child %d", status_of(child));
    }
    char bytes[16];
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    talk(pair.near, pair.far), talk(pair.far, pair.near);
    close(pair.near);
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
}

/* The limit is below the numbers that are in use. */
static void a_limit_below_what_is_open(void) {
    Pair pair = on_the_ring();
    struct rlimit few = {3, 3};
    char bytes[16];
    must(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
    observe_result("socket", socket(AF_INET, SOCK_STREAM, 0));
    observe_result("dup", dup(pair.near));
    observe_result("epoll_create1", epoll_create1(0));
    talk(pair.near, pair.far), talk(pair.far, pair.near);
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    pid_t child = fork();
    if (child == 0)
        _exit(recv(pair.far, bytes, 3, 0) != 3);
    observe("child %d", status_of(child));
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    shutdown(pair.near, SHUT_WR);
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    close(pair.near), close(pair.far);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(coroutines_on_the_ring),
        CASE(coroutines_with_connections_of_their_own),
        CASE(handlers_with_a_stack_of_their_own),
        CASE(replaced_by_a_handler),
        CASE(closed_by_a_handler),
        CASE(closed_below_a_wait_for_all),
        CASE(replaced_below_a_wait_for_all),
        CASE(closed_below_a_wait_that_restarts),
        CASE(replaced_below_a_wait_that_restarts),
        CASE(ended_below_a_wait_that_restarts),
        CASE(nobody_else_has_what_waits),
        CASE(forks_beside_sleepers),
        CASE(closed_on_exec_by_a_range),
        CASE(a_child_of_vfork_closes),
        CASE(a_limit_below_what_is_open),
        {0},
    };
    return run_cases(cases, argc, argv);
}
