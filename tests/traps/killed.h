/* Connections whose peer will be killed, and what is seen of them then. */
#pragma once
#include "traps.h"

/* Last words, 64 times as long as these numbers say. */
enum { LAST_WORDS = 100, MANY_WORDS = 20000 };

/* Echoes until it is told to stop, and reads no more then; or to leave, and says its last words; or to wait, and says one a while later;
   or to end after many of them. */
static void echo_and_stop(const struct sockaddr_in *address) {
    char message[64];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0, "connect");
    while (recv(fd, message, sizeof message, MSG_WAITALL) == sizeof message && message[0] == 'e')
        must(send(fd, message, sizeof message, 0) == sizeof message, "echo");
    int ends = message[0] == 'm', last_words = ends ? MANY_WORDS : message[0] == 'l' ? LAST_WORDS : message[0] == 'w';
    if (message[0] == 'w')
        pause_ms(60);
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
    int listener = listen_here(&address, 1);
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

static void observe_set(int set) {
    struct epoll_event event = {0};
    int count = epoll_wait(set, &event, 1, 0);
    observe("set: %d, %x", count, event.events);
}

static void receive(int fd) {
    char byte;
    observe_result("recv", recv(fd, &byte, 1, 0));
}
