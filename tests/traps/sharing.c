/* Connections that processes share, pass on and leave while bytes flow, from the first byte on. */
#include "parts.h"
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

extern char **environ;

enum { CLIENTS = 4, THREADS = 3, CONNECTIONS = 60, SHORT = 100000 };

static void *connect_again_and_again(void *argument) {
    struct sockaddr_in *address = argument;
    for (long i = 0; i < CONNECTIONS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(fd, (struct sockaddr *)address, sizeof *address) == 0, "connect");
        size_t bytes = SHORT / (1 + i % 7);
        must(send(fd, &bytes, sizeof bytes, 0) == sizeof bytes, "send");
        if (!both_ways(fd, 1, 2, bytes))
            observe("so the client, of %zu bytes", bytes);
        close(fd);
    }
    return NULL;
}

static void serve(int fd) {
    size_t bytes;
    must(recv(fd, &bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "recv");
    if (!both_ways(fd, 2, 1, bytes))
        observe("so the server, of %zu bytes", bytes);
}

/* Accepts, and serves in this process. */
static void *serve_in_a_thread(void *argument) {
    int listener = *(int *)argument, fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        serve(fd);
        close(fd);
    }
    return NULL;
}

/* Accepts, and has a child serve. */
static void *serve_in_children(void *argument) {
    int listener = *(int *)argument, fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            serve(fd);
            _exit(0);
        }
        close(fd);
    }
    return NULL;
}

/* A server whose threads serve some connections, and fork processes for others. Clients are another process. */
static void server_of_threads_forks(void) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 64);
    signal(SIGCHLD, SIG_IGN);
    pid_t client = fork();
    if (client == 0) {
        close(listener);
        pthread_t threads[CLIENTS];
        for (int i = 0; i < CLIENTS; i++)
            threads[i] = start_thread(connect_again_and_again, &address);
        for (int i = 0; i < CLIENTS; i++)
            pthread_join(threads[i], NULL);
        _exit(0);
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(i < 2 ? serve_in_children : serve_in_a_thread, &listener);
    while (kill(client, 0) == 0)
        pause_ms(5);
    shutdown(listener, SHUT_RDWR);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    observe("served");
}

/* One process reads and its parent writes, from the first byte; in the middle the reader goes, and the writer does both. */
static void reader_goes(int by_exit) {
    for (unsigned round = 0; round < ROUNDS; round++) {
        Pair pair = connected();
        size_t middle = 1000 + round * FLOW / ROUNDS;
        pid_t far = far_process(pair, FLOW, FLOW);
        Part sent = {pair.near, 1, 0, FLOW, "never"}, received = {pair.near, 2, 0, middle, "never"};
        pid_t reader = fork();
        if (reader == 0) {
            receive_part(&received);
            if (by_exit)
                exit(strcmp(received.ended, "exactly") != 0);
            close(pair.near);
            _exit(strcmp(received.ended, "exactly") != 0);
        }
        pthread_t sender = start_thread(send_part, &sent);
        must_end_well(reader);
        received.at = middle, received.end = FLOW;
        receive_part(&received);
        pthread_join(sender, NULL);
        close(pair.near);
        must_end_well(far);
        observe("sent %s, received %s", sent.ended, received.ended);
    }
}

/* The other way round: the writer goes, and the reader writes on. */
static void writer_goes(int by_exit) {
    for (unsigned round = 0; round < ROUNDS; round++) {
        Pair pair = connected();
        size_t middle = 1000 + round * FLOW / ROUNDS;
        pid_t far = far_process(pair, FLOW, FLOW);
        int gone[2];
        must(pipe(gone) == 0, "pipe");
        pid_t writer = fork();
        if (writer == 0) {
            Part sent = {pair.near, 1, 0, middle, "never"};
            send_part(&sent);
            if (by_exit)
                exit(strcmp(sent.ended, "exactly") != 0);
            close(pair.near);
            must(write(gone[1], "x", 1) == 1, "write");
            pause_ms(20);
            _exit(strcmp(sent.ended, "exactly") != 0);
        }
        close(gone[1]);
        Part sent = {pair.near, 1, middle, FLOW, "never"}, received = {pair.near, 2, 0, FLOW, "never"};
        pthread_t receiver = start_thread(receive_part, &received);
        char byte;
        read(gone[0], &byte, 1);
        send_part(&sent);
        pthread_join(receiver, NULL);
        must_end_well(writer);
        close(pair.near);
        close(gone[0]);
        must_end_well(far);
        observe("sent %s, received %s", sent.ended, received.ended);
    }
}

static void reader_closes(void) { reader_goes(0); }

static void reader_exits(void) { reader_goes(1); }

static void writer_closes(void) { writer_goes(0); }

static void writer_exits(void) { writer_goes(1); }

enum { BY_FORK, BY_EXEC, BY_VFORK, BY_SPAWN, BY_SYSTEM, BY_POPEN };

/* Starts a program that ends at once, and has all of our descriptors. */
static void start_beside(int how) {
    char *argv[] = {"true", NULL};
    pid_t child = 0;
    FILE *stream;
    switch (how) {
    case BY_SYSTEM:
        must(system("true") == 0, "system");
        return;
    case BY_POPEN:
        stream = popen("true", "r");
        must(stream != NULL && pclose(stream) == 0, "popen");
        return;
    case BY_SPAWN:
        must(posix_spawn(&child, "/bin/true", NULL, NULL, argv, environ) == 0, "posix_spawn");
        break;
    case BY_VFORK:
        child = vfork();
        break;
    default:
        child = fork();
    }
    if (child == 0) {
        if (how != BY_FORK)
            execv("/bin/true", argv);
        _exit(how != BY_FORK);
    }
    must_end_well(child);
}

static atomic_int flows;

static void *flow_near(void *argument) {
    Pair *pair = argument;
    both_ways(pair->near, 1, 2, 5 * FLOW);
    flows--;
    return NULL;
}

static void *flow_far(void *argument) {
    Pair *pair = argument;
    both_ways(pair->far, 2, 1, 5 * FLOW);
    flows--;
    return NULL;
}

static void talk_until_both_on_ring(Pair one, Pair other) {
    wait_for_both(one), wait_for_both(other);
    for (int patience = 100; patience > 0; patience--) {
        talk(one.near, one.far), talk(one.far, one.near);
        talk(other.near, other.far), talk(other.far, other.near);
        if (on_ring() >= 2)
            return;
    }
    errno = ETIMEDOUT;
    must(0, "the ring");
}

/* While both ends of two connections are used both ways, one that was joined and one that is new, programs are started. */
static void flow_beside(int how) {
    for (int round = 0; round < 3; round++) {
        Pair joined = on_the_ring(), fresh = connected();
        flows = 4;
        pthread_t threads[] = {
            start_thread(flow_near, &joined), start_thread(flow_far, &joined),
            start_thread(flow_near, &fresh),  start_thread(flow_far, &fresh),
        };
        while (flows > 0)
            start_beside(how);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        /* What other programs have left, nobody knows. */
        if (how == BY_FORK)
            talk_until_both_on_ring(joined, fresh);
        close(joined.near), close(joined.far), close(fresh.near), close(fresh.far);
        observe("flowed");
    }
}

static void forks_beside(void) { flow_beside(BY_FORK); }

static void execs_beside(void) { flow_beside(BY_EXEC); }

static void vforks_beside(void) { flow_beside(BY_VFORK); }

static void spawns_beside(void) { flow_beside(BY_SPAWN); }

static void commands_beside(void) { flow_beside(BY_SYSTEM); }

static void pipes_beside(void) { flow_beside(BY_POPEN); }

/* A command that waits for a word, and then reads from a connection that it has. */
static FILE *start_waiting(int how, int fd, pid_t *child) {
    char command[100], *argv[] = {"sh", "-c", command, NULL};
    snprintf(command, sizeof command, "read word; dd bs=1 count=14 status=none <&%d | tr a-z A-Z", fd);
    if (how == BY_POPEN)
        return popen(command, "w");
    int words[2], input = dup(0);
    must(pipe(words) == 0 && fcntl(words[1], F_SETFD, FD_CLOEXEC) == 0, "pipe");
    must(dup2(words[0], 0) == 0, "dup2");
    if (how == BY_SPAWN)
        must(posix_spawn(child, "/bin/sh", NULL, NULL, argv, environ) == 0, "posix_spawn");
    else if ((*child = how == BY_FORK ? fork() : vfork()) == 0) {
        execv("/bin/sh", argv);
        _exit(9);
    }
    dup2(input, 0), close(input), close(words[0]);
    return fdopen(words[1], "w");
}

/* We talk on a connection enough for it to come to the ring, while a program has it that reads from it later. */
static void new_connection_for(int how) {
    Pair pair = connected();
    pid_t child = 0;
    char byte;
    for (int i = 0; i < 5; i++)
        must(send(pair.near, "x", 1, 0) == 1 && recv(pair.far, &byte, 1, 0) == 1, "talk");
    pause_ms(20);
    FILE *program = start_waiting(how, pair.near, &child);
    must(program != NULL, "start");
    for (int i = 0; i < 5; i++)
        talk(pair.near, pair.far), talk(pair.far, pair.near);
    must(send(pair.far, "for the child\n", 14, 0) == 14, "send");
    fputs("go\n", program);
    if (how == BY_POPEN)
        observe("ended with %d", pclose(program));
    else {
        fclose(program);
        must_end_well(child);
    }
    talk(pair.near, pair.far), talk(pair.far, pair.near);
}

static void new_connection_for_a_fork(void) { new_connection_for(BY_FORK); }

static void new_connection_for_a_vfork(void) { new_connection_for(BY_VFORK); }

static void new_connection_for_a_spawned(void) { new_connection_for(BY_SPAWN); }

static void new_connection_for_a_command(void) { new_connection_for(BY_POPEN); }

/* A tracer's next two stops, of a process that forks and of its child, in either order. The child. */
static pid_t next_child(void) {
    unsigned long child = 0;
    for (int stops = 0; stops < 2; stops++) {
        int status;
        pid_t stopped = waitpid(-1, &status, __WALL);
        must(stopped > 0 && WIFSTOPPED(status), "waitpid");
        if (status >> 16 == PTRACE_EVENT_FORK)
            must(ptrace(PTRACE_GETEVENTMSG, stopped, 0, &child) == 0, "PTRACE_GETEVENTMSG");
    }
    return child;
}

/* Has the first child of a process begin when the second has just been made. It says by `begun` that it has. */
static void delay_first_child(pid_t parent, int ready, int begun) {
    char byte;
    must(ptrace(PTRACE_SEIZE, parent, 0, PTRACE_O_TRACEFORK) == 0, "PTRACE_SEIZE");
    must(write(ready, "x", 1) == 1, "write");
    pid_t first = next_child();
    must(ptrace(PTRACE_CONT, parent, 0, 0) == 0, "PTRACE_CONT");
    pid_t second = next_child();
    must(ptrace(PTRACE_DETACH, first, 0, 0) == 0 && read(begun, &byte, 1) == 1, "first");
    must(ptrace(PTRACE_DETACH, second, 0, 0) == 0 && ptrace(PTRACE_DETACH, parent, 0, 0) == 0, "PTRACE_DETACH");
    _exit(0);
}

/* A connection goes on in the second child when the first, which began late, and then their parent have let go of it, and the parent has
 * another one. */
static void a_child_begins_late(void) {
    int ready[2], begun[2], go[2];
    char byte, got[32];
    must(pipe(ready) == 0 && pipe(begun) == 0 && pipe(go) == 0, "pipe");
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t parent = getpid(), tracer = fork();
    if (tracer == 0)
        delay_first_child(parent, ready[1], begun[0]);
    must(read(ready[0], &byte, 1) == 1, "read");
    Pair pair = on_the_ring();
    pid_t first = fork();
    if (first == 0) {
        must(write(begun[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1, "go");
        _exit(0);
    }
    pid_t second = fork();
    if (second == 0) {
        close(pair.far);
        must(read(ready[0], &byte, 1) == 1, "read");
        observe_result("recv", recv(pair.near, got, sizeof got, 0));
        _exit(0);
    }
    must_end_well(tracer);
    must(write(go[1], "x", 1) == 1, "write");
    must_end_well(first);
    talk(pair.far, pair.near);
    must(send(pair.far, "for the child", 13, 0) == 13, "send");
    close(pair.near);
    connected();
    must(write(ready[1], "x", 1) == 1, "write");
    must_end_well(second);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(server_of_threads_forks),
        CASE(reader_closes),
        CASE(reader_exits),
        CASE(writer_closes),
        CASE(writer_exits),
        CASE(forks_beside),
        CASE(execs_beside),
        CASE(vforks_beside),
        CASE(spawns_beside),
        CASE(commands_beside),
        CASE(pipes_beside),
        CASE(new_connection_for_a_fork),
        CASE(new_connection_for_a_vfork),
        CASE(new_connection_for_a_spawned),
        CASE(new_connection_for_a_command),
        CASE(a_child_begins_late),
        {0},
    };
    return run_cases(cases, argc, argv);
}
