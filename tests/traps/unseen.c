/* Waits by an instruction of the program's own, which no library sees, for bytes that it takes by the C library's functions. */
#include "traps.h"

enum { MESSAGES = 200, PATIENCE_MS = 5000 };

#if defined __x86_64__
static long instruct(long number, long first, long second, long third, long fourth, long fifth) {
    register long r10 __asm__("r10") = fourth;
    register long r8 __asm__("r8") = fifth;
    register long r9 __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined __aarch64__
static long instruct(long number, long first, long second, long third, long fourth, long fifth) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = third;
    register long x3 __asm__("x3") = fourth;
    register long x4 __asm__("x4") = fifth;
    register long x5 __asm__("x5") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#endif

static int epoll;

/* The agent has time to introduce the ends. */
static void send_late(int fd) {
    static const char sent[64] = "a message";
    pause_ms(1);
    must(send(fd, sent, sizeof sent, 0) == sizeof sent, "send");
}

/* The instruction's ways to wait for bytes. */
static int by_epoll(int fd) {
    struct epoll_event event;
    (void)fd;
    return instruct(SYS_epoll_pwait, epoll, (long)&event, 1, PATIENCE_MS, 0);
}

static int by_poll(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    struct timespec time = {.tv_sec = PATIENCE_MS / 1000};
    return instruct(SYS_ppoll, (long)&entry, 1, (long)&time, 0, 0);
}

static void set_nonblocking(int fd) {
    must(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
}

/* Messages both ways, of which one end waits for each by an instruction; it says how many it has heard of. */
static void converse(Pair pair, int (*await)(int fd), int flags) {
    char sent[64] = "a message", got[64];
    int heard = 0, taken = 0;
    for (int i = 0; i < MESSAGES; i++) {
        send_late(pair.far);
        if (await(pair.near) != 1)
            break;
        heard++;
        taken += recv(pair.near, got, sizeof got, flags) == sizeof got;
        must(send(pair.near, sent, sizeof sent, 0) == sizeof sent, "send");
        must(recv(pair.far, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
    }
    observe("heard of %d, took %d", heard, taken);
}

static void control(int operation, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    must(epoll_ctl(epoll, operation, fd, &event) == 0, "epoll_ctl");
}

static void in_a_set_that_is_known(void) {
    Pair pair = connected();
    epoll = epoll_create1(0);
    set_nonblocking(pair.near);
    control(EPOLL_CTL_ADD, pair.near, EPOLLIN);
    converse(pair, by_epoll, 0);
}

static void in_a_set_that_is_known_by_edges(void) {
    Pair pair = connected();
    epoll = epoll_create1(0);
    set_nonblocking(pair.near);
    control(EPOLL_CTL_ADD, pair.near, EPOLLIN | EPOLLET);
    converse(pair, by_epoll, 0);
}

static void in_a_set_that_changes(void) {
    Pair pair = connected();
    char sent[64] = "a message", got[64];
    int heard = 0;
    epoll = epoll_create1(0);
    set_nonblocking(pair.near);
    control(EPOLL_CTL_ADD, pair.near, 0);
    for (int i = 0; i < MESSAGES; i++) {
        send_late(pair.far);
        control(EPOLL_CTL_MOD, pair.near, EPOLLIN);
        if (by_epoll(pair.near) != 1)
            break;
        heard++;
        must(recv(pair.near, got, sizeof got, 0) == sizeof got, "recv");
        control(EPOLL_CTL_MOD, pair.near, 0);
        must(send(pair.near, sent, sizeof sent, 0) == sizeof sent, "send");
        must(recv(pair.far, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
    }
    observe("heard of %d", heard);
}

static void in_a_set_that_is_not_known(void) {
    Pair pair = connected();
    struct epoll_event event = {.events = EPOLLIN};
    epoll = instruct(SYS_epoll_create1, 0, 0, 0, 0, 0);
    set_nonblocking(pair.near);
    must(instruct(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, pair.near, (long)&event, 0) == 0, "epoll_ctl");
    converse(pair, by_epoll, 0);
}

/* What it takes from the set it asks for again and again, until there is nothing. */
static void with_a_look_in_vain_each_time(void) {
    Pair pair = connected();
    char sent[64] = "a message", got[64];
    int heard = 0, nothing = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    epoll = instruct(SYS_epoll_create1, 0, 0, 0, 0, 0);
    set_nonblocking(pair.near);
    must(instruct(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, pair.near, (long)&event, 0) == 0, "epoll_ctl");
    for (int i = 0; i < MESSAGES; i++) {
        send_late(pair.far);
        if (by_epoll(pair.near) != 1)
            break;
        heard++;
        while (recv(pair.near, got, sizeof got, 0) > 0)
            ;
        nothing += errno == EAGAIN;
        must(send(pair.near, sent, sizeof sent, 0) == sizeof sent, "send");
        must(recv(pair.far, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
    }
    observe("heard of %d, then of nothing %d times", heard, nothing);
}

static void polled(void) {
    Pair pair = connected();
    set_nonblocking(pair.near);
    converse(pair, by_poll, 0);
}

static void polled_before_calls_that_would_wait(void) {
    Pair pair = connected();
    converse(pair, by_poll, 0);
}

static void polled_before_calls_that_do_not_wait(void) {
    Pair pair = connected();
    converse(pair, by_poll, MSG_DONTWAIT);
}

static atomic_int is_held;

/* Answers what it gets, when it has slept; and does not wait for more while it is held, if the message says that it may be. */
static void *answer_late(void *ended) {
    int fd = *(int *)ended;
    char got[64];
    while (recv(fd, got, sizeof got, MSG_WAITALL) == sizeof got) {
        pause_ms(1);
        if (send(fd, got, sizeof got, 0) != sizeof got)
            break;
        while (got[0] == 'h' && is_held)
            pause_ms(1);
    }
    return NULL;
}

/* A connection on the ring one of whose ends has waited in calls alone. */
static Pair on_the_ring_by_calls(void) {
    Pair pair = connected();
    pthread_t thread;
    char sent[64] = "a message", got[64];
    must(pthread_create(&thread, NULL, answer_late, &pair.far) == 0, "thread");
    for (int round = 0, is_there = 0; !is_there; round++) {
        must(round < 1000, "the ring");
        /* Who sleeps has the first bytes from the kernel, and those that come while it is awake by the ring. */
        int messages = round % 10 < 9 ? 1 : 2;
        is_held = messages > 1;
        for (int i = 0; i < messages; i++) {
            sent[0] = is_held && i == 0 ? 'h' : 'a';
            must(send(pair.near, sent, sizeof sent, 0) == sizeof sent, "send");
        }
        if (is_held)
            pause_ms(4);
        must(recv(pair.near, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
        is_there = is_held && on_ring() >= 1;
        is_held = 0;
        if (messages > 1)
            must(recv(pair.near, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
    }
    pause_ms(4);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    return pair;
}

static void set_not_to_block_once_on_the_ring(void) {
    Pair pair = on_the_ring_by_calls();
    set_nonblocking(pair.near);
    converse(pair, by_poll, 0);
}

static void put_into_a_set_once_on_the_ring(void) {
    Pair pair = on_the_ring_by_calls();
    epoll = epoll_create1(0);
    set_nonblocking(pair.near);
    control(EPOLL_CTL_ADD, pair.near, EPOLLIN);
    converse(pair, by_epoll, 0);
}

static void put_into_a_set_while_it_blocks(void) {
    Pair pair = on_the_ring_by_calls();
    epoll = epoll_create1(0);
    control(EPOLL_CTL_ADD, pair.near, EPOLLIN);
    converse(pair, by_epoll, 0);
}

/* Calls that do not wait among those that do; what is left after one of them is found by an instruction. */
static void asked_not_to_wait_once_on_the_ring(void) {
    Pair pair = on_the_ring_by_calls();
    char sent[64] = "a message", got[64];
    int heard = 0;
    for (int i = 0; i < MESSAGES; i++) {
        must(send(pair.far, sent, sizeof sent, 0) == sizeof sent, "send");
        must(recv(pair.near, got, sizeof got / 2, i ? MSG_DONTWAIT : MSG_WAITALL) == sizeof got / 2, "recv");
        if (i && by_poll(pair.near) != 1)
            break;
        heard++;
        must(recv(pair.near, got, sizeof got / 2, MSG_WAITALL) == sizeof got / 2, "recv");
        must(recv(pair.near, got, sizeof got, MSG_DONTWAIT) == -1 && errno == EAGAIN, "recv");
        must(send(pair.far, sent, sizeof sent, 0) == sizeof sent, "send");
        if (by_poll(pair.near) != 1)
            break;
        must(recv(pair.near, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
        talk(pair.near, pair.far);
    }
    observe("heard of %d", heard);
}

/* One that looks again and again, and waits by nothing else, has all that comes. */
static void looked_for_again_and_again(void) {
    Pair pair = connected();
    pthread_t thread;
    char got[64];
    set_nonblocking(pair.near);
    must(pthread_create(&thread, NULL, send_back, &pair.far) == 0, "thread");
    ssize_t all = 0;
    for (int i = 0; i < MESSAGES; i++) {
        send_late(pair.near);
        size_t had = 0;
        for (time_t until = time(NULL) + 5; had < sizeof got && time(NULL) < until;) {
            ssize_t part = recv(pair.near, got, sizeof got - had, 0);
            had += part > 0 ? part : 0;
        }
        all += had;
        if (had < sizeof got)
            break;
        for (int looks = i == MESSAGES / 2 ? 500000 : 0; looks > 0; looks--)
            must(recv(pair.near, got, sizeof got, 0) == -1 && errno == EAGAIN, "recv");
    }
    observe("%zd bytes", all);
    shutdown(pair.near, SHUT_WR);
    pthread_join(thread, NULL);
}

/* A look by a function is no wait. */
static void looked_at_before_each_wait(void) {
    Pair pair = connected();
    char sent[64] = "a message", got[64];
    int heard = 0;
    for (int i = 0; i < MESSAGES; i++) {
        struct pollfd entry = {.fd = pair.near, .events = POLLIN};
        must(poll(&entry, 1, 0) == 0, "poll");
        must(send(pair.far, sent, sizeof sent, 0) == sizeof sent, "send");
        if (by_poll(pair.near) != 1)
            break;
        heard++;
        must(recv(pair.near, got, sizeof got, 0) == sizeof got, "recv");
        must(send(pair.near, sent, sizeof sent, 0) == sizeof sent, "send");
        must(recv(pair.far, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
    }
    observe("heard of %d", heard);
}

static atomic_int awaited;

static void *send_in_halves(void *ended) {
    int fd = *(int *)ended;
    char sent[64] = "a message", got[64];
    for (int i = 0; i < MESSAGES; i++) {
        pause_ms(1);
        must(send(fd, sent, 4, 0) == 4, "send");
        while (awaited <= i)
            pause_ms(1);
        pause_ms(1);
        must(send(fd, sent, 60, 0) == 60, "send");
        must(recv(fd, got, 1, 0) == 1, "recv");
    }
    return NULL;
}

/* Messages whose heads are waited for by an instruction, and whose bodies come later: these are waited for in calls. */
static void whose_rest_is_waited_for(int first, int then) {
    Pair pair = connected();
    pthread_t thread;
    char got[64];
    int heard = 0;
    must(pthread_create(&thread, NULL, send_in_halves, &pair.far) == 0, "thread");
    for (int i = 0; i < MESSAGES; i++) {
        if (by_poll(pair.near) != 1)
            break;
        heard++;
        must(recv(pair.near, got, 4, first) == 4, "recv");
        if (first & MSG_DONTWAIT)
            must(recv(pair.near, got, sizeof got, first) == -1 && errno == EAGAIN, "recv");
        awaited++;
        must(recv(pair.near, got, 60, then) == 60, "recv");
        must(send(pair.near, got, 1, 0) == 1, "send");
    }
    observe("heard of %d", heard);
    shutdown(pair.near, SHUT_RDWR);
    if (heard == MESSAGES)
        pthread_join(thread, NULL);
}

static void whose_rest_is_waited_for_in_calls(void) {
    whose_rest_is_waited_for(0, 0);
}

static void whose_rest_is_waited_for_with_all(void) {
    whose_rest_is_waited_for(MSG_WAITALL, MSG_WAITALL);
}

static void whose_rest_is_waited_for_after_a_look(void) {
    whose_rest_is_waited_for(MSG_DONTWAIT, MSG_WAITALL);
}

/* O_NONBLOCK comes and goes by an instruction, too. */
static void set_not_to_block_by_an_instruction(void) {
    Pair pair = connected();
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    int one = 1;
    must(instruct(SYS_ioctl, pair.near, FIONBIO, (long)&one, 0, 0) == 0, "ioctl");
    char got[64];
    for (int i = 0; i < 3; i++)
        must(recv(pair.near, got, sizeof got, 0) == -1 && errno == EAGAIN, "recv");
    converse(pair, by_poll, 0);
}

/* Small messages to one that does not read are merged by the kernel: a small buffer and the peer's take many of them. */
static void sent_more_than_it_reads(void) {
    Pair pair = connected();
    char message[16] = "a message", got[4096];
    int buffer = 8192, sent = 0, taken = 0;
    set_nonblocking(pair.near);
    converse(pair, by_poll, 0);
    set_nonblocking(pair.far);
    must(setsockopt(pair.far, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer) == 0, "setsockopt");
    while (send(pair.far, message, sizeof message, 0) == sizeof message)
        sent += sizeof message;
    observe_result("at the end", -1);
    observe("enough: %d", sent >= 6 * buffer);
    while (taken < sent && by_poll(pair.near) == 1) {
        ssize_t count = recv(pair.near, got, sizeof got, 0);
        must(count > 0, "recv");
        taken += count;
    }
    observe("taken: %d", taken == sent);
}

int main(int argc, char **argv) {
    const Case cases[] = {
        CASE(in_a_set_that_is_known),
        CASE(in_a_set_that_is_known_by_edges),
        CASE(in_a_set_that_changes),
        CASE(in_a_set_that_is_not_known),
        CASE(with_a_look_in_vain_each_time),
        CASE(polled),
        CASE(polled_before_calls_that_would_wait),
        CASE(polled_before_calls_that_do_not_wait),
        CASE(set_not_to_block_once_on_the_ring),
        CASE(put_into_a_set_once_on_the_ring),
        CASE(put_into_a_set_while_it_blocks),
        CASE(asked_not_to_wait_once_on_the_ring),
        CASE(looked_for_again_and_again),
        CASE(looked_at_before_each_wait),
        CASE(whose_rest_is_waited_for_in_calls),
        CASE(whose_rest_is_waited_for_with_all),
        CASE(whose_rest_is_waited_for_after_a_look),
        CASE(set_not_to_block_by_an_instruction),
        CASE(sent_more_than_it_reads),
        {NULL, NULL},
    };
    return run_cases(cases, argc, argv);
}
