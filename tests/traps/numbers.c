/* Ways to a connection's bytes around the functions of the C library: system calls by number, the kernel's asynchronous I/O, mapping. */
#include "requests.h"
#include <limits.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

/* linux/tcp.h cannot be had beside netinet/tcp.h. */
#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif
struct mapped_receive {
    uint64_t address;
    uint32_t length, skip_hint, inq;
    int32_t error;
    uint64_t copy_address;
    int32_t copy_length;
    uint32_t flags;
    uint64_t control_address, control_length;
    uint32_t message_flags, reserved;
};

static long send_by_number(int round, int fd, char *bytes, size_t count) {
    struct iovec list[2] = {{bytes, 1}, {bytes + 1, count - 1}};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = list, .msg_iovlen = 2}};
    switch (round % 6) {
    case 0:
        return syscall(SYS_write, fd, bytes, count);
    case 1:
        return syscall(SYS_writev, fd, list, 2);
    case 2:
        return syscall(SYS_sendto, fd, bytes, count, MSG_NOSIGNAL, NULL, 0);
    case 3:
        return syscall(SYS_sendmsg, fd, &message.msg_hdr, 0);
    case 4:
        return syscall(SYS_sendmmsg, fd, &message, 1, 0) == 1 ? (long)message.msg_len : -1;
    default:
        return syscall(SYS_pwritev2, fd, list, 2, -1L, -1L, 0);
    }
}

static long receive_by_number(int round, int fd, char *bytes, size_t count) {
    struct iovec list[2] = {{bytes, 1}, {bytes + 1, count - 1}};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = list, .msg_iovlen = 2}};
    switch (round % 7) {
    case 0:
        return syscall(SYS_read, fd, bytes, count);
    case 1:
        return syscall(SYS_readv, fd, list, 2);
    case 2:
        return syscall(SYS_recvfrom, fd, bytes, 10 + round % 20, MSG_WAITALL, NULL, NULL);
    case 3:
        return syscall(SYS_recvmsg, fd, &message.msg_hdr, 0);
    case 4:
        return syscall(SYS_recvmmsg, fd, &message, 1, 0, NULL) == 1 ? (long)message.msg_len : -1;
    case 5:
        return syscall(SYS_preadv2, fd, list, 2, -1L, -1L, 0);
    default:
        return syscall(SYS_recvfrom, fd, bytes, count, MSG_DONTWAIT, NULL, NULL);
    }
}

static void bytes_by_number(void) {
    Pair pair = on_the_ring();
    char sent[32], got[32];
    for (int round = 0; round < 84; round++) {
        memset(sent, 'a' + round % 26, sizeof sent);
        long out = send_by_number(round, pair.near, sent, 10 + round % 20);
        long in = receive_by_number(round, pair.far, got, sizeof got);
        if (in != out || memcmp(sent, got, in) != 0)
            observe("round %d: %ld sent, %ld received", round, out, in);
        /* By name, between. */
        talk(pair.far, pair.near);
    }
    observe("on the ring %d", on_ring() > 0);
}

static void waits_by_number(void) {
    Pair pair = on_the_ring();
    char byte;
    int set = syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    must(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    for (int round = 0; round < 3; round++) {
        int is_there = round != 1;
        if (is_there)
            must(send(pair.near, "x", 1, 0) == 1, "send");
        struct pollfd item = {.fd = pair.far, .events = POLLIN};
        struct timespec time = {0, 30000000}, other = {0, 30000000};
        fd_set read;
        FD_ZERO(&read);
        FD_SET(pair.far, &read);
        memset(&event, 0, sizeof event);
        observe("ppoll %ld", syscall(SYS_ppoll, &item, 1, &time, NULL, 8));
        observe("pselect %ld", syscall(SYS_pselect6, pair.far + 1, &read, NULL, NULL, &other, NULL));
        observe("time is left %d %d", time.tv_nsec > 0, other.tv_nsec > 0);
        observe("epoll_pwait %ld of %u", syscall(SYS_epoll_pwait, set, &event, 1, 30, NULL, 8), event.data.u32);
        observe_result("wrong mask", syscall(SYS_epoll_pwait, set, &event, 1, 0, &read, 3));
        if (is_there)
            must(recv(pair.far, &byte, 1, 0) == 1, "recv");
    }
}

#ifdef __x86_64__
static int select_by_number(Pair pair, struct timeval *time) {
    fd_set read;
    FD_ZERO(&read);
    FD_SET(pair.far, &read);
    return syscall(SYS_select, pair.far + 1, &read, NULL, NULL, time);
}

/* The kernel reads a time-out, and does not mind where what is left of it cannot be written. */
static void time_outs_in_read_only_memory(void) {
    Pair pair = on_the_ring();
    struct timeval *time = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *time = (struct timeval){0, 300000};
    must(mprotect(time, 4096, PROT_READ) == 0, "mprotect");
    must(send(pair.near, "x", 1, 0) == 1, "send");
    observe("select %d", select_by_number(pair, time));
    must(recv(pair.far, &(char){0}, 1, 0) == 1, "recv");
    observe("select %d", select_by_number(pair, time));
    observe("still %ld us", (long)time->tv_usec);
    must(mprotect(time, 4096, PROT_NONE) == 0, "mprotect");
    observe_result("out of reach", select_by_number(pair, time));
}
#endif

/* Longer than a number of nanoseconds can say. */
static void time_outs_for_ever(void) {
    Pair pair = on_the_ring();
    struct pollfd item = {.fd = pair.far, .events = POLLIN};
    must(send(pair.near, "x", 1, 0) == 1, "send");
    static const long seconds[] = {LONG_MAX, LONG_MAX / 1000, 9223372036, 10000000000};
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        struct timespec time = {seconds[i], 999999999};
        observe("ppoll %ld", syscall(SYS_ppoll, &item, 1, &time, NULL, 8));
        observe("%d", time.tv_sec / 1000000000 == seconds[i] / 1000000000);
    }
}

/* Of a time-out that the kernel refuses nothing is said. */
static void time_outs_that_are_refused(void) {
    Pair pair = on_the_ring();
    struct pollfd item = {.fd = pair.far, .events = POLLIN};
    must(send(pair.near, "x", 1, 0) == 1, "send");
    static const struct timespec refused[] = {{1, 2000000000}, {-1, 5}, {1, -1}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct timespec time = refused[i];
        fd_set read;
        FD_ZERO(&read);
        FD_SET(pair.far, &read);
        observe_result("ppoll", syscall(SYS_ppoll, &item, 1, &time, NULL, 8));
        observe_result("pselect", syscall(SYS_pselect6, pair.far + 1, &read, NULL, NULL, &time, NULL));
        observe("%ld s %ld ns", (long)time.tv_sec, (long)time.tv_nsec);
    }
}

static void descriptors_by_number(void) {
    Pair pair = on_the_ring();
    int copy = syscall(SYS_dup, pair.near), other = syscall(SYS_fcntl, pair.near, F_DUPFD_CLOEXEC, 100);
    must(syscall(SYS_dup3, pair.far, 77, 0) == 77, "dup3");
    must(syscall(SYS_close, pair.near) == 0 && syscall(SYS_close_range, 100, 100, 0) == 0, "close");
    observe_result("closed", send(other, "x", 1, MSG_NOSIGNAL));
    talk(copy, 77);
    talk(pair.far, copy);
    int value = 1;
    must(send(copy, "four", 4, 0) == 4, "send");
    observe("ioctl %ld: %d", syscall(SYS_ioctl, 77, FIONREAD, &value), value);
    observe("shutdown %ld", syscall(SYS_shutdown, copy, SHUT_WR));
    char bytes[8];
    observe_result("recv", recv(77, bytes, sizeof bytes, 0));
    observe_result("recv", recv(77, bytes, sizeof bytes, 0));
}

/* A connection that was made by number is one as any other. */
static void connected_by_number(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0 && syscall(SYS_listen, listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    Pair pair = {.near = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)};
    must(syscall(SYS_connect, pair.near, &address, length) == 0, "connect");
    pair.far = syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
    talk_until_on_ring(pair, 1);
    observe("talked");
}

static void asynchronous_requests(void) {
    Pair pair = on_the_ring();
    char bytes[32];
    must(send(pair.near, "in the ring", 11, 0) == 11, "send");
    long got = asynchronous(pair.far, bytes, sizeof bytes, IOCB_CMD_PREAD);
    observe("read %.*s", (int)got, bytes);
    observe("written %ld", asynchronous(pair.far, "an answer", 9, IOCB_CMD_PWRITE));
    observe("received %zd", recv(pair.near, bytes, sizeof bytes, 0));
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    observe_result("nonsense", syscall(SYS_io_submit, 0L, 1L, (void *)8));
}

enum { MAPPED = 16 * 4096 };

/* The receiver asks the kernel to map what has come. */
static void mapped_receive(void) {
    Pair pair = on_the_ring();
    static char sent[MAPPED], copied[MAPPED];
    for (int i = 0; i < MAPPED; i++)
        sent[i] = i % 251;
    char *mapped = mmap(NULL, MAPPED, PROT_READ, MAP_SHARED, pair.far, 0);
    must(mapped != MAP_FAILED, "mmap");
    for (int round = 0; round < 2; round++) {
        must(send(pair.near, sent, MAPPED, 0) == MAPPED, "send");
        int got = 0, is_right = 1;
        for (int patience = 0; got < MAPPED && patience < 1000; patience++) {
            struct mapped_receive receive = {.address = (uintptr_t)mapped, .length = MAPPED};
            socklen_t length = sizeof receive;
            must(getsockopt(pair.far, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &receive, &length) == 0, "getsockopt");
            is_right &= memcmp(mapped, sent + got, receive.length) == 0;
            got += receive.length;
            ssize_t more = receive.skip_hint > 0 ? recv(pair.far, copied, receive.skip_hint, 0) : 0;
            is_right &= more >= 0 && memcmp(copied, sent + got, more) == 0;
            got += more > 0 ? more : 0;
            if (receive.length == 0 && more == 0)
                pause_ms(1);
        }
        observe("%d bytes, right: %d", got, is_right);
    }
    talk(pair.far, pair.near);
}

int main(int argc, char **argv) {
    const Case cases[] = {CASE(bytes_by_number),
                          CASE(waits_by_number),
#ifdef __x86_64__
                          CASE(time_outs_in_read_only_memory),
#endif
                          CASE(time_outs_for_ever),
        CASE(time_outs_that_are_refused),
                          CASE(descriptors_by_number),
                          CASE(connected_by_number),
                          CASE(asynchronous_requests),
                          CASE(mapped_receive),
                          {0}};
    return run_cases(cases, argc, argv);
}
