/* Threads that use one descriptor at the same time, each in its own way, from the first byte of its connection on. */
#include "traps.h"

#include <limits.h>
#include <sched.h>
#include <sys/sendfile.h>

enum { LONGEST = 16384, PATIENCE_MS = 10000 };

/* ---- Streams: each direction of a connection has a thread that sends and one that receives. ---- */

/* How the threads use the connection. */
typedef struct {
    enum { BLOCKS, POLLS, LEVEL, EDGE } waits;
    /* The senders use copies of the descriptors. */
    int copies;
    /* What another thread does to the connection meanwhile. */
    void (*meddle)(int fd);
} Style;

typedef struct {
    const Style *style;
    int from, to;
    unsigned seed;
    size_t bytes;
    const char *ended;
} Direction;

static int is_ready(int fd, short events) {
    struct pollfd entry = {fd, events, 0};
    return poll(&entry, 1, PATIENCE_MS) == 1;
}

static void *send_to_the_end(void *argument) {
    Direction *direction = argument;
    char message[LONGEST];
    unsigned random = direction->seed;
    for (size_t sent = 0; sent < direction->bytes;) {
        size_t length = next_piece(message, LONGEST, &random, direction->seed, sent, direction->bytes);
        ssize_t part = send(direction->from, message, length, MSG_NOSIGNAL);
        if (part < 0 && errno == EAGAIN && is_ready(direction->from, POLLOUT))
            continue;
        if (part <= 0)
            return NULL;
        sent += part;
    }
    shutdown(direction->from, SHUT_WR);
    return NULL;
}

/* What waits for bytes on `fd`, as the style says; an epoll set, or `fd` itself. */
static int waiter_for(const Style *style, int fd) {
    if (style->waits < LEVEL)
        return fd;
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | (style->waits == EDGE ? EPOLLET : 0), .data.fd = fd};
    must(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    return set;
}

static int may_receive(const Style *style, int waiter) {
    struct epoll_event event;
    if (style->waits < LEVEL)
        return is_ready(waiter, POLLIN);
    return epoll_wait(waiter, &event, 1, PATIENCE_MS) == 1;
}

static const char *stream(Direction *direction, int waiter) {
    char message[LONGEST];
    size_t received = 0;
    int is_drained = direction->style->waits != BLOCKS;
    for (;;) {
        if (is_drained && !may_receive(direction->style, waiter))
            return "never";
        int flags = direction->style->waits == BLOCKS ? 0 : MSG_DONTWAIT;
        ssize_t part = recv(direction->to, message, sizeof message, flags);
        if (part < 0 && errno == EAGAIN) {
            is_drained = 1;
            continue;
        }
        is_drained = direction->style->waits != BLOCKS && direction->style->waits != EDGE;
        if (part <= 0)
            return part < 0 ? "with an error" : received == direction->bytes ? "exactly" : "early";
        for (ssize_t i = 0; i < part; i++)
            if (message[i] != byte_at(direction->seed, received++))
                return "with wrong bytes";
    }
}

static void *receive_to_the_end(void *argument) {
    Direction *direction = argument;
    int waiter = waiter_for(direction->style, direction->to);
    direction->ended = stream(direction, waiter);
    if (waiter != direction->to)
        close(waiter);
    return NULL;
}

typedef struct {
    void (*meddle)(int fd);
    int fd;
    atomic_int is_over;
} Meddler;

static void *meddle(void *argument) {
    Meddler *meddler = argument;
    while (!meddler->is_over) {
        meddler->meddle(meddler->fd);
        usleep(50);
    }
    return NULL;
}

/* New connections, some at a time, whose threads find at once that they can be joined. */
static void stream_in(const Style *style, unsigned rounds) {
    enum { CONNECTIONS = 3 };
    int exact = 0;
    for (unsigned round = 0; round < rounds; round++) {
        Pair pairs[CONNECTIONS], copies[CONNECTIONS];
        Direction directions[CONNECTIONS][2];
        Meddler meddlers[CONNECTIONS];
        pthread_t threads[CONNECTIONS][5];
        for (unsigned i = 0; i < CONNECTIONS; i++) {
            Pair pair = pairs[i] = copies[i] = connected();
            if (style->copies)
                copies[i] = (Pair){dup(pair.near), dup(pair.far)};
            size_t bytes = 10000 + round * 1000 + i * 100;
            directions[i][0] = (Direction){style, copies[i].near, pair.far, 2 * i, bytes, "never"};
            directions[i][1] = (Direction){style, copies[i].far, pair.near, 2 * i + 1, 150000 - bytes, "never"};
            for (int j = 0; j < 4; j++)
                threads[i][j] = start_thread(j % 2 ? receive_to_the_end : send_to_the_end, &directions[i][j / 2]);
            meddlers[i].meddle = style->meddle;
            meddlers[i].fd = i % 2 ? pair.far : pair.near;
            meddlers[i].is_over = 0;
            if (style->meddle)
                threads[i][4] = start_thread(meddle, &meddlers[i]);
        }
        for (unsigned i = 0; i < CONNECTIONS; i++) {
            for (int j = 0; j < 4; j++)
                pthread_join(threads[i][j], NULL);
            meddlers[i].is_over = 1;
            if (style->meddle)
                pthread_join(threads[i][4], NULL);
            const char *there = directions[i][0].ended, *back = directions[i][1].ended;
            if (strcmp(there, "exactly") == 0 && strcmp(back, "exactly") == 0)
                exact++;
            else
                observe("round %u, connection %u: ended %s and %s", round, i, there, back);
            if (style->copies) {
                close(copies[i].near);
                close(copies[i].far);
            }
            close(pairs[i].near);
            close(pairs[i].far);
        }
    }
    observe("%d ended exactly", exact);
}

static void one_thread_sends_another_polls(void) {
    stream_in(&(Style){.waits = POLLS}, 40);
}

static void one_thread_sends_another_waits_on_a_set(void) {
    stream_in(&(Style){.waits = LEVEL}, 40);
}

static void one_thread_sends_another_waits_for_edges(void) {
    stream_in(&(Style){.waits = EDGE}, 40);
}

static void use_a_copy(int fd) {
    int copy = dup(fd), other = dup(copy);
    close(copy);
    usleep(50);
    close(other);
}

static void threads_use_copies_that_come_and_go(void) {
    stream_in(&(Style){.waits = BLOCKS, .copies = 1, .meddle = use_a_copy}, 40);
}

static void set_options(int fd) {
    static atomic_int turn;
    int on = turn++ & 1, least = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
}

static void a_thread_sets_options_meanwhile(void) {
    stream_in(&(Style){.waits = BLOCKS, .meddle = set_options}, 40);
}

static void toggle_nonblocking(int fd) {
    static atomic_int turn;
    int on = turn++ & 1;
    if (on)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) ^ O_NONBLOCK);
    else
        ioctl(fd, FIONBIO, &on);
}

static void a_thread_toggles_nonblocking_meanwhile(void) {
    stream_in(&(Style){.waits = POLLS, .meddle = toggle_nonblocking}, 40);
}

/* ---- Records: several threads send, or receive, on one descriptor. ---- */

enum { SHARERS = 3, RECORDS = 40, RECORD_MAX = 6000 };

typedef struct {
    unsigned length, sender, number, check;
} Header;

typedef struct {
    int fd;
    unsigned sender, round;
} Sender;

static void *send_records(void *argument) {
    Sender *sender = argument;
    char record[RECORD_MAX];
    unsigned random = sender->round * SHARERS + sender->sender;
    for (unsigned number = 0; number < RECORDS; number++) {
        unsigned length = sizeof(Header) + rand_r(&random) % (RECORD_MAX - sizeof(Header));
        Header header = {length, sender->sender, number, length ^ sender->sender ^ number ^ 0x5eed};
        memset(record, (int)(sender->sender * 50 + number), length);
        memcpy(record, &header, sizeof header);
        if (send(sender->fd, record, length, MSG_NOSIGNAL) != (ssize_t)length)
            return NULL;
    }
    return NULL;
}

/* How many records came before the first one that was not as it was sent. */
static int whole_records(int fd) {
    unsigned next[SHARERS] = {0};
    char record[RECORD_MAX];
    int whole = 0;
    for (; whole < SHARERS * RECORDS; whole++) {
        Header header;
        if (recv(fd, &header, sizeof header, MSG_WAITALL) != sizeof header)
            break;
        unsigned check = header.length ^ header.sender ^ header.number ^ 0x5eed;
        if (header.check != check || header.sender >= SHARERS || header.number != next[header.sender]++)
            break;
        size_t length = header.length - sizeof header;
        if (recv(fd, record, length, MSG_WAITALL) != (ssize_t)length)
            break;
        size_t same = 0;
        while (same < length && record[same] == (char)(header.sender * 50 + header.number))
            same++;
        if (same < length)
            break;
    }
    return whole;
}

static void several_threads_send_records(void) {
    int whole = 0;
    for (unsigned round = 0; round < 40; round++) {
        Pair pair = connected();
        Sender senders[SHARERS];
        pthread_t threads[SHARERS];
        for (unsigned i = 0; i < SHARERS; i++) {
            senders[i] = (Sender){pair.near, i, round};
            threads[i] = start_thread(send_records, &senders[i]);
        }
        int here = whole_records(pair.far);
        whole += here;
        if (here < SHARERS * RECORDS) {
            observe("round %u: %d records", round, here);
            close(pair.far);
        }
        for (unsigned i = 0; i < SHARERS; i++)
            pthread_join(threads[i], NULL);
        close(pair.near);
        if (here == SHARERS * RECORDS)
            close(pair.far);
    }
    observe("%d records", whole);
}

enum { STREAM = 80000 };

/* The byte at a position, and the position from any four of them: six bits of its number's four parts, each with the part's place. */
static unsigned char placed_byte(unsigned position) {
    unsigned number = position / 4, place = position % 4;
    return place << 6 | (number >> 6 * place & 63);
}

static unsigned position_of(const unsigned char *bytes) {
    unsigned skipped = (4 - (bytes[0] >> 6)) % 4, number = 0;
    for (unsigned place = 0; place < 4; place++)
        number |= (bytes[skipped + place] & 63u) << 6 * place;
    return number * 4 - skipped;
}

typedef struct {
    int fd;
    atomic_uint came[256];
    atomic_int torn;
} Receiver;

/* Each call gets neighbours: bytes that followed each other when they were sent. */
static void *receive_neighbours(void *argument) {
    Receiver *receiver = argument;
    unsigned char bytes[4096];
    unsigned random = 7;
    for (;;) {
        ssize_t got = recv(receiver->fd, bytes, 4 * (1 + rand_r(&random) % 1024), 0);
        if (got <= 0)
            return NULL;
        unsigned position = got >= 7 ? position_of(bytes) : 0;
        for (ssize_t i = 0; i < got; i++) {
            receiver->came[bytes[i]]++;
            if (got >= 7)
                receiver->torn += bytes[i] != placed_byte(position + i);
        }
    }
}

static void several_threads_receive(void) {
    int exact = 0, torn = 0;
    for (unsigned round = 0; round < 40; round++) {
        Pair pair = connected();
        Receiver receiver = {.fd = pair.far};
        pthread_t threads[SHARERS];
        for (unsigned i = 0; i < SHARERS; i++)
            threads[i] = start_thread(receive_neighbours, &receiver);
        unsigned char bytes[8192];
        unsigned sent[256] = {0}, random = round;
        for (unsigned next = 0; next < STREAM;) {
            unsigned count = 4 * (1 + rand_r(&random) % (rand_r(&random) % 2 ? 16 : 2048));
            if (count > STREAM - next)
                count = STREAM - next;
            for (unsigned i = 0; i < count; i++)
                sent[bytes[i] = placed_byte(next + i)]++;
            must(send(pair.near, bytes, count, 0) == count, "send");
            next += count;
        }
        shutdown(pair.near, SHUT_WR);
        for (unsigned i = 0; i < SHARERS; i++)
            pthread_join(threads[i], NULL);
        for (unsigned i = 0; i < 256; i++)
            exact += receiver.came[i] == sent[i];
        torn += receiver.torn;
        close(pair.near);
        close(pair.far);
    }
    observe("%d of %d kinds of bytes came as often as they were sent, %d bytes not in their place", exact, 40 * 256, torn);
}

/* ---- Waits that nobody must forget. ---- */

enum { MESSAGES = 40 };

typedef struct {
    Pair pair;
    atomic_int received;
    int missed;
} Polled;

static int take_one(Polled *polled) {
    char message[16];
    if (recv(polled->pair.near, message, sizeof message, MSG_WAITALL) != sizeof message)
        return 0;
    polled->received++;
    return send(polled->pair.near, message, sizeof message, MSG_NOSIGNAL) == sizeof message;
}

static void *poll_to_the_last(void *argument) {
    Polled *polled = argument;
    while (polled->received <= MESSAGES) {
        struct pollfd entry = {polled->pair.near, POLLIN, 0};
        if (poll(&entry, 1, 3000) != 1) {
            polled->missed = 1;
            shutdown(polled->pair.near, SHUT_RDWR);
            break;
        }
        if (polled->received >= MESSAGES)
            take_one(polled);
    }
    return NULL;
}

static void *take_all_but_one(void *argument) {
    Polled *polled = argument;
    while (polled->received < MESSAGES && take_one(polled))
        ;
    return NULL;
}

/* One thread sleeps in `poll` since before the connection came to the ring. Another one takes messages, and then does not any more. */
static void a_thread_polls_while_another_receives(void) {
    int missed = 0;
    for (unsigned round = 0; round < 100; round++) {
        Polled polled = {.pair = connected()};
        pthread_t polls = start_thread(poll_to_the_last, &polled), takes = start_thread(take_all_but_one, &polled);
        char message[16] = "a message", answer[16];
        for (int i = 0; i <= MESSAGES; i++) {
            if (i == MESSAGES)
                pause_ms(1);
            must(send(polled.pair.far, message, sizeof message, MSG_NOSIGNAL) == sizeof message, "send");
            if (recv(polled.pair.far, answer, sizeof answer, MSG_WAITALL) != sizeof answer)
                break;
        }
        pthread_join(polls, NULL);
        pthread_join(takes, NULL);
        missed += polled.missed;
        close(polled.pair.near);
        close(polled.pair.far);
    }
    observe("%d missed", missed);
}

/* ---- Descriptors that get another meaning while threads are in calls on them. ---- */

typedef struct {
    int fd;
    ssize_t result;
    char got[64];
    atomic_int thread;
} Caller;

static void *call_once(void *argument) {
    Caller *caller = argument;
    caller->thread = gettid();
    caller->result = recv(caller->fd, caller->got, sizeof caller->got, 0);
    return NULL;
}

/* Waits until the thread sleeps in its call. */
static void await_sleep(Caller *caller) {
    char name[64], state = 0;
    while (caller->thread == 0)
        usleep(100);
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", caller->thread);
    while (state != 'S') {
        usleep(100);
        FILE *file = fopen(name, "r");
        must(file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) == 1, "stat");
        fclose(file);
    }
}

/* A thread waits on a connection that another one ends and closes, to use its number for a new one at once. */
static void a_number_is_used_again_below_a_call(void) {
    int ended = 0, exact = 0;
    for (unsigned round = 0; round < 100; round++) {
        Pair old = connected();
        if (round % 2)
            talk(old.near, old.far), talk(old.far, old.near);
        Caller caller = {.fd = old.near, .result = -2};
        pthread_t calls = start_thread(call_once, &caller);
        await_sleep(&caller);
        shutdown(old.near, SHUT_RDWR);
        close(old.near);
        Direction directions[2];
        static const Style style = {.waits = BLOCKS};
        Pair pair = connected();
        int on = 1;
        setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(pair.far, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        directions[0] = (Direction){&style, pair.near, pair.far, 1, 30000, "never"};
        directions[1] = (Direction){&style, pair.far, pair.near, 2, 30000, "never"};
        pthread_t threads[4];
        for (int j = 0; j < 4; j++)
            threads[j] = start_thread(j % 2 ? receive_to_the_end : send_to_the_end, &directions[j / 2]);
        for (int j = 0; j < 4; j++)
            pthread_join(threads[j], NULL);
        pthread_join(calls, NULL);
        const char *there = directions[0].ended, *back = directions[1].ended;
        ended += caller.result == 0;
        exact += strcmp(there, "exactly") == 0 && strcmp(back, "exactly") == 0;
        if (caller.result != 0 || strcmp(there, "exactly") != 0 || strcmp(back, "exactly") != 0)
            observe("round %u: %zd, ended %s and %s", round, caller.result, there, back);
        close(old.far);
        close(pair.near);
        close(pair.far);
    }
    observe("%d calls ended, %d connections ended exactly", ended, exact);
}

/* ---- Threads with the smallest stack that the system allows. ---- */

/* A little of everything that sends, receives and waits. Nothing of ours is large on the stack. */
static void *use_all(void *argument) {
    Pair *pair = argument;
    static char block[65536];
    int set = epoll_create1(EPOLL_CLOEXEC), file = memfd_create("file", MFD_CLOEXEC), ends[2];
    struct epoll_event event = {.events = EPOLLIN, .data.fd = pair->far};
    must(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, pair->far, &event) == 0 && pipe(ends) == 0, "set, pipe");
    must(file >= 0 && write(file, block, sizeof block) == sizeof block, "file");
    for (int round = 0; round < 20; round++) {
        off_t at = 0;
        struct pollfd entry = {pair->far, POLLIN, 0};
        struct iovec parts[] = {{block, 1000}, {block, 3000}};
        must(writev(pair->near, parts, 2) == 4000, "writev");
        must(epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && poll(&entry, 1, PATIENCE_MS) == 1, "wait");
        must(recv(pair->far, block, 4000, MSG_WAITALL) == 4000, "recv");
        must(sendfile(pair->near, file, &at, 20000) == 20000, "sendfile");
        must(recv(pair->far, block, 20000, MSG_WAITALL) == 20000, "recv");
    }
    must(send(pair->near, block, 2000, 0) == 2000, "send");
    must(splice(pair->far, NULL, ends[1], NULL, 2000, 0) == 2000, "splice");
    close(set), close(file), close(ends[0]), close(ends[1]);
    return NULL;
}

static void the_smallest_stacks(void) {
    const size_t least = PTHREAD_STACK_MIN, sizes[] = {least / 2, least, least + 4096, 2 * least, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pthread_attr_t attributes;
        pthread_t thread;
        Pair pair = on_the_ring();
        pthread_attr_init(&attributes);
        int refused = pthread_attr_setstacksize(&attributes, sizes[i]);
        if (refused == 0)
            refused = pthread_create(&thread, &attributes, use_all, &pair);
        observe("a stack of %zu bytes: %s", sizes[i], refused ? strerrorname_np(refused) : "a thread");
        if (refused == 0)
            must(pthread_join(thread, NULL) == 0, "join");
        pthread_attr_destroy(&attributes);
        close(pair.near), close(pair.far);
    }
}

/* ---- Threads that come and go. ---- */

enum { CROWD = 24 };

typedef struct {
    Pair pair;
    pthread_barrier_t all;
} Crowd;

static void *send_beside_others(void *argument) {
    Crowd *crowd = argument;
    must(send(crowd->pair.near, "x", 1, 0) == 1, "send");
    pthread_barrier_wait(&crowd->all);
    return NULL;
}

static void come_and_go(Crowd *crowd) {
    pthread_t threads[CROWD];
    char got[CROWD];
    for (int i = 0; i < CROWD; i++)
        threads[i] = start_thread(send_beside_others, crowd);
    must(recv(crowd->pair.far, got, CROWD, MSG_WAITALL) == CROWD, "recv");
    for (int i = 0; i < CROWD; i++)
        pthread_join(threads[i], NULL);
}

static long address_space_kib(void) {
    long kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (kib == 0 && fgets(line, sizeof line, file) != NULL)
        sscanf(line, "VmSize: %ld kB", &kib);
    fclose(file);
    return kib;
}

/* What a thread remembers goes with it. */
static void crowds_of_threads_come_and_go(void) {
    Crowd crowd = {.pair = on_the_ring()};
    must(pthread_barrier_init(&crowd.all, NULL, CROWD) == 0, "barrier");
    for (int i = 0; i < 5; i++)
        come_and_go(&crowd);
    long before = address_space_kib();
    for (int i = 0; i < 40; i++)
        come_and_go(&crowd);
    long grown = address_space_kib() - before;
    /* The C library keeps some stacks; each crowd has the same. */
    observe("40 crowds later: %s", grown < 4096 ? "as large as before" : "larger");
    close(crowd.pair.near), close(crowd.pair.far);
    pthread_barrier_destroy(&crowd.all);
}

enum { WATCHED = 12, FORKS = 600 };

typedef struct {
    Pair pairs[WATCHED];
    int set, half;
    atomic_int is_over;
} Watched;

/* Half of the connections come into the set and go again, with new data each time. */
static void *change_the_set(void *argument) {
    Watched *watched = argument;
    int first = atomic_fetch_add(&watched->half, 1) * WATCHED / 2;
    for (uint64_t data = 1000; !atomic_load(&watched->is_over); data++)
        for (int i = first; i < first + WATCHED / 2; i++) {
            struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
            epoll_ctl(watched->set, EPOLL_CTL_ADD, watched->pairs[i].near, &event);
            event.data.u64++;
            epoll_ctl(watched->set, EPOLL_CTL_MOD, watched->pairs[i].near, &event);
            epoll_ctl(watched->set, EPOLL_CTL_DEL, watched->pairs[i].near, NULL);
        }
    return NULL;
}

/* Children, whose set is whole whatever the other threads were at, use it, or close everything as before an exec. */
static void forks_amid_changes_of_a_set(void) {
    Watched watched = {.set = epoll_create1(0)};
    for (int i = 0; i < WATCHED; i++)
        watched.pairs[i] = connected();
    for (int i = 0; i < WATCHED; i++)
        talk_until_on_ring(watched.pairs[i], i + 1);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        must(pthread_create(&threads[i], NULL, change_the_set, &watched) == 0, "thread");
    int well = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct epoll_event events[WATCHED];
            for (int k = 0; i % 2 == 0 && k < WATCHED; k++) {
                struct epoll_event event = {.events = EPOLLIN, .data.u64 = k};
                epoll_ctl(watched.set, EPOLL_CTL_MOD, watched.pairs[k].near, &event);
            }
            if (i % 2 == 0)
                epoll_wait(watched.set, events, WATCHED, 0);
            close_range(3, ~0U, 0);
            _exit(3);
        }
        int status;
        well += waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3;
    }
    atomic_store(&watched.is_over, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    observe("%d of %d ended well", well, FORKS);
    for (int i = 0; i < WATCHED; i++) {
        talk(watched.pairs[i].near, watched.pairs[i].far);
        talk(watched.pairs[i].far, watched.pairs[i].near);
    }
}

typedef struct {
    Pair pair;
    int (*part)(void);
    int pipes[2];
    pthread_barrier_t turn;
} Parted;

static int by_unsharing(void) { return unshare(CLONE_FILES); }

static int by_number(void) { return syscall(SYS_unshare, CLONE_FILES); }

static int by_closing(void) { return syscall(SYS_close_range, 1000, 2000, 2 /* CLOSE_RANGE_UNSHARE */); }

/* From then on the number of the connection is a pipe's here, and the connection's in the other thread. */
static void *part_and_use_the_number(void *argument) {
    Parted *parted = argument;
    observe_result("part", parted->part());
    must(dup2(parted->pipes[1], parted->pair.near) == parted->pair.near, "dup2");
    pthread_barrier_wait(&parted->turn);
    pthread_barrier_wait(&parted->turn);
    observe_result("write", write(parted->pair.near, "by the pipe", 11));
    return NULL;
}

static void a_thread_has_descriptors_of_its_own(void) {
    int (*ways[])(void) = {by_unsharing, by_number, by_closing};
    for (int way = 0; way < 3; way++) {
        Parted parted = {.pair = way == 0 ? on_the_ring() : connected(), .part = ways[way]};
        char bytes[16] = "";
        must(pipe(parted.pipes) == 0 && pthread_barrier_init(&parted.turn, NULL, 2) == 0, "set up");
        must(send(parted.pair.far, "for us", 6, 0) == 6, "send");
        pthread_t thread;
        must(pthread_create(&thread, NULL, part_and_use_the_number, &parted) == 0, "thread");
        pthread_barrier_wait(&parted.turn);
        talk(parted.pair.near, parted.pair.far);
        observe_result("recv", recv(parted.pair.near, bytes, sizeof bytes, 0));
        observe("%.6s", bytes);
        pthread_barrier_wait(&parted.turn);
        pthread_join(thread, NULL);
        observe_result("read", read(parted.pipes[0], bytes, sizeof bytes));
        observe_result("recv", recv(parted.pair.far, bytes, sizeof bytes, MSG_DONTWAIT));
        close(parted.pair.near), close(parted.pair.far);
        close(parted.pipes[0]), close(parted.pipes[1]);
        pthread_barrier_destroy(&parted.turn);
    }
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(one_thread_sends_another_polls),
        CASE(one_thread_sends_another_waits_on_a_set),
        CASE(one_thread_sends_another_waits_for_edges),
        CASE(threads_use_copies_that_come_and_go),
        CASE(a_thread_sets_options_meanwhile),
        CASE(a_thread_toggles_nonblocking_meanwhile),
        CASE(several_threads_send_records),
        CASE(several_threads_receive),
        CASE(a_thread_polls_while_another_receives),
        CASE(a_number_is_used_again_below_a_call),
        CASE(the_smallest_stacks),
        CASE(crowds_of_threads_come_and_go),
        CASE(forks_amid_changes_of_a_set),
        CASE(a_thread_has_descriptors_of_its_own),
        {0},
    };
    return run_cases(cases, argc, argv);
}
