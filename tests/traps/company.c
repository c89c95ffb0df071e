/* Threads that wait on a set, or use a connection, while another changes it, closes it, or puts another one in its place. */
#include "traps.h"

#include <sched.h>
#include <sys/eventfd.h>

static Pair prompt_pair(void) {
    Pair pair = on_the_ring();
    must(setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "setsockopt");
    must(setsockopt(pair.far, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "setsockopt");
    return pair;
}

static void close_pair(Pair pair) {
    shutdown(pair.near, SHUT_RDWR);
    close(pair.near), close(pair.far);
}

static int control(int set, int operation, int fd, unsigned events) {
    struct epoll_event event = {events, {.fd = fd}};
    return epoll_ctl(set, operation, fd, &event);
}

/* ---- Waits on a set. ---- */

enum { PATIENCE_MS = 3000 };

typedef struct {
    int set, result;
    unsigned events;
    enum { BY_EPOLL_WAIT, BY_POLL, BY_SELECT, WAYS } way;
    pthread_t thread;
    atomic_int number;
} Waiter;

static void *wait_once(void *argument) {
    Waiter *waiter = argument;
    struct epoll_event event = {0};
    struct pollfd entry = {waiter->set, POLLIN, 0};
    struct timeval patience = {PATIENCE_MS / 1000, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(waiter->set, &set);
    waiter->number = gettid();
    switch (waiter->way) {
    case BY_EPOLL_WAIT: waiter->result = epoll_wait(waiter->set, &event, 1, PATIENCE_MS); break;
    case BY_POLL: waiter->result = poll(&entry, 1, PATIENCE_MS); break;
    default: waiter->result = select(waiter->set + 1, &set, NULL, NULL, &patience);
    }
    waiter->events = event.events;
    return NULL;
}

/* Returns when the thread sleeps in its call. */
static void start_waiting(Waiter *waiter) {
    char name[64], state = 0;
    waiter->thread = start_thread(wait_once, waiter);
    while (waiter->number == 0)
        usleep(100);
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", waiter->number);
    pause_ms(20);
    while (state != 'S') {
        usleep(100);
        FILE *file = fopen(name, "r");
        must(file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) == 1, "stat");
        fclose(file);
    }
}

/* Sends until the kernel takes no more. */
static void fill(int fd) {
    static char block[65536];
    for (int quiet = 0; quiet < 5; quiet++) {
        while (send(fd, block, sizeof block, MSG_DONTWAIT) > 0)
            quiet = 0;
        pause_ms(5);
    }
}

static const struct {
    unsigned events;
    const char *name;
} kinds[] = {
    {EPOLLIN, "level"},
    {EPOLLIN | EPOLLET, "edge"},
    {EPOLLIN | EPOLLOUT | EPOLLRDHUP, "all"},
    {EPOLLIN | EPOLLONESHOT, "once"},
    {EPOLLIN | EPOLLEXCLUSIVE, "exclusive"},
    {EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, "exclusive edge"},
};
enum { KINDS = sizeof kinds / sizeof *kinds, CHANGEABLE = 4 };

/* Bytes lie unread when a connection becomes a member, or is to be looked at again: who sleeps on the set is woken. */
static void unread_beside_a_sleeper(int operation, int is_full) {
    for (int i = 0; i < (operation == EPOLL_CTL_MOD ? CHANGEABLE : KINDS); i++)
        for (int way = 0; way < WAYS; way++) {
            Pair pair = prompt_pair();
            char bytes[64] = {0};
            Waiter waiter = {.set = epoll_create1(0), .way = way};
            if (operation == EPOLL_CTL_MOD)
                must(control(waiter.set, EPOLL_CTL_ADD, pair.far, 0) == 0, "add");
            must(send(pair.near, bytes, 7, 0) == 7, "send");
            if (is_full)
                fill(pair.far);
            start_waiting(&waiter);
            must(control(waiter.set, operation, pair.far, kinds[i].events) == 0, "change");
            pthread_join(waiter.thread, NULL);
            observe("%s, way %d: %d, %x", kinds[i].name, way, waiter.result, waiter.events);
            struct epoll_event event = {0};
            int again = epoll_wait(waiter.set, &event, 1, 0);
            observe("again: %d, %x", again, event.events);
            observe_result("recv", recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT));
            close(waiter.set);
            close_pair(pair);
        }
}

static void added_beside_a_sleeper(void) { unread_beside_a_sleeper(EPOLL_CTL_ADD, 0); }

static void changed_beside_a_sleeper(void) { unread_beside_a_sleeper(EPOLL_CTL_MOD, 0); }

static void added_with_a_full_queue(void) { unread_beside_a_sleeper(EPOLL_CTL_ADD, 1); }

static void changed_with_a_full_queue(void) { unread_beside_a_sleeper(EPOLL_CTL_MOD, 1); }

/* Nobody reads. By level all sleepers are told, by edge one of them. */
static void several_sleepers(void) {
    enum { SLEEPERS = 4 };
    for (int i = 0; i < KINDS; i++) {
        Pair pair = prompt_pair();
        char byte;
        int set = epoll_create1(0), told = 0;
        Waiter waiters[SLEEPERS];
        must(send(pair.near, "unread", 6, 0) == 6, "send");
        for (int k = 0; k < SLEEPERS; k++) {
            waiters[k] = (Waiter){.set = set};
            start_waiting(&waiters[k]);
        }
        must(control(set, EPOLL_CTL_ADD, pair.far, kinds[i].events) == 0, "add");
        if (kinds[i].events & (EPOLLET | EPOLLONESHOT)) {
            pause_ms(100);
            must(control(set, EPOLL_CTL_DEL, pair.far, 0) == 0, "delete");
        }
        for (int k = 0; k < SLEEPERS; k++) {
            pthread_join(waiters[k].thread, NULL);
            told += waiters[k].result;
        }
        observe("%s: told %d", kinds[i].name, told);
        observe_result("recv", recv(pair.far, &byte, 1, MSG_DONTWAIT));
        close(set);
        close_pair(pair);
    }
}

/* Both sleep on a set that is closed. What came for one is read, and the other is told of what comes then. */
static void asleep_on_a_set_that_is_closed(void) {
    for (int is_replaced = 0; is_replaced < 2; is_replaced++) {
        Pair pair = prompt_pair();
        int set = epoll_create1(0), other = epoll_create1(0);
        Waiter waiters[] = {{.set = set}, {.set = set}};
        must(control(set, EPOLL_CTL_ADD, pair.far, EPOLLIN | EPOLLET) == 0, "add");
        start_waiting(&waiters[0]), start_waiting(&waiters[1]);
        must(is_replaced ? dup2(other, set) == set : close(set) == 0, "close");
        must(send(pair.near, "x", 1, 0) == 1, "send");
        for (int patience = 1000; waiters[0].result + waiters[1].result == 0 && patience > 0; patience--)
            pause_ms(1);
        observe("told: %d", waiters[0].result + waiters[1].result);
        must(recv(pair.far, &(char){0}, 1, 0) == 1, "recv");
        must(send(pair.near, "y", 1, 0) == 1, "send");
        for (int i = 0; i < 2; i++)
            pthread_join(waiters[i].thread, NULL);
        observe("told: %d, %d", waiters[0].result, waiters[1].result);
        observe("of %x, %x", waiters[0].events, waiters[1].events);
        close(other), close_pair(pair);
        if (is_replaced)
            close(set);
    }
}

/* Two become ready one right after the other, by edge: each of two sleepers is told of one. */
static void two_for_two_sleepers(void) {
    const unsigned edges[] = {EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLET};
    Pair pairs[] = {connected(), connected()};
    for (int i = 0; i < 2; i++) {
        setsockopt(pairs[i].near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        talk_until_on_ring(pairs[i], i + 1);
    }
    for (int round = 0; round < 24; round++) {
        enum { BY_MOD, BY_ADD, BESIDE_ANOTHER } way = round % 3;
        int set = epoll_create1(0), another = eventfd(0, 0), told = 0;
        unsigned wanted = edges[round / 3 % 2];
        Waiter waiters[] = {{.set = set}, {.set = set}};
        must(control(set, EPOLL_CTL_ADD, another, EPOLLIN | EPOLLET) == 0, "add");
        for (int i = 0; i < 2; i++) {
            talk(pairs[i].near, pairs[i].far);
            must(way == BY_ADD || control(set, EPOLL_CTL_ADD, pairs[i].far, 0) == 0, "add");
            must(send(pairs[i].near, "unread", 6, 0) == 6, "send");
        }
        for (int i = 0; i < 2; i++)
            start_waiting(&waiters[i]);
        for (int i = 0; i < 2; i++)
            if (i == 0 && way == BESIDE_ANOTHER)
                must(write(another, &(uint64_t){1}, 8) == 8, "write");
            else
                must(control(set, way == BY_ADD ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, pairs[i].far, wanted) == 0, "arm");
        for (int i = 0; i < 2; i++) {
            pthread_join(waiters[i].thread, NULL);
            told += waiters[i].result;
        }
        observe("way %d, %x: told %d", way, wanted, told);
        close(set), close(another);
        for (int i = 0; i < 2; i++)
            must(recv(pairs[i].far, (char[6]){0}, 6, MSG_WAITALL) == 6, "recv");
    }
    close_pair(pairs[0]), close_pair(pairs[1]);
}

/* A sleeper is told of bytes and of room at once, and of room no more. */
static void room_is_told_once(void) {
    for (int round = 0; round < 6; round++) {
        Pair pair = prompt_pair();
        int operation = round % 2 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
        struct epoll_event event;
        Waiter waiter = {.set = epoll_create1(0)};
        must(operation == EPOLL_CTL_ADD || control(waiter.set, EPOLL_CTL_ADD, pair.far, 0) == 0, "add");
        must(send(pair.near, "unread", 6, 0) == 6, "send");
        start_waiting(&waiter);
        must(control(waiter.set, operation, pair.far, EPOLLIN | EPOLLOUT | EPOLLET) == 0, "change");
        pthread_join(waiter.thread, NULL);
        observe("%d: %x, then %d", waiter.result, waiter.events, epoll_wait(waiter.set, &event, 1, 20));
        close(waiter.set);
        close_pair(pair);
    }
}

static void run_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* What comes at once, and soon after. */
static void *wait_for_all(void *argument) {
    Waiter *waiter = argument;
    struct epoll_event events[4];
    waiter->number = gettid();
    for (int patience_ms = PATIENCE_MS, count; (count = epoll_wait(waiter->set, events, 4, patience_ms)) > 0; patience_ms = 500)
        for (int i = 0; i < count && waiter->result++ < 8; i++)
            waiter->events |= events[i].events;
    return NULL;
}

/* A pipe has room when a connection with the same word is asked for again, before the sleeper runs: that is told, too. */
static void room_with_the_same_word(void) {
    struct sched_param none = {0};
    Pair pair = prompt_pair();
    static char block[1 << 16];
    run_on(0);
    for (int round = 0; round < 8; round++) {
        int ends[2];
        must(pipe2(ends, O_NONBLOCK) == 0 && write(ends[1], block, sizeof block) == sizeof block, "pipe");
        talk(pair.near, pair.far);
        Waiter waiter = {.set = epoll_create1(0)};
        struct epoll_event bytes = {EPOLLIN | EPOLLET, {.fd = 1}}, room = {EPOLLOUT | EPOLLET, {.fd = 1}};
        struct epoll_event nothing = {0, {.fd = 1}};
        must(epoll_ctl(waiter.set, EPOLL_CTL_ADD, pair.far, &nothing) == 0, "add");
        must(epoll_ctl(waiter.set, EPOLL_CTL_ADD, ends[1], &room) == 0, "add");
        must(send(pair.near, "unread", 6, 0) == 6, "send");
        waiter.thread = start_thread(wait_for_all, &waiter);
        pthread_setschedparam(waiter.thread, SCHED_IDLE, &none);
        while (waiter.number == 0)
            usleep(100);
        pause_ms(50);
        must(read(ends[0], block, sizeof block) == sizeof block, "read");
        must(epoll_ctl(waiter.set, EPOLL_CTL_MOD, pair.far, &bytes) == 0, "modify");
        pthread_join(waiter.thread, NULL);
        observe("told %d: %x", waiter.result, waiter.events);
        must(recv(pair.far, block, 6, MSG_WAITALL) == 6, "recv");
        close(waiter.set), close(ends[0]), close(ends[1]);
    }
}

typedef struct {
    int set;
    atomic_int is_over;
    long odd;
} Watcher;

static void *watch(void *argument) {
    Watcher *watcher = argument;
    struct epoll_event events[2];
    while (!watcher->is_over)
        for (int count = epoll_wait(watcher->set, events, 2, 20); count > 0; count--)
            watcher->odd += events[count - 1].events != EPOLLIN;
    return NULL;
}

/* A registration is there for a moment only, beside sleepers. What they are told is what it asks for, if anything. */
static void registered_for_a_moment(void) {
    Pair pair = prompt_pair();
    Watcher watcher = {.set = epoll_create1(0)};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        threads[i] = start_thread(watch, &watcher);
    for (int i = 0; i < 600; i++) {
        char byte;
        int is_changed = i % 4;
        must(send(pair.near, "x", 1, 0) == 1, "send");
        must(!is_changed || control(watcher.set, EPOLL_CTL_ADD, pair.far, 0) == 0, "add");
        pause_ms(1);
        must(control(watcher.set, is_changed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, pair.far, EPOLLIN) == 0, "register");
        must(!is_changed || control(watcher.set, EPOLL_CTL_MOD, pair.far, 0) == 0, "modify");
        must(control(watcher.set, EPOLL_CTL_DEL, pair.far, 0) == 0, "delete");
        usleep(i % 7 * 60);
        must(recv(pair.far, &byte, 1, 0) == 1, "recv");
    }
    watcher.is_over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    observe("%s", watcher.odd > 0 ? "odd events" : "nothing odd");
}

static atomic_long read_by_all;

static void *watch_and_read(void *argument) {
    Watcher *watcher = argument;
    struct epoll_event event;
    char byte;
    while (!watcher->is_over)
        if (epoll_wait(watcher->set, &event, 1, 20) == 1) {
            watcher->odd += event.events != EPOLLIN;
            while (recv(event.data.fd, &byte, 1, MSG_DONTWAIT) == 1)
                read_by_all++;
        }
    return NULL;
}

/* Each of several threads reads all that there is: whoever is woken for nothing is not told of room. */
static void a_pool_is_told_of_what_it_asks_for(void) {
    enum { THREADS = 3, ROUNDS = 1500 };
    Pair pair = prompt_pair();
    Watcher watcher = {.set = epoll_create1(0)};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(watch_and_read, &watcher);
    for (int i = 0; i < ROUNDS; i++) {
        must(send(pair.near, "x", 1, 0) == 1, "send");
        usleep(i % 7 * 30);
        must(control(watcher.set, EPOLL_CTL_ADD, pair.far, EPOLLIN) == 0, "add");
        while (read_by_all <= i)
            usleep(50);
        must(control(watcher.set, EPOLL_CTL_DEL, pair.far, 0) == 0, "delete");
    }
    watcher.is_over = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    observe("%s", watcher.odd > 0 ? "odd events" : "nothing odd");
}

/* ---- Calls of one thread beside those of another. ---- */

static void *send_much(void *fd) {
    static char block[32 << 20];
    send(*(int *)fd, block, sizeof block, MSG_NOSIGNAL);
    return NULL;
}

/* A thread sleeps in a send because the queue is full. Nobody is told of room. */
static void room_beside_a_blocked_sender(void) {
    Pair pair = prompt_pair();
    int set = epoll_create1(0), told = 0;
    char bytes[64];
    struct epoll_event event;
    must(control(set, EPOLL_CTL_ADD, pair.near, EPOLLIN | EPOLLOUT) == 0, "add");
    for (int i = 0; i < 20; i++) {
        must(send(pair.far, "y", 1, 0) == 1, "send");
        must(epoll_wait(set, &event, 1, PATIENCE_MS) == 1, "wait");
        must(recv(pair.near, bytes, 1, 0) == 1, "recv");
    }
    pthread_t sender = start_thread(send_much, &pair.near);
    pause_ms(300);
    for (int i = 0; i < 50; i++)
        told += epoll_wait(set, &event, 1, 0);
    observe("told %d times", told);
    must(send(pair.far, "y", 1, 0) == 1, "send");
    observe("%d event", epoll_wait(set, &event, 1, PATIENCE_MS));
    observe("%x", event.events);
    close_pair(pair);
    pthread_join(sender, NULL);
}

static void do_nothing(int number) { (void)number; }

static void *receive_all(void *argument) {
    Waiter *waiter = argument;
    char bytes[100];
    waiter->result = recv(waiter->set, bytes, sizeof bytes, MSG_WAITALL);
    return NULL;
}

static void *look_for_all(void *argument) {
    Waiter *waiter = argument;
    char bytes[100];
    waiter->result = recv(waiter->set, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL);
    return NULL;
}

/* A call waits to see all bytes when the connection ends, in one way or another: it sees each byte once. */
static void a_look_for_all_is_ended(void) {
    for (int way = 0; way < 5; way++) {
        Pair pair = prompt_pair();
        char bytes[100] = {0};
        Waiter waiter = {.set = pair.far};
        must(send(pair.near, bytes, 30, 0) == 30, "send");
        pthread_t thread = start_thread(look_for_all, &waiter);
        pause_ms(50);
        if (way < 3)
            must(shutdown(pair.near, way == 0 ? SHUT_WR : SHUT_RDWR) == 0, "shutdown");
        if (way >= 2)
            must(shutdown(pair.far, way == 3 ? SHUT_RD : SHUT_RDWR) == 0, "shutdown");
        pthread_join(thread, NULL);
        observe("way %d: %d", way, waiter.result);
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT));
        close(pair.near), close(pair.far);
    }
}

/* A call has begun to wait for all bytes when another thread asks that calls on the connection do not wait. */
static void a_wait_for_all_is_not_changed(void) {
    handle(SIGUSR1, do_nothing, SA_RESTART);
    Pair pair = prompt_pair();
    char bytes[100] = {0};
    Waiter waiter = {.set = pair.far};
    must(send(pair.near, bytes, 50, 0) == 50, "send");
    pthread_t thread = start_thread(receive_all, &waiter);
    pause_ms(50);
    must(fcntl(pair.far, F_SETFL, O_NONBLOCK) == 0, "fcntl");
    for (int i = 0; i < 5; i++) {
        must(send(pair.near, bytes, 10, 0) == 10, "send");
        pause_ms(10);
    }
    pthread_join(thread, NULL);
    observe("got %d", waiter.result);
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
}

typedef struct {
    int fd;
    atomic_int has_begun, is_over;
    long nothing, odd;
} Looker;

/* Bytes lie unread in whatever the number is. */
static void *look_again_and_again(void *argument) {
    Looker *looker = argument;
    char bytes[8];
    looker->has_begun = 1;
    while (!looker->is_over) {
        ssize_t seen = recv(looker->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
        looker->nothing += seen < 0 && errno == EAGAIN;
        looker->odd += seen < 0 ? errno != EAGAIN && errno != EBADF : seen != sizeof bytes;
    }
    return NULL;
}

static Pair with_unread_bytes(int is_new) {
    Pair pair = connected();
    if (!is_new)
        talk(pair.near, pair.far), talk(pair.far, pair.near);
    must(send(pair.near, "8 bytes!", 8, 0) == 8, "send");
    return pair;
}

/* A call is before the close, or after it: it finds all that is unread, or no connection. */
static void looks_beside(int (*end)(Pair pair, Pair other)) {
    long nothing = 0, odd = 0;
    for (int i = 0; i < 200; i++) {
        Pair pair = with_unread_bytes(0), other = with_unread_bytes(1);
        int copy = i % 2 ? dup(pair.far) : -1;
        Looker looker = {.fd = pair.far};
        pthread_t thread = start_thread(look_again_and_again, &looker);
        while (!looker.has_begun)
            sched_yield();
        usleep(i % 7 * 40);
        must(end(pair, other) >= 0, "end");
        usleep(100);
        looker.is_over = 1;
        pthread_join(thread, NULL);
        nothing += looker.nothing;
        odd += looker.odd;
        close(copy), close(pair.near), close(pair.far), close(other.near), close(other.far);
    }
    observe("%s, %s", nothing ? "found nothing" : "found all", odd ? "odd" : "nothing odd");
}

static int end_by_close(Pair pair, Pair other) {
    (void)other;
    return close(pair.far);
}

static int end_by_a_copy(Pair pair, Pair other) { return dup2(other.far, pair.far); }

static int end_by_a_range(Pair pair, Pair other) {
    (void)other;
    return close_range(pair.far, pair.far, 0);
}

static void looks_beside_a_close(void) { looks_beside(end_by_close); }

static void looks_beside_a_copy(void) { looks_beside(end_by_a_copy); }

static void looks_beside_a_range(void) { looks_beside(end_by_a_range); }

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(added_beside_a_sleeper),
        CASE(changed_beside_a_sleeper),
        CASE(added_with_a_full_queue),
        CASE(changed_with_a_full_queue),
        CASE(asleep_on_a_set_that_is_closed),
        CASE(several_sleepers),
        CASE(two_for_two_sleepers),
        CASE(room_is_told_once),
        CASE(room_with_the_same_word),
        CASE(registered_for_a_moment),
        CASE(a_pool_is_told_of_what_it_asks_for),
        CASE(room_beside_a_blocked_sender),
        CASE(a_wait_for_all_is_not_changed),
        CASE(a_look_for_all_is_ended),
        CASE(looks_beside_a_close),
        CASE(looks_beside_a_copy),
        CASE(looks_beside_a_range),
        {0},
    };
    return run_cases(cases, argc, argv);
}
