/* A program made with a sanitizer, which asks for the C library's functions by `dlsym` before anything of it may be called. */
#include "traps.h"

static void threads_talk(void) {
    Pair pair = on_the_ring();
    char sent[64] = "a message", got[64];
    pthread_t thread;
    must(pthread_create(&thread, NULL, send_back, &pair.far) == 0, "thread");
    int back = 0;
    for (int i = 0; i < 1000; i++) {
        must(send(pair.near, sent, sizeof sent, 0) == sizeof sent, "send");
        back += recv(pair.near, got, sizeof got, MSG_WAITALL) == sizeof got;
    }
    observe("%d came back", back);
    shutdown(pair.near, SHUT_WR);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    const Case cases[] = {
        CASE(threads_talk),
        {NULL, NULL},
    };
    return run_cases(cases, argc, argv);
}
