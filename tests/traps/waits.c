/* What wait sets of every kind say of connections, and when. */
#include "traps.h"

/* Neither end waits for an acknowledgement before it sends on. */
static Pair prompt_pair(void) {
    Pair pair = on_the_ring();
    must(setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "setsockopt");
    must(setsockopt(pair.far, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "setsockopt");
    return pair;
}

static int add(int set, int fd, unsigned events) {
    struct epoll_event event = {events, {.fd = fd}};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static void observe_wait(const char *what, int set, int timeout_ms) {
    struct epoll_event event = {0};
    int count = epoll_wait(set, &event, 1, timeout_ms);
    observe("%s: %d events %x", what, count, count > 0 ? event.events : 0);
}

static void say(int fd, size_t bytes) {
    char message[64] = {0};
    must(send(fd, message, bytes, 0) == (ssize_t)bytes, "send");
    usleep(2000);
}

/* Reads what is there; returns how much. */
static ssize_t drain(int fd) {
    char bytes[65536];
    ssize_t total = 0, got;
    while ((got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        total += got;
    return total;
}

static void every_message_is_an_edge(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    char byte;
    must(add(set, pair.far, EPOLLIN | EPOLLET) == 0, "add");
    for (int round = 0; round < 3; round++) {
        say(pair.near, 7);
        observe_wait("first", set, 1000);
        observe_wait("the same", set, 0);
        say(pair.near, 7);
        observe_wait("second", set, 1000);
        must(recv(pair.far, &byte, 1, 0) == 1, "recv");
        observe_wait("after a part was read", set, 0);
        observe("drained %zd", drain(pair.far));
        observe_wait("empty", set, 0);
    }
    must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){EPOLLIN | EPOLLET, {0}}) == 0, "modify");
    observe_wait("modified, empty", set, 0);
    say(pair.near, 3);
    drain(pair.far);
    say(pair.near, 3);
    must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){EPOLLIN | EPOLLET, {0}}) == 0, "modify");
    observe_wait("modified, full", set, 1000);
    must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){EPOLLIN | EPOLLET, {0}}) == 0, "modify");
    observe_wait("modified again", set, 1000);
}

/* What came is an edge, also where it has been read before the wait: the kernel tells what there is else, room to write. */
static void an_edge_whose_bytes_were_read(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    must(add(set, pair.far, EPOLLIN | EPOLLOUT | EPOLLET) == 0, "add");
    observe_wait("room", set, 1000);
    for (int round = 0; round < 4; round++) {
        say(pair.near, 7);
        if (round % 2 == 0)
            observe_wait("bytes and room", set, 1000);
        say(pair.near, 7);
        observe("drained %zd", drain(pair.far));
        observe_wait("room", set, 20);
        observe_wait("nothing", set, 20);
        say(pair.far, 5);
        observe("drained %zd", drain(pair.near));
        observe_wait("nothing", set, 20);
    }
}

static void *ask(void *near) {
    unsigned random = 1;
    for (int i = 0; i < 8000; i++) {
        char bytes[64] = "a message";
        for (volatile int pause = rand_r(&random) % 3000; pause > 0; pause--)
            ;
        must(send(*(int *)near, bytes, sizeof bytes, 0) == sizeof bytes, "send");
        must(recv(*(int *)near, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "recv");
    }
    shutdown(*(int *)near, SHUT_WR);
    return NULL;
}

/* No edge is lost of what comes just when the set is looked at. */
static void edges_beside_a_sender(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    must(add(set, pair.far, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) == 0, "add");
    pthread_t asker = start_thread(ask, &pair.near);
    for (;;) {
        char bytes[256];
        struct epoll_event event;
        ssize_t got;
        if (epoll_wait(set, &event, 1, 3000) != 1) {
            observe("an edge was lost");
            break;
        }
        while ((got = recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            must(send(pair.far, bytes, got, 0) == got, "send");
        if (got == 0)
            break;
    }
    close(pair.far);
    close(pair.near);
    pthread_join(asker, NULL);
}

static void *wait_once(void *set) {
    observe_wait("asleep", *(int *)set, 1000);
    return NULL;
}

/* What woke a sleeper lies unread by the kernel, and the next message comes by the ring. */
static void an_edge_behind_unread_bytes(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    must(add(set, pair.far, EPOLLIN | EPOLLET) == 0, "add");
    observe_wait("empty", set, 0);
    for (int round = 0; round < 3; round++) {
        pthread_t sleeper = start_thread(wait_once, &set);
        usleep(20000);
        say(pair.near, 7);
        pthread_join(sleeper, NULL);
        say(pair.near, 7);
        struct pollfd item = {.fd = set, .events = POLLIN};
        observe("poll %d", poll(&item, 1, 0));
        observe_wait("second", set, 100);
        observe_wait("the same", set, 0);
        observe("drained %zd", drain(pair.far));
        observe_wait("empty", set, 0);
    }
}

static void armed_once(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    must(add(set, pair.far, EPOLLIN | EPOLLONESHOT) == 0, "add");
    for (int round = 0; round < 3; round++) {
        say(pair.near, 7);
        observe_wait("armed", set, 1000);
        say(pair.near, 7);
        observe_wait("not armed", set, 20);
        must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){EPOLLIN | EPOLLONESHOT, {0}}) == 0, "modify");
        observe_wait("armed again", set, 1000);
        observe("drained %zd", drain(pair.far));
        must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){EPOLLIN | EPOLLONESHOT, {0}}) == 0, "modify");
    }
}

static unsigned one_of(unsigned *random, const unsigned *choices, unsigned count) { return choices[rand_r(random) % count]; }

/* A member comes from one kind of registration to another, with bytes before, between and behind, and becomes one-shot again and again. */
static void walks_through_one_shots(void) {
    static const unsigned kinds[] = {EPOLLIN, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLET, EPOLLIN | EPOLLRDHUP};
    static const unsigned others[] = {0, EPOLLET, EPOLLOUT, EPOLLRDHUP, EPOLLOUT | EPOLLET};
    for (unsigned walk = 0; walk < 24; walk++) {
        unsigned random = walk;
        Pair pair = prompt_pair();
        int set = epoll_create1(0), is_open = 1, is_in = 0;
        observe("walk %u", walk);
        for (int step = 0; step < 24; step++) {
            unsigned events = EPOLLIN | one_of(&random, others, 5) | (rand_r(&random) % 4 ? EPOLLONESHOT : 0);
            int operation = is_in ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
            if (step < 4)
                events = one_of(&random, kinds, 5);
            switch (rand_r(&random) % 8) {
            case 0:
            case 1:
                if (is_open)
                    say(pair.near, 1 + rand_r(&random) % 60);
                break;
            case 2: observe("read %zd", drain(pair.far)); break;
            case 3: observe("a byte %zd", recv(pair.far, &(char){0}, 1, MSG_DONTWAIT)); break;
            case 4:
                if (step > 4 && walk % 3 == 0 && is_open)
                    shutdown(pair.near, SHUT_WR), is_open = 0, usleep(2000);
                break;
            case 5:
            case 6:
                must(epoll_ctl(set, operation, pair.far, &(struct epoll_event){events, {.fd = 1}}) == 0, "change");
                observe("changed to %x", events), is_in = 1;
                break;
            default:
                if (rand_r(&random) % 4 == 0 && is_in)
                    must(epoll_ctl(set, EPOLL_CTL_DEL, pair.far, NULL) == 0, "delete"), is_in = 0;
            }
            if (rand_r(&random) % 3)
                observe_wait("now", set, rand_r(&random) % 2 ? 0 : 5);
        }
        close(pair.near);
        usleep(5000);
        observe_wait("over", set, 0);
        if (is_in)
            must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){EPOLLIN | EPOLLONESHOT, {0}}) == 0, "modify");
        observe_wait("over", set, 0);
        observe_wait("over", set, 0);
        close(pair.far), close(set);
    }
}

/* As servers in Java and .NET have it: a thread that has read asks for the next bytes, which may be there. */
typedef struct {
    int set, fd;
    atomic_int told, got, is_over;
} Armed;

static void *arm_and_read(void *argument) {
    Armed *armed = argument;
    char bytes[64];
    struct epoll_event event;
    while (!armed->is_over) {
        if (epoll_wait(armed->set, &event, 1, 50) != 1)
            continue;
        armed->told++;
        ssize_t got = recv(armed->fd, bytes, 7, MSG_DONTWAIT);
        if (got > 0)
            must(send(armed->fd, bytes, got, 0) == got, "send"), armed->got += got;
        must(epoll_ctl(armed->set, EPOLL_CTL_MOD, armed->fd, &(struct epoll_event){EPOLLIN | EPOLLONESHOT, {0}}) == 0, "modify");
    }
    return NULL;
}

static void armed_by_several_threads(void) {
    enum { THREADS = 3, MESSAGES = 2000 };
    for (int way = 0; way < 2; way++) {
        Pair pair = prompt_pair();
        Armed armed = {.set = epoll_create1(0), .fd = pair.far};
        pthread_t threads[THREADS];
        char bytes[256];
        if (way == 0)
            must(add(armed.set, pair.far, EPOLLIN | EPOLLONESHOT) == 0, "add");
        for (int i = 0; i < THREADS; i++)
            threads[i] = start_thread(arm_and_read, &armed);
        if (way == 1) {
            pause_ms(20);
            must(send(pair.near, bytes, 7, 0) == 7, "send");
            must(add(armed.set, pair.far, EPOLLIN | EPOLLONESHOT) == 0, "add");
            must(recv(pair.near, bytes, 7, MSG_WAITALL) == 7, "recv");
        }
        int whole = 0;
        for (int i = 0; i < MESSAGES; i++) {
            /* Some are there already when it is armed again. */
            size_t length = i % 3 == 0 ? 21 : 7;
            must(send(pair.near, bytes, length, 0) == (ssize_t)length, "send");
            whole += recv(pair.near, bytes, length, MSG_WAITALL) == (ssize_t)length;
        }
        armed.is_over = 1;
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        observe("%d came back", whole);
        close(pair.near), close(pair.far), close(armed.set);
    }
}

/* What is off tells of nothing, not even of the end. */
static void off_until_it_is_armed(void) {
    static const unsigned kinds[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT};
    for (int i = 0; i < 4 * 4; i++) {
        unsigned events = kinds[i % 4] | EPOLLONESHOT;
        int end = i / 4, set = epoll_create1(0);
        Pair pair = prompt_pair();
        struct linger at_once = {1, 0};
        say(pair.near, 7);
        must(add(set, pair.far, events) == 0, "add");
        observe_wait("told", set, 1000);
        observe_wait("off", set, 0);
        if (end == 1)
            shutdown(pair.near, SHUT_WR);
        if (end == 2)
            close(pair.near);
        if (end == 3) {
            setsockopt(pair.near, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            close(pair.near);
        }
        observe_wait("off at the end", set, 20);
        must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){events, {0}}) == 0, "modify");
        observe_wait("armed", set, 20);
        observe_wait("off", set, 0);
        observe("read %zd", drain(pair.far));
        must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &(struct epoll_event){events, {0}}) == 0, "modify");
        observe_wait("armed", set, 20);
        close(set), close(pair.far);
        if (end < 2)
            close(pair.near);
    }
}

static void a_set_in_a_set(void) {
    Pair pair = prompt_pair();
    int inner = epoll_create1(0), outer = epoll_create1(0);
    must(add(inner, pair.far, EPOLLIN) == 0 && add(outer, inner, EPOLLIN) == 0, "add");
    for (int round = 0; round < 3; round++) {
        struct pollfd item = {.fd = outer, .events = POLLIN};
        observe("poll %d", poll(&item, 1, 0));
        say(pair.near, 7);
        observe("poll %d %x", poll(&item, 1, 1000), item.revents);
        observe_wait("outer", outer, 1000);
        observe_wait("inner", inner, 1000);
        observe("drained %zd", drain(pair.far));
        observe_wait("outer, empty", outer, 0);
    }
    Pair late = prompt_pair();
    must(add(inner, late.far, EPOLLIN) == 0, "add");
    say(late.near, 7);
    observe_wait("outer, of a later member", outer, 1000);
}

static void in_two_sets(void) {
    Pair pair = prompt_pair();
    int sets[] = {epoll_create1(0), epoll_create1(0)};
    must(add(sets[0], pair.far, EPOLLIN) == 0, "add");
    say(pair.near, 7);
    observe_wait("one set", sets[0], 1000);
    must(add(sets[1], pair.far, EPOLLIN | EPOLLET) == 0, "add");
    for (int round = 0; round < 3; round++) {
        say(pair.near, 7);
        observe_wait("first set", sets[0], 1000);
        observe_wait("second set", sets[1], 1000);
        observe("drained %zd", drain(pair.far));
        observe_wait("first set, empty", sets[0], 0);
    }
    close(sets[1]);
    say(pair.near, 7);
    observe_wait("one set again", sets[0], 1000);
}

static int change(int set, int fd, unsigned events) {
    struct epoll_event event = {events, {.fd = fd}};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

/* One connection has two registrations in one set; one of them goes, and the other one's descriptor is closed. */
static void registered_twice(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0), copy = dup(pair.far), other = dup(pair.far);
    must(add(set, pair.far, EPOLLIN) == 0 && add(set, copy, EPOLLIN) == 0, "add");
    must(change(set, copy, EPOLLIN | EPOLLONESHOT) == 0 && change(set, pair.far, 0) == 0, "modify");
    observe_wait("nothing asked", set, 0);
    must(epoll_ctl(set, EPOLL_CTL_DEL, copy, NULL) == 0, "delete");
    must(change(set, pair.far, EPOLLIN) == 0, "modify");
    close(pair.far);
    observe_wait("empty", set, 0);
    say(pair.near, 7);
    observe_wait("registered by a closed descriptor", set, 1000);
    observe("drained %zd", drain(other));
    close(copy);
    close(other);
    observe_wait("gone", set, 0);
}

/* A descriptor by which a set has a connection becomes another connection's; the first one's registration stays, by no number. */
static void registered_by_a_number_that_is_another_s(void) {
    Pair pair = prompt_pair(), second = connected();
    int set = epoll_create1(0), copy = dup(pair.far);
    talk_until_on_ring(second, 2);
    must(add(set, copy, EPOLLIN | EPOLLET) == 0 && add(set, second.far, EPOLLRDHUP) == 0, "add");
    say(pair.near, 7);
    observe_wait("by a copy", set, 1000);
    observe_wait("an edge", set, 0);
    must(dup2(second.far, copy) == copy, "dup2");
    say(second.near, 7);
    for (int i = 0; i < 3; i++)
        observe_wait("of neither", set, 5);
    observe("drained %zd and %zd", drain(pair.far), drain(copy));
    must(add(set, copy, EPOLLIN) == 0, "add");
    say(pair.near, 7);
    observe_wait("of the first", set, 1000);
    observe("drained %zd", drain(pair.far));
    say(second.near, 7);
    observe_wait("of the second", set, 1000);
    observe("drained %zd", drain(copy));
    for (int i = 0; i < 3; i++)
        observe_wait("of neither", set, 5);
    talk(second.near, second.far);
    talk(pair.far, pair.near);
}

/* The number comes back to the connection, and its registration with it: by a copy over a copy at once, or later. */
static void registered_by_a_number_that_comes_back(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0), copy = dup(pair.far);
    for (int round = 0; round < 3; round++) {
        must(add(set, copy, EPOLLIN) == 0, "add");
        if (round == 1)
            must(dup2(pair.far, copy) == copy, "dup2");
        if (round == 2) {
            close(copy);
            say(pair.near, 7);
            observe_wait("by no number", set, 1000);
            observe("drained %zd", drain(pair.far));
            must(dup2(pair.far, copy) == copy, "dup2");
        }
        say(pair.near, 7);
        observe_wait("by a copy", set, 1000);
        observe_result("modify", change(set, copy, EPOLLIN | EPOLLET));
        observe_wait("an edge", set, 0);
        observe_wait("no edge", set, 0);
        observe("drained %zd", drain(pair.far));
        must(change(set, copy, EPOLLOUT) == 0 && change(set, copy, EPOLLRDHUP | EPOLLET) == 0, "modify");
        say(pair.near, 7);
        observe_wait("of nothing that it asks for", set, 5);
        observe_result("delete", epoll_ctl(set, EPOLL_CTL_DEL, copy, NULL));
        say(pair.near, 7);
        observe_wait("gone", set, 5);
        observe("drained %zd", drain(copy));
    }
}

/* Two have the same word; then one of them goes, and its number is another connection's, with another word. */
static void registered_with_the_same_word(void) {
    Pair one = prompt_pair(), two = connected();
    int set = epoll_create1(0), number = fcntl(two.far, F_DUPFD, 50);
    struct epoll_event event = {EPOLLIN | EPOLLET, {.fd = 1}}, other = {EPOLLIN, {.fd = 2}};
    must(epoll_ctl(set, EPOLL_CTL_ADD, one.far, &event) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, number, &event) == 0, "add");
    must(epoll_ctl(set, EPOLL_CTL_DEL, number, NULL) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, number, &other) == 0, "add");
    for (int round = 0; round < 5; round++) {
        say(one.near, 7);
        struct epoll_event found[3];
        int count = epoll_wait(set, found, 3, 1000);
        observe("%d, of %d: %x", count, count > 0 ? found[0].data.fd : 0, count > 0 ? found[0].events : 0);
        observe_wait("an edge", set, 0);
        observe("drained %zd", drain(one.far));
    }
    talk(two.far, two.near);
}

/* What had the word before was closed, which the set forgets by itself: the next one's events say whose they are. */
static void registered_with_the_word_of_one_that_is_gone(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0), ends[2][2];
    struct epoll_event event = {EPOLLIN, {.fd = 1}};
    for (int i = 0; i < 2; i++) {
        must(pipe(ends[i]) == 0, "pipe");
        must(epoll_ctl(set, EPOLL_CTL_ADD, ends[i][0], &event) == 0, "add");
    }
    for (int i = 0; i < 2; i++)
        close(ends[i][0]), close(ends[i][1]);
    int far = fcntl(pair.far, F_DUPFD, 50);
    close(pair.far);
    must(epoll_ctl(set, EPOLL_CTL_ADD, far, &event) == 0, "add");
    for (int round = 0; round < 20; round++) {
        say(pair.near, 7);
        observe_wait("bytes", set, 1000);
        observe("drained %zd", drain(far));
    }
    observe("on the ring: %d", on_ring() > 0);
    must(pipe(ends[0]) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[0][0], &event) == 0, "add");
    say(pair.near, 7);
    observe_wait("bytes", set, 1000);
    observe("drained %zd", drain(far));
    must(write(ends[0][1], "x", 1) == 1, "write");
    observe_wait("of the pipe", set, 1000);
}

/* Room, and bytes that lie unread, are one edge when they are asked for. */
static void asked_for_beside_unread_bytes(void) {
    Pair pair = prompt_pair();
    struct epoll_event event;
    int set = epoll_create1(0), others = 0, more = 0;
    must(add(set, pair.far, EPOLLIN) == 0, "add");
    for (int round = 0; round < 100; round++) {
        must(send(pair.near, "unread", 6, 0) == 6 && epoll_wait(set, &event, 1, 1000) == 1, "wait");
        must(change(set, pair.far, EPOLLIN | EPOLLOUT | EPOLLET) == 0, "modify");
        others += epoll_wait(set, &event, 1, 1000) != 1 || event.events != (EPOLLIN | EPOLLOUT);
        more += epoll_wait(set, &event, 1, 1);
        must(drain(pair.far) == 6 && change(set, pair.far, EPOLLIN) == 0, "modify");
    }
    observe("%d others, %d more", others, more);
}

/* Bytes that arrive wake those, too, who ask for urgent ones and for room: these are told of room. */
static void arrivals_beside_room(void) {
    const unsigned asked[] = {EPOLLPRI | EPOLLOUT, EPOLLRDBAND | EPOLLOUT, EPOLLPRI, EPOLLOUT};
    for (int i = 0; i < 4; i++) {
        Pair pair = prompt_pair();
        int set = epoll_create1(0);
        must(add(set, pair.far, EPOLLIN) == 0, "add");
        for (int round = 0; round < 5; round++) {
            say(pair.near, 3);
            observe_wait("bytes", set, 1000);
            drain(pair.far);
        }
        say(pair.near, 3);
        must(change(set, pair.far, asked[i] | EPOLLET) == 0, "modify");
        observe_wait("asked for", set, 0);
        for (int round = 0; round < 3; round++) {
            observe_wait("nothing new", set, 0);
            say(pair.near, 5);
            if (round == 1)
                drain(pair.far);
            observe_wait("arrival", set, 20);
        }
        observe("drained %zd", drain(pair.far));
        observe_wait("drained", set, 0);
        close(pair.near), close(pair.far), close(set);
    }
}

/* An event of one does not disarm the other. */
static void a_one_shot_with_the_same_word(void) {
    Pair one = prompt_pair(), two = connected();
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = 1}}, once = {EPOLLIN | EPOLLONESHOT, {.fd = 1}};
    must(epoll_ctl(set, EPOLL_CTL_ADD, one.far, &event) == 0, "add");
    talk_until_on_ring(two, 2);
    for (int round = 0; round < 3; round++) {
        say(one.near, 3);
        observe_wait("alone", set, 1000);
        observe("drained %zd", drain(one.far));
    }
    for (int round = 0; round < 3; round++) {
        must(epoll_ctl(set, round == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, two.far, &once) == 0, "arm");
        say(one.near, 7);
        observe_wait("of the first", set, 1000);
        observe("drained %zd", drain(one.far));
        say(two.near, 7);
        observe_wait("of the second", set, 1000);
        observe_wait("of neither", set, 5);
        observe("drained %zd", drain(two.far));
    }
}

/* Another process keeps a connection that this one closes: its registration stays. */
static void registered_and_kept_elsewhere(void) {
    Pair pair = prompt_pair();
    int go_on[2];
    char byte;
    must(pipe(go_on) == 0, "pipe");
    say(pair.near, 7);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(go_on[1]);
        must(read(go_on[0], &byte, 1) == 0, "go on");
        observe("drained %zd", drain(pair.far));
        _exit(0);
    }
    int set = epoll_create1(0);
    must(add(set, pair.far, EPOLLIN) == 0, "add");
    observe_wait("before the close", set, 0);
    close(pair.far);
    observe_wait("after it", set, 0);
    say(pair.near, 7);
    observe_wait("with more", set, 1000);
    close(go_on[1]);
    must(waitpid(child, NULL, 0) == child, "waitpid");
    observe_wait("gone", set, 0);
}

/* The same where the set is inherited, and was never waited on by who closes. */
static void closed_by_a_child_that_has_the_set(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    must(add(set, pair.far, EPOLLIN) == 0, "add");
    observe_wait("before", set, 0);
    say(pair.near, 7);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(pair.far);
        observe_wait("of a child that has closed it", set, 1000);
        _exit(0);
    }
    must(waitpid(child, NULL, 0) == child, "waitpid");
    observe_wait("of who keeps it", set, 0);
    observe("drained %zd", drain(pair.far));
    say(pair.near, 7);
    observe_wait("with more", set, 1000);
    observe("drained %zd", drain(pair.far));
}

/* And where the one that keeps the connection registers it when the other one has the set already. */
static void registered_after_a_fork(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0), go_on[2];
    char byte;
    must(pipe(go_on) == 0, "pipe");
    say(pair.near, 7);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(go_on[1]);
        must(read(go_on[0], &byte, 1) == 0, "go on");
        close(pair.far);
        observe_wait("of a child that has closed it", set, 1000);
        _exit(0);
    }
    must(add(set, pair.far, EPOLLIN) == 0, "add");
    close(go_on[1]);
    must(waitpid(child, NULL, 0) == child, "waitpid");
    observe_wait("of who keeps it", set, 0);
    observe("drained %zd", drain(pair.far));
}

static atomic_int woken;
static Pair exclusive;

static void *wait_alone(void *set) {
    struct epoll_event event;
    char byte;
    while (epoll_wait(*(int *)set, &event, 1, -1) == 1) {
        ssize_t got = recv(exclusive.far, &byte, 1, MSG_DONTWAIT);
        if (got == 1)
            atomic_fetch_add(&woken, 1);
        else if (got == 0)
            break;
    }
    return NULL;
}

/* Of sets that wait exclusively at least one is woken for every message. */
static void one_of_several_is_woken(void) {
    exclusive = prompt_pair();
    int sets[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        sets[i] = epoll_create1(0);
        must(add(sets[i], exclusive.far, EPOLLIN | EPOLLEXCLUSIVE) == 0, "add");
        threads[i] = start_thread(wait_alone, &sets[i]);
    }
    observe_result("modify", epoll_ctl(sets[0], EPOLL_CTL_MOD, exclusive.far, &(struct epoll_event){EPOLLIN, {0}}));
    for (int i = 0; i < 100; i++) {
        must(send(exclusive.near, "!", 1, 0) == 1, "send");
        for (int patience = 0; atomic_load(&woken) <= i && patience < 2000; patience++)
            usleep(500);
    }
    observe("served %d", atomic_load(&woken));
    close(exclusive.near);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

static ssize_t fill(int fd) {
    static char block[65536];
    ssize_t total = 0, sent;
    while ((sent = send(fd, block, sizeof block, MSG_DONTWAIT)) > 0)
        total += sent;
    return total;
}

static void writable_when_there_is_room(unsigned more) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    must(add(set, pair.near, EPOLLOUT | EPOLLIN | more) == 0, "add");
    observe_wait("empty", set, 1000);
    for (int round = 0; round < 5; round++) {
        ssize_t sent = 0, got = 0;
        /* The reader's queue grows as it is filled, and acknowledgements, which make room, may come 40 ms late. */
        for (int quiet = 0; quiet < 5; quiet++) {
            ssize_t more_sent = fill(pair.near);
            sent += more_sent;
            quiet = more_sent > 0 ? -1 : quiet;
            usleep(15000);
        }
        struct pollfd item = {.fd = pair.near, .events = POLLOUT};
        observe("full: poll %d", poll(&item, 1, 0));
        observe_wait("full", set, 20);
        while (got < sent) {
            got += drain(pair.far);
            usleep(200);
        }
        observe("poll %d", poll(&item, 1, 1000));
        observe_wait("room", set, 1000);
    }
}

static void writable_by_level(void) { writable_when_there_is_room(0); }

static void writable_by_edge(void) { writable_when_there_is_room(EPOLLET); }

/* A program that is started may get the connection: what is unread leaves the ring. It was reported, and is no news; other bytes are. */
static void an_edge_before_a_program_is_started(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(EPOLL_CLOEXEC);
    must(add(set, pair.far, EPOLLIN | EPOLLET) == 0, "add");
    for (int round = 0; round < 6; round++) {
        must(send(pair.near, "unread", 6, 0) == 6, "send");
        observe_wait("bytes", set, 1000);
        must(system("true") == 0, "system");
        if (round % 2 == 0)
            observe_wait("the same", set, 30);
        must(send(pair.near, "more", 4, 0) == 4, "send");
        observe_wait("more", set, 1000);
        observe("drained %zd", drain(pair.far));
        observe_wait("nothing", set, 10);
    }
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    observe_wait("bytes", set, 1000);
    must(system("true") == 0, "system");
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = pair.far};
    must(epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &event) == 0, "epoll_ctl");
    observe_wait("armed again", set, 1000);
}

/* As above, with bytes in the kernel's queue that have overtaken the ring's: they are sent once more. */
static void an_edge_of_bytes_on_both_roads(int in_time) {
    Pair pair = prompt_pair();
    int set = epoll_create1(EPOLL_CLOEXEC), ends[2];
    must(add(set, pair.far, EPOLLIN | EPOLLET) == 0 && pipe(ends) == 0, "add, pipe");
    must(write(ends[1], "spliced", 7) == 7, "write");
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    if (!in_time)
        observe_wait("bytes", set, 1000);
    must(splice(ends[0], NULL, pair.near, NULL, 7, 0) == 7, "splice");
    if (in_time)
        observe_wait("bytes", set, 1000);
    must(system("true") == 0, "system");
    observe_wait("after a program", set, 30);
    must(send(pair.near, "more", 4, 0) == 4, "send");
    observe_wait("more", set, 1000);
    observe("drained %zd", drain(pair.far));
}

static void an_edge_of_both_roads(void) { an_edge_of_bytes_on_both_roads(1); }

static void an_edge_that_the_kernel_owes(void) { an_edge_of_bytes_on_both_roads(0); }

/* What one direction has sent is read before its end, and the other direction goes on. */
static void half_closed(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    must(add(set, pair.far, EPOLLIN | EPOLLRDHUP) == 0, "add");
    say(pair.near, 33);
    observe_result("shutdown", shutdown(pair.near, SHUT_WR));
    usleep(2000);
    observe_wait("bytes and the end", set, 1000);
    observe_result("send", send(pair.near, "x", 1, MSG_NOSIGNAL));
    observe("drained %zd", drain(pair.far));
    observe_wait("the end", set, 1000);
    char byte;
    observe_result("recv", recv(pair.far, &byte, 1, 0));
    for (int round = 0; round < 3; round++) {
        say(pair.far, 9);
        observe("the other direction: %zd", drain(pair.near));
    }
    close(pair.far);
    observe_result("recv", recv(pair.near, &byte, 1, 0));
}

/* Calls that succeed leave errno as it was. */
static void errno_stays(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0);
    char bytes[128];
    struct epoll_event event;
    must(add(set, pair.far, EPOLLIN) == 0, "add");
    for (int round = 0; round < 200; round++) {
        struct pollfd item = {.fd = pair.far, .events = POLLIN};
        errno = 77;
        ssize_t sent = send(pair.near, bytes, 1 + round % sizeof bytes, 0);
        int polled = poll(&item, 1, 1000), waited = epoll_wait(set, &event, 1, 1000);
        ssize_t got = recv(pair.far, bytes, sizeof bytes, 0);
        if (sent != got || polled != 1 || waited != 1 || errno != 77)
            observe("round %d: %zd %d %d %zd, errno %d", round, sent, polled, waited, got, errno);
    }
    observe("errno %d", errno);
}

enum { SENDERS = 3, MESSAGES = 400 };

static void *send_many(void *fd) {
    for (int i = 0; i < MESSAGES; i++)
        must(send(*(int *)fd, "message", 7, 0) == 7, "send");
    return NULL;
}

/* Threads are in calls on the connection when it begins, and when it joins. */
static void in_a_call_from_the_first_byte(void) {
    for (int round = 0; round < 20; round++) {
        Pair pair = connected();
        pthread_t threads[SENDERS];
        for (int i = 0; i < SENDERS; i++)
            threads[i] = start_thread(send_many, &pair.near);
        char bytes[64];
        int wrong = 0, total = 0;
        while (total < SENDERS * MESSAGES * 7) {
            ssize_t got = recv(pair.far, bytes, sizeof bytes, 0);
            must(got > 0, "recv");
            for (ssize_t i = 0; i < got; i++)
                wrong += bytes[i] != "message"[(total + i) % 7];
            total += got;
        }
        for (int i = 0; i < SENDERS; i++)
            pthread_join(threads[i], NULL);
        if (wrong)
            observe("wrong bytes: %d", wrong);
        close(pair.near);
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
        close(pair.far);
    }
}

typedef struct {
    int set, fd;
    atomic_int registered, taken_back;
} Registration;

enum { REGISTRATIONS = 2000 };

static void *take_back(void *argument) {
    Registration *registration = argument;
    for (int round = 1; round <= REGISTRATIONS; round++) {
        while (registration->registered < round || epoll_ctl(registration->set, EPOLL_CTL_DEL, registration->fd, NULL) != 0)
            sched_yield();
        registration->taken_back = round;
    }
    return NULL;
}

/* What is taken back while the call that registers it has hardly ended is not told of any more. */
static void a_thread_takes_back_what_another_registers(void) {
    Pair pair = on_the_ring();
    Registration registration = {.set = epoll_create1(0), .fd = pair.far};
    pthread_t thread = start_thread(take_back, &registration);
    struct epoll_event event = {.events = EPOLLIN};
    int told = 0, lost = 0;
    for (int round = 1; round <= REGISTRATIONS; round++) {
        char byte = 0;
        registration.registered = round;
        must(epoll_ctl(registration.set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
        while (registration.taken_back < round)
            sched_yield();
        must(send(pair.near, &byte, 1, 0) == 1, "send");
        told += epoll_wait(registration.set, &event, 1, 0);
        event.events = EPOLLIN;
        lost += recv(pair.far, &byte, 1, 0) != 1;
    }
    pthread_join(thread, NULL);
    observe("%d told, %d lost", told, lost);
}

int main(int argc, char **argv) {
    const Case cases[] = {CASE(every_message_is_an_edge), CASE(an_edge_whose_bytes_were_read),
                          CASE(edges_beside_a_sender),
                          CASE(an_edge_behind_unread_bytes),
                          CASE(armed_once),
                          CASE(walks_through_one_shots),
                          CASE(armed_by_several_threads),
                          CASE(off_until_it_is_armed),
                          CASE(a_set_in_a_set),
                          CASE(in_two_sets),
                          CASE(registered_twice),
                          CASE(registered_by_a_number_that_is_another_s),
                          CASE(registered_by_a_number_that_comes_back),
                          CASE(registered_with_the_same_word),
                          CASE(a_one_shot_with_the_same_word),
                          CASE(registered_with_the_word_of_one_that_is_gone),
                          CASE(asked_for_beside_unread_bytes),
                          CASE(arrivals_beside_room),
                          CASE(registered_and_kept_elsewhere),
                          CASE(closed_by_a_child_that_has_the_set),
                          CASE(registered_after_a_fork),
                          CASE(one_of_several_is_woken),
                          CASE(writable_by_level),
                          CASE(writable_by_edge),
                          CASE(an_edge_before_a_program_is_started),
                          CASE(an_edge_of_both_roads),
                          CASE(an_edge_that_the_kernel_owes),
                          CASE(half_closed),
                          CASE(errno_stays),
                          CASE(a_thread_takes_back_what_another_registers),
                          CASE(in_a_call_from_the_first_byte),
                          {0}};
    return run_cases(cases, argc, argv);
}
