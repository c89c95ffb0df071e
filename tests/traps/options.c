/* Options, time-outs, and what can be asked of a connection. */
#include "traps.h"
#include <linux/filter.h>
#include <linux/sockios.h>

static long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void time_outs(void) {
    Pair pair = on_the_ring();
    struct timeval time = {0, 60000};
    char byte;
    static char much[1 << 20];
    must(setsockopt(pair.far, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0, "SO_RCVTIMEO");
    must(setsockopt(pair.near, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0, "SO_SNDTIMEO");
    long start = now_ms();
    observe_result("recv", recv(pair.far, &byte, 1, 0));
    observe("too early %d, too late %d", now_ms() - start < 60, now_ms() - start > 2000);
    start = now_ms();
    ssize_t sent;
    while ((sent = send(pair.near, much, sizeof much, 0)) > 0)
        ;
    observe_result("send", sent);
    observe("too early %d", now_ms() - start < 60);
    socklen_t length = sizeof time;
    getsockopt(pair.far, SOL_SOCKET, SO_RCVTIMEO, &time, &length);
    observe("%ld us", (long)time.tv_usec);
}

static void do_nothing(int number) { (void)number; }

/* Less than no time is none; the kernel tells of it as of any time. With a handler that restarts calls, they wait in another way. */
static void time_outs_below_zero(void) {
    struct timeval never = {-1, 0};
    socklen_t length = sizeof never;
    static char much[64 << 20];
    for (int i = 0; i < 4; i++) {
        Pair pair = on_the_ring();
        if (i == 2)
            handle(SIGUSR1, do_nothing, SA_RESTART);
        if (i % 2)
            must(send(pair.near, "four", 4, 0) == 4, "send");
        must(setsockopt(pair.far, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never) == 0, "SO_RCVTIMEO");
        must(setsockopt(pair.near, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof never) == 0, "SO_SNDTIMEO");
        if (i % 2 == 0)
            must(send(pair.near, "four", 4, 0) == 4, "send");
        observe_result("recv", recv(pair.far, much, 10, MSG_WAITALL));
        observe_result("recv", recv(pair.far, much, 10, 0));
        ssize_t sent = send(pair.near, much, sizeof much, 0);
        observe("a part %d", sent > 0 && sent < (ssize_t)sizeof much);
        struct timeval told = {7, 7};
        must(getsockopt(pair.far, SOL_SOCKET, SO_RCVTIMEO, &told, &length) == 0, "SO_RCVTIMEO");
        observe("%ld s %ld us", (long)told.tv_sec, (long)told.tv_usec);
        close(pair.near), close(pair.far);
    }
}

/* Set before there is a connection, it is not to be seen afterwards. */
static void time_out_below_zero_before(int inherited) {
    struct timeval never = {-1, 0};
    struct sockaddr_in address;
    char bytes[64] = {0};
    int listener = listen_here(&address, 1), near = socket(AF_INET, SOCK_STREAM, 0);
    must(setsockopt(inherited ? listener : near, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never) == 0, "SO_RCVTIMEO");
    must(connect(near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    int far = accept(listener, NULL, NULL);
    wait_for_both((Pair){near, far});
    if (inherited) {
        int accepted = far;
        far = near;
        near = accepted;
    }
    for (int i = 0; i < 300; i++) {
        struct pollfd entry = {.fd = near, .events = POLLIN};
        must(send(far, bytes, sizeof bytes, 0) == sizeof bytes && poll(&entry, 1, 1000) == 1, "poll");
        must(recv(near, bytes, sizeof bytes, 0) == sizeof bytes, "recv");
        must(send(near, bytes, sizeof bytes, 0) == sizeof bytes && recv(far, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "back");
        if (i % 20 == 0)
            pause_ms(2);
    }
    alarm(5);
    for (int peeks = 1; peeks >= 0; peeks--) {
        must(send(far, "four", 4, 0) == 4, "send");
        pause_ms(5);
        observe_result("recv", recv(near, bytes, sizeof bytes, MSG_WAITALL | (peeks ? MSG_PEEK : 0)));
    }
    alarm(0);
}

static void time_out_below_zero_from_the_start(void) { time_out_below_zero_before(0); }

static void time_out_below_zero_of_a_listener(void) { time_out_below_zero_before(1); }

static void questions(void) {
    Pair pair = on_the_ring();
    int value, type, error;
    socklen_t length = sizeof type;
    struct sockaddr_in name, peer;
    must(send(pair.near, "twelve bytes", 12, 0) == 12, "send");
    ioctl(pair.far, FIONREAD, &value);
    observe("FIONREAD %d", value);
    char buffer[16];
    must(recv(pair.far, buffer, 5, 0) == 5, "recv");
    ioctl(pair.far, SIOCINQ, &value);
    observe("SIOCINQ %d", value);
    must(recv(pair.far, buffer, 7, 0) == 7, "recv");
    pause_ms(60);
    ioctl(pair.near, SIOCOUTQ, &value);
    observe("SIOCOUTQ %d", value);
    observe_result("SIOCATMARK", ioctl(pair.far, SIOCATMARK, &value));
    observe("%d", value);
    getsockopt(pair.far, SOL_SOCKET, SO_TYPE, &type, &length);
    getsockopt(pair.far, SOL_SOCKET, SO_ERROR, &error, &length);
    observe("type %d, error %d", type, error);
    length = sizeof name;
    getsockname(pair.near, (struct sockaddr *)&name, &length);
    getpeername(pair.far, (struct sockaddr *)&peer, &length);
    observe("the same address %d", memcmp(&name, &peer, length) == 0);
    struct tcp_info info;
    length = sizeof info;
    getsockopt(pair.far, IPPROTO_TCP, TCP_INFO, &info, &length);
    observe("state %d", info.tcpi_state);
    observe_result("pread", pread(pair.far, buffer, 1, 0));
    observe_result("pwrite", pwrite(pair.near, buffer, 1, 0));
    observe_result("lseek", lseek(pair.near, 0, SEEK_CUR));
}

/* The fields of a kernel that is newer than the C library's header. */
typedef struct {
    struct tcp_info head;
    char rest[256 - sizeof(struct tcp_info)];
} Info;

static uint64_t word_of(const Info *info, size_t place) {
    uint64_t word;
    memcpy(&word, (const char *)info + place, sizeof word);
    return word;
}

/* Who asks for a part of the answer gets as much of each number. */
static void info_is_cut_off(void) {
    enum { BYTES_RECEIVED = 128, BYTES_SENT = 200 };
    Pair pair = on_the_ring();
    Info whole = {0}, part;
    socklen_t length = sizeof whole;
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    must(getsockopt(pair.far, IPPROTO_TCP, TCP_INFO, &whole, &length) == 0, "TCP_INFO");
    for (int cut = 1; cut < 8; cut++) {
        int all = 0;
        for (int field = BYTES_RECEIVED; field <= BYTES_SENT; field += BYTES_SENT - BYTES_RECEIVED) {
            memset(&part, 0, sizeof part);
            length = field + cut;
            must(getsockopt(pair.far, IPPROTO_TCP, TCP_INFO, &part, &length) == 0, "TCP_INFO");
            all += memcmp((char *)&part + field, (char *)&whole + field, cut) == 0;
        }
        observe("%d bytes: %d as in the whole", cut, all);
    }
}

/* Without what was sent again, as a kernel does that waits in vain for a moment. */
static uint64_t sent_once(const Info *info) {
    enum { BYTES_SENT = 200, BYTES_RETRANSMITTED = 208 };
    return word_of(info, BYTES_SENT) - word_of(info, BYTES_RETRANSMITTED);
}

static Info info_of(int fd) {
    Info info = {0};
    socklen_t length = sizeof info;
    must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0, "getsockopt");
    return info;
}

/* Waits until all that was sent is acknowledged. */
static Info settled(int fd) {
    int queued = 1;
    for (int i = 0; i < 1000 && queued != 0; i++, usleep(1000))
        must(ioctl(fd, TIOCOUTQ, &queued) == 0, "ioctl");
    return info_of(fd);
}

static void info_counts_bytes(void) {
    enum { BYTES_ACKED = 120, BYTES_RECEIVED = 128 };
    Pair pair = on_the_ring();
    char bytes[1000] = {0};
    int low = 2;
    for (int round = 0; round < 4; round++) {
        Info near = settled(pair.near), far = settled(pair.far);
        for (int i = 0; i < 20; i++)
            must(send(pair.near, bytes, 100 + i, 0) == 100 + i, "send");
        settled(pair.near);
        Info unread = info_of(pair.far);
        observe("unread, received: %lu", word_of(&unread, BYTES_RECEIVED) - word_of(&far, BYTES_RECEIVED));
        if (round == 2) {
            /* What is unread is the kernel's now. */
            must(setsockopt(pair.far, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0, "setsockopt");
        }
        must(recv(pair.far, bytes, 1000, MSG_WAITALL) == 1000, "recv");
        must(recv(pair.far, bytes, 1000, MSG_WAITALL) == 1000, "recv");
        must(recv(pair.far, bytes, 190, MSG_WAITALL) == 190, "recv");
        must(send(pair.far, bytes, 77, 0) == 77 && recv(pair.near, bytes, 77, MSG_WAITALL) == 77, "answer");
        Info near_now = settled(pair.near), far_now = settled(pair.far);
        for (int place = BYTES_ACKED; place <= BYTES_RECEIVED; place += 8)
            observe("%d: near %lu, far %lu", place, word_of(&near_now, place) - word_of(&near, place),
                    word_of(&far_now, place) - word_of(&far, place));
        observe("sent: near %lu, far %lu", sent_once(&near_now) - sent_once(&near), sent_once(&far_now) - sent_once(&far));
    }
}

static void info_tells_how_long_ago(void) {
    Pair pair = on_the_ring();
    char bytes[10] = {0};
    for (int round = 0; round < 4; round++) {
        usleep(300000);
        Info near = info_of(pair.near), far = info_of(pair.far);
        observe("sent long ago: %d, received: %d", near.head.tcpi_last_data_sent >= 250, far.head.tcpi_last_data_recv >= 250);
        must(send(pair.near, bytes, 10, 0) == 10 && recv(pair.far, bytes, 10, MSG_WAITALL) == 10, "message");
        near = info_of(pair.near), far = info_of(pair.far);
        observe("just sent: %d, received: %d", near.head.tcpi_last_data_sent < 200, far.head.tcpi_last_data_recv < 200);
    }
}

static void no_delay_is_the_program_s(void) {
    Pair pair = on_the_ring();
    int values[] = {0, 1, 0};
    for (int i = 0; i < 4; i++) {
        int value = -1;
        socklen_t length = sizeof value;
        getsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &value, &length);
        observe("TCP_NODELAY %d", value);
        if (i < 3)
            setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &values[i], sizeof value);
        talk(pair.near, pair.far);
    }
}

static void *read_stream(void *descriptor) {
    char bytes[100];
    FILE *stream = fdopen(*(int *)descriptor, "r");
    must(stream != NULL, "fdopen");
    while (fread(bytes, sizeof bytes, 1, stream) == 1)
        ;
    fclose(stream);
    return NULL;
}

/* How many packets with data were sent: `tcpi_data_segs_out`, which the C library's `struct tcp_info` has not. */
static unsigned packets_sent(int fd) {
    unsigned info[64] = {0};
    socklen_t length = sizeof info;
    must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0 && length >= 160, "TCP_INFO");
    return info[39];
}

/* Small messages are merged by the kernel where they go to one who has left the ring for good. */
static void small_messages_to_a_stream(void) {
    enum { MESSAGES = 20000 };
    Pair pair = on_the_ring();
    char message[100] = "";
    pthread_t reader = start_thread(read_stream, &pair.far);
    pause_ms(20);
    unsigned before = packets_sent(pair.near);
    for (int i = 0; i < MESSAGES; i++)
        must(send(pair.near, message, sizeof message, 0) == sizeof message, "send");
    observe("merged: %d", packets_sent(pair.near) - before < MESSAGES / 2);
    shutdown(pair.near, SHUT_WR);
    pthread_join(reader, NULL);
}

/* A connection whose receiving end has an option: after it is on the ring, before that, or from the listener. */
static Pair with_option(int when, int level, int name) {
    struct sockaddr_in address;
    int on = 1, listener = listen_here(&address, 1);
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    if (when == 2)
        observe_result("setsockopt", setsockopt(listener, level, name, &on, sizeof on));
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    close(listener);
    if (when == 0)
        talk_until_on_ring(pair, 1);
    if (when < 2)
        observe_result("setsockopt", setsockopt(pair.far, level, name, &on, sizeof on));
    return pair;
}

/* What comes beside the bytes, of each kind. */
static void control_messages(void) {
    static const struct {
        int level, name;
    } options[] = {{IPPROTO_TCP, TCP_INQ},         {SOL_SOCKET, SO_TIMESTAMP},       {SOL_SOCKET, SO_TIMESTAMPNS},
                   {SOL_SOCKET, SO_TIMESTAMP_NEW}, {SOL_SOCKET, SO_TIMESTAMPNS_NEW}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        for (int when = 0; when < 3; when++) {
            Pair pair = with_option(when, options[i].level, options[i].name);
            // The kernel begins to stamp a little later.
            pause_ms(50);
            talk(pair.near, pair.far);
            talk(pair.far, pair.near);
            must(send(pair.near, "twelve bytes", 12, 0) == 12, "send");
            pause_ms(20);
            char buffer[4], control[256];
            struct iovec vector = {buffer, sizeof buffer};
            struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            observe_result("recvmsg", recvmsg(pair.far, &header, 0));
            for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at != NULL; at = CMSG_NXTHDR(&header, at)) {
                int value = 0;
                memcpy(&value, CMSG_DATA(at), sizeof value);
                observe("level %d type %d: %d", at->cmsg_level, at->cmsg_type, at->cmsg_type == TCP_CM_INQ ? value : -1);
            }
            close(pair.near);
            close(pair.far);
        }
    }
}

/* SO_RCVLOWAT is set while fewer bytes are unread: they are not enough any more. */
static void too_few_are_unread(void) {
    Pair pair = on_the_ring();
    must(send(pair.near, "twelve bytes", 12, 0) == 12, "send");
    pause_ms(20);
    int least = 20, set = epoll_create1(0);
    struct pollfd item = {.fd = pair.far, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "add");
    observe("poll %d, epoll_wait %d", poll(&item, 1, 0), epoll_wait(set, &event, 1, 0));
    observe_result("setsockopt", setsockopt(pair.far, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least));
    observe("poll %d, epoll_wait %d", poll(&item, 1, 0), epoll_wait(set, &event, 1, 0));
    must(send(pair.near, "twelve bytes", 12, 0) == 12, "send");
    observe("poll %d, epoll_wait %d", poll(&item, 1, 1000), epoll_wait(set, &event, 1, 1000));
    char buffer[32];
    observe_result("recv", recv(pair.far, buffer, sizeof buffer, 0));
}

static int listening(struct sockaddr_in *address, int level, int name) {
    int on = 5;
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (name != 0)
        observe_result("on the listener", setsockopt(listener, level, name, &on, sizeof on));
    must(bind(listener, (struct sockaddr *)address, length) == 0 && listen(listener, 5) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)address, &length) == 0, "getsockname");
    return listener;
}

static void *read_million(void *fd) {
    static char bytes[1 << 20];
    must(recv(*(int *)fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "recv");
    return NULL;
}

static void send_paced(Pair pair) {
    static char bytes[1 << 20];
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    pthread_t reader = start_thread(read_million, &pair.far);
    must(send(pair.near, bytes, sizeof bytes, 0) == sizeof bytes, "send");
    pthread_join(reader, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
    observe("a million bytes took %s", seconds > 0.1 ? "a while" : "no time");
}

/* Four million bytes a second: also where it was set before the connection began. */
static void paced(void) {
    unsigned long rate = 4000000;
    Pair pair = on_the_ring();
    observe_result("setsockopt", setsockopt(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
    send_paced(pair);
    struct sockaddr_in address;
    int listener = listening(&address, 0, 0);
    Pair second = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    observe_result("setsockopt", setsockopt(second.near, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(int)));
    must(connect(second.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    second.far = accept(listener, NULL, NULL);
    talk(second.near, second.far);
    talk(second.far, second.near);
    send_paced(second);
}

static void fast_open(void) {
    struct sockaddr_in address;
    for (int way = 0; way < 2; way++) {
        int listener = listening(&address, IPPROTO_TCP, TCP_FASTOPEN), on = 1;
        Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
        if (way == 0) {
            observe_result("sendto", sendto(pair.near, "first", 5, MSG_FASTOPEN, (struct sockaddr *)&address, sizeof address));
        } else {
            observe_result("option", setsockopt(pair.near, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on));
            observe_result("connect", connect(pair.near, (struct sockaddr *)&address, sizeof address));
            observe_result("write", write(pair.near, "first", 5));
        }
        pair.far = accept(listener, NULL, NULL);
        char buffer[8];
        observe_result("recv", recv(pair.far, buffer, 5, MSG_WAITALL));
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        observe("talked");
        close(listener);
        close(pair.near);
        close(pair.far);
    }
}

/* Options of the listener are those of its connections. */
static void inherited_from_the_listener(void) {
    struct sockaddr_in address;
    int listener = listening(&address, SOL_SOCKET, SO_RCVLOWAT);
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    struct pollfd fd = {pair.far, POLLIN, 0};
    must(send(pair.near, "four", 4, 0) == 4, "send");
    observe_result("poll", poll(&fd, 1, 100));
    must(send(pair.near, "more", 4, 0) == 4, "send");
    observe_result("poll", poll(&fd, 1, -1));
}

/* Lets segments of up to 300 bytes through, with what is before their payload. */
static void set_filter(int fd) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 300, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    must(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0, "setsockopt");
}

/* A filter that is there before the connection, at the end that connects or on the listener, sees its packets. */
static void filtered(int is_inherited) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1);
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    set_filter(is_inherited ? listener : pair.near);
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    for (int i = 0; i < 10; i++) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        pause_ms(5);
    }
    int from = is_inherited ? pair.near : pair.far, to = is_inherited ? pair.far : pair.near;
    char bytes[1000] = {0};
    must(send(from, bytes, sizeof bytes, 0) == sizeof bytes, "send");
    pause_ms(60);
    observe_result("too long", recv(to, bytes, sizeof bytes, MSG_DONTWAIT));
}

static void filtered_from_the_start(void) { filtered(0); }

static void filtered_as_the_listener_is(void) { filtered(1); }

static volatile sig_atomic_t signals;

static void count(int number) {
    (void)number;
    signals++;
}

static void signal_driven(void) {
    Pair pair = on_the_ring();
    handle(SIGIO, count, SA_RESTART);
    fcntl(pair.far, F_SETOWN, getpid());
    fcntl(pair.far, F_SETFL, O_ASYNC | O_NONBLOCK);
    for (int i = 0; i < 3; i++) {
        int before = signals;
        must(send(pair.near, "io", 2, 0) == 2, "send");
        for (int patience = 200; signals == before && patience > 0; patience--)
            pause_ms(5);
        observe("a signal came %d", signals > before);
        char buffer[8];
        observe_result("recv", recv(pair.far, buffer, sizeof buffer, 0));
        observe_result("recv", recv(pair.far, buffer, sizeof buffer, 0));
    }
}

static void dissolved_and_connected_again(void) {
    struct sockaddr_in address;
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    Pair pair = on_the_ring();
    char byte;
    must(send(pair.far, "unread", 6, 0) == 6, "send");
    observe_result("dissolve", connect(pair.near, &nobody, sizeof nobody));
    observe_result("send", send(pair.near, "x", 1, MSG_NOSIGNAL));
    observe_result("recv", recv(pair.far, &byte, 1, 0));
    int listener = listening(&address, 0, 0);
    observe_result("connect", connect(pair.near, (struct sockaddr *)&address, sizeof address));
    Pair again = {pair.near, accept(listener, NULL, NULL)};
    talk(again.near, again.far);
    talk(again.far, again.near);
    observe("talked");
}

static ssize_t queue_of(int fd, int queue, char *bytes, size_t length) {
    must(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &(int){1}, sizeof(int)) == 0, "repair");
    must(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof queue) == 0, "queue");
    ssize_t got = recv(fd, bytes, length, MSG_PEEK | MSG_DONTWAIT);
    must(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &(int){0}, sizeof(int)) == 0, "no repair");
    return got;
}

/* Whoever copies a connection's state finds what has been received and not read. */
static void state_to_copy(void) {
    Pair pair = on_the_ring();
    char bytes[64];
    must(send(pair.near, "unread", 6, 0) == 6 && send(pair.far, "others", 6, 0) == 6, "send");
    usleep(2000);
    ssize_t got = queue_of(pair.far, TCP_RECV_QUEUE, bytes, sizeof bytes);
    observe("received and not read: %.*s", (int)got, bytes);
    got = queue_of(pair.near, TCP_RECV_QUEUE, bytes, sizeof bytes);
    observe("received and not read: %.*s", (int)got, bytes);
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    observe_result("recv", recv(pair.near, bytes, sizeof bytes, 0));
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(state_to_copy),
        CASE(time_outs),
        CASE(time_outs_below_zero),
        CASE(time_out_below_zero_from_the_start),
        CASE(time_out_below_zero_of_a_listener),
        CASE(questions),
        CASE(info_counts_bytes),
        CASE(info_is_cut_off),
        CASE(info_tells_how_long_ago),
        CASE(no_delay_is_the_program_s),
        CASE(small_messages_to_a_stream),
        CASE(control_messages),
        CASE(too_few_are_unread),
        CASE(paced),
        CASE(fast_open),
        CASE(inherited_from_the_listener),
        CASE(filtered_from_the_start),
        CASE(filtered_as_the_listener_is),
        CASE(signal_driven),
        CASE(dissolved_and_connected_again),
        {0},
    };
    return run_cases(cases, argc, argv);
}
