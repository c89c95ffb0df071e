/* Connections become ready one after the other, and a wait set reports them in that order. */
#include "traps.h"
#include <sched.h>
#include <sys/eventfd.h>

enum { PAIRS = 6, ROUNDS = 200 };

static Pair pairs[PAIRS];
static unsigned dice = 1;

static unsigned roll(unsigned sides) {
    dice = dice * 1103515245 + 12345;
    return (dice >> 16) % sides;
}

/* The kernel's own deliveries keep their order on one processor only, and may come a little later. */
static void stay_on_one_processor(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    must(sched_setaffinity(0, sizeof one, &one) == 0, "sched_setaffinity");
}

static int set_of_pairs(unsigned events) {
    int set = epoll_create1(0);
    stay_on_one_processor();
    for (int i = 0; i < PAIRS; i++) {
        pairs[i] = connected();
        setsockopt(pairs[i].near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        talk_until_on_ring(pairs[i], i + 1);
        struct epoll_event event = {events, {.u32 = i}};
        must(epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].far, &event) == 0, "add");
    }
    return set;
}

static void drain_all(int set) {
    char bytes[256];
    struct epoll_event events[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        while (recv(pairs[i].far, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
    while (epoll_wait(set, events, PAIRS, 0) > 0)
        ;
}

/* Sends on some of the pairs, some of them twice, and says in which order they became ready. */
static void send_on_some(char *order) {
    int sent[PAIRS] = {0}, count = 0;
    for (int messages = 1 + roll(2 * PAIRS); messages > 0; messages--) {
        int which = roll(PAIRS);
        must(send(pairs[which].near, "message", 1 + roll(7), 0) > 0, "send");
        if (!sent[which]++)
            order[count++] = '0' + which;
    }
    order[count] = 0;
    usleep(200);
}

static void compare(const char *expected, const char *got, int *wrong) {
    if (strcmp(expected, got) != 0 && ++*wrong < 4)
        observe("%s instead of %s", got, expected);
}

static void take_all(int set, int timeout_ms) {
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char expected[PAIRS + 1], got[PAIRS + 1];
        struct epoll_event found[PAIRS];
        send_on_some(expected);
        int count = epoll_wait(set, found, PAIRS, timeout_ms);
        for (int i = 0; i < count; i++)
            got[i] = '0' + found[i].data.u32;
        got[count] = 0;
        compare(expected, got, &wrong);
        drain_all(set);
    }
    observe("wrong: %d", wrong);
}

static void level_triggered(void) { take_all(set_of_pairs(EPOLLIN), -1); }

static void edge_triggered(void) { take_all(set_of_pairs(EPOLLIN | EPOLLET), -1); }

static void asked_without_waiting(void) { take_all(set_of_pairs(EPOLLIN), 0); }

/* Every connection has its turn, also when the program takes few events at a time and leaves the bytes where they are. */
static void few_at_a_time(void) {
    int set = set_of_pairs(EPOLLIN);
    for (int round = 0; round < ROUNDS; round++) {
        char ready[PAIRS + 1];
        int turns[PAIRS] = {0}, room = 1 + round % PAIRS;
        send_on_some(ready);
        for (int count = 0; count < 4 * PAIRS;) {
            struct epoll_event found[PAIRS];
            int events = epoll_wait(set, found, room, -1);
            for (int i = 0; i < events; i++, count++)
                turns[found[i].data.u32]++;
        }
        for (int i = 0; i < PAIRS; i++)
            if ((turns[i] == 0) != (strchr(ready, '0' + i) == NULL))
                observe("room %d: %d of %s had %d turns", room, i, ready, turns[i]);
        drain_all(set);
    }
}

/* Who has asked for one event gets all of them when there is room again, those that only the kernel knows of, too. */
static void all_after_one(void) {
    int set = set_of_pairs(EPOLLIN), counter = eventfd(1, 0);
    struct epoll_event event = {EPOLLIN, {.u32 = PAIRS}}, found[PAIRS + 1];
    must(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0, "add");
    must(send(pairs[0].near, "a", 1, 0) == 1 && send(pairs[1].near, "b", 1, 0) == 1, "send");
    usleep(2000);
    for (int round = 0; round < 6; round++) {
        int one = epoll_wait(set, found, 1, -1);
        observe("%d, then %d", one, epoll_wait(set, found, PAIRS + 1, 0));
    }
}

/* Some of the connections take the kernel's road. */
static void on_both_roads(void) {
    int set = set_of_pairs(EPOLLIN);
    for (int i = 0; i < PAIRS; i += 2)
        must(send(pairs[i].near, "!", 1, MSG_ZEROCOPY) == 1, "send");
    drain_all(set);
    take_all(set, -1);
}

/* Whoever connects, or closes, and then sends on another connection, is seen to do it in that order. */
static void after_another_connection(void) {
    int set = set_of_pairs(EPOLLIN);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), wrong = 0;
    must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 8) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    struct epoll_event event = {EPOLLIN, {.u32 = PAIRS}}, found[PAIRS];
    must(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "add");
    for (int round = 0; round < ROUNDS; round++) {
        int which = roll(PAIRS), near = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(near, (struct sockaddr *)&address, length) == 0, "connect");
        must(send(pairs[which].near, "after", 5, 0) == 5, "send");
        usleep(200);
        int count = epoll_wait(set, found, PAIRS, -1);
        wrong += count != 2 || found[0].data.u32 != PAIRS;
        close(accept(listener, NULL, NULL));
        close(near);
        drain_all(set);
    }
    observe("wrong: %d", wrong);
}

int main(int argc, char **argv) {
    const Case cases[] = {CASE(level_triggered), CASE(edge_triggered), CASE(asked_without_waiting), CASE(few_at_a_time),
                          CASE(all_after_one),   CASE(on_both_roads),  CASE(after_another_connection), {0}};
    return run_cases(cases, argc, argv);
}
