/* A peer was killed, and then another program, or another process, goes on with the connection: what TCP would tell it, it is told. */
#include "killed.h"

/* Waits half a second for a state, since a busy kernel handles what has been sent a moment later; returns what it is then. */
static int await_state(int fd, int state) {
    struct tcp_info info = {0};
    for (int patience = 500; patience > 0 && info.tcpi_state != state; patience--) {
        socklen_t length = sizeof info;
        pause_ms(1);
        must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0, "TCP_INFO");
    }
    return info.tcpi_state;
}

/* Reads whatever there is, shuts the other direction down, and says what becomes of that. */
static void go_on_with(int fd) {
    char bytes[1000];
    ssize_t got, all = 0;
    observe_poll(fd, POLLIN | POLLOUT | POLLRDHUP);
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        all += got;
    observe_result("read all, then", got);
    observe("%zd bytes", all);
    receive(fd);
    observe_poll(fd, POLLIN | POLLOUT | POLLRDHUP);
    observe_result("shutdown", shutdown(fd, SHUT_WR));
    observe("state %d", await_state(fd, TCP_CLOSE));
    observe_error(fd);
}

static void become_another_program(int fd) {
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    execl("/proc/self/exe", "bereaved", "go_on_with", number, NULL);
}

/* The process that the descriptor is passed to was there before the connection. */
static pid_t receiver(int *road) {
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        struct sockaddr_in address, told;
        socklen_t length = sizeof address;
        int fd = take(ends[1], &told, sizeof told);
        must(getsockname(fd, (struct sockaddr *)&address, &length) == 0, "getsockname");
        observe("its address is %s", memcmp(&address, &told, sizeof told) == 0 ? "the same" : "another");
        go_on_with(fd);
        _exit(0);
    }
    close(ends[1]);
    *road = ends[0];
    return child;
}

static void pass_on(int road, int fd, pid_t child) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    must(getsockname(fd, (struct sockaddr *)&address, &length) == 0, "getsockname");
    pass(road, fd, &address, sizeof address);
    must(waitpid(child, NULL, 0) == child, "waitpid");
}

/* ---- The peer has left bytes of ours unread: a reset. ---- */

static void reset_and_another_program(void) {
    pid_t peer;
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    observe_poll(fd, POLLOUT);
    become_another_program(fd);
}

static void reset_that_nobody_saw_and_another_program(void) {
    pid_t peer;
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    become_another_program(fd);
}

static void reset_and_passed_on(void) {
    int road;
    pid_t peer, child = receiver(&road);
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    observe_poll(fd, POLLOUT);
    pass_on(road, fd, child);
}

/* The parent does not know what the child has registered. */
static void reset_in_a_set_that_another_changes(void) {
    pid_t peer;
    int fd = to_one_that_stops(&peer), set = epoll_create1(0);
    leave_unread_and_kill(fd, peer);
    observe_poll(fd, POLLOUT);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0)
        _exit(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLOUT, {0}}) != 0);
    must(waitpid(child, NULL, 0) == child, "waitpid");
    observe_set(set);
}

/* ---- And bytes of the peer's are unread, too. ---- */

static void reset_behind_last_words(void) {
    pid_t peer;
    int fd = to_one_that_is_told("leave", &peer);
    leave_unread_and_kill(fd, peer);
    observe_poll(fd, POLLOUT);
    become_another_program(fd);
}

static void reset_that_was_told_before_last_words(void) {
    pid_t peer;
    int fd = to_one_that_is_told("leave", &peer);
    leave_unread_and_kill(fd, peer);
    observe_error(fd);
    become_another_program(fd);
}

/* A program that has the connection, too, comes and goes before. */
static void reset_behind_last_words_and_two_programs(void) {
    pid_t peer;
    int fd = to_one_that_is_told("leave", &peer);
    leave_unread_and_kill(fd, peer);
    must(system("true") == 0, "system");
    become_another_program(fd);
}

static void reset_behind_last_words_and_passed_on(void) {
    int road;
    pid_t peer, child = receiver(&road);
    int fd = to_one_that_is_told("leave", &peer);
    leave_unread_and_kill(fd, peer);
    pass_on(road, fd, child);
}

/* ---- It has read all of ours: a FIN. ---- */

static int to_one_with_last_words(pid_t *peer) {
    int fd = to_one_that_is_told("leave", peer);
    kill(*peer, SIGKILL);
    must(waitpid(*peer, NULL, 0) == *peer, "waitpid");
    must(await_state(fd, TCP_CLOSE_WAIT) == TCP_CLOSE_WAIT, "FIN");
    return fd;
}

static void end_behind_last_words(void) {
    pid_t peer;
    become_another_program(to_one_with_last_words(&peer));
}

static void end_behind_last_words_and_passed_on(void) {
    int road;
    pid_t peer, child = receiver(&road);
    pass_on(road, to_one_with_last_words(&peer), child);
}

/* A child has the connection, too, and has sent what nobody takes. */
static void broken_pipe_behind_last_words(void) {
    pid_t peer;
    int fd = to_one_with_last_words(&peer), done[2];
    must(pipe(done) == 0, "pipe");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        observe_result("send", send(fd, "x", 1, MSG_NOSIGNAL));
        must(write(done[1], "x", 1) == 1, "write");
        pause_ms(500);
        _exit(0);
    }
    char byte;
    must(read(done[0], &byte, 1) == 1, "read");
    become_another_program(fd);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(reset_and_another_program),
        CASE(reset_that_nobody_saw_and_another_program),
        CASE(reset_and_passed_on),
        CASE(reset_in_a_set_that_another_changes),
        CASE(reset_behind_last_words),
        CASE(reset_that_was_told_before_last_words),
        CASE(reset_behind_last_words_and_two_programs),
        CASE(reset_behind_last_words_and_passed_on),
        CASE(end_behind_last_words),
        CASE(end_behind_last_words_and_passed_on),
        CASE(broken_pipe_behind_last_words),
        {0},
    };
    if (argc == 3 && strcmp(argv[1], "go_on_with") == 0) {
        go_on_with(atoi(argv[2]));
        return 0;
    }
    return run_cases(cases, argc, argv);
}
