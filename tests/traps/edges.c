/* Edges of what comes when a ring is left and taken again. */
#include "traps.h"

/* What a set tells now. */
static void observe_edge(const char *what, int set) {
    struct epoll_event event = {0};
    int count = epoll_wait(set, &event, 1, 0);
    observe("%s: %d, events %#x", what, count, count == 1 ? event.events : 0);
}

/* The kernel has told of all that came by the ring before, and was read without a wait; there is no other edge of that. */
static void an_edge_of_the_kernel_after_bytes_of_the_ring(void) {
    Pair pair = connected();
    char bytes[256];
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.fd = pair.far};
    must(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    talk_until_on_ring(pair, 1);
    for (int i = 0; i < 2; i++) {
        talk(pair.near, pair.far);
        /* Longer than a direction stays away from the network. */
        pause_ms(1200);
        must(send(pair.near, "by the kernel", 13, 0) == 13, "send");
        must(poll(&(struct pollfd){pair.far, POLLIN, 0}, 1, 5000) == 1, "poll");
        observe_edge("bytes", set);
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
        observe_edge("read", set);
    }
    close(pair.near);
    pause_ms(50);
    observe_edge("the end", set);
    observe_edge("nothing more", set);
}

int main(int argc, char **argv) {
    const Case cases[] = {CASE(an_edge_of_the_kernel_after_bytes_of_the_ring), {0}};
    return run_cases(cases, argc, argv);
}
