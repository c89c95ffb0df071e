/* TCP_INQ: each call says how many bytes it leaves. */
#include "traps.h"

/* A connection on the ring whose receiving end has the option: since then, or from its listener. */
static Pair telling(int from_the_listener) {
    struct sockaddr_in address;
    int on = 1, listener = listen_here(&address, 1);
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    if (from_the_listener)
        must(setsockopt(listener, IPPROTO_TCP, TCP_INQ, &on, sizeof on) == 0, "setsockopt");
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    close(listener);
    talk_until_on_ring(pair, 1);
    if (!from_the_listener)
        must(setsockopt(pair.far, IPPROTO_TCP, TCP_INQ, &on, sizeof on) == 0, "setsockopt");
    talk_until_on_ring(pair, 1);
    return pair;
}

/* TCP_INQ is set while bytes are unread: the next call tells how many it leaves. */
static void bytes_left_are_told(void) {
    Pair pair = on_the_ring();
    must(send(pair.near, "twelve bytes", 12, 0) == 12, "send");
    pause_ms(20);
    int on = 1;
    observe_result("setsockopt", setsockopt(pair.far, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    for (int i = 0; i < 3; i++) {
        char buffer[5], control[256];
        struct iovec vector = {buffer, sizeof buffer};
        struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t count = recvmsg(pair.far, &header, 0);
        observe("recvmsg: %zd, %.*s", count, (int)count, buffer);
        for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at != NULL; at = CMSG_NXTHDR(&header, at)) {
            int left = 0;
            memcpy(&left, CMSG_DATA(at), sizeof left);
            observe("level %d type %d: %d", at->cmsg_level, at->cmsg_type, left);
        }
    }
}

/* Where no memory is. */
#define NOWHERE ((void *)4096)

/* What one call with so much room for control messages says of what it leaves. */
static void observe_left(int fd, size_t bytes, int flags, void *control, size_t room) {
    char buffer[16];
    struct iovec vector = {buffer, bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    if (control != NULL && control != NOWHERE)
        memset(control, '.', 64);
    ssize_t count = recvmsg(fd, &header, flags);
    observe("recvmsg: %zd, %s, flags %#x, %zu bytes of control messages", count, count < 0 ? strerror(errno) : "",
            count < 0 ? 0 : header.msg_flags, (size_t)header.msg_controllen);
    if (count < 0 || header.msg_controllen == 0)
        return;
    unsigned char *byte = control;
    char text[2 * 32 + 1];
    for (int i = 0; i < 32; i++)
        sprintf(text + 2 * i, "%02x", byte[i]);
    observe("as %s", text);
}

/* TCP_INQ with the end of the stream behind the bytes, in both orders, and with too little room to tell. */
static void the_end_is_left(void) {
    for (int when = 0; when < 4; when++) {
        Pair pair = telling(when % 2);
        char control[64];
        must(send(pair.near, "twelve bytes", 12, 0) == 12, "send");
        pause_ms(20);
        observe_left(pair.far, 2, 0, control, sizeof control);
        observe_left(pair.far, 2, MSG_PEEK, control, sizeof control);
        observe_left(pair.far, 0, 0, control, sizeof control);
        observe_left(pair.far, 2, MSG_DONTWAIT, NULL, 0);
        observe_left(pair.far, 1, 0, NULL, 64);
        for (size_t room = 12; room <= 25; room++)
            observe_left(pair.far, room % 3 == 0 ? 1 : 0, 0, control, room);
        observe_left(pair.far, 1, 0, NOWHERE, 64);
        if (when == 3)
            shutdown(pair.far, SHUT_WR);
        if (when % 2 == 0)
            shutdown(pair.near, SHUT_WR);
        else
            close(pair.near);
        pause_ms(20);
        observe_left(pair.far, 1, 0, control, sizeof control);
        observe_left(pair.far, sizeof control, 0, control, sizeof control);
        observe_left(pair.far, 1, MSG_PEEK, control, sizeof control);
        observe_left(pair.far, 1, 0, control, sizeof control);
        observe_left(pair.far, 1, MSG_DONTWAIT, control, sizeof control);
        int off = 0;
        observe_result("setsockopt", setsockopt(pair.far, IPPROTO_TCP, TCP_INQ, &off, sizeof off));
        observe_left(pair.far, 1, 0, control, sizeof control);
        if (when % 2 == 0)
            close(pair.near);
        close(pair.far);
    }
}

/* How many bytes a call, or FIONREAD, says that there are. */
static int told(int fd, int by_call, char *bytes) {
    char control[64];
    int left = 0;
    struct iovec vector = {bytes, 1};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (!by_call)
        must(ioctl(fd, FIONREAD, &left) == 0, "FIONREAD");
    else if (recvmsg(fd, &header, MSG_DONTWAIT) > 0)
        memcpy(&left, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof left);
    return left;
}

/* Bytes on the ring are not there yet while others that come before them have no room in the kernel. */
static void no_more_is_told_than_can_be_read(void) {
    static char bytes[200000];
    for (int by_call = 0; by_call < 2; by_call++) {
        Pair pair = telling(0);
        int fewer = 0, little = 4096, much = 1 << 20;
        setsockopt(pair.far, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
        setsockopt(pair.near, SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
        while (send(pair.near, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
        for (int i = 0; i < 200; i++) {
            recv(pair.far, bytes, 5000, MSG_DONTWAIT);
            send(pair.near, bytes, 700, MSG_DONTWAIT);
            int left = told(pair.far, by_call, bytes);
            fewer += left > 0 && recv(pair.far, bytes, left, MSG_DONTWAIT) < left;
        }
        observe("%d times fewer", fewer);
        close(pair.near), close(pair.far);
    }
}

enum { BURSTS = 3000 };

static void *send_bursts(void *fd) {
    static const char bytes[4096];
    unsigned random = 7;
    for (int i = 0; i < BURSTS; i++) {
        random = random * 1103515245 + 12345;
        size_t count = 1 + (random >> 8) % (i % 16 == 0 ? sizeof bytes : 64);
        must(send(*(int *)fd, bytes, count, 0) == (ssize_t)count, "send");
        if ((random >> 24) % 4 == 0)
            usleep((random >> 20) % 64);
    }
    shutdown(*(int *)fd, SHUT_WR);
    return NULL;
}

/* Who is told that nothing is left waits for the next edge, and looks for no EAGAIN: as gRPC does. */
static void an_edge_comes_when_nothing_was_left(void) {
    Pair pair = telling(1);
    fcntl(pair.far, F_SETFL, O_NONBLOCK);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET | EPOLLRDHUP};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "add");
    pthread_t sender;
    pthread_create(&sender, NULL, send_bursts, &pair.near);
    size_t total = 0;
    int ended = 0;
    while (!ended) {
        int ready = epoll_wait(set, &event, 1, 5000);
        if (ready != 1) {
            observe("epoll_wait: %d, after %zu bytes", ready, total);
            break;
        }
        for (int left = 1; left > 0 && !ended;) {
            char buffer[1000], control[64];
            struct iovec vector = {buffer, sizeof buffer};
            struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            ssize_t count = recvmsg(pair.far, &header, 0);
            if (count < 0)
                break;
            ended = count == 0;
            total += (size_t)count;
            must(CMSG_FIRSTHDR(&header) != NULL, "a control message");
            memcpy(&left, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof left);
        }
    }
    observe("%zu bytes, ended %d", total, ended);
    pthread_join(sender, NULL);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(bytes_left_are_told),
        CASE(the_end_is_left),
        CASE(no_more_is_told_than_can_be_read),
        CASE(an_edge_comes_when_nothing_was_left),
        {0},
    };
    return run_cases(cases, argc, argv);
}
