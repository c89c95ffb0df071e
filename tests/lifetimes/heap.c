/* A program whose malloc counts: no call that a signal handler may make on a connection comes to it, on any road.
 *
 * As cases.py does, it asks by a line which roads its connections take.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *place, size_t bytes);
extern void __libc_free(void *place);

static unsigned uses;

void *malloc(size_t bytes) { uses++; return __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { uses++; return __libc_calloc(count, bytes); }
void *realloc(void *place, size_t bytes) { uses++; return __libc_realloc(place, bytes); }
void free(void *place) { uses += place != NULL; __libc_free(place); }

enum { PAIRS = 20, VECTORS = 40, TALKS = 50, PATIENCE = 200 };

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        _exit(1);
    }
}

static void connect_pair(int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0, "bind");
    must(listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(ends[0], (struct sockaddr *)&address, length) == 0, "connect");
    ends[1] = accept(listener, NULL, NULL);
    must(ends[1] >= 0, "accept");
    close(listener);
}

static void talk(int from, int to) {
    char sent[VECTORS] = "a message in as many buffers as bytes", got[VECTORS];
    struct iovec out[VECTORS], in[VECTORS];
    for (int i = 0; i < VECTORS; i++) {
        out[i] = (struct iovec){&sent[i], 1};
        in[i] = (struct iovec){&got[i], 1};
    }
    must(writev(from, out, VECTORS) == VECTORS, "writev");
    must(recv(to, got, 1, MSG_PEEK) == 1, "peek");
    must(readv(to, in, VECTORS) == VECTORS && memcmp(sent, got, VECTORS) == 0, "readv");
    must(write(from, sent, 1) == 1 && read(to, got, 1) == 1, "write and read");
}

/* Waits by every call for the one connection that has something to say. */
static void wait_for_all(int pairs[PAIRS][2], int epoll) {
    struct pollfd fds[PAIRS];
    fd_set set;
    FD_ZERO(&set);
    for (int i = 0; i < PAIRS; i++) {
        fds[i] = (struct pollfd){pairs[i][1], POLLIN, 0};
        FD_SET(pairs[i][1], &set);
    }
    char byte = 'x';
    must(send(pairs[3][0], &byte, 1, 0) == 1, "send");
    must(poll(fds, PAIRS, -1) == 1 && fds[3].revents == POLLIN, "poll");
    must(select(FD_SETSIZE, &set, NULL, NULL, NULL) == 1 && FD_ISSET(pairs[3][1], &set), "select");
    struct epoll_event event = {0};
    must(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.fd == pairs[3][1], "epoll_wait");
    must(recv(pairs[3][1], &byte, 1, 0) == 1, "recv");
}

static void use_every_call(int pairs[PAIRS][2], int epoll) {
    for (int i = 0; i < PAIRS; i++) {
        talk(pairs[i][0], pairs[i][1]);
        talk(pairs[i][1], pairs[i][0]);
        struct epoll_event event = {EPOLLIN, {.fd = pairs[i][1]}};
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, pairs[i][1], &event) == 0, "add");
        close(dup(pairs[i][0]));
    }
    for (int turn = 0; turn < TALKS; turn++)
        wait_for_all(pairs, epoll);
    for (int i = 0; i < PAIRS; i++)
        must(epoll_ctl(epoll, EPOLL_CTL_DEL, pairs[i][1], NULL) == 0, "delete");
    int fresh[2];
    connect_pair(fresh);
    talk(fresh[0], fresh[1]);
    must(shutdown(fresh[0], SHUT_WR) == 0, "shutdown");
    close(fresh[0]);
    close(fresh[1]);
}

/* Whether every connection is on the ring. */
static int all_on_ring(void) {
    char answer[4096];
    must(write(1, "look\n", 5) == 5, "ask");
    ssize_t length = read(0, answer, sizeof answer - 1);
    must(length > 0, "answer");
    answer[length] = 0;
    int rings = 0;
    for (char *at = answer; (at = strstr(at, "ring")) != NULL; at++)
        rings++;
    return rings == PAIRS;
}

int main(void) {
    static int pairs[PAIRS][2];
    int epoll = epoll_create1(0);
    unsigned before = uses;
    for (int i = 0; i < PAIRS; i++)
        connect_pair(pairs[i]);
    int patience = PATIENCE;
    do
        use_every_call(pairs, epoll);
    while (!all_on_ring() && --patience > 0);
    use_every_call(pairs, epoll);
    if (patience == 0)
        fprintf(stderr, "not all on the ring\n");
    if (uses != before)
        fprintf(stderr, "%u uses of the program's heap\n", uses - before);
    return patience == 0 || uses != before;
}
