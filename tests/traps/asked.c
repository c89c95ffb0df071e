/* Options that only allow what a later call asks for: until then a connection with them takes the ring, and then the kernel's road. */
#include "traps.h"
#include <linux/errqueue.h>

static Pair with(int option) {
    Pair pair = connected();
    int one = 1;
    must(setsockopt(pair.near, SOL_SOCKET, option, &one, sizeof one) == 0, "setsockopt");
    must(setsockopt(pair.far, SOL_SOCKET, option, &one, sizeof one) == 0, "setsockopt");
    talk_until_on_ring(pair, 1);
    return pair;
}

/* Which sends' memory the kernel is done with; copied or not. */
static void observe_notice(int fd) {
    char space[256];
    struct msghdr header = {.msg_control = space, .msg_controllen = sizeof space};
    observe_result("notice", recvmsg(fd, &header, MSG_ERRQUEUE));
    struct cmsghdr *control = CMSG_FIRSTHDR(&header);
    must(control != NULL, "a notice");
    struct sock_extended_err *error = (void *)CMSG_DATA(control);
    observe("origin %d, sends %u to %u", error->ee_origin, error->ee_info, error->ee_data);
}

static void zero_copy(void) {
    for (int round = 0; round < 4; round++) {
        Pair pair = with(SO_ZEROCOPY);
        char bytes[4096] = "without a copy", got[4096];
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        must(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event) == 0, "epoll_ctl");
        /* What lies unread in either direction comes first. */
        must(send(pair.near, "before", 6, 0) == 6 && send(pair.far, "before", 6, 0) == 6, "send");
        observe_result("send", send(pair.near, bytes, sizeof bytes, MSG_ZEROCOPY));
        struct pollfd polled = {.fd = pair.near};
        must(poll(&polled, 1, 5000) == 1, "a notice");
        struct timeval limit = {.tv_sec = 5};
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(pair.near, &readable);
        switch (round) {
        case 0:
            observe("events %#x", polled.revents);
            break;
        case 1:
            polled.events = POLLIN;
            observe_result("poll", poll(&polled, 1, 5000));
            observe("events %#x", polled.revents);
            break;
        case 2:
            observe_result("epoll_wait", epoll_wait(set, &event, 1, 5000));
            observe("events %#x", event.events);
            break;
        default:
            observe_result("select", select(pair.near + 1, &readable, NULL, NULL, &limit));
        }
        observe_notice(pair.near);
        observe_result("recv", recv(pair.near, got, sizeof got, 0));
        observe_result("recv", recv(pair.far, got, 6, MSG_WAITALL));
        observe_result("recv", recv(pair.far, got, sizeof got, MSG_WAITALL));
        observe("the same bytes: %d", memcmp(bytes, got, sizeof bytes) == 0);
        talk(pair.far, pair.near);
        close(set);
        close(pair.near);
        close(pair.far);
    }
}

/* Before the connection comes to the ring, if it does. */
static void zero_copy_first(void) {
    Pair pair = connected();
    int one = 1;
    char bytes[4096] = "without a copy", got[4096];
    must(setsockopt(pair.near, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0, "setsockopt");
    for (int i = 0; i < 3; i++) {
        must(send(pair.near, bytes, sizeof bytes, MSG_ZEROCOPY) == sizeof bytes, "send");
        must(recv(pair.far, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
        must(poll(&(struct pollfd){.fd = pair.near}, 1, 5000) == 1, "a notice");
        observe_notice(pair.near);
        talk(pair.far, pair.near);
        talk(pair.near, pair.far);
    }
}

/* It is told as an error, and concerns no receive. */
static void a_notice_beside_a_wait_for_all(void) {
    Pair pair = on_the_ring();
    int one = 1;
    struct timeval short_while = {0, 200000};
    char bytes[4096] = "without a copy", got[4096];
    must(setsockopt(pair.far, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0, "SO_ZEROCOPY");
    must(setsockopt(pair.far, SOL_SOCKET, SO_RCVTIMEO, &short_while, sizeof short_while) == 0, "SO_RCVTIMEO");
    must(send(pair.near, "four", 4, 0) == 4, "send");
    must(send(pair.far, bytes, sizeof bytes, MSG_ZEROCOPY) == sizeof bytes, "send");
    must(recv(pair.near, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
    must(poll(&(struct pollfd){.fd = pair.far}, 1, 5000) == 1, "a notice");
    observe_result("recv", recv(pair.far, got, 10, MSG_WAITALL));
    observe_result("recv", recv(pair.far, got, 10, MSG_WAITALL));
    observe_notice(pair.far);
}

static void inline_urgent(void) {
    for (int unread = 0; unread < 2; unread++) {
        Pair pair = with(SO_OOBINLINE);
        must(fcntl(pair.far, F_SETOWN, getpid()) == 0, "F_SETOWN");
        if (unread)
            must(send(pair.near, "before", 6, 0) == 6, "send");
        observe_result("send", send(pair.near, "abc", 3, MSG_OOB));
        must(send(pair.near, "after", 5, 0) == 5, "send");
        struct pollfd polled = {.fd = pair.far, .events = POLLIN | POLLPRI};
        must(poll(&(struct pollfd){.fd = pair.far, .events = POLLPRI}, 1, 5000) == 1, "an urgent byte");
        poll(&polled, 1, 0);
        observe("events %#x", polled.revents);
        /* All of it is there. */
        for (int there = 0; there < 8 + 6 * unread; usleep(1000))
            must(ioctl(pair.far, FIONREAD, &there) == 0, "FIONREAD");
        char got[64];
        observe_result("recv MSG_OOB", recv(pair.far, got, sizeof got, MSG_OOB));
        for (int left = 8 + 6 * unread; left > 0;) {
            int is_at_mark = -1;
            must(ioctl(pair.far, SIOCATMARK, &is_at_mark) == 0, "SIOCATMARK");
            ssize_t length = recv(pair.far, got, sizeof got, 0);
            must(length > 0, "recv");
            observe("at the mark: %d; %.*s", is_at_mark, (int)length, got);
            left -= length;
        }
        talk(pair.far, pair.near);
        talk(pair.near, pair.far);
        close(pair.near);
        close(pair.far);
    }
}

static Pair watched;
static int looks;

static void *receive_all(void *unused) {
    char got[100];
    (void)unused;
    return (void *)recv(watched.far, got, sizeof got, MSG_WAITALL | (looks ? MSG_PEEK : 0));
}

/* A call that has some bytes does not wait for more across the mark of urgent data. */
static void urgent_mark_ends_a_call(void) {
    const char *urgent[] = {"!", "more, and !"};
    char got[100];
    for (int variant = 0; variant < 8; variant++) {
        int is_inline = variant & 1, is_behind_more = variant >> 1 & 1;
        looks = variant >> 2;
        watched = on_the_ring();
        must(setsockopt(watched.far, SOL_SOCKET, SO_OOBINLINE, &is_inline, sizeof is_inline) == 0, "SO_OOBINLINE");
        talk_until_on_ring(watched, 1);
        must(send(watched.near, "ten bytes!", 10, 0) == 10, "send");
        pthread_t thread = start_thread(receive_all, NULL);
        pause_ms(100);
        const char *with = urgent[is_behind_more];
        must(send(watched.near, with, strlen(with), MSG_OOB) == (ssize_t)strlen(with), "MSG_OOB");
        pause_ms(100);
        must(send(watched.near, "after", 5, 0) == 5, "send");
        void *result;
        must(pthread_join(thread, &result) == 0, "pthread_join");
        observe("inline %d, more %d, looks %d: %zd", is_inline, is_behind_more, looks, (ssize_t)result);
        pause_ms(100);
        for (ssize_t length; (length = recv(watched.far, got, sizeof got, MSG_DONTWAIT)) > 0;)
            observe("then %.*s", (int)length, got);
        close(watched.near);
        close(watched.far);
    }
}

/* A listener of MPTCP, and a peer that has only TCP: what is accepted is a connection of TCP. */
static void multipath_listener(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
    if (listener < 0) {
        observe("skipped: this kernel has no MPTCP: %s", strerrorname_np(errno));
        return;
    }
    must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 8) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    must(connect(pair.near, (struct sockaddr *)&address, length) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    must(pair.far >= 0, "accept");
    talk_until_on_ring(pair, 1);
    int low_water = -1;
    length = sizeof low_water;
    observe_result("getsockopt", getsockopt(pair.far, SOL_SOCKET, SO_RCVLOWAT, &low_water, &length));
    observe("low-water mark %d", low_water);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(zero_copy),
        CASE(zero_copy_first),
        CASE(a_notice_beside_a_wait_for_all),
        CASE(inline_urgent),
        CASE(urgent_mark_ends_a_call),
        CASE(multipath_listener),
        {0},
    };
    return run_cases(cases, argc, argv);
}
