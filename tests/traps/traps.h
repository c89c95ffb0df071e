/* What the cases share. A case prints what it observes: plain and under Millrace it must print the same.
 *
 * As in tests/lifetimes, a case asks by the line `look` which roads its connections take; on the plain road the answer is
 * that all are where they should be.
 */
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int near, far;
} Pair;

typedef struct {
    const char *name;
    void (*run)(void);
} Case;

#define CASE(name) {#name, name}

static void must(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        _exit(2);
    }
}

/* A line of what the case observed. */
static void observe(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length] = '\n';
    must(write(1, line, length + 1) == length + 1, "write");
}

/* What a call returned, with the error's name. */
static void observe_result(const char *call, ssize_t result) {
    if (result < 0)
        observe("%s: %s", call, strerrorname_np(errno));
    else
        observe("%s: %zd", call, result);
}

/* Listens at a port of the kernel's choice, which `address` has then. */
static int listen_here(struct sockaddr_in *address, int backlog) {
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)address, length) == 0 && listen(listener, backlog) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)address, &length) == 0, "getsockname");
    return listener;
}

static Pair connected(void) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1);
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    must(pair.far >= 0, "accept");
    close(listener);
    return pair;
}

/* Waits for both ends as programs do, by a function: only those who do get bytes by the ring. Nothing comes. */
static void wait_for_both(Pair pair) {
    struct pollfd entries[] = {{.fd = pair.near, .events = POLLIN}, {.fd = pair.far, .events = POLLIN}};
    must(poll(entries, 2, 1) == 0, "poll");
}

static void talk(int from, int to) {
    char sent[64] = "a message", got[64];
    for (int i = 0; i < 50; i++) {
        must(send(from, sent, sizeof sent, 0) == sizeof sent, "send");
        must(recv(to, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
    }
}

/* Sends back each message of 64 bytes that comes to an end, in a thread. */
static void *send_back(void *ended) {
    int fd = *(int *)ended;
    char got[64];
    while (recv(fd, got, sizeof got, MSG_WAITALL) == sizeof got)
        if (send(fd, got, sizeof got, 0) != sizeof got)
            break;
    return NULL;
}

/* Which roads: the number of connections with both ends on the ring. */
static int on_ring(void) {
    char answer[4096];
    must(write(1, "look\n", 5) == 5, "ask");
    ssize_t length = read(0, answer, sizeof answer - 1);
    must(length > 0, "answer");
    answer[length] = 0;
    int rings = 0;
    for (char *at = answer; (at = strstr(at, "ring")) != NULL; at++)
        rings++;
    return rings;
}

static void talk_until_on_ring(Pair pair, int connections) {
    wait_for_both(pair);
    for (int patience = 100; patience > 0; patience--) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        if (on_ring() >= connections)
            return;
    }
    errno = ETIMEDOUT;
    must(0, "the ring");
}

/* A connection both of whose ends are on the ring, where there is one. */
static Pair on_the_ring(void) {
    Pair pair = connected();
    talk_until_on_ring(pair, 1);
    return pair;
}

/* Passes a descriptor to another process, with a note. */
static void pass(int road, int fd, void *note, size_t length) {
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {note, length};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&header);
    *control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(control), &fd, sizeof(int));
    must(sendmsg(road, &header, 0) == (ssize_t)length, "sendmsg");
}

/* Takes a descriptor that was passed, and its note; -1: no more come. */
static int take(int road, void *note, size_t length) {
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {note, length};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    int fd;
    if (recvmsg(road, &header, 0) != (ssize_t)length)
        return -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(int));
    return fd;
}

static int status_of(pid_t child) {
    int status;
    must(waitpid(child, &status, 0) == child, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void pause_ms(int milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (nanosleep(&time, &time) != 0)
        ;
}

static void timer_every_us(int microseconds) {
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    must(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    must(sigaction(number, &action, NULL) == 0, "sigaction");
}

/* A thread to which no signal comes. */
static pthread_t start_thread(void *(*work)(void *), void *argument) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    must(pthread_create(&thread, NULL, work, argument) == 0, "pthread_create");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread;
}

/* The byte of a stream at a position. Neighbouring pages differ, and so do streams. */
static char byte_at(unsigned seed, size_t position) {
    return (char)((position * 0x9e3779b1u ^ position >> 10 ^ seed) >> 3);
}

/* Fills `message` with the piece of such a stream of `bytes` bytes that follows `sent`; its length is random, often short. */
static size_t next_piece(char *message, size_t longest, unsigned *random, unsigned seed, size_t sent, size_t bytes) {
    size_t length = 1 + rand_r(random) % (rand_r(random) % 2 ? 64 : longest);
    if (length > bytes - sent)
        length = bytes - sent;
    for (size_t i = 0; i < length; i++)
        message[i] = byte_at(seed, sent + i);
    return length;
}

static int run_cases(const Case *cases, int argc, char **argv) {
    for (; cases->name != NULL; cases++) {
        if (argc < 2)
            printf("%s\n", cases->name);
        else if (strcmp(argv[1], cases->name) == 0) {
            cases->run();
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}
