/* A peer is killed with bytes of ours unread: TCP resets the connection, and tells of that once. */
#include "killed.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

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

static void poll_it(int fd) { observe_poll(fd, POLLOUT); }

static void send_one(int fd) { observe_result("send", send(fd, "x", 1, MSG_NOSIGNAL)); }

static void ask_for(int way, int fd) {
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    struct iovec none = {&address, 0};
    switch (way) {
    case 0: observe_result("getpeername", getpeername(fd, (struct sockaddr *)&address, &length)); break;
    case 1: observe_result("by its number", syscall(SYS_getpeername, fd, &address, &length)); break;
    case 2: observe_result("shutdown for reading", shutdown(fd, SHUT_RD)); break;
    case 3: observe_result("shutdown for writing", shutdown(fd, SHUT_WR)); break;
    case 4: observe_result("shutdown for both", shutdown(fd, SHUT_RDWR)); break;
    case 5: observe_result("send of none", send(fd, &address, 0, MSG_NOSIGNAL)); break;
    case 6: observe_result("write of none", write(fd, NULL, 0)); break;
    case 7: observe_result("writev of none", writev(fd, &none, 1)); break;
    case 8: observe_result("read of none", read(fd, &address, 0)); break;
    case 9: observe_result("readv of none", readv(fd, &none, 1)); break;
    case 10: observe_result("recv of none", recv(fd, &address, 0, MSG_DONTWAIT)); break;
    }
}

/* What is asked first for no bytes, or for none at all. */
static void asked_without_bytes(void) {
    handle(SIGPIPE, SIG_IGN, 0);
    for (int way = 0; way <= 10; way++) {
        pid_t peer;
        int fd = to_one_that_stops(&peer);
        leave_unread_and_kill(fd, peer);
        ask_for(way, fd);
        observe_poll(fd, POLLIN | POLLOUT | POLLRDHUP);
        receive(fd);
        receive(fd);
        send_one(fd);
        ask_for(way, fd);
        close(fd);
    }
}

static void *receive_all_of_four(void *ended) {
    int *call = ended;
    char bytes[4];
    call[1] = recv(call[0], bytes, sizeof bytes, MSG_WAITALL);
    return NULL;
}

/* A reset behind bytes that a call returns is for the next call, of those that ask the connection. */
static void a_reset_behind_bytes(void) {
    for (int way = 8; way <= 9; way++) {
        Pair pair = on_the_ring();
        must(send(pair.near, "abc", 3, 0) == 3, "send");
        pause_ms(2);
        int call[2] = {pair.far};
        pthread_t thread = start_thread(receive_all_of_four, call);
        pause_ms(20);
        setsockopt(pair.near, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        close(pair.near);
        pthread_join(thread, NULL);
        observe("recv: %d", call[1]);
        ask_for(way, pair.far);
        receive(pair.far);
        receive(pair.far);
        close(pair.far);
    }
}

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

/* ---- A FIN and bytes of ours unread, of a peer that lives: it has shut its direction down where no library sees it. ---- */

static void half_closed_past_the_library(void) {
#ifdef __x86_64__
    for (int how = SHUT_WR; how <= SHUT_RDWR; how++) {
        Pair pair = on_the_ring();
        char bytes[64];
        long result;
        must(send(pair.far, "unread", 6, 0) == 6, "send");
        __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_shutdown), "D"((long)pair.near), "S"((long)how) : "rcx", "r11", "memory");
        must(result == 0, "shutdown");
        pause_ms(5);
        observe_poll(pair.far, POLLIN | POLLOUT | POLLRDHUP);
        receive(pair.far);
        receive(pair.far);
        observe_error(pair.far);
        if (how == SHUT_WR)
            must(send(pair.far, " and more", 9, 0) == 9, "send");
        pause_ms(5);
        ssize_t count = recv(pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
        observe("recv: %zd, %.*s", count, count < 0 ? 0 : (int)count, bytes);
        close(pair.near), close(pair.far);
    }
#endif
}

/* Who has the other end cannot be known: it might be in another network namespace. The peer's last word comes by the kernel. */
static void killed_where_nothing_is_known_of_it(void) {
#ifdef __x86_64__
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    pid_t peer;
    long result;
    char word[64];
    int fd = to_one_that_is_told("wait", &peer), set = epoll_create1(0);
    must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {0}}) == 0, "add");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    /* Past the library, which would leave its roads for good. */
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_seccomp), "D"(1L), "S"(0L), "d"(&program) : "rcx", "r11", "memory");
    must(result == 0, "seccomp");
    must(send(fd, word, sizeof word, 0) == sizeof word, "send");
    struct pollfd item = {.fd = fd, .events = POLLIN};
    observe_result("poll", poll(&item, 1, 2000));
    kill(peer, SIGKILL);
    must(waitpid(peer, NULL, 0) == peer, "waitpid");
    pause_ms(20);
    observe_poll(fd, POLLIN);
    observe_set(set);
    observe_result("recv", recv(fd, word, sizeof word, MSG_WAITALL));
    for (int i = 0; i < 3; i++)
        receive(fd);
    observe_error(fd);
    observe_set(set);
#endif
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
        CASE(asked_without_bytes),
        CASE(a_reset_behind_bytes),
        CASE(half_closed_past_the_library),
        CASE(killed_where_nothing_is_known_of_it),
        {0},
    };
    return run_cases(cases, argc, argv);
}
