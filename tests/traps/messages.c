/* Long messages: their readers have them whole, and nothing comes between what one call sends. */
#include "traps.h"

enum { LONG_BYTES = 3000, CONNECTIONS = 30 };

/* ---- A connection's first long message. ---- */

static ssize_t first_part;
static atomic_int waits;

static void *wait_for_it(void *argument) {
    static char bytes[2 * LONG_BYTES];
    struct pollfd entry = {*(int *)argument, POLLIN, 0};
    atomic_store(&waits, 1);
    must(poll(&entry, 1, -1) == 1, "poll");
    first_part = recv(entry.fd, bytes, sizeof bytes, 0);
    for (ssize_t got = first_part; got < LONG_BYTES;)
        got += recv(entry.fd, bytes, sizeof bytes, 0);
    return NULL;
}

static int comes_whole(int from, int to) {
    static const char message[LONG_BYTES];
    pthread_t reader = start_thread(wait_for_it, &to);
    while (!atomic_exchange(&waits, 0))
        ;
    must(send(from, message, sizeof message, 0) == sizeof message, "send");
    pthread_join(reader, NULL);
    return first_part == LONG_BYTES;
}

/* The ring that a connection has until then holds a part of it. */
static void the_first_long_message_comes_whole(void) {
    int whole = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        Pair pair = on_the_ring();
        whole += comes_whole(pair.near, pair.far) + comes_whole(pair.far, pair.near);
        close(pair.near), close(pair.far);
    }
    observe("%d came whole", whole);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(the_first_long_message_comes_whole),
        {0},
    };
    return run_cases(cases, argc, argv);
}
