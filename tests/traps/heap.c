/* A program whose malloc counts: no call that a signal handler may make on a connection comes to it, on any road. */
#include "traps.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *place, size_t bytes);
extern void __libc_free(void *place);

static unsigned uses;

void *malloc(size_t bytes) { uses++; return __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { uses++; return __libc_calloc(count, bytes); }
void *realloc(void *place, size_t bytes) { uses++; return __libc_realloc(place, bytes); }
void free(void *place) { uses += place != NULL; __libc_free(place); }

enum { PAIRS = 20, VECTORS = 40, TALKS = 50 };

static void talk_in_vectors(int from, int to) {
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
static void wait_for_all(const Pair *pairs, int epoll) {
    struct pollfd fds[PAIRS];
    fd_set set;
    FD_ZERO(&set);
    for (int i = 0; i < PAIRS; i++) {
        fds[i] = (struct pollfd){pairs[i].far, POLLIN, 0};
        FD_SET(pairs[i].far, &set);
    }
    char byte = 'x';
    must(send(pairs[3].near, &byte, 1, 0) == 1, "send");
    must(poll(fds, PAIRS, -1) == 1 && fds[3].revents == POLLIN, "poll");
    must(select(FD_SETSIZE, &set, NULL, NULL, NULL) == 1 && FD_ISSET(pairs[3].far, &set), "select");
    struct epoll_event event = {0};
    must(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.fd == pairs[3].far, "epoll_wait");
    must(recv(pairs[3].far, &byte, 1, 0) == 1, "recv");
}

static void use_every_call(const Pair *pairs, int epoll) {
    for (int i = 0; i < PAIRS; i++) {
        talk_in_vectors(pairs[i].near, pairs[i].far);
        talk_in_vectors(pairs[i].far, pairs[i].near);
        struct epoll_event event = {EPOLLIN, {.fd = pairs[i].far}};
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, pairs[i].far, &event) == 0, "add");
        close(dup(pairs[i].near));
    }
    for (int turn = 0; turn < TALKS; turn++)
        wait_for_all(pairs, epoll);
    for (int i = 0; i < PAIRS; i++)
        must(epoll_ctl(epoll, EPOLL_CTL_DEL, pairs[i].far, NULL) == 0, "delete");
    Pair fresh = connected();
    talk_in_vectors(fresh.near, fresh.far);
    must(shutdown(fresh.near, SHUT_WR) == 0, "shutdown");
    close(fresh.near);
    close(fresh.far);
}

static void calls_use_no_heap(void) {
    Pair pairs[PAIRS];
    int epoll = epoll_create1(0), patience = 200;
    unsigned before = uses;
    for (int i = 0; i < PAIRS; i++)
        wait_for_both(pairs[i] = connected());
    do
        use_every_call(pairs, epoll);
    while (on_ring() < PAIRS && --patience > 0);
    use_every_call(pairs, epoll);
    observe("on the ring %d, uses of the heap %u", patience > 0, uses - before);
}

int main(int argc, char **argv) {
    static const Case cases[] = {CASE(calls_use_no_heap), {0}};
    return run_cases(cases, argc, argv);
}
