/* Signal handlers, and threads that are cancelled. */
#include "traps.h"

#include <sched.h>
#include <ucontext.h>

static Pair the_pair;
static volatile sig_atomic_t handled;
static sigjmp_buf way_out;

static void count(int number) {
    (void)number;
    handled++;
}

static void leave(int number) {
    (void)number;
    siglongjmp(way_out, 1);
}

static void send_one(int number) {
    int error = errno;
    (void)number;
    if (send(the_pair.near, "h", 1, MSG_DONTWAIT) == 1)
        handled++;
    errno = error;
}

static void *send_later(void *ms) {
    pause_ms(*(int *)ms);
    must(send(the_pair.near, "late", 4, 0) == 4, "send");
    return NULL;
}

/* What each waiting call does when a handler runs in it, and 4 bytes come later. */
static void interrupted(int flags) {
    static int later_ms = 80;
    char buffer[16];
    the_pair = on_the_ring();
    handle(SIGALRM, count, flags);
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, the_pair.far, &event);
    for (int call = 0; call < 4; call++) {
        struct itimerval once = {{0, 0}, {0, 20000}};
        struct pollfd fd = {the_pair.far, POLLIN, 0};
        fd_set set;
        FD_ZERO(&set);
        FD_SET(the_pair.far, &set);
        handled = 0;
        pthread_t thread = start_thread(send_later, &later_ms);
        setitimer(ITIMER_REAL, &once, NULL);
        switch (call) {
        case 0: observe_result("recv", recv(the_pair.far, buffer, sizeof buffer, MSG_PEEK)); break;
        case 1: observe_result("poll", poll(&fd, 1, -1)); break;
        case 2: observe_result("select", select(the_pair.far + 1, &set, NULL, NULL, NULL)); break;
        case 3: observe_result("epoll_wait", epoll_wait(epoll, &event, 1, -1)); break;
        }
        observe("handled %d", handled);
        pthread_join(thread, NULL);
        observe_result("then recv", recv(the_pair.far, buffer, sizeof buffer, 0));
    }
}

static void interrupts_waits(void) { interrupted(0); }
static void restarts_waits(void) { interrupted(SA_RESTART); }

/* A handler that sends on the connection on which its thread sends and receives: no byte is lost or doubled. */
static void handler_uses_the_connection(void) {
    the_pair = on_the_ring();
    handle(SIGALRM, send_one, SA_RESTART);
    timer_every_us(200);
    long sent = 0, got = 0, wrong = 0;
    char out[4096], in[8192];
    memset(out, 'm', sizeof out);
    for (int i = 0; i < 20000; i++) {
        size_t size = 1 + (size_t)i * 7 % sizeof out;
        must(send(the_pair.near, out, size, 0) == (ssize_t)size, "send");
        sent += size;
        ssize_t part = recv(the_pair.far, in, sizeof in, 0);
        must(part > 0, "recv");
        for (ssize_t at = 0; at < part; at++)
            wrong += in[at] != 'm' && in[at] != 'h';
        got += part;
    }
    timer_every_us(0);
    shutdown(the_pair.near, SHUT_WR);
    for (ssize_t part; (part = recv(the_pair.far, in, sizeof in, 0)) > 0;)
        got += part;
    observe("missing %ld, wrong %ld, handled %s", sent + handled - got, wrong, handled > 0 ? "some" : "none");
}

static void *read_to_the_end(void *descriptor) {
    static char buffer[1 << 16];
    ssize_t part;
    while ((part = recv(*(int *)descriptor, buffer, sizeof buffer, 0)) > 0)
        ;
    return (void *)part;
}

/* A handler that leaves calls in the middle: another thread can use the connection, and the stream ends. */
static void siglongjmp_out_of_sends(void) {
    static char message[3000];
    the_pair = on_the_ring();
    handle(SIGALRM, leave, SA_NODEFER);
    pthread_t reader = start_thread(read_to_the_end, &the_pair.far);
    volatile int left = 0;
    if (sigsetjmp(way_out, 1) != 0)
        left++;
    while (left < 2000) {
        struct itimerval once = {{0, 0}, {0, 50 + left % 40}};
        setitimer(ITIMER_REAL, &once, NULL);
        for (;;)
            send(the_pair.near, message, 1 + left % sizeof message, 0);
    }
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
    static int at_once_ms = 0;
    pthread_join(start_thread(send_later, &at_once_ms), NULL);
    shutdown(the_pair.near, SHUT_WR);
    void *end;
    pthread_join(reader, &end);
    observe("left %d times, the reader ended with %ld", left, (long)end);
}

static void siglongjmp_out_of_a_wait(void) {
    char byte;
    the_pair = on_the_ring();
    handle(SIGALRM, leave, 0);
    volatile int left = 0;
    if (sigsetjmp(way_out, 1) != 0)
        left++;
    while (left < 20) {
        struct itimerval once = {{0, 0}, {0, 3000}};
        setitimer(ITIMER_REAL, &once, NULL);
        recv(the_pair.far, &byte, 1, 0);
    }
    talk(the_pair.near, the_pair.far);
    talk(the_pair.far, the_pair.near);
    observe("left %d times, and talked", left);
}

static void *receive_one(void *unused) {
    char byte;
    (void)unused;
    recv(the_pair.far, &byte, 1, 0);
    return NULL;
}

static void thread_cancelled_in_a_wait(void) {
    the_pair = on_the_ring();
    for (int i = 0; i < 5; i++) {
        void *end;
        pthread_t thread = start_thread(receive_one, NULL);
        pause_ms(i * 5);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        observe("%s", end == PTHREAD_CANCELED ? "cancelled" : "ended");
    }
    talk(the_pair.near, the_pair.far);
    talk(the_pair.far, the_pair.near);
    observe("talked");
}

static ssize_t received;

static void *receive_all(void *unused) {
    char bytes[100];
    (void)unused;
    received = recv(the_pair.far, bytes, sizeof bytes, MSG_WAITALL);
    pthread_testcancel();
    return NULL;
}

/* Others go on, and nothing is kept open. */
static void thread_cancelled_with_a_part(void) {
    for (int i = 0; i < 4; i++) {
        void *end;
        char bytes[16];
        if (i == 2)
            handle(SIGUSR1, count, SA_RESTART);
        the_pair = on_the_ring();
        received = 0;
        must(send(the_pair.near, "some", 4, 0) == 4, "send");
        pthread_t thread = start_thread(receive_all, NULL);
        pause_ms(200);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        observe("%s with %zd", end == PTHREAD_CANCELED ? "cancelled" : "ended", received);
        must(send(the_pair.near, "more..", 6, 0) == 6, "send");
        observe_result("recv", recv(the_pair.far, bytes, sizeof bytes, 0));
        talk(the_pair.near, the_pair.far);
        talk(the_pair.far, the_pair.near);
        close(the_pair.far);
        must(poll(&(struct pollfd){.fd = the_pair.near, .events = POLLIN}, 1, 5000) == 1, "the end");
        observe_result("recv", recv(the_pair.near, bytes, sizeof bytes, MSG_DONTWAIT));
        close(the_pair.near);
    }
}

static void show_action(int number) {
    struct sigaction action;
    must(sigaction(number, NULL, &action) == 0, "sigaction");
    int usr2 = sigismember(&action.sa_mask, SIGUSR2);
    observe("handler is %s, flags %x, blocks SIGUSR2 %d", action.sa_handler == count ? "count" : "another", action.sa_flags, usr2);
}

static void actions_are_shown_as_installed(void) {
    struct sigaction action = {.sa_handler = count};
    int flags[] = {0, SA_RESTART, SA_SIGINFO, SA_NODEFER | SA_RESTART, SA_RESETHAND, SA_ONSTACK};
    sigaddset(&action.sa_mask, SIGUSR2);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        action.sa_flags = flags[i];
        must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
        show_action(SIGUSR1);
    }
    raise(SIGUSR1);
    signal(SIGUSR1, count);
    show_action(SIGUSR1);
    observe("handled %d", handled);
}

static volatile sig_atomic_t out_of_order, expected, foreign;

static void in_order(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    out_of_order += info->si_value.sival_int != expected;
    foreign += info->si_pid != getpid() || info->si_code != SI_QUEUE;
    expected = info->si_value.sival_int + 1;
    handled++;
}

static void *queue_signals(void *target) {
    for (int i = 0; i < 20000; i++) {
        union sigval value = {.sival_int = i};
        while (pthread_sigqueue(*(pthread_t *)target, SIGRTMIN, value) == EAGAIN)
            pause_ms(1);
    }
    return NULL;
}

/* Signals of real time come as they were sent, in their order, however busy their thread is. */
static void queued_signals_keep_their_order(void) {
    the_pair = on_the_ring();
    struct sigaction action = {.sa_sigaction = in_order, .sa_flags = SA_SIGINFO | SA_RESTART};
    must(sigaction(SIGRTMIN, &action, NULL) == 0, "sigaction");
    pthread_t self = pthread_self(), thread = start_thread(queue_signals, &self);
    while (handled < 20000)
        talk(the_pair.near, the_pair.far);
    pthread_join(thread, NULL);
    observe("handled %d, out of order %d, foreign %d", handled, out_of_order, foreign);
}

enum { MESSAGES_BEFORE = 2000, MESSAGE_BYTES = 16384 };

static struct itimerval once;

/* Takes as fast as it can until the sender's handler has run, and nothing after that. The signal is on its way when the long send has
 * certainly begun: something of it is there. */
static void *take_until_handled(void *fd) {
    static char bytes[1 << 20];
    struct timeval limit = {.tv_usec = 50000};
    size_t before = (size_t)MESSAGES_BEFORE * MESSAGE_BYTES, got = 0;
    setsockopt(*(int *)fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while (!handled) {
        size_t had = got;
        ssize_t part = recv(*(int *)fd, bytes, sizeof bytes, 0);
        got += part > 0 ? part : 0;
        if (had <= before && got > before)
            setitimer(ITIMER_REAL, &once, NULL);
    }
    return NULL;
}

/* A send that would never end returns what it has sent when a handler has run, also one after which calls are restarted. */
static void long_send_ends(int flags, int after_us) {
    size_t bytes = (size_t)1 << 30;
    char *much = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    the_pair = on_the_ring();
    handled = 0;
    once = (struct itimerval){.it_value = {.tv_usec = after_us}};
    handle(SIGALRM, count, flags);
    pthread_t reader = start_thread(take_until_handled, &the_pair.far);
    for (int i = 0; i < MESSAGES_BEFORE; i++)
        must(send(the_pair.near, much, MESSAGE_BYTES, 0) == MESSAGE_BYTES, "send");
    ssize_t sent = send(the_pair.near, much, bytes, 0);
    observe("a part %d, handled %d", sent > 0 && (size_t)sent < bytes, handled);
    pthread_join(reader, NULL);
    munmap(much, bytes);
}

static void long_sends_end(void) {
    for (int i = 0; i < 4; i++) {
        long_send_ends(0, 2000);
        long_send_ends(SA_RESTART, 2000);
        long_send_ends(0, 12000);
    }
}

/* The first time calls go on, the second time one that hangs is left. */
static void count_then_leave(int number) {
    (void)number;
    if (++handled > 1)
        siglongjmp(way_out, 1);
}

static void *sleep_for_ever(void *unused) {
    for (;;)
        pause_ms(1000);
    return unused;
}

/* What one call returns in the middle of which a handler runs after which calls are restarted: it has something to return. */
static void call_ends(const char *what, ssize_t (*call)(void)) {
    struct itimerval twice = {{1, 0}, {0, 100000}}, never = {0};
    the_pair = on_the_ring();
    handled = 0;
    if (sigsetjmp(way_out, 1) == 0) {
        setitimer(ITIMER_REAL, &twice, NULL);
        ssize_t result = call();
        setitimer(ITIMER_REAL, &never, NULL);
        observe("%s: some %d", what, result > 0);
    } else {
        setitimer(ITIMER_REAL, &never, NULL);
        observe("%s: goes on for ever", what);
    }
    observe("handled %d", handled);
    close(the_pair.near), close(the_pair.far);
}

static ssize_t send_much(void) {
    size_t bytes = 64 << 20;
    char *much = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ssize_t sent = send(the_pair.near, much, bytes, 0);
    return sent < (ssize_t)bytes ? sent : 0;
}

static ssize_t look_for_more(void) {
    char bytes[100];
    must(send(the_pair.near, "ten bytes!", 10, 0) == 10, "send");
    ssize_t seen = recv(the_pair.far, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL);
    return seen == 10 ? seen : 0;
}

static void handlers_end_calls_that_have_something(void) {
    handle(SIGALRM, count_then_leave, SA_RESTART);
    for (int i = 0; i < 2; i++) {
        call_ends("send", send_much);
        call_ends("recv", look_for_more);
        start_thread(sleep_for_ever, NULL);
    }
}

/* ---- What a wait's own mask blocks, a handler that ends its thread, and one that changes the mask that it found. ---- */

static atomic_int echoers;

static void *echo_all(void *descriptor) {
    int fd = *(int *)descriptor;
    char bytes[64];
    atomic_fetch_add(&echoers, 1);
    for (ssize_t got; (got = recv(fd, bytes, sizeof bytes, 0)) > 0;)
        send(fd, bytes, got, MSG_DONTWAIT);
    return NULL;
}

enum { BY_PPOLL, BY_PSELECT, BY_EPOLL_PWAIT, WAYS };

static int wait_masked(int way, int fd, int set) {
    sigset_t all;
    sigfillset(&all);
    struct timespec patience = {1, 0};
    struct pollfd polled = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set selected;
    FD_ZERO(&selected);
    FD_SET(fd, &selected);
    if (way == BY_PPOLL)
        return ppoll(&polled, 1, &patience, &all);
    if (way == BY_PSELECT)
        return pselect(fd + 1, &selected, NULL, NULL, &patience, &all);
    return epoll_pwait(set, &event, 1, 1000, &all);
}

/* A call is ended by no signal that its own mask blocks. */
static void signals_that_a_wait_blocks(void) {
    the_pair = on_the_ring();
    pthread_t thread = start_thread(echo_all, &the_pair.far);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, the_pair.near, &event);
    handle(SIGALRM, count, 0);
    for (int way = 0; way < WAYS; way++) {
        int interrupted = 0;
        char bytes[64] = "";
        timer_every_us(130);
        for (int round = 0; round < 10000; round++) {
            must(send(the_pair.near, bytes, sizeof bytes, 0) == sizeof bytes, "send");
            while (wait_masked(way, the_pair.near, set) == -1)
                interrupted++;
            for (size_t got = 0; got < sizeof bytes;) {
                ssize_t part = recv(the_pair.near, bytes, sizeof bytes - got, 0);
                got += part > 0 ? part : 0;
            }
        }
        timer_every_us(0);
        observe("interrupted %s, handled %s", interrupted ? "some" : "none", handled > 50 ? "many" : "few");
    }
    shutdown(the_pair.near, SHUT_WR);
    pthread_join(thread, NULL);
}

static void end_thread(int number) {
    (void)number;
    pthread_exit(NULL);
}

static void *ask_all(void *over) {
    char bytes[64] = "";
    while (!atomic_load((atomic_int *)over)) {
        send(the_pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
        recv(the_pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
    }
    return NULL;
}

/* As programs do where there is no cancellation: a handler ends the thread wherever it is. */
static void a_handler_ends_its_thread(void) {
    atomic_int over = 0;
    the_pair = on_the_ring();
    handle(SIGUSR1, end_thread, 0);
    pthread_t asker = start_thread(ask_all, &over);
    setsockopt(the_pair.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(the_pair.far, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (int round = 0; round < 300; round++) {
        pthread_t worker;
        must(pthread_create(&worker, NULL, echo_all, &the_pair.far) == 0, "thread");
        while (atomic_load(&echoers) <= round)
            sched_yield();
        usleep(300 + round * 7919 % 1000);
        pthread_kill(worker, SIGUSR1);
        pthread_join(worker, NULL);
    }
    atomic_store(&over, 1);
    pthread_join(asker, NULL);
    observe("lives");
}

static volatile sig_atomic_t has_blocked, found_blocked;

static void block_another(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    sigset_t *mask = &((ucontext_t *)context)->uc_sigmask;
    found_blocked += sigismember(mask, SIGTERM);
    sigaddset(mask, SIGUSR2);
    has_blocked = 1;
    handled++;
}

/* What a handler puts into the mask that it has found is in force when it has returned, whenever it came. */
static void a_handler_changes_the_mask(void) {
    char bytes[20000] = "";
    sigset_t now, other;
    sigemptyset(&other);
    sigaddset(&other, SIGUSR2);
    struct sigaction action = {.sa_sigaction = block_another, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigevent tells = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2};
    struct itimerspec often = {{0, 150000}, {0, 150000}};
    timer_t timer;
    int missed = 0;
    the_pair = on_the_ring();
    must(sigaction(SIGRTMIN + 2, &action, NULL) == 0, "sigaction");
    must(timer_create(CLOCK_MONOTONIC, &tells, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0, "timer");
    for (int round = 0; round < 30000; round++) {
        send(the_pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
        recv(the_pair.far, bytes, sizeof bytes, MSG_DONTWAIT);
        if (has_blocked) {
            sigprocmask(SIG_BLOCK, NULL, &now);
            // One more may have come just before.
            missed += !sigismember(&now, SIGUSR2);
            has_blocked = 0;
            sigprocmask(SIG_UNBLOCK, &other, NULL);
        }
    }
    timer_delete(timer);
    observe("missed %s, handled %s, others were blocked %s", missed > 5 ? "some" : "none", handled > 50 ? "many" : "few",
            found_blocked ? "at times" : "never");
}

/* ---- A stop (SIGSTOP, SIGCONT) in the middle of a call. ---- */

enum Stopped { IN_RECV, IN_TIMED_RECV, IN_PEEK, IN_RECVMMSG, IN_SEND, IN_TIMED_SEND, IN_SENDMMSG, STOPPED };

static void *go_on_later(void *call) {
    static char bytes[1 << 20];
    struct timeval patience = {0, 200000};
    pause_ms(400);
    if (*(enum Stopped *)call < IN_SEND) {
        must(send(the_pair.near, "and the rest", 12, 0) == 12, "send");
        return NULL;
    }
    setsockopt(the_pair.far, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (recv(the_pair.far, bytes, sizeof bytes, 0) > 0)
        ;
    return NULL;
}

static pid_t stop_soon(void) {
    pid_t stopped = getpid(), child = fork();
    if (child == 0) {
        pause_ms(150);
        kill(stopped, SIGSTOP);
        pause_ms(50);
        kill(stopped, SIGCONT);
        _exit(0);
    }
    return child;
}

/* A call that has a part of what it waits for returns that, and others go on, but for those that are timed. */
static void a_stop(enum Stopped call, int has_part) {
    static char much[24 << 20];
    char got[64];
    struct iovec parts[3] = {{got, has_part ? 10 : 12}, {got, 12}, {got, 1}};
    struct mmsghdr list[3] = {0};
    struct timeval patience = {3, 0};
    ssize_t result = 0, all = call == IN_SENDMMSG ? 3 : call >= IN_SEND ? (ssize_t)sizeof much : 22;
    the_pair = on_the_ring();
    for (int i = 0; i < 3; i++) {
        if (call == IN_SENDMMSG)
            parts[i] = (struct iovec){much, sizeof much / 3};
        list[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    if (call == IN_TIMED_RECV)
        setsockopt(the_pair.far, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (call == IN_TIMED_SEND)
        setsockopt(the_pair.near, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    pid_t child = stop_soon();
    pthread_t thread = start_thread(go_on_later, &call);
    if (call < IN_SEND && has_part)
        must(send(the_pair.near, "ten bytes!", 10, 0) == 10, "send");
    while (call >= IN_SEND && !has_part && send(the_pair.near, much, 1 << 16, MSG_DONTWAIT) > 0)
        ;
    switch (call) {
    case IN_RECV:
    case IN_TIMED_RECV: result = recv(the_pair.far, got, has_part ? 22 : 12, MSG_WAITALL); break;
    case IN_PEEK: result = recv(the_pair.far, got, has_part ? 22 : 12, MSG_WAITALL | MSG_PEEK); break;
    case IN_RECVMMSG: result = recvmmsg(the_pair.far, list, has_part ? 2 : 1, 0, NULL); break;
    case IN_SEND:
    case IN_TIMED_SEND: result = send(the_pair.near, much, has_part ? sizeof much : 12, 0); break;
    case IN_SENDMMSG: result = sendmmsg(the_pair.near, list, has_part ? 3 : 1, 0); break;
    case STOPPED: break;
    }
    if (call < IN_SEND || !has_part)
        observe("call %d: %s %zd", call, result < 0 ? strerrorname_np(errno) : "returns", result);
    else
        observe("call %d: %s", call, result > 0 && result < all ? "a part" : result == all ? "all" : "nothing");
    pthread_join(thread, NULL);
    must(status_of(child) == 0, "child");
    close(the_pair.near), close(the_pair.far);
}

static void a_stop_ends_calls_that_have_something(void) {
    for (int call = 0; call < STOPPED; call++)
        a_stop(call, 1);
}

static void a_stop_ends_no_call_that_has_nothing(void) {
    for (int call = 0; call < IN_SENDMMSG; call++)
        a_stop(call, 0);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(interrupts_waits),
        CASE(restarts_waits),
        CASE(handler_uses_the_connection),
        CASE(siglongjmp_out_of_sends),
        CASE(siglongjmp_out_of_a_wait),
        CASE(thread_cancelled_in_a_wait),
        CASE(thread_cancelled_with_a_part),
        CASE(actions_are_shown_as_installed),
        CASE(queued_signals_keep_their_order),
        CASE(long_sends_end),
        CASE(handlers_end_calls_that_have_something),
        CASE(signals_that_a_wait_blocks),
        CASE(a_handler_ends_its_thread),
        CASE(a_handler_changes_the_mask),
        CASE(a_stop_ends_calls_that_have_something),
        CASE(a_stop_ends_no_call_that_has_nothing),
        {0},
    };
    return run_cases(cases, argc, argv);
}
