/* Connections that end soon, some before they are offered, some while the agent introduces them: threads connect, accept, add to a set,
 * serve and close at once, and none of them waits for what happens to the others' connections.
 */
#include "traps.h"

enum { CONNECTIONS = 600, CLIENTS = 4, ACCEPTORS = 2, MESSAGE = 32, DESCRIPTORS = 1024 };

/* What a connection's first byte says: each message is answered, or none is. */
enum { ANSWERED = 'a', SILENT = 's' };

static struct sockaddr_in address = {.sin_family = AF_INET};
static int listener, set;
static atomic_int to_connect = CONNECTIONS, to_accept = CONNECTIONS, to_close = CONNECTIONS;
static atomic_int answered, wrong;
static char kinds[DESCRIPTORS]; /* Of accepted connections; zero before the first byte. */

/* Messages of one connection: with some it ends before it is offered in the default mode, with some in the middle of that. */
static int messages_of(int number) {
    return 1 + number % 23;
}

/* The connecting side ends it: by `close`, or by `shutdown` and `close` after the other's end. */
static void use(int fd, int number) {
    char sent[MESSAGE], got[MESSAGE];
    int is_answered = number % 3 != 0;
    memset(sent, number, sizeof sent);
    sent[0] = is_answered ? ANSWERED : SILENT;
    for (int i = 0; i < messages_of(number); i++) {
        must(send(fd, sent, sizeof sent, MSG_NOSIGNAL) == sizeof sent, "send");
        if (is_answered) {
            must(recv(fd, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
            wrong += memcmp(sent, got, sizeof got) != 0;
            answered++;
        }
    }
    if (number % 2 == 0) {
        must(shutdown(fd, SHUT_WR) == 0, "shutdown");
        must(recv(fd, got, sizeof got, 0) == 0, "the end");
    }
}

static void *connect_and_close(void *unused) {
    int left;
    while ((left = to_connect--) > 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
        use(fd, left);
        must(close(fd) == 0, "close");
    }
    return unused;
}

static void *accept_and_add(void *unused) {
    while (to_accept-- > 0) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        must(fd >= 0 && fd < DESCRIPTORS, "accept");
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd};
        must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
    return unused;
}

/* Answers what has come. False: the connection has ended. */
static int serve(int fd, size_t *silent) {
    char message[MESSAGE * 32];
    ssize_t length = recv(fd, message, sizeof message, 0);
    if (length < 0) {
        must(errno == EAGAIN, "recv");
        return 1;
    }
    if (length > 0 && kinds[fd] == 0)
        kinds[fd] = message[0];
    if (length > 0 && kinds[fd] == ANSWERED)
        must(send(fd, message, length, MSG_NOSIGNAL) == length, "send");
    else
        *silent += length;
    return length > 0;
}

/* Connections may end between their acceptance and their first event. */
static size_t serve_all(void) {
    size_t silent = 0;
    while (to_close > 0) {
        struct epoll_event events[16];
        int count = epoll_wait(set, events, 16, -1);
        must(count > 0, "epoll_wait");
        for (int i = 0; i < count; i++)
            if (!serve(events[i].data.fd, &silent)) {
                kinds[events[i].data.fd] = 0;
                must(close(events[i].data.fd) == 0, "close");
                to_close--;
            }
    }
    return silent;
}

static void many_threads_open_and_close(void) {
    pthread_t threads[CLIENTS + ACCEPTORS];
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, CONNECTIONS) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    set = epoll_create1(0);
    for (int i = 0; i < CLIENTS + ACCEPTORS; i++)
        threads[i] = start_thread(i < CLIENTS ? connect_and_close : accept_and_add, NULL);
    size_t silent = serve_all();
    for (int i = 0; i < CLIENTS + ACCEPTORS; i++)
        pthread_join(threads[i], NULL);
    observe("%d messages answered, %d wrongly; %zu bytes of others", answered, wrong, silent);
}

int main(int argc, char **argv) {
    static const Case cases[] = {CASE(many_threads_open_and_close), {0}};
    return run_cases(cases, argc, argv);
}
