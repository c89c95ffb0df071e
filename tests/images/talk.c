/* A server, or a client of it, as an image may have it: `talk serve PORT`, `talk call PORT`.
 *
 * The client asks by the line `look` which road the connection takes when it has exchanged some messages, and does it again for `more`.
 * Headers of messages are full of noise wherever the C library does not say what is there.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MESSAGES = 400, BYTES = 96 };

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        _exit(2);
    }
}

static struct sockaddr_in address_of(const char *port) {
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static struct msghdr header_of(struct iovec *vectors, int count) {
    struct msghdr header;
    memset(&header, 0x5a, sizeof header);
    header.msg_name = NULL;
    header.msg_namelen = 0;
    header.msg_iov = vectors;
    header.msg_iovlen = count;
    header.msg_control = NULL;
    header.msg_controllen = 0;
    header.msg_flags = 0;
    return header;
}

/* Receives a whole message, by one call or another. */
static int take(int fd, unsigned char *message, int turn) {
    int have = 0;
    while (have < BYTES) {
        struct pollfd ready = {fd, POLLIN, 0};
        struct iovec parts[2] = {{message + have, (BYTES - have) / 2}, {message + have + (BYTES - have) / 2, (BYTES - have + 1) / 2}};
        struct msghdr header = header_of(parts, 2);
        ssize_t part;
        if (turn % 3 == 0)
            must(poll(&ready, 1, -1) == 1, "poll");
        part = turn % 2 ? recvmsg(fd, &header, 0) : recv(fd, message + have, BYTES - have, 0);
        must(part >= 0, "receive");
        if (part == 0)
            return 0;
        have += part;
    }
    return 1;
}

static void give(int fd, unsigned char *message, int turn) {
    struct iovec parts[2] = {{message, 1}, {message + 1, BYTES - 1}};
    struct msghdr header = header_of(parts, 2);
    ssize_t sent = turn % 2 ? sendmsg(fd, &header, 0) : write(fd, message, BYTES);
    must(sent == BYTES, "send");
}

static void serve(const char *port) {
    struct sockaddr_in address = address_of(port);
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, turn = 0, fd;
    unsigned char message[BYTES];
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0, "listen");
    fd = accept(listener, NULL, NULL);
    must(fd >= 0, "accept");
    while (take(fd, message, turn)) {
        for (int i = 0; i < BYTES; i++)
            message[i]++;
        give(fd, message, ++turn);
    }
    printf("served %s messages\n", turn % MESSAGES == 0 ? "all" : "some");
}

static void call(const char *port) {
    struct sockaddr_in address = address_of(port);
    unsigned char message[BYTES];
    char answer[8];
    int fd, wrong = 0;
    for (int patience = 500;; patience--) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            break;
        must(patience > 0, "connect");
        close(fd);
        usleep(10000);
    }
    do {
        for (int turn = 0; turn < MESSAGES; turn++) {
            memset(message, turn, BYTES);
            give(fd, message, turn);
            must(take(fd, message, turn), "the server's answer");
            for (int i = 0; i < BYTES; i++)
                wrong += message[i] != (unsigned char)(turn + 1);
        }
        puts("look");
        fflush(stdout);
        must(fgets(answer, sizeof answer, stdin) != NULL, "answer");
    } while (strcmp(answer, "more\n") == 0);
    shutdown(fd, SHUT_WR);
    printf("%d bytes wrong\n", wrong);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        serve(argv[2]);
    else if (argc == 3 && strcmp(argv[1], "call") == 0)
        call(argv[2]);
    else
        return 2;
    return 0;
}
