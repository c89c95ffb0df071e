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

static void observe_received(const Part *part) {
    if (part->at == part->end)
        observe("received all");
    else
        observe("received %s %zu of %zu", part->ended, part->at, part->end);
}

/* What a program does that got a connection: receives the rest. */
static int receive_rest(char **arguments) {
    Part part = {atoi(arguments[0]), 2, atoi(arguments[1]), atoi(arguments[2]), "never"};
    receive_part(&part);
    observe_received(&part);
    return 0;
}

static void become_receiver(Part *part) {
    char fd[16], at[16], end[16];
    snprintf(fd, sizeof fd, "%d", part->fd), snprintf(at, sizeof at, "%zu", part->at);
    snprintf(end, sizeof end, "%zu", part->end);
    execl("/proc/self/exe", "receive_rest", fd, at, end, NULL);
    _exit(9);
}

enum { BLOCK = 1 << 20 };

static char *block_of(Part *part) {
    char *block = malloc(BLOCK);
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = byte_at(part->seed, part->at + i);
    return block;
}

/* Sends until nothing more has room anywhere. */
static void fill(Part *part) {
    for (int patience = 0; patience < 10; patience++) {
        char *block = block_of(part);
        ssize_t sent = send(part->fd, block, BLOCK, MSG_DONTWAIT | MSG_NOSIGNAL);
        free(block);
        if (sent <= 0) {
            must(errno == EAGAIN, "send");
            pause_ms(5);
        } else {
            part->at += sent;
            patience = 0;
        }
    }
}

/* A child becomes a program that receives; nobody else has the connection any more, or we have it, too. */
static void exec_in_child(Pair pair, Part *part, int alone) {
    int go[2];
    char byte;
    must(pipe(go) == 0, "pipe");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(go[1]), close(pair.far);
        read(go[0], &byte, 1);
        become_receiver(part);
    }
    if (alone)
        close(pair.near);
    close(go[0]), close(go[1]);
    must_end_well(child);
}
