/* One end of a conversation of which every byte is known, on both sides: for ends that are stopped, copied and started again.

       moved serve PORT       echoes one connection, and looks at what comes
       moved ask PORT         sends a little, waits for the echo, and so on
       moved flow PORT        sends as much as goes, while another thread looks at the echo

   A client goes on until SIGTERM; then it shuts down, reads to the end, and says `done`. Whoever sees a byte that is not the next one says
   `wrong`; whoever is told of an error says `failed`. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES_MAX = 65536, LITTLE = 1024, BEFORE_READY = 200 * LITTLE };

static volatile sig_atomic_t told;

static void tell(int signal) {
    (void)signal;
    told = 1;
}

static void say(const char *what, const char *why, long long where) {
    /* The line is whole, whoever else writes and whenever we end. */
    char line[128];
    int length = snprintf(line, sizeof line, "%s%s at %lld\n", what, why, where);
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        abort();
}

static void fail(const char *call, long long where) {
    char why[96];
    snprintf(why, sizeof why, ": %s: %s", call, errno ? strerror(errno) : "the end");
    say("failed", why, where);
    exit(1);
}

static unsigned char byte_at(long long place) { return (unsigned char)((place * 2654435761u) >> 13 ^ place >> 3); }

static void send_bytes(int fd, long long *place, size_t count) {
    static __thread unsigned char bytes[BYTES_MAX];
    for (size_t index = 0; index < count; index++)
        bytes[index] = byte_at(*place + (long long)index);
    for (size_t sent = 0; sent < count;) {
        ssize_t moved = send(fd, bytes + sent, count - sent, MSG_NOSIGNAL);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            fail("send", *place);
        sent += (size_t)moved;
        *place += moved;
    }
}

/* How many came, each the next one; zero at the end of the stream. */
static size_t receive_bytes(int fd, long long *place, size_t count) {
    static __thread unsigned char bytes[BYTES_MAX];
    ssize_t moved;
    while ((moved = recv(fd, bytes, count, 0)) < 0 && errno == EINTR) {
    }
    if (moved < 0)
        fail("recv", *place);
    for (ssize_t index = 0; index < moved; index++, ++*place)
        if (bytes[index] != byte_at(*place)) {
            say("wrong", "", *place);
            exit(3);
        }
    return (size_t)moved;
}

static void serve(int listener) {
    int fd = accept(listener, NULL, NULL);
    close(listener);
    long long received = 0, sent = 0;
    size_t count;
    while ((count = receive_bytes(fd, &received, BYTES_MAX)) > 0)
        send_bytes(fd, &sent, count);
    shutdown(fd, SHUT_WR);
    say("done", "", received);
}

static void receive_exactly(int fd, long long *place, long long until) {
    while (*place < until) {
        errno = 0;
        if (receive_bytes(fd, place, (size_t)(until - *place)) == 0)
            fail("recv", *place);
    }
}

static void finish(int fd, long long received, long long sent) {
    receive_exactly(fd, &received, sent);
    char more;
    if (recv(fd, &more, 1, 0) != 0)
        fail("recv behind the end", received);
    say("done", "", received);
}

static void ask(int fd) {
    long long received = 0, sent = 0;
    while (!told) {
        send_bytes(fd, &sent, LITTLE);
        receive_exactly(fd, &received, sent);
        if (sent == BEFORE_READY)
            say("ready", "", sent);
    }
    shutdown(fd, SHUT_WR);
    finish(fd, received, sent);
}

typedef struct {
    int fd;
    long long sent;
} Sender;

static void *send_flow(void *argument) {
    Sender *sender = argument;
    while (!told)
        send_bytes(sender->fd, &sender->sent, 4 * LITTLE);
    shutdown(sender->fd, SHUT_WR);
    return NULL;
}

static void flow(int fd) {
    long long received = 0;
    Sender sender = {fd, 0};
    pthread_t thread;
    pthread_create(&thread, NULL, send_flow, &sender);
    receive_exactly(fd, &received, BEFORE_READY);
    say("ready", "", received);
    while (receive_bytes(fd, &received, BYTES_MAX) > 0) {
    }
    pthread_join(thread, NULL);
    finish(fd, received, sender.sent);
}

int main(int count, char **words) {
    /* Without words it has no cases, as `tests/traps` have them. */
    if (count != 3)
        return count == 1 ? 0 : 2;
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(words[2]))};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!strcmp(words[1], "serve")) {
        if (bind(fd, (struct sockaddr *)&place, sizeof place) || listen(fd, 1))
            fail("listen", 0);
        say("ready", "", 0);
        serve(fd);
        return 0;
    }
    signal(SIGTERM, tell);
    if (connect(fd, (struct sockaddr *)&place, sizeof place))
        fail("connect", 0);
    if (!strcmp(words[1], "ask"))
        ask(fd);
    else
        flow(fd);
    return 0;
}
