/* Arguments that are odd, or wrong: what the kernel makes of them. */
#include "traps.h"
#include <aio.h>
#include <limits.h>
#include <stdint.h>
#include <sys/sendfile.h>

static char bytes[4096];

/* On the ring, and with messages unread there. */
static Pair with_unread(int messages) {
    Pair pair = on_the_ring();
    must(setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "setsockopt");
    for (int i = 0; i < messages; i++) {
        memset(bytes, 'A' + i, 10);
        must(send(pair.near, bytes, 10, 0) == 10, "send");
    }
    usleep(2000);
    return pair;
}

static void observe_bytes(const char *call, ssize_t result) {
    observe_result(call, result);
    if (result > 0)
        observe("  %.*s", (int)result, bytes);
}

static void flags_that_mean_nothing(void) {
    for (int bit = 2; bit < 31; bit++) {
        int flag = 1 << bit;
        if (flag & (MSG_ERRQUEUE | MSG_OOB | MSG_PEEK | MSG_WAITALL))
            continue;
        Pair pair = with_unread(3);
        observe("flag %#x", flag);
        observe_bytes("recv", recv(pair.far, bytes, 10, flag));
        observe_bytes("recvfrom", recvfrom(pair.far, bytes, 5, flag | MSG_DONTWAIT, NULL, NULL));
        observe_bytes("recv", recv(pair.far, bytes, 100, 0));
        close(pair.near);
        close(pair.far);
    }
}

static void lengths_beyond_memory(void) {
    Pair pair = with_unread(4);
    // The compiler is not to know.
    volatile size_t all = SIZE_MAX, half = SSIZE_MAX;
    observe_result("read", read(pair.far, bytes, all));
    observe_result("read", read(pair.far, bytes, half));
    observe_result("readv", readv(pair.far, (struct iovec[]){{bytes, 10}, {(void *)-4096L, 10}}, 2));
    observe_result("splice", splice(pair.far, NULL, 1, NULL, all, 0x100));
    observe_bytes("recv", recv(pair.far, bytes, all, 0));
    observe_result("again", recv(pair.far, bytes, 10, MSG_DONTWAIT));
}

static volatile sig_atomic_t hits;

static void hit(int number) {
    (void)number;
    hits++;
}

/* Of a single buffer the kernel looks at no more than it takes. */
static void single_buffers_longer_than_memory(void) {
    Pair pair = with_unread(3);
    struct iovec vector = {bytes, SSIZE_MAX};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    handle(SIGALRM, hit, 0);
    alarm(3);
    observe_bytes("readv", readv(pair.far, &vector, 1));
    must(send(pair.near, bytes, 10, 0) == 10, "send");
    observe_bytes("recvmsg", recvmsg(pair.far, &header, 0));
    alarm(0);
    observe("interrupted %d", hits > 0);
}

/* A signal that only the call's own mask lets through. */
static void signals_by_the_mask_of_a_call(void) {
    Pair pair = on_the_ring();
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    handle(SIGUSR1, hit, 0);
    must(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0, "sigprocmask");
    struct pollfd item = {.fd = pair.far, .events = POLLIN};
    struct timespec now = {0};
    fd_set read;
    for (int unread = 0; unread < 2; unread++) {
        if (unread)
            must(send(pair.near, "x", 1, 0) == 1, "send");
        usleep(2000);
        raise(SIGUSR1);
        observe_result("ppoll", ppoll(&item, 1, &now, &none));
        observe("hits %d", hits);
        raise(SIGUSR1);
        FD_ZERO(&read);
        FD_SET(pair.far, &read);
        observe_result("pselect", pselect(pair.far + 1, &read, NULL, NULL, &now, &none));
        observe("hits %d", hits);
    }
    observe_result("no mask", ppoll(&item, 1, &now, (void *)8));
    observe_result("no time", ppoll(&item, 1, &(struct timespec){0, 2000000000}, NULL));
    struct timeval time = {0, 2000000};
    FD_SET(pair.far, &read);
    observe_result("select", select(pair.far + 1, &read, NULL, NULL, &time));
    observe("%ld s are left", (long)time.tv_sec);
    observe_result("no time", select(pair.far + 1, &read, NULL, NULL, &(struct timeval){0, -1}));
}

/* Structures in memory that may not be written, or not be read. */
static void structures_out_of_reach(void) {
    for (int access = 0; access < 2; access++) {
        Pair pair = with_unread(3);
        char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct msghdr *header = (struct msghdr *)memory;
        struct iovec *vector = (struct iovec *)(memory + 512);
        struct pollfd *item = (struct pollfd *)(memory + 1024);
        socklen_t *length = (socklen_t *)(memory + 1536);
        fd_set *set = (fd_set *)(memory + 2048);
        *vector = (struct iovec){bytes, 10};
        *header = (struct msghdr){.msg_iov = vector, .msg_iovlen = 1};
        *item = (struct pollfd){.fd = pair.far, .events = POLLIN};
        *length = 16;
        FD_SET(pair.far, set);
        int epoll = epoll_create1(0);
        struct epoll_event event = {EPOLLIN, {.fd = 1}};
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
        must(mprotect(memory, 4096, access ? PROT_READ : PROT_NONE) == 0, "mprotect");
        observe_result("poll", poll(item, 1, 0));
        observe_result("select", select(pair.far + 1, set, NULL, NULL, &(struct timeval){0}));
        observe_result("epoll_wait", epoll_wait(epoll, (struct epoll_event *)memory, 8, 100));
        observe_result("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_MOD, pair.far, (struct epoll_event *)memory));
        observe_result("writev", writev(pair.near, vector, 1));
        observe_result("sendmsg", sendmsg(pair.near, header, 0));
        observe_result("setsockopt", setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, memory, 4));
        observe_bytes("recvmsg", recvmsg(pair.far, header, MSG_DONTWAIT));
        struct sockaddr_in address;
        observe_bytes("recvfrom", recvfrom(pair.far, bytes, 10, MSG_DONTWAIT, (struct sockaddr *)&address, length));
        observe_bytes("readv", readv(pair.far, vector, 1));
        observe_result("into it", read(pair.far, memory, 10));
        observe_result("out of it", write(pair.near, memory, 10) > 0 ? 1 : -1);
        observe_bytes("rest", recv(pair.far, bytes, 15, MSG_DONTWAIT));
        close(pair.near);
        close(pair.far);
        close(epoll);
        munmap(memory, 4096);
    }
}

static void more_events_than_memory(void) {
    Pair pair = with_unread(1);
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = 1}};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(mprotect(memory + 4096, 4096, PROT_NONE) == 0, "mprotect");
    struct epoll_event *events = (struct epoll_event *)(memory + 4096 - 5 * sizeof *events);
    observe("%d", epoll_wait(set, events, 1000000, -1));
    observe("%d", epoll_wait(set, events, 64, 500));
    observe_result("none", epoll_wait(set, (struct epoll_event *)(memory + 4096), 64, 500));
    observe_result("too many", epoll_wait(set, events, INT32_MAX, 500));
}

static void closed_with_odd_flags(void) {
    Pair pair = with_unread(2);
    observe_result("flags", close_range(pair.far, pair.far, 0x80));
    observe_result("order", close_range(pair.far, 3, 0));
    observe_bytes("recv", recv(pair.far, bytes, 15, 0));
}

/* Of the C library's own, by threads that read and write past it. */
static void asynchronous_by_the_library(void) {
    Pair pair = with_unread(1);
    struct aiocb out = {.aio_fildes = pair.near, .aio_buf = "BBBBBBBBBB", .aio_nbytes = 10};
    struct aiocb in = {.aio_fildes = pair.far, .aio_buf = bytes, .aio_nbytes = 15};
    const struct aiocb *list[] = {&out};
    must(aio_write(&out) == 0 && aio_suspend(list, 1, NULL) == 0, "aio_write");
    observe_result("written", aio_return(&out));
    must(send(pair.near, "CCCCCCCCCC", 10, 0) == 10, "send");
    usleep(2000);
    list[0] = &in;
    must(aio_read(&in) == 0 && aio_suspend(list, 1, NULL) == 0, "aio_read");
    observe_bytes("read", aio_return(&in));
    observe_bytes("recv", recv(pair.far, bytes, 100, 0));
}

ssize_t __read(int fd, void *buffer, size_t count);
ssize_t __write(int fd, const void *buffer, size_t count);
ssize_t __send(int fd, const void *buffer, size_t count, int flags);
int __poll(struct pollfd *items, nfds_t count, int timeout_ms);
int __dup2(int fd, int target);
int __close(int fd);

/* Names that no header file has. */
static void by_second_names(void) {
#ifdef __GLIBC__
    Pair pair = with_unread(2);
    observe_bytes("__read", __read(pair.far, bytes, 15));
    observe_result("__poll", __poll(&(struct pollfd){.fd = pair.far, .events = POLLIN}, 1, 0));
    observe_result("__write", __write(pair.near, "CCCCC", 5));
    observe_result("__send", __send(pair.near, "DDDDD", 5, 0));
    must(send(pair.near, "EEEEE", 5, 0) == 5, "send");
    usleep(2000);
    must(__dup2(pair.far, 60) == 60, "__dup2");
    observe_bytes("recv", recv(60, bytes, 100, 0));
    observe_result("__close", __close(pair.far));
    observe_result("closed", recv(pair.far, bytes, 1, 0));
#endif
}

static void names_that_are_not_taken(void) {
    Pair pair = with_unread(2);
    struct iovec vector = {bytes, 10};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_name = bytes + 100, .msg_namelen = -5};
    socklen_t length = -3;
    observe_result("sendmsg", sendmsg(pair.near, &header, 0));
    observe_result("recvmsg", recvmsg(pair.far, &header, 0));
    header.msg_name = (void *)8;
    header.msg_namelen = 16;
    observe_result("sendmsg", sendmsg(pair.near, &header, 0));
    observe_result("recvfrom", recvfrom(pair.far, bytes, 10, 0, (struct sockaddr *)(bytes + 100), &length));
    observe_result("recvfrom", recvfrom(pair.far, bytes, 5, 0, (struct sockaddr *)(bytes + 100), NULL));
    observe_bytes("rest", recv(pair.far, bytes, 100, 0));
}

static void several_of_which_one_is_wrong(void) {
    Pair pair = with_unread(3);
    struct iovec vectors[] = {{bytes, 10}, {(void *)8, 10}, {bytes, 10}};
    struct mmsghdr messages[3] = {0};
    for (int i = 0; i < 3; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    errno = 0;
    observe_result("recvmmsg", recvmmsg(pair.far, messages, 3, MSG_DONTWAIT, NULL));
    observe("errno %d", errno);
    observe_result("sendmmsg", sendmmsg(pair.near, messages, 3, 0));
    observe("errno %d", errno);
}

/* The kernel sends a message before it writes down how much that was. */
static void sent_where_nothing_can_be_noted(void) {
    Pair pair = with_unread(0);
    struct iovec vector = {bytes, 10};
    struct mmsghdr *message = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(message != MAP_FAILED, "mmap");
    message->msg_hdr = (struct msghdr){.msg_iov = &vector, .msg_iovlen = 1};
    must(mprotect(message, 4096, PROT_READ) == 0, "mprotect");
    // By number: musl makes one `sendmsg` after the other, and faults itself.
    observe_result("sendmmsg", syscall(SYS_sendmmsg, pair.near, message, 1, 0));
    observe_bytes("sent", recv(pair.far, bytes, 100, 0));
}

static void sent_from_far_in_a_file(void) {
    static const off_t places[] = {1L << 41, 0xfffffffffffL, 1L << 45, 1L << 62, 0x7fffffffffffff00L};
    Pair pair = with_unread(1);
    int file = open("/proc/self/exe", O_RDONLY);
    must(file >= 0, "open");
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        off_t place = places[i];
        observe_result("sendfile", sendfile(pair.near, file, &place, 100));
        observe("moved: %d", place != places[i]);
    }
    observe_bytes("there", recv(pair.far, bytes, 100, 0));
}

int main(int argc, char **argv) {
    static const Case cases[] = {CASE(flags_that_mean_nothing),
                                 CASE(lengths_beyond_memory),
                                 CASE(single_buffers_longer_than_memory),
                                 CASE(signals_by_the_mask_of_a_call),
                                 CASE(structures_out_of_reach),
                                 CASE(more_events_than_memory),
                                 CASE(closed_with_odd_flags),
                                 CASE(asynchronous_by_the_library),
                                 CASE(by_second_names),
                                 CASE(names_that_are_not_taken),
                                 CASE(several_of_which_one_is_wrong),
                                 CASE(sent_where_nothing_can_be_noted),
                                 CASE(sent_from_far_in_a_file),
                                 {0}};
    return run_cases(cases, argc, argv);
}
