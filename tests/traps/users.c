/* A daemon that begins as root and goes on as somebody else: what it has, and what it gets later. */
#include "traps.h"

enum { NOBODY = 65534 };

static void go_on_as_nobody(void) {
    must(setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "setuid");
}

/* It listens, and no connection is there. */
static void before_the_first_connection(void) {
    struct sockaddr_in address;
    close(listen_here(&address, 1));
    go_on_as_nobody();
    Pair pair = on_the_ring();
    talk(pair.near, pair.far);
    observe("it is user %d, and talks", getuid());
}

/* One from before goes on, and a later one takes the ring, too. */
static void between_two_connections(void) {
    Pair before = on_the_ring();
    go_on_as_nobody();
    talk(before.near, before.far);
    Pair after = connected();
    talk_until_on_ring(after, 2);
    talk(before.far, before.near);
    close(before.near);
    char end;
    observe_result("recv", recv(before.far, &end, 1, 0));
}

/* As servers of files do for each request. */
static void forth_and_back(void) {
    struct sockaddr_in address;
    close(listen_here(&address, 1));
    for (int i = 0; i < 3; i++) {
        must(seteuid(NOBODY) == 0, "seteuid");
        Pair pair = on_the_ring();
        must(seteuid(0) == 0, "seteuid back");
        talk(pair.near, pair.far);
        close(pair.near);
        close(pair.far);
    }
    observe("it is user %d", geteuid());
}

/* What came to the ring before is brought back to the kernel's road for a child, by an agent that has to borrow its socket. */
static void a_child_inherits(void) {
    Pair pair = on_the_ring();
    go_on_as_nobody();
    must(send(pair.near, "for the child", 13, 0) == 13, "send");
    pid_t child = fork();
    if (child == 0) {
        char got[32] = "";
        ssize_t length = recv(pair.far, got, sizeof got - 1, 0);
        observe("the child: %zd %s", length, got);
        _exit(send(pair.far, "back", 4, 0) == 4 ? 0 : 1);
    }
    int status;
    must(waitpid(child, &status, 0) == child, "waitpid");
    char got[32] = "";
    observe("ended with %d", status);
    observe_result("recv", recv(pair.near, got, sizeof got, 0));
    talk(pair.near, pair.far);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(before_the_first_connection), CASE(between_two_connections), CASE(forth_and_back), CASE(a_child_inherits), {0},
    };
    return run_cases(cases, argc, argv);
}
