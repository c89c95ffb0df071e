/* The agent stands still while a program leaves many connections: that holds the program up once, not for each of them. */
#include "requests.h"

/* It waits two seconds at most; a third of a second for each is too long. */
enum { CONNECTIONS = 20, ALLOWED_MS = 4000, GUARD_S = 30 };

static pid_t stopped;

static long now_ms(void) {
    struct timespec now;
    must(clock_gettime(CLOCK_MONOTONIC, &now) == 0, "clock_gettime");
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void go_on(int number) {
    (void)number;
    if (stopped > 0)
        kill(stopped, SIGCONT);
}

/* Stops the process at the other end of the library's descriptor, if there is one. */
static void stop_agent(void) {
    for (int fd = 900; fd < 1000; fd++) {
        struct ucred peer;
        socklen_t bytes = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0)
            stopped = peer.pid;
    }
    handle(SIGALRM, go_on, 0);
    alarm(GUARD_S);
    if (stopped > 0)
        must(kill(stopped, SIGSTOP) == 0, "kill");
}

static void observe_since(long start) {
    alarm(0);
    go_on(0);
    observe("%s", now_ms() - start < ALLOWED_MS ? "in time" : "late");
}

/* Connections with bytes unread in their rings. */
static void fill(Pair *pairs) {
    for (int i = 0; i < CONNECTIONS; i++) {
        pairs[i] = connected();
        talk_until_on_ring(pairs[i], i + 1);
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        talk(pairs[i].near, pairs[i].far);
        must(send(pairs[i].near, "unread", 6, 0) == 6, "send");
    }
}

static void many_are_shut_down(void) {
    Pair pairs[CONNECTIONS];
    fill(pairs);
    stop_agent();
    long start = now_ms();
    for (int i = 0; i < CONNECTIONS; i++)
        must(shutdown(pairs[i].near, SHUT_WR) == 0, "shutdown");
    observe_since(start);
    for (int i = 0; i < CONNECTIONS; i++) {
        char bytes[8];
        observe_result("recv", recv(pairs[i].far, bytes, sizeof bytes, MSG_WAITALL));
    }
}

static void many_are_left_by_exec(void) {
    Pair pairs[CONNECTIONS];
    fill(pairs);
    stop_agent();
    char start[32], agent[16];
    snprintf(start, sizeof start, "%ld", now_ms()), snprintf(agent, sizeof agent, "%d", stopped);
    execl("/proc/self/exe", "in_time", start, agent, NULL);
}

static void many_are_given_to_a_program(void) {
    Pair pairs[CONNECTIONS];
    fill(pairs);
    stop_agent();
    long start = now_ms();
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    observe_since(start);
    must(waitpid(child, NULL, 0) == child, "waitpid");
}

/* What lies in the rings cannot come before what the kernel reads. */
static void many_are_read_by_requests(void) {
    Pair pairs[CONNECTIONS];
    char byte;
    fill(pairs);
    stop_agent();
    long start = now_ms();
    for (int i = 0; i < CONNECTIONS; i++) {
        must(fcntl(pairs[i].far, F_SETFL, O_NONBLOCK) == 0, "fcntl");
        asynchronous(pairs[i].far, &byte, 1, IOCB_CMD_PREAD);
    }
    observe_since(start);
}

int main(int argc, char **argv) {
    if (argc == 3) {
        stopped = atoi(argv[2]);
        observe_since(atol(argv[1]));
        return 0;
    }
    static const Case cases[] = {
        CASE(many_are_shut_down),
        CASE(many_are_left_by_exec),
        CASE(many_are_given_to_a_program),
        CASE(many_are_read_by_requests),
        {0},
    };
    return run_cases(cases, argc, argv);
}
