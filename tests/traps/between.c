/* What comes between the steps of a call: other threads, signals, and another program. */
#include "traps.h"
#include <sched.h>
#include <sys/sendfile.h>

/* ---- What is unread is counted while another thread has it sent again by the kernel. ---- */

typedef struct {
    int fd, expected;
    atomic_int is_over, others, asked;
} Counter;

static void *count_unread(void *argument) {
    Counter *counter = argument;
    while (!counter->is_over) {
        int unread = -1;
        must(ioctl(counter->fd, FIONREAD, &unread) == 0, "FIONREAD");
        counter->others += unread != counter->expected;
        counter->asked = 1;
    }
    return NULL;
}

static void unread_bytes_are_counted_beside_a_recall(void) {
    int others = 0;
    for (int round = 0; round < 20; round++) {
        Pair pair = on_the_ring();
        char bytes[100] = {0};
        must(send(pair.near, bytes, sizeof bytes, 0) == sizeof bytes, "send");
        Counter counter = {.fd = pair.far, .expected = sizeof bytes};
        must(recv(pair.far, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL) == sizeof bytes, "peek");
        pthread_t counts = start_thread(count_unread, &counter);
        while (!counter.asked)
            usleep(10);
        must(fcntl(pair.far, F_SETFL, O_ASYNC) == 0, "O_ASYNC");
        pause_ms(1);
        counter.is_over = 1;
        pthread_join(counts, NULL);
        others += counter.others;
        close(pair.near);
        close(pair.far);
    }
    observe("%d other counts", others);
}

/* ---- More is said to come, and comes by another road. ---- */

typedef struct {
    Pair one, other;
    int set;
} Two;

/* Answers what comes on either connection. */
static void *answer_on_both(void *argument) {
    Two *two = argument;
    for (int i = 0; i < 401; i++) {
        struct epoll_event event;
        char byte;
        must(epoll_wait(two->set, &event, 1, -1) == 1 && recv(event.data.fd, &byte, 1, 0) == 1, "recv");
        must(send(event.data.fd, &byte, 1, 0) == 1, "send");
    }
    return two;
}

static void ask(int fd) {
    char byte = 'x';
    must(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1, "ask");
}

/* Two connections of which one has taken the beginning of a message, `y`, while its reader slept, and the rest, `z`, after it was woken by
 * something else. Nobody has read either. */
static Two with_a_message_in_parts(void) {
    Two two = {connected(), connected(), epoll_create1(0)};
    wait_for_both(two.one), wait_for_both(two.other);
    for (int patience = 100; on_ring() < 2; patience--) {
        must(patience > 0, "the ring");
        talk(two.one.near, two.one.far), talk(two.one.far, two.one.near);
        talk(two.other.near, two.other.far), talk(two.other.far, two.other.near);
    }
    struct epoll_event one = {EPOLLIN, {.fd = two.one.far}}, other = {EPOLLIN, {.fd = two.other.far}};
    epoll_ctl(two.set, EPOLL_CTL_ADD, two.one.far, &one);
    epoll_ctl(two.set, EPOLL_CTL_ADD, two.other.far, &other);
    pthread_t reader = start_thread(answer_on_both, &two);
    for (int i = 0; i < 200; i++)
        ask(two.one.near), ask(two.other.near);
    pause_ms(60);
    must(send(two.one.near, "y", 1, MSG_MORE) == 1, "send");
    ask(two.other.near);
    pthread_join(reader, NULL);
    pause_ms(2);
    must(send(two.one.near, "z", 1, 0) == 1, "send");
    return two;
}

static void close_both(Two two) { close(two.one.near), close(two.one.far), close(two.other.near), close(two.other.far), close(two.set); }

static void the_rest_of_a_message_pushes_its_beginning(void) {
    int whole = 0;
    for (int round = 0; round < 10; round++) {
        Two two = with_a_message_in_parts();
        struct timeval patience = {0, 100000};
        must(setsockopt(two.one.far, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0, "SO_RCVTIMEO");
        char rest[2];
        whole += recv(two.one.far, rest, 2, MSG_WAITALL) == 2 && rest[0] == 'y' && rest[1] == 'z';
        close_both(two);
    }
    observe("%d whole messages", whole);
}

static void *receive_once(void *argument) {
    char bytes[16];
    must(recv(*(int *)argument, bytes, sizeof bytes, 0) > 0, "recv");
    return NULL;
}

/* One takes all that there is, and the other what comes later. */
static void two_readers_of_a_message_in_parts(void) {
    for (int round = 0; round < 10; round++) {
        Two two = with_a_message_in_parts();
        pthread_t readers[] = {start_thread(receive_once, &two.one.far), start_thread(receive_once, &two.one.far)};
        pause_ms(250);
        must(send(two.one.near, "more", 4, 0) == 4, "send");
        pthread_join(readers[0], NULL);
        pthread_join(readers[1], NULL);
        close_both(two);
    }
    observe("all read");
}

/* ---- A signal ends a call that has a part of what it waits for. ---- */

static atomic_int interrupts;

static void count_interrupt(int number) {
    (void)number;
    interrupts++;
}

static void run_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static atomic_int turn;

/* Sends a part of each message, from another processor. */
static void *send_parts(void *argument) {
    run_on(1);
    for (int round = 0; round < 200; round++) {
        while (turn != 2 * round + 1)
            ;
        must(send(*(int *)argument, "a part", 6, 0) == 6, "send");
        turn++;
    }
    return NULL;
}

/* Most calls are in their wait when the first signal comes. */
static void interrupted_with(int flags) {
    Pair pair = on_the_ring();
    must(setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "TCP_NODELAY");
    handle(SIGALRM, count_interrupt, flags);
    run_on(0);
    turn = interrupts = 0;
    pthread_t sender = start_thread(send_parts, &pair.near);
    int parts = 0;
    for (int round = 0; round < 200; round++) {
        char message[100];
        turn++;
        while (turn != 2 * round + 2)
            ;
        struct itimerval timer = {{0, 30000}, {0, 20 + round % 50}}, none = {0};
        must(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
        parts += recv(pair.far, message, sizeof message, MSG_WAITALL) == 6;
        must(setitimer(ITIMER_REAL, &none, NULL) == 0, "setitimer");
    }
    pthread_join(sender, NULL);
    observe("%d parts, most by the first signal: %d", parts, interrupts < 230);
}

static void a_signal_ends_a_wait_for_all(void) { interrupted_with(0); }

static void a_restarting_signal_ends_a_wait_for_all(void) { interrupted_with(SA_RESTART); }

/* ---- A process of several threads becomes another program while one of them receives. ---- */

enum { PIECE = 16, NUMBERS = 20000, OTHERS = 6 };

typedef struct {
    int fd;
    atomic_ulong *taken;
} Taker;

static void *take_pieces(void *argument) {
    Taker *taker = argument;
    char piece[PIECE];
    ssize_t got;
    while ((got = recv(taker->fd, piece, sizeof piece, 0)) > 0)
        *taker->taken += got;
    return NULL;
}

static void *send_numbers(void *argument) {
    unsigned random = 1;
    for (unsigned next = 0; next < NUMBERS;) {
        unsigned numbers[64], count = 1 + rand_r(&random) % 64;
        if (count > NUMBERS - next)
            count = NUMBERS - next;
        for (unsigned i = 0; i < count; i++)
            numbers[i] = next + i;
        if (send(*(int *)argument, numbers, 4 * count, MSG_NOSIGNAL) <= 0)
            break;
        next += count;
        usleep(rand_r(&random) % 50);
    }
    shutdown(*(int *)argument, SHUT_WR);
    return NULL;
}

/* The reader becomes another, which passes on what it gets; what neither has got is missing. To leave other connections takes a while. */
static int becomes_another_program(int round) {
    Pair pair = on_the_ring(), others[OTHERS];
    for (int i = 0; i < OTHERS; i++) {
        others[i] = connected();
        talk_until_on_ring(others[i], i + 2);
        must(send(others[i].near, "unread", 6, 0) == 6, "send");
    }
    int output[2];
    must(pipe(output) == 0, "pipe");
    atomic_ulong *taken = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t reader = fork();
    if (reader == 0) {
        close(pair.near);
        close(output[0]);
        char command[64];
        snprintf(command, sizeof command, "exec cat <&%d", pair.far);
        Taker taker = {pair.far, taken};
        start_thread(take_pieces, &taker);
        while (*taken < 2000 + 97ul * round)
            usleep(20);
        dup2(output[1], 1);
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(9);
    }
    close(pair.far);
    close(output[1]);
    pthread_t sender = start_thread(send_numbers, &pair.near);
    size_t passed = 0;
    char bytes[4096];
    for (ssize_t got; (got = read(output[0], bytes, sizeof bytes)) > 0; passed += got)
        ;
    pthread_join(sender, NULL);
    waitpid(reader, NULL, 0);
    for (int i = 0; i < OTHERS; i++)
        close(others[i].near), close(others[i].far);
    close(pair.near);
    close(output[0]);
    size_t missing = 4 * NUMBERS - *taken - passed;
    if (missing > PIECE)
        observe("round %d: %zu taken, %zu passed on, %zu missing", round, (size_t)*taken, passed, missing);
    return missing <= PIECE;
}

static void a_receiving_process_becomes_another_program(void) {
    int whole = 0;
    for (int round = 0; round < 30; round++)
        whole += becomes_another_program(round);
    observe("%d streams whole", whole);
}

/* ---- Files and messages on one connection. ---- */

enum { SENDERS = 3, RECORDS = 60, RECORD_MAX = 6000 };

typedef struct {
    int fd, number;
} Sender;

static void fill_record(char *record, unsigned length, int number) {
    memset(record, 'a' + number, length);
    memcpy(record, &length, sizeof length);
    record[sizeof length] = (char)number;
}

static void *send_records(void *argument) {
    Sender *sender = argument;
    char record[RECORD_MAX];
    unsigned random = sender->number;
    for (int i = 0; i < RECORDS; i++) {
        unsigned length = 8 + rand_r(&random) % (RECORD_MAX - 8);
        fill_record(record, length, sender->number);
        if (send(sender->fd, record, length, MSG_NOSIGNAL) != (ssize_t)length)
            return NULL;
    }
    return NULL;
}

static void *send_files(void *argument) {
    Sender *sender = argument;
    char record[RECORD_MAX];
    fill_record(record, 500, sender->number);
    int file = memfd_create("record", 0);
    must(write(file, record, 500) == 500, "write");
    for (int i = 0; i < RECORDS; i++) {
        lseek(file, 0, SEEK_SET);
        if (sendfile(sender->fd, file, NULL, 500) != 500)
            return NULL;
        usleep(100);
    }
    close(file);
    return NULL;
}

static int is_whole(int fd) {
    char record[RECORD_MAX];
    unsigned length;
    if (recv(fd, &length, sizeof length, MSG_WAITALL) != sizeof length || length < 8 || length > RECORD_MAX)
        return 0;
    length -= sizeof length;
    if (recv(fd, record, length, MSG_WAITALL) != (ssize_t)length)
        return 0;
    for (unsigned i = 1; i < length; i++)
        if (record[i] != 'a' + record[0])
            return 0;
    return 1;
}

static void a_file_between_messages(void) {
    int whole = 0;
    for (int round = 0; round < 10; round++) {
        Pair pair = on_the_ring();
        Sender senders[SENDERS];
        pthread_t threads[SENDERS];
        for (int i = 0; i < SENDERS; i++) {
            senders[i] = (Sender){pair.near, i};
            threads[i] = start_thread(i == 0 ? send_files : send_records, &senders[i]);
        }
        int here = 0;
        while (here < SENDERS * RECORDS && is_whole(pair.far))
            here++;
        if (here < SENDERS * RECORDS)
            shutdown(pair.far, SHUT_RDWR);
        for (int i = 0; i < SENDERS; i++)
            pthread_join(threads[i], NULL);
        whole += here;
        close(pair.near);
        close(pair.far);
    }
    observe("%d records", whole);
}

/* ---- A set is closed, and its number used again, while another thread waits on it. ---- */

enum { WATCHED = 10, WAITS = 30, CLOSES = 30 };

static int failed;

/* Waits once for each order, on the set that it then is. */
static void *wait_on_order(void *argument) {
    run_on(0);
    for (int wait = 0; wait < CLOSES * (WAITS + 1); wait++) {
        while (turn != 3 * wait + 1)
            ;
        turn++;
        failed += epoll_wait(*(int *)argument, &(struct epoll_event){0}, 1, 30) < 0;
        turn++;
    }
    return NULL;
}

static void order_a_wait(void) {
    int before = turn;
    for (turn++; turn == before + 1;)
        ;
}

static void await_its_end(void) {
    while (turn % 3 != 0)
        ;
}

/* A thread that is in its wait when the set is closed gets nothing of another set, and waits on. */
static void a_set_is_closed_below_a_wait(void) {
    Pair pairs[WATCHED];
    for (int i = 0; i < WATCHED; i++) {
        pairs[i] = connected();
        talk_until_on_ring(pairs[i], i + 1);
    }
    int set, edge[2], told = 0;
    must(pipe(edge) == 0 && write(edge[1], "x", 1) == 1, "pipe");
    run_on(1);
    turn = 0;
    pthread_t waiter = start_thread(wait_on_order, &set);
    for (int round = 0; round < CLOSES; round++) {
        set = epoll_create1(0);
        for (int i = 0; i < WATCHED; i++)
            epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].far, &(struct epoll_event){EPOLLIN, {.fd = i}});
        for (int wait = 0; wait < WAITS; wait++) {
            Pair pair = pairs[wait % WATCHED];
            order_a_wait();
            send(pair.near, "x", 1, 0);
            await_its_end();
            recv(pair.far, &(char){0}, 1, 0);
        }
        order_a_wait();
        for (volatile int i = 0; i < 5000; i++)
            ;
        close(set);
        must(epoll_create1(0) == set, "the same number");
        struct epoll_event event = {EPOLLIN | EPOLLET, {.fd = edge[0]}};
        epoll_ctl(set, EPOLL_CTL_ADD, edge[0], &event);
        await_its_end();
        told += epoll_wait(set, &event, 1, 0) == 1;
        close(set);
    }
    pthread_join(waiter, NULL);
    observe("most edges were told: %d", told > CLOSES / 2);
    observe("most went on: %d", failed < CLOSES / 2);
}

enum { ENDLESS = 15 };

static int told_of;

/* Waits once for each order, without end. */
static void *wait_on_order_without_end(void *argument) {
    run_on(0);
    for (int wait = 0; wait < ENDLESS * (WAITS + 1); wait++) {
        struct epoll_event event = {0};
        while (turn != 3 * wait + 1)
            ;
        turn++;
        told_of = epoll_wait(*(int *)argument, &event, 1, -1) == 1 ? event.data.fd : -1;
        turn++;
    }
    return NULL;
}

static int has_ended_soon(void) {
    for (int patience = 2000; turn % 3 != 0 && patience > 0; patience--)
        pause_ms(1);
    return turn % 3 == 0;
}

/* Such a wait goes on without end, and is told of what comes then. */
static void told_by_a_set_that_is_gone(int is_replaced) {
    int set, told = 0;
    turn = 0;
    pthread_t waiter = start_thread(wait_on_order_without_end, &set);
    for (int round = 0; round < ENDLESS; round++) {
        Pair pair = on_the_ring();
        run_on(1);
        int other = epoll_create1(0), over[2];
        set = epoll_create1(0);
        must(pipe(over) == 0, "pipe");
        must(epoll_ctl(other, EPOLL_CTL_ADD, over[0], &(struct epoll_event){EPOLLIN, {.fd = -2}}) == 0, "add");
        must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &(struct epoll_event){EPOLLIN, {.fd = pair.far}}) == 0, "add");
        for (int wait = 0; wait < WAITS; wait++) {
            order_a_wait();
            send(pair.near, "x", 1, 0);
            await_its_end();
            recv(pair.far, &(char){0}, 1, 0);
        }
        order_a_wait();
        for (volatile int i = 0; i < 5000; i++)
            ;
        must(is_replaced ? dup2(other, set) == set : close(set) == 0, "close");
        send(pair.near, "x", 1, 0);
        if (!has_ended_soon()) {
            must(write(over[1], "x", 1) == 1, "write");
            must(has_ended_soon(), "the wait has ended");
        }
        told += told_of == pair.far;
        close(over[0]), close(over[1]), close(other);
        close(pair.near), close(pair.far);
        if (is_replaced)
            close(set);
    }
    pthread_join(waiter, NULL);
    observe("most were told: %d", told > ENDLESS / 2);
}

static void a_set_that_is_closed_tells_who_waits(void) { told_by_a_set_that_is_gone(0); }

static void a_set_that_is_replaced_tells_who_waits(void) { told_by_a_set_that_is_gone(1); }

static int closed_by_handler;

static void close_the_set(int number) {
    (void)number;
    close(closed_by_handler);
}

/* A handler closes the set on which its own thread waits without end: the wait has ended. */
static void a_handler_closes_the_set_below_its_wait(void) {
    Pair pair = on_the_ring();
    int ended = 0;
    handle(SIGALRM, close_the_set, 0);
    for (int round = 0; round < 200; round++) {
        if (round % 10 == 9) {
            close(pair.near), close(pair.far);
            pair = on_the_ring();
        }
        int set = closed_by_handler = epoll_create1(0);
        struct epoll_event event = {EPOLLIN, {0}};
        must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "add");
        for (int wait = 0; wait < WAITS; wait++) {
            send(pair.near, "x", 1, 0);
            must(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
            recv(pair.far, &(char){0}, 1, 0);
        }
        struct itimerval timer = {{0, 0}, {0, 20 + round * 3 % 300}};
        setitimer(ITIMER_REAL, &timer, NULL);
        ended += epoll_wait(set, &event, 1, -1) < 0;
    }
    observe("%d ended", ended);
}

/* ---- A thread shuts down what another sends by: the sender has sent a part, and the connection has no error. ---- */

enum { MUCH_BYTES = 64 << 20 };

typedef struct {
    int fd;
    ssize_t result;
} Much;

static void *send_much(void *argument) {
    Much *sender = argument;
    char *much = calloc(MUCH_BYTES, 1);
    must(much != NULL, "calloc");
    sender->result = send(sender->fd, much, MUCH_BYTES, MSG_NOSIGNAL);
    free(much);
    return NULL;
}

static void observe_poll(int fd, short events, int timeout_ms) {
    struct pollfd item = {.fd = fd, .events = events};
    int count = poll(&item, 1, timeout_ms);
    observe("poll %d: %x", count, item.revents);
}

static void shut_down_below_a_send(int how) {
    Pair pair = on_the_ring();
    Much sender = {.fd = pair.near};
    int set = epoll_create1(0), error = -1;
    socklen_t length = sizeof error;
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event) == 0, "epoll_ctl");
    pthread_t sends = start_thread(send_much, &sender);
    pause_ms(300);
    observe_result("shutdown", shutdown(pair.near, how));
    pthread_join(sends, NULL);
    observe("a part %d", sender.result > 0 && sender.result < MUCH_BYTES);
    observe_poll(pair.near, POLLIN, 50);
    int count = epoll_wait(set, &event, 1, 50);
    observe("epoll_wait %d: %x", count, count > 0 ? event.events : 0);
    if (how == SHUT_WR)
        must(send(pair.far, "an answer", 9, 0) == 9, "send");
    observe_poll(pair.near, POLLIN, 1000);
    observe_result("getsockopt", getsockopt(pair.near, SOL_SOCKET, SO_ERROR, &error, &length));
    observe("error %d", error);
    observe_result("send", send(pair.near, "x", 1, MSG_NOSIGNAL));
    close(set), close(pair.near), close(pair.far);
}

/* With a handler that restarts calls, sends wait in another way. */
static void shut_down_below_sends(int how) {
    shut_down_below_a_send(how);
    handle(SIGUSR1, count_interrupt, SA_RESTART);
    shut_down_below_a_send(how);
}

static void a_direction_is_shut_down_below_a_send(void) { shut_down_below_sends(SHUT_WR); }

static void both_directions_are_shut_down_below_a_send(void) { shut_down_below_sends(SHUT_RDWR); }

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(unread_bytes_are_counted_beside_a_recall),
        CASE(the_rest_of_a_message_pushes_its_beginning),
        CASE(two_readers_of_a_message_in_parts),
        CASE(a_signal_ends_a_wait_for_all),
        CASE(a_restarting_signal_ends_a_wait_for_all),
        CASE(a_receiving_process_becomes_another_program),
        CASE(a_file_between_messages),
        CASE(a_set_is_closed_below_a_wait),
        CASE(a_set_that_is_closed_tells_who_waits),
        CASE(a_set_that_is_replaced_tells_who_waits),
        CASE(a_handler_closes_the_set_below_its_wait),
        CASE(a_direction_is_shut_down_below_a_send),
        CASE(both_directions_are_shut_down_below_a_send),
        {0},
    };
    return run_cases(cases, argc, argv);
}
