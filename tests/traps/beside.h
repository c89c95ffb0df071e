/* A reader that leaves its ring, with bytes unread, beside a sender that other calls keep in the kernel. */
#pragma once
#include "traps.h"

enum { STREAM = 12 << 20, STREAM_PIECE = 1 << 16, STREAM_SEED = 5 };

typedef ssize_t (*SendsSome)(int fd, const char *bytes, size_t length);

typedef struct {
    int fd;
    SendsSome sends;
} Streamer;

static void *stream(void *argument) {
    Streamer *streamer = argument;
    char *bytes = malloc(STREAM);
    for (size_t i = 0; i < STREAM; i++)
        bytes[i] = byte_at(STREAM_SEED, i);
    for (size_t sent = 0; sent < STREAM;) {
        size_t length = STREAM - sent < STREAM_PIECE ? STREAM - sent : STREAM_PIECE;
        ssize_t part = streamer->sends(streamer->fd, bytes + sent, length);
        if (part <= 0) {
            observe("sent %zd", part);
            break;
        }
        sent += part;
    }
    free(bytes);
    return NULL;
}

static void read_stream(int fd) {
    static char bytes[STREAM_PIECE];
    size_t at = 0, wrong = 0;
    ssize_t got = recv(fd, bytes, 8, MSG_WAITALL);
    observe("%.*s", (int)(got > 0 ? got : 0), bytes);
    while (at < STREAM && (got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        for (ssize_t i = 0; i < got; i++)
            wrong += bytes[i] != byte_at(STREAM_SEED, at++);
    observe("%zu bytes, wrong: %zu", at, wrong);
}

/* The sender sleeps in such a call when the other end is passed on. */
static void passed_on_beside(SendsSome sends) {
    int road[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, road) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        char note;
        close(road[0]);
        read_stream(take(road[1], &note, 1));
        _exit(0);
    }
    Pair pair = on_the_ring();
    must(send(pair.near, "a header", 8, 0) == 8, "send");
    Streamer streamer = {pair.near, sends};
    pthread_t thread = start_thread(stream, &streamer);
    pause_ms(300);
    pass(road[0], pair.far, "!", 1);
    close(pair.far);
    pthread_join(thread, NULL);
    must(waitpid(child, NULL, 0) == child, "waitpid");
}
