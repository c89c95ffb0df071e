/* A thread that serves both ends of its connections, and has a timer, is not kept from its work. */
#include "traps.h"
#include <sys/timerfd.h>

enum { CONNECTIONS = 40, TIMER_MS = 500 };

static int listener, timer;
static int nears[CONNECTIONS], fars[CONNECTIONS];

/* Connections that nobody has accepted yet. */
static void connect_all(int flags) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, CONNECTIONS) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    for (int i = 0; i < CONNECTIONS; i++) {
        nears[i] = socket(AF_INET, SOCK_STREAM | flags, 0);
        must(connect(nears[i], (struct sockaddr *)&address, length) == 0 || errno == EINPROGRESS, "connect");
    }
    struct itimerspec time = {.it_value.tv_nsec = TIMER_MS * 1000000L};
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    must(timer >= 0 && timerfd_settime(timer, 0, &time, NULL) == 0, "timerfd");
}

static void accept_all(void) {
    for (int i = 0; i < CONNECTIONS; i++)
        must((fars[i] = accept(listener, NULL, NULL)) >= 0, "accept");
}

static void observe_timer(void) {
    uint64_t count;
    observe_result("the timer", read(timer, &count, sizeof count));
}

static void sent_before_they_are_accepted(void) {
    connect_all(SOCK_NONBLOCK);
    for (int i = 0; i < CONNECTIONS; i++)
        must(send(nears[i], "message", 7, 0) == 7, "send");
    accept_all();
    observe_timer();
}

static void polled_before_they_are_accepted(void) {
    connect_all(0);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct pollfd entry = {.fd = nears[i], .events = POLLIN};
        must(poll(&entry, 1, 0) == 0, "poll");
    }
    accept_all();
    observe_timer();
}

static void ended_before_they_are_accepted(void) {
    char got[8];
    connect_all(0);
    for (int i = 0; i < CONNECTIONS; i++)
        must(shutdown(nears[i], SHUT_WR) == 0, "shutdown");
    accept_all();
    for (int i = 0; i < CONNECTIONS; i++)
        must(recv(fars[i], got, sizeof got, 0) == 0, "recv");
    observe_timer();
}

int main(int argc, char **argv) {
    const Case cases[] = {
        CASE(sent_before_they_are_accepted),
        CASE(polled_before_they_are_accepted),
        CASE(ended_before_they_are_accepted),
        {NULL, NULL},
    };
    return run_cases(cases, argc, argv);
}
