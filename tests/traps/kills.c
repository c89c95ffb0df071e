/* A peer is killed with bytes of ours unread: TCP resets the connection, and tells of that once. */
#include "traps.h"

static int listen_on(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)address, length) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)address, &length) == 0, "getsockname");
    return listener;
}

/* Last words, 64 times as long as these numbers say. */
enum { LAST_WORDS = 100, MANY_WORDS = 20000 };

/* Echoes until it is told to stop, and reads no more then; or to leave, and says its last words; or to end after many of them. */
static void echo_and_stop(const struct sockaddr_in *address) {
    char message[64];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0, "connect");
    while (recv(fd, message, sizeof message, MSG_WAITALL) == sizeof message && message[0] == 'e')
        must(send(fd, message, sizeof message, 0) == sizeof message, "echo");
    int ends = message[0] == 'm', last_words = ends ? MANY_WORDS : message[0] == 'l' ? LAST_WORDS : 0;
    for (int i = 0; i < last_words; i++) {
        snprintf(message, sizeof message, "%62d\n", i);
        must(send(fd, message, sizeof message, 0) == sizeof message, "last words");
    }
    if (ends)
        _exit(0);
    for (;;)
        pause();
}

static void ask(int fd, const char *what) {
    char message[64] = {0};
    strcpy(message, what);
    must(send(fd, message, sizeof message, 0) == sizeof message, "send");
    if (what[0] == 'e')
        must(recv(fd, message, sizeof message, MSG_WAITALL) == sizeof message, "recv");
}

/* A connection to a peer that will be killed, which has just done as it was told. */
static int to_one_that_is_told(const char *what, pid_t *peer) {
    struct sockaddr_in address;
    int listener = listen_on(&address);
    *peer = fork();
    must(*peer >= 0, "fork");
    if (*peer == 0)
        echo_and_stop(&address);
    int fd = accept(listener, NULL, NULL);
    must(fd >= 0, "accept");
    /* What is sent is there before the peer is killed. */
    must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "setsockopt");
    close(listener);
    int patience = 100;
    do {
        for (int i = 0; i < 50; i++)
            ask(fd, "echo");
    } while (on_ring() < 1 && --patience > 0);
    must(patience > 0, "the ring");
    ask(fd, what);
    pause_ms(20);
    return fd;
}

/* One that has stopped reading. */
static int to_one_that_stops(pid_t *peer) { return to_one_that_is_told("stop", peer); }

static void leave_unread_and_kill(int fd, pid_t peer) {
    char bytes[200] = {0};
    must(send(fd, bytes, sizeof bytes, 0) == sizeof bytes, "send");
    kill(peer, SIGKILL);
    must(waitpid(peer, NULL, 0) == peer, "waitpid");
    pause_ms(20);
}

static void observe_error(int fd) {
    int error;
    socklen_t length = sizeof error;
    must(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0, "SO_ERROR");
    observe("error %s", strerrorname_np(error));
}

static void observe_poll(int fd, short events) {
    struct pollfd item = {.fd = fd, .events = events};
    int count = poll(&item, 1, 0);
    observe("poll for %x: %d, %x", events, count, item.revents);
}

static void polled(short events) {
    pid_t peer;
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    observe_poll(fd, events);
    observe_poll(fd, events);
    observe_error(fd);
    observe_poll(fd, events);
}

static void polled_for_writing(void) { polled(POLLOUT); }

static void polled_for_reading(void) { polled(POLLIN); }

static void polled_for_both(void) { polled(POLLIN | POLLOUT | POLLRDHUP); }

static void polled_for_nothing(void) { polled(0); }

static void observe_set(int set) {
    struct epoll_event event = {0};
    int count = epoll_wait(set, &event, 1, 0);
    observe("set: %d, %x", count, event.events);
}

static void in_a_set(unsigned events) {
    pid_t peer;
    int fd = to_one_that_stops(&peer), set = epoll_create1(0);
    must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){events, {0}}) == 0, "add");
    leave_unread_and_kill(fd, peer);
    observe_set(set);
    observe_set(set);
    observe_error(fd);
    observe_set(set);
}

static void in_a_set_for_writing(void) { in_a_set(EPOLLOUT); }

static void in_a_set_for_reading(void) { in_a_set(EPOLLIN); }

/* Runs `part` in a forked child, and waits for its end. */
static void in_a_child(void (*part)(int), int fd) {
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        part(fd);
        _exit(0);
    }
    must(waitpid(child, NULL, 0) == child, "waitpid");
}

static void receive(int fd) {
    char byte;
    observe_result("recv", recv(fd, &byte, 1, 0));
}

static void send_one(int fd) { observe_result("send", send(fd, "x", 1, MSG_NOSIGNAL)); }

static void poll_it(int fd) { observe_poll(fd, POLLOUT); }

/* Whoever of those that have the connection asks first hears of it, and no other. */
static void told_to_one_of_two(void) {
    pid_t peer;
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    observe_poll(fd, POLLIN);
    in_a_child(send_one, fd);
    receive(fd);
    poll_it(fd);
    send_one(fd);
}

/* The child only looks, and the parent hears of it. */
static void left_to_the_parent(void) {
    pid_t peer;
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    in_a_child(poll_it, fd);
    receive(fd);
    in_a_child(receive, fd);
}

/* A program that knows nothing of the connection reads what a peer has said that is gone. */
static void read_on_by_another_program(const char *command, const char *told) {
    pid_t peer;
    int fd = to_one_that_is_told(told, &peer);
    if (told[0] == 'l')
        kill(peer, SIGKILL);
    must(waitpid(peer, NULL, 0) == peer, "waitpid");
    char first[100];
    observe_result("recv", recv(fd, first, sizeof first, MSG_WAITALL));
    must(dup2(fd, 0) == 0, "dup2");
    close(fd);
    execl("/bin/sh", "sh", "-c", command, NULL);
}

static void killed_and_read_on_by_another_program(void) { read_on_by_another_program("cat", "leave"); }

static void ended_and_read_on_by_another_program(void) { read_on_by_another_program("cksum", "many words"); }

/* ---- One of two processes that have a connection is killed. ---- */

enum { LONG = 100000, LAST = 3000 };

/* Waits for a byte of `start`, and sends a message of its own. */
static void send_last(int fd, int start) {
    char message[LAST], byte;
    memset(message, 'b', sizeof message);
    must(read(start, &byte, 1) == 1, "read");
    _exit(send(fd, message, sizeof message, MSG_NOSIGNAL) != sizeof message);
}

/* Sends long messages on a connection that a child of its has, too, until it is killed. */
static void send_until_killed(int fd, int start) {
    static char message[LONG];
    memset(message, 'a', sizeof message);
    must(send(fd, message, 1, 0) == 1, "send");
    pid_t other = fork();
    must(other >= 0, "fork");
    if (other == 0)
        send_last(fd, start);
    while (send(fd, message, sizeof message, MSG_NOSIGNAL) > 0)
        ;
    _exit(9);
}

/* The other one's message comes whole, behind whatever has come of the one that was killed. */
static void killed_in_the_middle_of_a_message(void) {
    int whole = 0;
    for (int round = 0; round < 60; round++) {
        Pair pair = on_the_ring();
        int start[2];
        must(pipe(start) == 0, "pipe");
        pid_t sender = fork();
        must(sender >= 0, "fork");
        if (sender == 0) {
            close(pair.far);
            send_until_killed(pair.near, start[0]);
        }
        close(pair.near);
        close(start[0]);
        char bytes[8192];
        size_t first = 0, last = 0, others = 0;
        ssize_t got;
        while ((got = recv(pair.far, bytes, sizeof bytes, 0)) > 0) {
            for (ssize_t i = 0; i < got; i++) {
                first += bytes[i] == 'a';
                last += bytes[i] == 'b';
                others += bytes[i] == 'a' && last > 0 && last < LAST;
            }
            if (sender != 0 && first > 1000u * (round + 1)) {
                must(write(start[1], "x", 1) == 1 && kill(sender, SIGKILL) == 0, "kill");
                must(waitpid(sender, NULL, 0) == sender, "waitpid");
                sender = 0;
            }
        }
        whole += got == 0 && last == LAST && others == 0;
        close(pair.far);
        close(start[1]);
    }
    observe("%d came whole", whole);
}

/* ---- A reader is killed while what it has not read is sent to it again by the kernel. ---- */

static void *kill_soon(void *argument) {
    int *order = argument;
    char byte;
    must(read(order[0], &byte, 1) == 1, "read");
    for (volatile int i = 0; i < order[1]; i++)
        ;
    kill(order[2], SIGKILL);
    return NULL;
}

static void killed_in_a_recall(void) {
    int resets = 0;
    for (int round = 0; round < 100; round++) {
        Pair pair = on_the_ring();
        char bytes[200] = {0}, byte;
        int start[2];
        must(pipe(start) == 0, "pipe");
        must(send(pair.near, bytes, sizeof bytes, 0) == sizeof bytes, "send");
        pid_t reader = fork();
        must(reader >= 0, "fork");
        if (reader == 0) {
            close(pair.near);
            must(recv(pair.far, bytes, 10, 0) == 10 && write(start[1], "x", 1) == 1, "recv");
            fcntl(pair.far, F_SETFL, O_ASYNC);
            for (;;)
                pause();
        }
        close(pair.far);
        int order[] = {start[0], round * 5000, reader};
        pthread_t killer = start_thread(kill_soon, order);
        pthread_join(killer, NULL);
        must(waitpid(reader, NULL, 0) == reader, "waitpid");
        resets += recv(pair.near, &byte, 1, 0) == -1 && errno == ECONNRESET;
        close(pair.near), close(start[0]), close(start[1]);
    }
    observe("%d resets", resets);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(polled_for_writing),
        CASE(polled_for_reading),
        CASE(polled_for_both),
        CASE(polled_for_nothing),
        CASE(in_a_set_for_writing),
        CASE(in_a_set_for_reading),
        CASE(told_to_one_of_two),
        CASE(left_to_the_parent),
        CASE(killed_and_read_on_by_another_program),
        CASE(ended_and_read_on_by_another_program),
        CASE(killed_in_the_middle_of_a_message),
        CASE(killed_in_a_recall),
        {0},
    };
    return run_cases(cases, argc, argv);
}
