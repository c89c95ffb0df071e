/* Bytes that come and go by other calls than those that are made for them: into pipes, at positions, by requests. */
#include "beside.h"
#include "killed.h"
#include "requests.h"
#include <sys/sendfile.h>

static void observe_pipe(int fd) {
    char bytes[64];
    ssize_t got = read(fd, bytes, sizeof bytes);
    observe("from the pipe: %.*s", (int)(got < 0 ? 0 : got), bytes);
}

/* A file is sent to a pipe, and the file is a connection. */
static void sent_to_a_pipe(void) {
    Pair pair = on_the_ring();
    int ends[2];
    must(pipe(ends) == 0, "pipe");
    for (int i = 0; i < 3; i++) {
        must(send(pair.near, "in the ring", 11, 0) == 11, "send");
        observe_result("sendfile", sendfile(ends[1], pair.far, NULL, 5));
        observe_pipe(ends[0]);
        observe_result("sendfile", sendfile(ends[1], pair.far, NULL, 100));
        observe_pipe(ends[0]);
    }
    must(send(pair.near, "in the ring", 11, 0) == 11, "send");
    observe_result("by number", syscall(SYS_sendfile, ends[1], pair.far, NULL, 100));
    observe_pipe(ends[0]);
    off_t at = 3;
    observe_result("at a position", sendfile(ends[1], pair.far, &at, 100));
    int file = memfd_create("file", 0);
    observe_result("to a file", sendfile(file, pair.far, NULL, 100));
    observe_result("to itself", sendfile(pair.near, pair.far, NULL, 100));
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    must(shutdown(pair.near, SHUT_WR) == 0, "shutdown");
    observe_result("at the end", sendfile(ends[1], pair.far, NULL, 100));
}

static void positioned(void) {
    /* RWF_NOAPPEND and later ones, and some that mean nothing yet. */
    int flags[] = {0,    RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_NOWAIT, RWF_APPEND, RWF_DSYNC | RWF_NOWAIT,
                   0x20, 0x40,      0x80,      0x100,    0x200,      1 << 20};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        Pair pair = connected();
        talk_until_on_ring(pair, 1);
        char bytes[16];
        struct iovec in = {bytes, 6}, out = {"an answer", 9};
        must(send(pair.near, "in the ring!", 12, 0) == 12, "send");
        observe("flags %x", flags[i]);
        ssize_t got = preadv2(pair.far, &in, 1, -1, flags[i]);
        observe_result("preadv2", got);
        got = recv(pair.far, bytes, got > 0 ? 6 : 12, MSG_WAITALL);
        observe("received %.*s", (int)got, bytes);
        ssize_t written = pwritev2(pair.far, &out, 1, -1, flags[i]);
        observe_result("pwritev2", written);
        if (written > 0)
            observe_result("recv", recv(pair.near, bytes, written, MSG_WAITALL));
        must(send(pair.near, "in the ring!", 12, 0) == 12, "send");
        observe_result("at 0", preadv2(pair.far, &in, 1, 0, flags[i]));
        observe_result("at -2", preadv2(pair.far, &in, 1, -2, flags[i]));
        observe_result("write at 0", pwritev2(pair.far, &out, 1, 0, flags[i]));
        got = recv(pair.far, bytes, 12, MSG_WAITALL);
        observe("received %.*s", (int)got, bytes);
        close(pair.near);
        close(pair.far);
    }
}

/* A socket is passed on, and connected then: two processes have the connection. */
static void passed_before_it_is_connected(void) {
    int road[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, road) == 0, "socketpair");
    pid_t child = fork();
    if (child == 0) {
        char note, bytes[16];
        int fd = take(road[1], &note, 1);
        must(read(road[1], &note, 1) == 1, "read");
        ssize_t got = recv(fd, bytes, 6, MSG_WAITALL);
        observe("there: %.*s", (int)got, bytes);
        observe_result("send", send(fd, "from there", 10, 0));
        must(write(road[1], "!", 1) == 1, "write");
        must(read(road[1], &note, 1) == 1, "read");
        _exit(0);
    }
    struct sockaddr_in address;
    int listener = listen_here(&address, 1);
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    pass(road[0], pair.near, "!", 1);
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    for (int i = 0; i < 10; i++) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
    }
    must(send(pair.far, "unread", 6, 0) == 6, "send");
    char byte, bytes[16];
    must(write(road[0], "!", 1) == 1, "write");
    must(read(road[0], &byte, 1) == 1, "read");
    ssize_t got = recv(pair.far, bytes, 10, MSG_WAITALL);
    observe("here: %.*s", (int)got, bytes);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    must(write(road[0], "!", 1) == 1, "write");
    wait(NULL);
}

/* By what each asks first whose peer was killed with bytes unread. */
static void killed_then(void (*ask)(int)) {
    pid_t peer;
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    ask(fd);
    observe_error(fd);
    ask(fd);
}

static void splice_from(int fd) {
    int ends[2];
    must(pipe(ends) == 0, "pipe");
    observe_result("splice", splice(fd, NULL, ends[1], NULL, 10, 0));
}

static void splice_to(int fd) {
    int ends[2];
    must(pipe(ends) == 0 && write(ends[1], "bytes", 5) == 5, "pipe");
    signal(SIGPIPE, SIG_IGN);
    observe_result("splice", splice(ends[0], NULL, fd, NULL, 5, 0));
}

static void sendfile_from(int fd) {
    int ends[2];
    must(pipe(ends) == 0, "pipe");
    observe_result("sendfile", sendfile(ends[1], fd, NULL, 10));
}

static void sendfile_to(int fd) {
    static char much[200000];
    int file = memfd_create("file", 0);
    off_t at = 0;
    signal(SIGPIPE, SIG_IGN);
    must(write(file, much, sizeof much) == sizeof much, "write");
    observe_result("sendfile", sendfile(fd, file, &at, sizeof much));
}

static void sendfile_little_to(int fd) {
    static char much[2000];
    int file = memfd_create("file", 0);
    off_t at = 0;
    signal(SIGPIPE, SIG_IGN);
    must(write(file, much, sizeof much) == sizeof much, "write");
    observe_result("sendfile", sendfile(fd, file, &at, sizeof much));
}

static void aio_from(int fd) {
    char byte;
    observe("aio: %ld", asynchronous(fd, &byte, 1, IOCB_CMD_PREAD));
}

static void aio_to(int fd) {
    signal(SIGPIPE, SIG_IGN);
    observe("aio: %ld", asynchronous(fd, "x", 1, IOCB_CMD_PWRITE));
}

static void pwritev2_to(int fd) {
    struct iovec out = {"x", 1};
    signal(SIGPIPE, SIG_IGN);
    observe_result("pwritev2", pwritev2(fd, &out, 1, -1, RWF_DSYNC));
}

static void preadv2_from(int fd) {
    char byte;
    struct iovec in = {&byte, 1};
    observe_result("preadv2", preadv2(fd, &in, 1, -1, RWF_DSYNC));
}

static void recvmmsg_from(int fd) {
    char byte;
    struct iovec in = {&byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &in, .msg_iovlen = 1}};
    observe_result("recvmmsg", recvmmsg(fd, &message, 1, 0, NULL));
}

static void spliced_from_after_a_kill(void) {
    killed_then(splice_from);
}

static void spliced_to_after_a_kill(void) {
    killed_then(splice_to);
}

static void sent_to_a_pipe_after_a_kill(void) {
    killed_then(sendfile_from);
}

static void a_file_is_sent_after_a_kill(void) {
    killed_then(sendfile_to);
}

static void a_short_file_is_sent_after_a_kill(void) {
    killed_then(sendfile_little_to);
}

static void read_by_a_request_after_a_kill(void) {
    killed_then(aio_from);
}

static void written_by_a_request_after_a_kill(void) {
    killed_then(aio_to);
}

static void written_with_flags_after_a_kill(void) {
    killed_then(pwritev2_to);
}

static void read_with_flags_after_a_kill(void) {
    killed_then(preadv2_from);
}

static void several_are_received_after_a_kill(void) {
    killed_then(recvmmsg_from);
}

/* Whether a set has something is asked of the kernel alone. */
static void a_set_is_asked_about(void) {
    Pair pair = on_the_ring();
    int set = epoll_create1(0);
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &(struct epoll_event){EPOLLIN, {0}}) == 0, "epoll_ctl");
    aio_context_t context = 0;
    must(syscall(SYS_io_setup, 4, &context) == 0, "io_setup");
    for (int i = 0; i < 4; i++) {
        struct iocb request = {.aio_fildes = set, .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN}, *requests[1] = {&request};
        struct io_event event = {0};
        if (i % 2)
            must(send(pair.near, "message", 7, 0) == 7, "send");
        must(syscall(SYS_io_submit, context, 1, requests) == 1, "io_submit");
        if (i % 2 == 0)
            must(send(pair.near, "message", 7, 0) == 7, "send");
        must(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1, "io_getevents");
        observe("event: %lld", (long long)event.res);
        char bytes[16];
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    }
}

/* Threads that take bytes from one connection in different ways: each byte comes once. */
enum { TAKEN = 250 };
static atomic_int taken[256];
static atomic_int together;
static Pair shared;

static void *takes_by_splice(void *nothing) {
    int ends[2];
    must(pipe(ends) == 0, "pipe");
    while (together) {
        char bytes[64];
        ssize_t moved = splice(shared.far, NULL, ends[1], NULL, 20, SPLICE_F_NONBLOCK);
        if (moved <= 0)
            continue;
        must(read(ends[0], bytes, moved) == moved, "read");
        for (ssize_t i = 0; i < moved; i++)
            taken[(unsigned char)bytes[i]]++;
    }
    return nothing;
}

static void *takes_by_recv(void *nothing) {
    while (together) {
        char bytes[64];
        ssize_t got = recv(shared.far, bytes, 15, MSG_DONTWAIT);
        for (ssize_t i = 0; i < got; i++)
            taken[(unsigned char)bytes[i]]++;
    }
    return nothing;
}

static void taken_once(void) {
    int wrong = 0;
    for (int round = 0; round < 15; round++) {
        shared = connected();
        must(setsockopt(shared.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "setsockopt");
        talk(shared.near, shared.far);
        must(fcntl(shared.far, F_SETFL, O_NONBLOCK) == 0, "fcntl");
        memset(taken, 0, sizeof taken);
        unsigned char all[TAKEN];
        for (int i = 0; i < TAKEN; i++)
            all[i] = i;
        must(send(shared.near, all, sizeof all, 0) == sizeof all, "send");
        together = 1;
        pthread_t threads[2] = {start_thread(takes_by_splice, NULL), start_thread(takes_by_recv, NULL)};
        /* Until all are taken, and then a little longer: none comes twice. */
        for (int patience = 1000, all_taken = 0; patience > 0 && all_taken < TAKEN; patience--) {
            pause_ms(5);
            all_taken = 0;
            for (int i = 0; i < TAKEN; i++)
                all_taken += taken[i] != 0;
        }
        pause_ms(10);
        together = 0;
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < TAKEN; i++)
            wrong += taken[i] != 1;
        close(shared.near), close(shared.far);
    }
    observe("wrong: %d", wrong);
}

static ssize_t splices(int fd, const char *bytes, size_t length) {
    static int ends[2];
    ssize_t part = 0, moved = 0;
    if (ends[1] == 0)
        must(pipe(ends) == 0, "pipe");
    ssize_t written = write(ends[1], bytes, length);
    must(written > 0, "write");
    while (moved < written && (part = splice(ends[0], NULL, fd, NULL, written - moved, 0)) > 0)
        moved += part;
    return part > 0 ? moved : part;
}

static ssize_t sends_a_file(int fd, const char *bytes, size_t length) {
    int file = memfd_create("file", 0);
    must(write(file, bytes, length) == (ssize_t)length, "write");
    lseek(file, 0, SEEK_SET);
    ssize_t sent = sendfile(fd, file, NULL, length);
    close(file);
    return sent;
}

static ssize_t requests_a_write(int fd, const char *bytes, size_t length) {
    return asynchronous(fd, (char *)bytes, length, IOCB_CMD_PWRITE);
}

static ssize_t writes_to_a_stream(int fd, const char *bytes, size_t length) {
    static FILE *file;
    if (file == NULL)
        file = fdopen(fd, "w");
    return fwrite(bytes, 1, length, file) == length && fflush(file) == 0 ? (ssize_t)length : -1;
}

#define SPLICED 26625

typedef struct {
    Pair pair;
    pthread_barrier_t begun;
} Splicers;

static void *splices_in(void *argument) {
    Splicers *both = argument;
    char bytes[SPLICED];
    int ends[2];
    must(pipe(ends) == 0, "pipe");
    for (int i = 0; i < SPLICED; i++)
        bytes[i] = (char)(i % 251);
    must(write(ends[1], bytes, SPLICED) == SPLICED, "write");
    pthread_barrier_wait(&both->begun);
    for (size_t sent = 0; sent < SPLICED;) {
        ssize_t part = splice(ends[0], NULL, both->pair.near, NULL, 1000, 0);
        must(part > 0, "splice");
        sent += part;
    }
    close(ends[0]);
    close(ends[1]);
    return NULL;
}

/* One thread splices to a connection while another splices from its other end, where something is in the ring still. */
static void spliced_both_ways_at_once(void) {
    int whole = 0, rounds = 60;
    for (int i = 0; i < rounds; i++) {
        Splicers both = {.pair = on_the_ring()};
        must(pthread_barrier_init(&both.begun, NULL, 2) == 0, "pthread_barrier_init");
        must(send(both.pair.near, "before", 6, 0) == 6, "send");
        pthread_t sender = start_thread(splices_in, &both);
        char bytes[6 + SPLICED];
        size_t got = 0;
        int ends[2];
        must(pipe(ends) == 0, "pipe");
        pthread_barrier_wait(&both.begun);
        for (ssize_t part; got < sizeof bytes; got += part) {
            part = splice(both.pair.far, NULL, ends[1], NULL, 65536, 0);
            if (part <= 0 || read(ends[0], bytes + got, part) != part)
                break;
        }
        pthread_join(sender, NULL);
        size_t right = memcmp(bytes, "before", 6) == 0 ? 6 : 0;
        while (right < got && bytes[right] == (char)((right - 6) % 251))
            right++;
        whole += right == sizeof bytes;
        close(ends[0]);
        close(ends[1]);
        close(both.pair.near);
        close(both.pair.far);
    }
    observe("%d of %d came whole", whole, rounds);
}

static void nothing_more(int number) { (void)number; }

/* A splice waits for its pipe, and a handler runs meanwhile. */
static void splice_waits_for_its_pipe(void) {
    for (int restarts = 0; restarts < 2; restarts++) {
        Pair pair = on_the_ring();
        int ends[2];
        must(pipe(ends) == 0, "pipe");
        handle(SIGALRM, nothing_more, restarts ? SA_RESTART : 0);
        pid_t child = fork();
        if (child == 0) {
            usleep(300000);
            must(write(ends[1], "late", 4) == 4, "write");
            _exit(0);
        }
        struct itimerval once = {{0, 0}, {0, 100000}};
        must(setitimer(ITIMER_REAL, &once, NULL) == 0, "setitimer");
        observe_result("splice", splice(ends[0], NULL, pair.near, NULL, 100, 0));
        must(waitpid(child, NULL, 0) == child, "waitpid");
        observe_result("now", splice(ends[0], NULL, pair.near, NULL, 100, SPLICE_F_NONBLOCK));
        char bytes[8];
        observe_result("recv", recv(pair.far, bytes, 4, MSG_WAITALL));
        off_t at = 0;
        observe_result("from the wrong end", splice(ends[1], NULL, pair.near, NULL, 100, 0));
        observe_result("from a position", splice(ends[0], &at, pair.near, NULL, 100, 0));
        observe_result("to a position", splice(ends[0], NULL, pair.near, &at, 100, 0));
        must(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0, "fcntl");
        observe_result("without waiting", splice(ends[0], NULL, pair.near, NULL, 100, 0));
        must(fcntl(ends[0], F_SETFL, 0) == 0, "fcntl");
        observe_result("of nothing", splice(ends[0], NULL, pair.near, NULL, 0, 0));
        must(close(ends[1]) == 0, "close");
        observe_result("at the end", splice(ends[0], NULL, pair.near, NULL, 100, 0));
        talk(pair.far, pair.near);
    }
}

static void *splices_once(void *argument) {
    int *ends = argument;
    ssize_t moved = splice(ends[0], NULL, ends[1], NULL, 100, 0);
    observe_result("splice", moved);
    return NULL;
}

static void cancelled_while_its_pipe_is_empty(void) {
    Pair pair = on_the_ring();
    int ends[2];
    must(pipe(ends) == 0, "pipe");
    int both[2] = {ends[0], pair.near};
    pthread_t thread = start_thread(splices_once, both);
    pause_ms(100);
    void *result;
    must(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "pthread_cancel");
    observe("cancelled: %d", result == PTHREAD_CANCELED);
    talk(pair.far, pair.near);
}

static void passed_on_beside_splices(void) {
    passed_on_beside(splices);
}

static void passed_on_beside_files(void) {
    passed_on_beside(sends_a_file);
}

static void passed_on_beside_requests(void) {
    passed_on_beside(requests_a_write);
}

static void passed_on_beside_a_stream(void) {
    passed_on_beside(writes_to_a_stream);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(sent_to_a_pipe),
        CASE(positioned),
        CASE(passed_before_it_is_connected),
        CASE(spliced_both_ways_at_once),
        CASE(splice_waits_for_its_pipe),
        CASE(cancelled_while_its_pipe_is_empty),
        CASE(passed_on_beside_splices),
        CASE(passed_on_beside_files),
        CASE(passed_on_beside_requests),
        CASE(passed_on_beside_a_stream),
        CASE(a_set_is_asked_about),
        CASE(taken_once),
        CASE(spliced_from_after_a_kill),
        CASE(spliced_to_after_a_kill),
        CASE(sent_to_a_pipe_after_a_kill),
        CASE(a_file_is_sent_after_a_kill),
        CASE(a_short_file_is_sent_after_a_kill),
        CASE(read_by_a_request_after_a_kill),
        CASE(written_by_a_request_after_a_kill),
        CASE(written_with_flags_after_a_kill),
        CASE(read_with_flags_after_a_kill),
        CASE(several_are_received_after_a_kill),
        {0},
    };
    return run_cases(cases, argc, argv);
}
