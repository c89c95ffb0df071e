/* Programs that have the kernel read and write for them, by io_uring. */
#include "traps.h"
#include <liburing.h>

static struct io_uring ring;

/* What io_uring_queue_init does with a ring that it has set up. */
static void map_ring(int fd, struct io_uring_params *parameters) {
    must(fd >= 0, "io_uring_setup");
    must(io_uring_queue_mmap(fd, parameters, &ring) == 0, "mmap");
    for (unsigned i = 0; i < parameters->sq_entries; i++)
        ring.sq.array[i] = i;
}

static ssize_t complete(void) {
    struct io_uring_cqe *entry;
    must(io_uring_submit(&ring) == 1, "submit");
    must(io_uring_wait_cqe(&ring, &entry) == 0, "wait");
    ssize_t result = entry->res;
    io_uring_cqe_seen(&ring, entry);
    return result;
}

static ssize_t kernel_receives(int fd, void *bytes, size_t length) {
    io_uring_prep_recv(io_uring_get_sqe(&ring), fd, bytes, length, MSG_WAITALL);
    return complete();
}

static ssize_t kernel_sends(int fd, const void *bytes, size_t length) {
    io_uring_prep_send(io_uring_get_sqe(&ring), fd, bytes, length, 0);
    return complete();
}

/* Every way of sending and of receiving in turn: one stream. */
static void mix(Pair pair) {
    unsigned char sent = 0, expected = 0;
    int wrong = 0;
    for (int round = 0; round < 60; round++) {
        unsigned char message[40], got[40];
        for (size_t i = 0; i < sizeof message; i++)
            message[i] = sent++;
        ssize_t out = round % 3 == 1 ? kernel_sends(pair.near, message, sizeof message)
                                     : send(pair.near, message, sizeof message, 0);
        ssize_t in = round % 4 < 2 ? kernel_receives(pair.far, got, sizeof got)
                                   : recv(pair.far, got, sizeof got, MSG_WAITALL);
        for (ssize_t i = 0; i < in; i++)
            wrong += got[i] != expected++;
        if (out != 40 || in != 40)
            observe("round %d: %zd %zd", round, out, in);
    }
    observe("wrong bytes: %d", wrong);
}

static void unread_bytes(Pair pair) {
    char bytes[80];
    must(send(pair.near, "bytes that nobody has read yet, in both directions", 50, 0) == 50, "send");
    must(send(pair.far, "and others", 10, 0) == 10, "send");
    observe("set up: %d", io_uring_queue_init(8, &ring, 0));
    ssize_t got = kernel_receives(pair.far, bytes, 50);
    observe("received %.*s", (int)got, bytes);
    got = kernel_receives(pair.near, bytes, 10);
    observe("received %.*s", (int)got, bytes);
}

static void set_up_on_the_ring(void) {
    Pair pair = on_the_ring();
    unread_bytes(pair);
    mix(pair);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
}

static void set_up_by_number(void) {
    Pair pair = on_the_ring();
    struct io_uring_params parameters = {0};
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    map_ring(syscall(SYS_io_uring_setup, 8, &parameters), &parameters);
    char bytes[8];
    ssize_t got = kernel_receives(pair.far, bytes, 6);
    observe("received %.*s", (int)got, bytes);
    mix(pair);
}

#ifdef __x86_64__
/* As liburing does it where it is linked in: nothing of the C library is called. */
static void set_up_unseen_before(void) {
    struct io_uring_params parameters = {0};
    long fd;
    __asm__ volatile("syscall" : "=a"(fd) : "a"(SYS_io_uring_setup), "D"(8L), "S"(&parameters) : "rcx", "r11", "memory");
    map_ring(fd, &parameters);
    for (int i = 0; i < 3; i++) {
        Pair pair = connected();
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        must(send(pair.near, "unread", 6, 0) == 6, "send");
        char bytes[8];
        ssize_t got = kernel_receives(pair.far, bytes, 6);
        observe("received %.*s", (int)got, bytes);
        mix(pair);
    }
}
#endif

static void a_set_that_the_kernel_changes(void) {
    Pair pair = on_the_ring();
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = 7}}, found = {0};
    must(io_uring_queue_init(8, &ring, 0) == 0, "set up");
    io_uring_prep_epoll_ctl(io_uring_get_sqe(&ring), set, pair.far, EPOLL_CTL_ADD, &event);
    observe("add: %zd", complete());
    for (int i = 0; i < 3; i++) {
        char bytes[8];
        must(send(pair.near, "message", 7, 0) == 7, "send");
        int count = epoll_wait(set, &found, 1, 1000);
        observe("waited: %d, %d", count, found.data.fd);
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    }
    io_uring_prep_poll_add(io_uring_get_sqe(&ring), pair.far, POLLIN);
    must(send(pair.near, "message", 7, 0) == 7, "send");
    observe("polled: %zd", complete());
}

int main(int argc, char **argv) {
    const Case cases[] = {CASE(set_up_on_the_ring),
                          CASE(set_up_by_number),
#ifdef __x86_64__
                          CASE(set_up_unseen_before),
#endif
                          CASE(a_set_that_the_kernel_changes),
                          {0}};
    return run_cases(cases, argc, argv);
}
