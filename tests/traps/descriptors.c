/* Descriptors that are copied, closed, passed and used again. */
#include "traps.h"
#include <spawn.h>
#include <sys/resource.h>

extern char **environ;

static Pair the_pair;
static atomic_int receives;

static void *receive_once(void *answer) {
    char buffer[16];
    atomic_store(&receives, 1);
    *(ssize_t *)answer = recv(the_pair.far, buffer, sizeof buffer, 0);
    return NULL;
}

static pthread_t start_receiving(ssize_t *answer) {
    pthread_t thread = start_thread(receive_once, answer);
    while (!atomic_load(&receives))
        pause_ms(1);
    pause_ms(50);
    return thread;
}

/* The file outlives its descriptor while a call is under way. */
static void closed_under_a_sleeper(void) {
    ssize_t answer = -2;
    the_pair = on_the_ring();
    pthread_t thread = start_receiving(&answer);
    close(the_pair.far);
    must(send(the_pair.near, "late", 4, 0) == 4, "send");
    pthread_join(thread, NULL);
    observe_result("recv", answer);
}

/* Who slept in the closed connection wakes up when a new one has its place. */
static void another_begins_before_a_sleeper_wakes(void) {
    ssize_t answer = -2;
    the_pair = on_the_ring();
    pthread_t thread = start_receiving(&answer);
    close(the_pair.far);
    Pair next = connected();
    must(send(the_pair.near, "late", 4, 0) == 4, "send");
    pthread_join(thread, NULL);
    observe_result("recv", answer);
    talk_until_on_ring(next, 1);
}

static void replaced_under_a_sleeper(void) {
    ssize_t answer = -2;
    the_pair = on_the_ring();
    Pair other = connected();
    talk_until_on_ring(other, 2);
    pthread_t thread = start_receiving(&answer);
    must(dup2(other.far, the_pair.far) == the_pair.far, "dup2");
    must(send(other.near, "to the other", 12, 0) == 12, "send");
    pause_ms(20);
    must(send(the_pair.near, "late", 4, 0) == 4, "send");
    pthread_join(thread, NULL);
    char buffer[32];
    observe_result("recv", answer);
    observe_result("the other", recv(the_pair.far, buffer, sizeof buffer, 0));
}

static void copies_of_every_kind(void) {
    Pair pair = on_the_ring();
    int copies[] = {dup(pair.near), dup2(pair.near, 70), dup3(pair.near, 71, O_CLOEXEC), fcntl(pair.near, F_DUPFD, 72),
                    fcntl(pair.near, F_DUPFD_CLOEXEC, 73)};
    close(pair.near);
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        talk(copies[i], pair.far);
        talk(pair.far, copies[i]);
        observe("flags %d", fcntl(copies[i], F_GETFD));
        close(copies[i]);
    }
    char byte;
    observe_result("recv", recv(pair.far, &byte, 1, 0));
}

/* Closed past the library; the number is used again. */
static void closed_by_system_call(void) {
    for (int i = 0; i < 5; i++) {
        Pair pair = on_the_ring();
        syscall(SYS_close, pair.near);
        syscall(SYS_close, pair.far);
        Pair again = connected();
        observe("same numbers %d", again.near == pair.near || again.near == pair.far);
        talk(again.near, again.far);
        talk(again.far, again.near);
        close(again.near);
        close(again.far);
    }
}

/* The program gets the numbers that it asks for, and its copies are connections as any other. */
static void copied_from_a_high_number_on(void) {
    Pair pair = on_the_ring();
    for (int round = 0; round < 4; round++) {
        int command = round % 2 ? F_DUPFD_CLOEXEC : F_DUPFD, count = 1 + round;
        int copies[8];
        for (int i = 0; i < count; i++) {
            copies[i] = round < 2 ? fcntl(pair.near, command, 898 + i) : (int)syscall(SYS_fcntl, pair.near, command, 900);
            observe("%d, flags %d", copies[i], fcntl(copies[i], F_GETFD));
            talk(copies[i], pair.far);
            talk(pair.far, copies[i]);
        }
        for (int i = 0; i < count; i++)
            close(copies[i]);
        Pair other = connected();
        talk(other.near, other.far);
        talk(pair.near, pair.far);
        close(other.near), close(other.far);
    }
    observe("on the ring: %d", on_ring() > 0);
}

#ifdef __x86_64__
/* Not by the C library, where a call by its number would be seen. */
static long close_unseen(int fd) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_close), "D"((long)fd) : "rcx", "r11", "memory");
    return result;
}

/* Bytes that are unread then are the end of their own connection, and not of the next one of the same number. */
static void closed_unseen(void) {
    for (int i = 0; i < 5; i++) {
        Pair pair = on_the_ring();
        char bytes[64] = {0};
        must(send(pair.near, bytes, 7, 0) == 7 && send(pair.far, bytes, 7, 0) == 7, "send");
        must(close_unseen(pair.near) == 0 && close_unseen(pair.far) == 0, "close");
        Pair again = connected();
        observe("same numbers %d", again.near == pair.near || again.near == pair.far);
        talk(again.near, again.far);
        must(send(again.near, bytes, 7, 0) == 7, "send");
        close(again.near);
        usleep(2000);
        observe_result("last", recv(again.far, bytes, sizeof bytes, 0));
        observe_result("end", recv(again.far, bytes, sizeof bytes, 0));
        close(again.far);
    }
}

/* Whoever closes all that is open closes what the library has open, too; and the program's own gets these numbers. */
static void all_are_closed_unseen(void) {
    Pair pair = on_the_ring();
    talk(pair.near, pair.far);
    for (int fd = 900; fd < 1000; fd++)
        close_unseen(fd);
    int first = fcntl(pair.near, F_DUPFD, 900), second = fcntl(pair.far, F_DUPFD, 900);
    for (int i = 0; i < 3; i++) {
        Pair other = connected();
        for (int j = 0; j < 5; j++) {
            talk(other.near, other.far);
            talk(first, second);
            talk(second, first);
        }
        close(other.near);
        close(other.far);
    }
    observe("closed %d %d", close(first), close(second));
    talk(pair.far, pair.near);
}
#endif

/* Two descriptors of a socket, or two processes with it, before it is connected by one of them. */
static void copied_before_it_is_connected(void) {
    for (int round = 0; round < 4; round++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof address;
        int listener = socket(AF_INET, SOCK_STREAM, 0), forks = round % 2;
        must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
        must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
        int fd = socket(AF_INET, SOCK_STREAM, 0), copy = forks ? -1 : dup(fd), ready[2], go_on[2];
        char bytes[64] = {0};
        must(pipe(ready) == 0 && pipe(go_on) == 0, "pipe");
        pid_t child = forks ? fork() : -1;
        if (child == 0) {
            must(read(ready[0], bytes, 1) == 1, "ready");
            observe_result("the child", recv(fd, bytes, sizeof bytes, 0));
            must(write(go_on[1], "x", 1) == 1, "go on");
            _exit(0);
        }
        must(connect(fd, (struct sockaddr *)&address, length) == 0, "connect");
        int far = accept(listener, NULL, NULL);
        for (int i = 0; i < 5; i++) {
            talk(fd, far);
            talk(far, fd);
        }
        must(send(far, bytes, 7, 0) == 7, "send");
        if (round >= 2)
            close(fd);
        if (forks) {
            must(write(ready[1], "x", 1) == 1 && read(go_on[0], bytes, 1) == 1, "the child");
            must(waitpid(child, NULL, 0) == child, "waitpid");
        } else {
            observe_result("the copy", recv(copy, bytes, sizeof bytes, 0));
            must(send(far, bytes, 7, 0) == 7, "send");
            observe_result("the copy again", recv(copy, bytes, sizeof bytes, 0));
            close(copy);
        }
        close(fd);
        observe_result("end", recv(far, bytes, sizeof bytes, 0));
        close(far);
        close(listener);
    }
}

static void everything_is_closed(void) {
    Pair pair = on_the_ring();
    int closed = 0;
    for (int fd = 3; fd < 1024; fd++)
        closed += close(fd) == 0;
    observe("closed %d", closed);
    (void)pair;
    pair = on_the_ring();
    observe_result("close_range", close_range(3, ~0U, 0));
    pair = on_the_ring();
    closefrom(3);
    pair = on_the_ring();
    talk(pair.near, pair.far);
    observe("talked on %d and %d", pair.near, pair.far);
}

/* How many descriptors there are room for. */
static void descriptors_run_out(void) {
    Pair pair = on_the_ring();
    struct rlimit limit = {64, 64};
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    int made = 0;
    while (socket(AF_INET, SOCK_STREAM, 0) >= 0)
        made++;
    observe_result("socket", -1);
    observe("%d sockets", made);
    talk(pair.near, pair.far);
    observe_result("accept4", accept4(pair.near, NULL, NULL, 0));
    talk(pair.far, pair.near);
    observe("talked");
}

/* A number at or above the limit stays what it is: nothing can be put in its place. */
static void in_the_place_of_what_is_beyond_the_limit(void) {
    Pair pair = on_the_ring();
    struct rlimit limit = {64, 64};
    must(dup2(pair.near, 100) == 100 && close(pair.near) == 0, "dup2");
    pair.near = 100;
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    must(send(pair.far, "unread", 6, 0) == 6, "send");
    char bytes[16];
    observe_result("dup2", dup2(pair.far, pair.near));
    observe_result("recv", recv(pair.near, bytes, 3, 0));
    observe_result("dup3", dup3(pair.far, pair.near, O_CLOEXEC));
    observe_result("recv", recv(pair.near, bytes, sizeof bytes, 0));
    talk(pair.near, pair.far), talk(pair.far, pair.near);
    observe_result("below", dup2(pair.near, 63));
    observe_result("in its place", dup2(pair.far, 63));
    talk(pair.near, 63), talk(63, pair.near);
}

/* A number beyond those that are followed is a descriptor as any other. */
static void copied_to_a_number_beyond_all(void) {
    enum { BEYOND = 1500000 };
    struct rlimit limit = {2000000, 2000000};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        observe("skipped: no number may be so high: %s", strerrorname_np(errno));
        return;
    }
    Pair pair = on_the_ring();
    char bytes[16];
    struct epoll_event event = {.events = EPOLLIN};
    must(send(pair.far, "unread", 6, 0) == 6, "send");
    must(dup2(pair.near, BEYOND) == BEYOND && close(pair.near) == 0, "dup2");
    must(send(pair.far, " and more", 9, 0) == 9, "send");
    usleep(1000);
    observe_result("recv", recv(BEYOND, bytes, 15, MSG_WAITALL));
    observe_result("send", send(BEYOND, "an answer", 9, 0));
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    Pair other = on_the_ring();
    int set = epoll_create1(0);
    must(epoll_ctl(set, EPOLL_CTL_ADD, other.far, &event) == 0, "epoll_ctl");
    must(dup2(set, BEYOND + 1) == BEYOND + 1 && close(set) == 0, "dup2");
    must(send(other.near, "x", 1, 0) == 1, "send");
    observe("epoll_wait %d", epoll_wait(BEYOND + 1, &event, 1, 2000));
}

/* Which numbers a program gets that may have few, and how many there are for it. */
static void few_descriptors(void) {
    static const rlim_t limits[] = {12, 40, 64, 70, 200, 900, 901};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit limit = {limits[i], limits[i]};
            must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
            Pair pair = connected();
            for (int round = 0; round < 10; round++)
                talk(pair.near, pair.far), talk(pair.far, pair.near);
            int next = dup(0), made = 0;
            observe("%d, %d, %d", pair.near, pair.far, next);
            /* Where there are many, it may be one less. */
            while (made < 30 && dup(0) >= 0)
                made++;
            observe("%d more", made);
            talk(pair.near, pair.far);
            _exit(0);
        }
        observe("child: %d", status_of(child));
    }
}

static void send_descriptor(int through, int fd) {
    char byte = 'd';
    struct iovec vector = {&byte, 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof fd)];
    } control = {0};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *message = CMSG_FIRSTHDR(&header);
    *message = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(message), &fd, sizeof fd);
    must(sendmsg(through, &header, 0) == 1, "sendmsg");
}

static int receive_descriptor(int through) {
    char byte;
    struct iovec vector = {&byte, 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    must(recvmsg(through, &header, 0) == 1, "recvmsg");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
    return fd;
}

/* A connection in use is given to another process, which goes on with it. */
static void passed_to_another_process(void) {
    int through[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, through) == 0, "socketpair");
    pid_t child = fork();
    if (child == 0) {
        int fd = receive_descriptor(through[1]);
        char buffer[64];
        for (ssize_t part; (part = recv(fd, buffer, sizeof buffer, 0)) > 0;)
            must(send(fd, buffer, part, 0) == part, "send");
        _exit(6);
    }
    Pair pair = on_the_ring();
    must(send(pair.near, "before", 6, 0) == 6, "send");
    send_descriptor(through[0], pair.far);
    close(pair.far);
    char buffer[64];
    observe_result("recv", recv(pair.near, buffer, 6, MSG_WAITALL));
    for (int i = 0; i < 100; i++) {
        must(send(pair.near, buffer, 6, 0) == 6, "send");
        must(recv(pair.near, buffer, 6, MSG_WAITALL) == 6 && memcmp(buffer, "before", 6) == 0, "recv");
    }
    shutdown(pair.near, SHUT_WR);
    int status;
    waitpid(child, &status, 0);
    observe("the child ended with %d", WEXITSTATUS(status));
}

/* Passed to oneself: two numbers, one connection. */
static void passed_to_itself(void) {
    int through[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, through) == 0, "socketpair");
    Pair pair = on_the_ring();
    send_descriptor(through[0], pair.far);
    Pair copy = {pair.near, receive_descriptor(through[1])};
    for (int i = 0; i < 10; i++) {
        talk(copy.near, copy.far);
        talk(pair.far, pair.near);
        talk(copy.far, copy.near);
        talk(pair.near, pair.far);
    }
    observe("talked");
}

/* As `copied_before_it_is_connected`, where the other process gets it by a message, or is a program that is started. */
static void given_before_it_is_connected(int starts) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1), road[2], fd = socket(AF_INET, SOCK_STREAM, 0);
    char bytes[64] = {0}, number[16], path[] = "/bin/sh", *words[] = {"sh", "-c", "read go && head -c 13 <&\"$0\"", number, NULL};
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, road) == 0, "socketpair");
    snprintf(number, sizeof number, "%d", fd);
    pid_t child;
    if (starts) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, road[1], 0);
        must(posix_spawn(&child, path, &actions, NULL, words, environ) == 0, "posix_spawn");
    } else if ((child = fork()) == 0) {
        close(fd);
        fd = take(road[1], bytes, 1);
        must(recv(road[1], bytes, sizeof bytes, 0) > 0, "go");
        ssize_t got = recv(fd, bytes, 13, 0);
        observe("%.*s", (int)got, bytes);
        _exit(0);
    } else {
        /* The one that the child has from the fork is not what is connected. */
        close(fd);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        pass(road[0], fd, bytes, 1);
    }
    must(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    int far = accept(listener, NULL, NULL);
    for (int i = 0; i < 10; i++) {
        talk(fd, far);
        talk(far, fd);
        pause_ms(5);
    }
    must(send(far, "for the child", 13, 0) == 13 && send(road[0], "\n", 1, 0) == 1, "send");
    observe("the child ended with %d", status_of(child));
    observe_result("recv", recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
}

static void passed_before_it_is_connected(void) { given_before_it_is_connected(0); }

static void inherited_before_it_is_connected(void) { given_before_it_is_connected(1); }

static void taken_by_pidfd(void) {
    Pair pair = on_the_ring();
    int ready[2];
    must(pipe(ready) == 0, "pipe");
    pid_t parent = getpid();
    pid_t child = fork();
    if (child == 0) {
        close(pair.near);
        close(pair.far);
        int process = syscall(SYS_pidfd_open, parent, 0);
        int fd = syscall(SYS_pidfd_getfd, process, pair.far, 0);
        must(fd >= 0, "pidfd_getfd");
        must(write(ready[1], "x", 1) == 1, "ready");
        char buffer[64];
        for (ssize_t part; (part = recv(fd, buffer, sizeof buffer, 0)) > 0;)
            must(send(fd, buffer, part, 0) == part, "send");
        _exit(8);
    }
    char buffer[64] = "taken";
    must(read(ready[0], buffer + 32, 1) == 1, "ready");
    close(pair.far);
    for (int i = 0; i < 100; i++) {
        must(send(pair.near, buffer, 6, 0) == 6, "send");
        must(recv(pair.near, buffer, 6, MSG_WAITALL) == 6 && strcmp(buffer, "taken") == 0, "recv");
    }
    shutdown(pair.near, SHUT_WR);
    int status;
    waitpid(child, &status, 0);
    observe("the child ended with %d", WEXITSTATUS(status));
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(closed_under_a_sleeper),
        CASE(another_begins_before_a_sleeper_wakes),
        CASE(replaced_under_a_sleeper),
        CASE(copies_of_every_kind),
        CASE(closed_by_system_call),
        CASE(copied_from_a_high_number_on),
#ifdef __x86_64__
        CASE(closed_unseen),
        CASE(all_are_closed_unseen),
#endif
        CASE(copied_before_it_is_connected),
        CASE(passed_before_it_is_connected),
        CASE(inherited_before_it_is_connected),
        CASE(everything_is_closed),
        CASE(descriptors_run_out),
        CASE(in_the_place_of_what_is_beyond_the_limit),
        CASE(copied_to_a_number_beyond_all),
        CASE(few_descriptors),
        CASE(passed_to_another_process),
        CASE(passed_to_itself),
        CASE(taken_by_pidfd),
        {0},
    };
    return run_cases(cases, argc, argv);
}
