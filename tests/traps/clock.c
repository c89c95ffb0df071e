/* A program whose clock stands still, as tests have it by a function of their own in the place of the C library's (libfaketime). */
#include "traps.h"

int clock_gettime(clockid_t clock, struct timespec *time) {
    (void)clock;
    *time = (struct timespec){.tv_sec = 1577836800};
    return 0;
}

static void talks_when_time_stands_still(void) {
    Pair pair = on_the_ring();
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    observe("talked");
}

/* The kernel's own clock goes on, and it is the kernel's that such waits go by. */
static void waits_when_time_stands_still(void) {
    Pair pair = on_the_ring();
    struct pollfd entry = {.fd = pair.far, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    struct timeval patience = {0, 20000};
    char bytes[8];
    int set = epoll_create1(0);
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    must(setsockopt(pair.far, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0, "SO_RCVTIMEO");
    observe_result("poll", poll(&entry, 1, 20));
    observe_result("epoll_wait", epoll_wait(set, &event, 1, 20));
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    must(send(pair.near, "some", 4, 0) == 4, "send");
    observe_result("a part", recv(pair.far, bytes, sizeof bytes, MSG_WAITALL));
    must(send(pair.near, "more", 4, 0) == 4, "send");
    observe_result("epoll_wait", epoll_wait(set, &event, 1, -1));
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
}

int main(int argc, char **argv) {
    static const Case cases[] = {CASE(talks_when_time_stands_still), CASE(waits_when_time_stands_still), {0}};
    return run_cases(cases, argc, argv);
}
