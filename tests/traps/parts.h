/* Parts of streams, sent and received by whoever has the descriptor then. */
#pragma once
#include "traps.h"

enum { LONGEST = 8192 };

/* A part of a stream: whose bytes from one position to another are sent or received by a descriptor. */
typedef struct {
    int fd;
    unsigned seed;
    size_t at, end;
    const char *ended;
} Part;

static size_t some_length(unsigned *random, size_t most) {
    size_t length = 1 + rand_r(random) % (rand_r(random) % 2 ? 64 : LONGEST);
    return length < most ? length : most;
}

static void *send_part(void *argument) {
    Part *part = argument;
    char message[LONGEST];
    unsigned random = part->seed + part->at;
    while (part->at < part->end) {
        size_t length = some_length(&random, part->end - part->at);
        for (size_t i = 0; i < length; i++)
            message[i] = byte_at(part->seed, part->at + i);
        ssize_t sent = send(part->fd, message, length, MSG_NOSIGNAL);
        if (sent <= 0) {
            part->ended = strerror(errno);
            return part;
        }
        part->at += sent;
    }
    part->ended = "exactly";
    return part;
}

static void *receive_part(void *argument) {
    Part *part = argument;
    char message[LONGEST];
    unsigned random = part->seed + part->at;
    while (part->at < part->end) {
        ssize_t got = recv(part->fd, message, some_length(&random, part->end - part->at), 0);
        part->ended = got < 0 ? strerror(errno) : "early";
        if (got <= 0)
            return part;
        for (ssize_t i = 0; i < got; i++)
            if (message[i] != byte_at(part->seed, part->at++)) {
                part->ended = "with wrong bytes";
                return part;
            }
    }
    part->ended = "exactly";
    return part;
}

/* Does one thing in a thread and another in this one; says whether both ended as they should. */
static int is_exact(Part *sent, Part *received) {
    pthread_t sender = start_thread(send_part, sent);
    receive_part(received);
    pthread_join(sender, NULL);
    int exact = strcmp(sent->ended, "exactly") == 0 && strcmp(received->ended, "exactly") == 0;
    if (!exact)
        observe("sent %zu: %s; received %zu: %s", sent->at, sent->ended, received->at, received->ended);
    return exact;
}

/* Sends `bytes` and receives as many at the same time. */
static int both_ways(int fd, unsigned out, unsigned in, size_t bytes) {
    Part sent = {fd, out, 0, bytes, "never"}, received = {fd, in, 0, bytes, "never"};
    return is_exact(&sent, &received);
}

static void must_end_well(pid_t child) {
    int status;
    must(waitpid(child, &status, 0) == child, "waitpid");
    if (status != 0)
        observe("a process ended with %#x", status);
}

enum { ROUNDS = 40, FLOW = 400000 };

/* The far end of a stream both ways, in a process of its own. */
static pid_t far_process(Pair pair, size_t in, size_t out) {
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(pair.near);
        Part sent = {pair.far, 2, 0, out, "never"}, received = {pair.far, 1, 0, in, "never"};
        _exit(!is_exact(&sent, &received));
    }
    close(pair.far);
    return child;
}
