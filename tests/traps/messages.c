/* Long messages: their readers have them whole, and nothing comes between what one call sends. */
#include "traps.h"

#include <sched.h>

enum { LONG_BYTES = 3000, CONNECTIONS = 30, PARTS_BYTES = 50000, URGENT_MESSAGES = 300 };

/* ---- A connection's first long message. ---- */

static ssize_t first_part;
static atomic_int waits;

static void *wait_for_it(void *argument) {
    static char bytes[2 * LONG_BYTES];
    struct pollfd entry = {*(int *)argument, POLLIN, 0};
    atomic_store(&waits, 1);
    must(poll(&entry, 1, -1) == 1, "poll");
    first_part = recv(entry.fd, bytes, sizeof bytes, 0);
    for (ssize_t got = first_part; got < LONG_BYTES;)
        got += recv(entry.fd, bytes, sizeof bytes, 0);
    return NULL;
}

static int comes_whole(int from, int to) {
    static const char message[LONG_BYTES];
    pthread_t reader = start_thread(wait_for_it, &to);
    while (!atomic_exchange(&waits, 0))
        ;
    must(send(from, message, sizeof message, 0) == sizeof message, "send");
    pthread_join(reader, NULL);
    return first_part == LONG_BYTES;
}

/* The ring that a connection has until then holds a part of it. */
static void the_first_long_message_comes_whole(void) {
    int whole = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        Pair pair = on_the_ring();
        whole += comes_whole(pair.near, pair.far) + comes_whole(pair.far, pair.near);
        close(pair.near), close(pair.far);
    }
    observe("%d came whole", whole);
}

/* ---- Threads that send at once, of which one comes before all others. ---- */

static Pair shared;
static atomic_int is_over;

static void stay_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void *send_on_first(void *unused) {
    static char message[PARTS_BYTES];
    stay_on(0);
    while (!atomic_load(&is_over) && send(shared.near, message, sizeof message, 0) > 0)
        ;
    return unused;
}

static void *read_on_second(void *unused) {
    static char bytes[1 << 20];
    stay_on(1);
    while (recv(shared.far, bytes, sizeof bytes, 0) > 0)
        ;
    return unused;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Whom it interrupts in the middle of a message gets the processor only while it sleeps. */
static void a_thread_that_comes_before_others(void) {
    static char message[PARTS_BYTES];
    struct sched_param first = {.sched_priority = 10}, last = {0};
    double longest = 0;
    shared = on_the_ring();
    pthread_t reader = start_thread(read_on_second, NULL), other = start_thread(send_on_first, NULL);
    pause_ms(50);
    stay_on(0);
    if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) {
        observe("skipped: no SCHED_FIFO");
        return;
    }
    for (int i = 0; i < URGENT_MESSAGES; i++) {
        pause_ms(1);
        double since = seconds();
        must(send(shared.near, message, sizeof message, 0) == sizeof message, "send");
        double took = seconds() - since;
        longest = took > longest ? took : longest;
    }
    sched_setscheduler(0, SCHED_OTHER, &last);
    atomic_store(&is_over, 1);
    pthread_join(other, NULL);
    shutdown(shared.near, SHUT_WR);
    pthread_join(reader, NULL);
    observe("waits for a second: %d", longest >= 0.9);
}

/* ---- A handler sends on the connection on which its thread is in the middle of a message. ---- */

enum { MESSAGE_BYTES = 60000, NOTE_BYTES = 16, CALLS_MAX = 1 << 20, NOTES_MAX = 1 << 18, TIME_US = 50, SEVERAL = 6 };

/* How many bytes of the messages had gone by the end of each call, and how many came before each note. */
static size_t ends[CALLS_MAX], places[NOTES_MAX];
static int calls, notes;

static void send_note(int number) {
    static const char note[NOTE_BYTES] = "NNNNNNNNNNNNNNNN";
    (void)number;
    must(send(shared.near, note, sizeof note, 0) == sizeof note, "send a note");
}

static void *look_for_notes(void *unused) {
    static char bytes[1 << 18];
    size_t message_bytes = 0, note_bytes = 0;
    for (ssize_t got; (got = recv(shared.far, bytes, sizeof bytes, 0)) > 0;)
        for (ssize_t i = 0; i < got; i++)
            if (bytes[i] == 0)
                message_bytes++;
            else if (note_bytes++ % NOTE_BYTES == 0 && notes < NOTES_MAX)
                places[notes++] = message_bytes;
    return unused;
}

/* Sends a message; or several, none of which is longer, with one call. */
static void send_messages(char *message, int several) {
    static size_t sent;
    struct mmsghdr list[SEVERAL];
    struct iovec vector = {message, several ? MESSAGE_BYTES / SEVERAL : MESSAGE_BYTES};
    for (int i = 0; i < SEVERAL; i++)
        list[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}, .msg_len = 0};
    int count = several ? sendmmsg(shared.near, list, SEVERAL, 0) : 0;
    ssize_t all = several ? 0 : send(shared.near, message, MESSAGE_BYTES, 0);
    for (int i = 0; i < count; i++)
        all += list[i].msg_len;
    must(all > 0, "send");
    ends[calls++] = sent += all;
}

/* In the kernel a handler runs when its thread's call has ended: its note comes behind what the call has sent. */
static void a_handler_sends(int several) {
    static char message[MESSAGE_BYTES];
    shared = on_the_ring();
    pthread_t reader = start_thread(look_for_notes, NULL);
    int inside = 0;
    handle(SIGALRM, send_note, SA_RESTART);
    timer_every_us(TIME_US);
    for (double until = seconds() + 1.5; seconds() < until && calls < CALLS_MAX;)
        send_messages(message, several);
    timer_every_us(0);
    shutdown(shared.near, SHUT_WR);
    pthread_join(reader, NULL);
    for (int note = 0, call = 0; note < notes; note++) {
        while (call < calls && ends[call] < places[note])
            call++;
        inside += places[note] != 0 && (call == calls || ends[call] != places[note]);
    }
    observe("notes come: %d, inside of a call: %d", notes > 0, inside);
}

static void a_handler_sends_between_calls(void) { a_handler_sends(0); }
static void a_handler_sends_between_messages(void) { a_handler_sends(1); }

/* ---- A signal comes in the middle of a message, and what that leaves. ---- */

enum { LARGE_BYTES = 24 << 20, LARGE_MESSAGES = 60, LEFT_BYTES = 1000000, JUMPS = 40 };

static void do_nothing(int number) { (void)number; }

static size_t read_at_once = 1 << 18;

static void *read_on(void *descriptor) {
    static char bytes[1 << 18];
    struct pollfd entry = {*(int *)descriptor, POLLIN, 0};
    while (poll(&entry, 1, -1) == 1 && recv(entry.fd, bytes, read_at_once, 0) > 0)
        ;
    return NULL;
}

/* Who has just got something looks for more for a while. */
static void wake_reader(double before) {
    must(send(shared.near, "a byte", 1, 0) == 1, "send");
    for (double until = seconds() + before; seconds() < until;)
        ;
}

/* Where a call that does not wait has sent less than all, the moment comes when there is room again. */
static void a_short_count_has_an_edge_of_room(void) {
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    int set = epoll_create1(0), missed = 0, unsent;
    shared = on_the_ring();
    pthread_t reader = start_thread(read_on, &shared.far);
    epoll_ctl(set, EPOLL_CTL_ADD, shared.near, &event);
    handle(SIGALRM, do_nothing, SA_RESTART);
    timer_every_us(300);
    for (int i = 0; i < LARGE_MESSAGES && missed < 3; i++) {
        while (ioctl(shared.near, TIOCOUTQ, &unsent) == 0 && unsent > 0)
            pause_ms(1);
        pause_ms(1);
        /* Memory that is not there yet takes its time. */
        char *message = mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(message != MAP_FAILED, "mmap");
        wake_reader(2e-6 * i);
        for (size_t sent = 0; sent < LARGE_BYTES;) {
            ssize_t part = send(shared.near, message + sent, LARGE_BYTES - sent, MSG_DONTWAIT);
            must(part > 0 || errno == EAGAIN, "send");
            sent += part > 0 ? part : 0;
            double until = seconds() + 5;
            while (sent < LARGE_BYTES && epoll_wait(set, &event, 1, 1000) <= 0)
                if (seconds() > until) {
                    missed++;
                    break;
                }
        }
        munmap(message, LARGE_BYTES);
    }
    timer_every_us(0);
    shutdown(shared.near, SHUT_WR);
    pthread_join(reader, NULL);
    observe("missed %d", missed);
}

static sigjmp_buf out_of_the_message;
static double close_took;

static void jump_out_of_it(int number) {
    (void)number;
    siglongjmp(out_of_the_message, 1);
}

static void *close_it(void *unused) {
    double before = seconds();
    close(shared.near);
    close_took = seconds() - before;
    return unused;
}

/* A message that a jump has left is nobody's any more: who closes the connection does not wait for it. */
static void a_message_left_by_a_jump_is_over(void) {
    static const char message[LEFT_BYTES];
    static int slow, i;
    read_at_once = 4096;
    handle(SIGALRM, jump_out_of_it, SA_NODEFER);
    for (i = 0; i < JUMPS; i++) {
        shared = on_the_ring();
        pthread_t reader = start_thread(read_on, &shared.far);
        /* Until the ring has grown. */
        for (int j = 0; j < 10; j++) {
            wake_reader(10e-6);
            send(shared.near, message, sizeof message, 0);
        }
        if (sigsetjmp(out_of_the_message, 1) == 0) {
            struct itimerval once = {{0, 0}, {0, 100 + i * 5}};
            setitimer(ITIMER_REAL, &once, NULL);
            for (;;) {
                wake_reader(10e-6);
                send(shared.near, message, sizeof message, 0);
            }
        }
        pthread_join(start_thread(close_it, NULL), NULL);
        slow += close_took > 0.9;
        pthread_join(reader, NULL);
        close(shared.far);
    }
    observe("slow closes: %d", slow);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(the_first_long_message_comes_whole),
        CASE(a_thread_that_comes_before_others),
        CASE(a_handler_sends_between_calls),
        CASE(a_handler_sends_between_messages),
        CASE(a_short_count_has_an_edge_of_room),
        CASE(a_message_left_by_a_jump_is_over),
        {0},
    };
    return run_cases(cases, argc, argv);
}
