/* A program that is started with a connection ends, and what it has started goes on with it: nobody of ours has seen that one begin. */
#include "traps.h"

#define ANSWER 7

enum way { BY_A_SHELL, BY_A_SHELL_OF_OURS, BY_A_DAEMON };

typedef struct {
    int go, done;
} Orders;

/* What goes on: says on the connection what it is told, then answers what comes there. */
static int serve(int fd, int go, int done) {
    char text[8] = "<";
    while (read(go, text + 1, 1) == 1)
        must(write(fd, text + 1, 1) == 1 && write(done, text + 1, 1) == 1, "write");
    while (read(fd, text + 1, 5) == 5) {
        text[6] = '>';
        must(write(fd, text, ANSWER) == ANSWER, "answer");
    }
    return 0;
}

/* The same, behind the back of whoever waits for it. */
static int serve_apart(int fd, int go, int done) {
    return fork() != 0 ? 0 : serve(fd, go, done);
}

/* With the near end only. */
static Orders start(enum way way, Pair pair) {
    int go[2], done[2], fd = pair.near;
    char command[600], program[400] = "", numbers[3][16];
    must(pipe(go) == 0 && pipe(done) == 0, "pipe");
    must(readlink("/proc/self/exe", program, sizeof program - 1) > 0, "readlink");
    fcntl(pair.far, F_SETFD, FD_CLOEXEC);
    fcntl(go[1], F_SETFD, FD_CLOEXEC);
    fcntl(done[0], F_SETFD, FD_CLOEXEC);
    snprintf(command, sizeof command, "%s serve %d %d %d &", program, fd, go[0], done[1]);
    int named[] = {fd, go[0], done[1]};
    for (int i = 0; i < 3; i++)
        snprintf(numbers[i], sizeof numbers[i], "%d", named[i]);
    if (way == BY_A_SHELL) {
        observe("system: %d", system(command));
    } else {
        pid_t child = fork();
        if (child == 0 && way == BY_A_SHELL_OF_OURS)
            execl("/bin/sh", "sh", "-c", command, NULL);
        else if (child == 0)
            execl(program, program, "daemon", numbers[0], numbers[1], numbers[2], NULL);
        observe("it has ended with %d", status_of(child));
    }
    close(go[0]);
    close(done[1]);
    return (Orders){go[1], done[0]};
}

static void order(Orders orders, char letter) {
    must(write(orders.go, &letter, 1) == 1 && read(orders.done, &letter, 1) == 1, "order");
}

/* The starter and what it has left speak in turns. */
static void in_turns(enum way way) {
    Pair pair = on_the_ring();
    char said[8] = "";
    Orders orders = start(way, pair);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    must(send(pair.near, "A", 1, 0) == 1, "send");
    order(orders, 'B');
    must(send(pair.near, "C", 1, 0) == 1, "send");
    order(orders, 'D');
    must(recv(pair.far, said, 4, MSG_WAITALL) == 4, "recv");
    observe("said: %s", said);
    shutdown(pair.far, SHUT_WR);
}

/* The starter has spoken last, and lets go of the connection, where a question waits. */
static void left(enum way way) {
    Pair pair = on_the_ring();
    char answer[ANSWER + 1] = "";
    Orders orders = start(way, pair);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    for (int i = 0; i < 3; i++) {
        observe_result("ask", send(pair.far, "query", 5, MSG_NOSIGNAL));
        if (i == 0) {
            close(pair.near);
            close(orders.go);
        }
        observe_result("answer", recv(pair.far, answer, ANSWER, MSG_WAITALL));
        observe("%s", answer);
    }
    shutdown(pair.far, SHUT_WR);
    observe_result("end", recv(pair.far, answer, ANSWER, 0));
}

static void shell_command_in_the_background(void) { in_turns(BY_A_SHELL); }

static void command_of_a_shell_in_the_background(void) { in_turns(BY_A_SHELL_OF_OURS); }

static void daemon_beside_us(void) { in_turns(BY_A_DAEMON); }

static void left_to_a_shell_command_in_the_background(void) { left(BY_A_SHELL); }

static void left_to_a_command_of_a_shell_in_the_background(void) { left(BY_A_SHELL_OF_OURS); }

static void left_to_a_daemon(void) { left(BY_A_DAEMON); }

/* What cannot be started leaves nobody. */
static void a_child_of_vfork_that_starts_nothing(void) {
    Pair pair = on_the_ring();
    pid_t child = vfork();
    if (child == 0) {
        execl("/none", "none", NULL);
        _exit(errno == ENOENT ? 3 : 4);
    }
    observe("it has ended with %d", status_of(child));
    talk_until_on_ring(pair, 1);
}

static void *run_a_command(void *commands) {
    const int *ends = commands;
    char command[64];
    snprintf(command, sizeof command, "echo >&%d; read line <&%d", ends[0], ends[1]);
    observe("ended with %d", system(command));
    return NULL;
}

/* While a program runs that got connections these are closed, and others come, which are no business of it. */
static void connections_that_come_while_a_program_runs(void) {
    enum { CLOSED = 40, NEW = 30 };
    int begun[2], told[2], resets = 0;
    char byte;
    must(pipe(begun) == 0 && pipe(told) == 0, "pipe");
    int ends[] = {begun[1], told[0]};
    Pair pairs[CLOSED];
    for (int i = 0; i < CLOSED; i++)
        pairs[i] = connected();
    pthread_t starter = start_thread(run_a_command, ends);
    must(read(begun[0], &byte, 1) == 1, "the program");
    for (int i = 0; i < CLOSED; i++) {
        close(pairs[i].near);
        close(pairs[i].far);
    }
    for (int i = 0; i < NEW; i++) {
        pairs[i] = connected();
        fcntl(pairs[i].near, F_SETFD, FD_CLOEXEC);
        fcntl(pairs[i].far, F_SETFD, FD_CLOEXEC);
    }
    must(write(told[1], "\n", 1) == 1, "write");
    pthread_join(starter, NULL);
    talk_until_on_ring(pairs[0], 1);
    for (int i = 0; i < NEW; i++) {
        talk(pairs[i].near, pairs[i].far);
        must(send(pairs[i].near, "unread", 6, 0) == 6, "send");
        close(pairs[i].far);
        resets += recv(pairs[i].near, &byte, 1, 0) == -1 && errno == ECONNRESET;
    }
    observe("%d resets", resets);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(shell_command_in_the_background),
        CASE(command_of_a_shell_in_the_background),
        CASE(daemon_beside_us),
        CASE(left_to_a_shell_command_in_the_background),
        CASE(left_to_a_command_of_a_shell_in_the_background),
        CASE(left_to_a_daemon),
        CASE(a_child_of_vfork_that_starts_nothing),
        CASE(connections_that_come_while_a_program_runs),
        {0},
    };
    if (argc == 5 && strcmp(argv[1], "serve") == 0)
        return serve(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    if (argc == 5 && strcmp(argv[1], "daemon") == 0)
        return serve_apart(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    return run_cases(cases, argc, argv);
}
