/* recvmmsg and sendmmsg: several messages, and what ends them before there are as many as were asked for. */
#include "traps.h"

/* The kernel looks at the time-out after each message, and says what is left of it. */
static void several_messages_within_a_time(void) {
    enum { COUNT = 4 };
    Pair pair = on_the_ring();
    char got[COUNT][64] = {0}, message[64] = "a message";
    struct iovec parts[COUNT];
    struct mmsghdr list[COUNT] = {0};
    for (int i = 0; i < COUNT; i++) {
        parts[i] = (struct iovec){got[i], sizeof got[i]};
        list[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
        must(send(pair.near, message, sizeof message, 0) == sizeof message, "send");
    }
    struct timespec time = {50, 0}, none = {0, 0}, wrong = {0, -1};
    observe_result("recvmmsg", recvmmsg(pair.far, list, COUNT, 0, &time));
    observe("%s, %s", got[COUNT - 1], time.tv_sec > 0 && time.tv_sec < 50 ? "some of the time is left" : "it does not say");
    must(send(pair.near, message, sizeof message, 0) == sizeof message, "send");
    must(send(pair.near, message, sizeof message, 0) == sizeof message, "send");
    observe_result("recvmmsg at once", recvmmsg(pair.far, list, COUNT, 0, &none));
    observe_result("recvmmsg of no time", recvmmsg(pair.far, list, COUNT, 0, &wrong));
}

static void ignore(int signal) { (void)signal; }

/* What ends a call after its first message. */
enum End { A_BAD_ADDRESS, A_HANDLER, A_HANDLER_THAT_RESTARTS, A_TIME_OUT, NO_WAITING, ENDS };

/* Receives one message, and what would be the next has this end. */
static void one_and(enum End end, Pair pair) {
    char got[2][4];
    struct iovec parts[2] = {{got[0], 4}, {end == A_BAD_ADDRESS ? (void *)8 : got[1], 4}};
    struct mmsghdr list[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    must(send(pair.near, "eight bytes", end == A_BAD_ADDRESS ? 8 : 4, 0) > 0, "send");
    struct timeval patience = {0, 30000};
    if (end == A_TIME_OUT)
        setsockopt(pair.far, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (end == A_HANDLER || end == A_HANDLER_THAT_RESTARTS) {
        struct sigaction action = {.sa_handler = ignore, .sa_flags = end == A_HANDLER ? 0 : SA_RESTART};
        struct itimerval soon = {.it_value = {0, 30000}, .it_interval = {0, 30000}};
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &soon, NULL);
    }
    int result = recvmmsg(pair.far, list, 2, end == NO_WAITING ? MSG_DONTWAIT : 0, NULL);
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
    observe_result("recvmmsg", result);
}

/* An error's number: the kernel has one that has no name. */
static void observe_error(const char *call, ssize_t result) {
    observe("%s: %zd, error %d", call, result, result < 0 ? errno : 0);
}

static void ask_poll(int fd, short events) {
    struct pollfd entry = {.fd = fd, .events = events};
    int result = poll(&entry, 1, 20);
    observe("poll for %#x: %d, %#x", events, result, entry.revents);
}

static void ask_select(int fd) {
    fd_set reads, writes;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_SET(fd, &reads);
    FD_SET(fd, &writes);
    struct timeval patience = {0, 20000};
    int result = select(fd + 1, &reads, &writes, NULL, &patience);
    observe("select: %d, %d and %d", result, FD_ISSET(fd, &reads) != 0, FD_ISSET(fd, &writes) != 0);
}

static void ask_epoll(int fd) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLOUT};
    must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    int result = epoll_wait(set, &event, 1, 20);
    observe("epoll_wait: %d, %#x", result, event.events);
    close(set);
}

/* The error behind a message waits for the next call of any kind, which tells of it; one call does. */
static void the_next_call_tells(int is_on_ring) {
    enum { WAYS = 8 };
    for (int end = 0; end < ENDS; end++)
        for (int way = 0; way < WAYS; way++) {
            Pair pair = is_on_ring ? on_the_ring() : connected();
            char byte = 0;
            struct iovec part = {&byte, 1};
            struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
            int error = 0;
            socklen_t length = sizeof error;
            observe("end %d, way %d", end, way);
            one_and(end, pair);
            switch (way) {
            case 0: ask_poll(pair.far, POLLIN | POLLOUT); break;
            case 1: ask_poll(pair.far, POLLOUT); break;
            case 2: ask_poll(pair.far, 0); break;
            case 3: ask_select(pair.far); break;
            case 4: ask_epoll(pair.far); break;
            case 5: observe_error("recvmmsg", recvmmsg(pair.far, &message, 1, MSG_DONTWAIT, NULL)); break;
            case 6:
                getsockopt(pair.far, SOL_SOCKET, SO_ERROR, &error, &length);
                observe("SO_ERROR: %d", error);
                break;
            }
            observe_error("send", send(pair.far, &byte, 1, MSG_NOSIGNAL));
            for (int i = 0; i < 2; i++)
                observe_error("recv", recv(pair.far, &byte, 1, MSG_DONTWAIT));
            close(pair.near);
            close(pair.far);
        }
}

/* It is for a call that has nothing to return. */
static void bytes_come_before_the_error(void) {
    for (int flags = 0; flags <= MSG_WAITALL; flags += MSG_WAITALL) {
        Pair pair = on_the_ring();
        char got[64];
        one_and(A_BAD_ADDRESS, pair);
        observe_error("recv", recv(pair.far, got, sizeof got, flags));
        for (int i = 0; i < 2; i++)
            observe_error("recv", recv(pair.far, got, sizeof got, MSG_DONTWAIT));
        close(pair.near);
        close(pair.far);
    }
}

static void what_ends_messages_on_the_ring(void) { the_next_call_tells(1); }
static void what_ends_messages_in_the_kernel(void) { the_next_call_tells(0); }

static int given_up;
static volatile sig_atomic_t handlers;

static void give_up_in_the_end(int signal) {
    (void)signal;
    if (++handlers == 20)
        shutdown(given_up, SHUT_RDWR);
}

/* A connection with small buffers. */
static Pair narrow(void) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1), sends = 4608, receives = 2304;
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    setsockopt(pair.near, SOL_SOCKET, SO_SNDBUF, &sends, sizeof sends);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &receives, sizeof receives);
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    must(pair.far >= 0, "accept");
    close(listener);
    return pair;
}

/* More than there is room for: a handler ends the call, also one after which calls go on. */
static void a_handler_ends_what_is_sent(Pair pair, int flags) {
    enum { COUNT = 1024 };
    static char bytes[20];
    static struct mmsghdr list[COUNT];
    struct iovec part = {bytes, sizeof bytes};
    struct itimerval often = {.it_value = {0, 30000}, .it_interval = {0, 30000}}, never = {0};
    for (int i = 0; i < COUNT; i++)
        list[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    given_up = pair.near;
    handlers = 0;
    handle(SIGALRM, give_up_in_the_end, flags);
    setitimer(ITIMER_REAL, &often, NULL);
    int result = sendmmsg(pair.near, list, COUNT, MSG_NOSIGNAL);
    setitimer(ITIMER_REAL, &never, NULL);
    observe("some are sent: %d, the last one: %d, at once: %d", result > 0 && result < COUNT, result > 0 && list[result - 1].msg_len > 0,
            handlers < 20);
    close(pair.near), close(pair.far);
}

static void a_handler_ends_sendmmsg(void) {
    for (int restarts = 0; restarts < 2; restarts++) {
        Pair ring = narrow();
        talk_until_on_ring(ring, 1);
        a_handler_ends_what_is_sent(ring, restarts ? SA_RESTART : 0);
        a_handler_ends_what_is_sent(narrow(), restarts ? SA_RESTART : 0);
    }
}

static void count(int signal) { (void)signal, handlers++; }

/* Takes all that was sent, but not at once. */
static void *take_later(void *fd) {
    static char bytes[1 << 16];
    struct timeval patience = {0, 300000};
    pause_ms(150);
    setsockopt(*(int *)fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (recv(*(int *)fd, bytes, sizeof bytes, 0) > 0)
        ;
    return NULL;
}

/* No message of a call has room at first: a handler that restarts calls has it begin anew, another one ends it, and so does any where the
 * call is timed. */
static void the_first_message_waits(void) {
    enum { COUNT = 3 };
    static char bytes[100];
    struct iovec part = {bytes, sizeof bytes};
    struct mmsghdr list[COUNT];
    struct itimerval soon = {.it_value = {0, 40000}}, never = {0};
    for (int way = 0; way < 6; way++) {
        Pair pair = narrow();
        talk_until_on_ring(pair, 1);
        while (send(pair.near, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            pause_ms(1);
        for (int i = 0; i < COUNT; i++)
            list[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
        struct timeval patience = {0, way % 3 == 2 ? 90000 : 0};
        setsockopt(pair.near, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        handlers = 0;
        handle(SIGALRM, count, way % 3 == 1 ? 0 : SA_RESTART);
        pthread_t reader = start_thread(take_later, &pair.far);
        setitimer(ITIMER_REAL, way == 5 ? &never : &soon, NULL);
        observe_result("sendmmsg", sendmmsg(pair.near, list, COUNT, 0));
        observe("handled %d, the last is of %d", handlers, list[COUNT - 1].msg_len);
        pthread_join(reader, NULL);
        close(pair.near), close(pair.far);
    }
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(several_messages_within_a_time),
        CASE(what_ends_messages_on_the_ring),
        CASE(what_ends_messages_in_the_kernel),
        CASE(bytes_come_before_the_error),
        CASE(a_handler_ends_sendmmsg),
        CASE(the_first_message_waits),
        {0},
    };
    return run_cases(cases, argc, argv);
}
