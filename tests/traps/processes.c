/* Processes that begin, end, and become other programs with connections in hand. */
#include "traps.h"
#include <pty.h>
#include <sched.h>
#include <spawn.h>

extern char **environ;

/* Echoes to the end. */
static void echo(int fd) {
    char buffer[4096];
    ssize_t part;
    while ((part = recv(fd, buffer, sizeof buffer, 0)) > 0)
        must(send(fd, buffer, part, 0) == part, "echo");
}

/* Messages to the echo and back, of many sizes. */
static void ask_echo(int fd, int messages) {
    static char out[6000], in[6000];
    int wrong = 0;
    for (int i = 0; i < messages; i++) {
        size_t size = 1 + (size_t)i * 97 % sizeof out;
        memset(out, 'a' + i % 26, size);
        must(send(fd, out, size, 0) == (ssize_t)size, "send");
        must(recv(fd, in, size, MSG_WAITALL) == (ssize_t)size, "recv");
        wrong += memcmp(in, out, size) != 0;
    }
    observe("%d messages, %d wrong", messages, wrong);
}

/* The child echoes on the far end; the parent lets go of it, and talks. */
static void use(Pair pair, pid_t child) {
    must(child >= 0, "fork");
    if (child == 0) {
        close(pair.near);
        echo(pair.far);
        _exit(7);
    }
    close(pair.far);
    ask_echo(pair.near, 300);
    shutdown(pair.near, SHUT_WR);
    char byte;
    observe_result("after the end", recv(pair.near, &byte, 1, 0));
    observe("the child ended with %d", status_of(child));
}

static void fork_by_library(void) {
    Pair pair = on_the_ring();
    use(pair, fork());
}

static void fork_without_handlers(void) {
    Pair pair = on_the_ring();
    use(pair, _Fork());
}

static void fork_by_system_call(void) {
    Pair pair = on_the_ring();
    use(pair, syscall(SYS_fork));
}

static void fork_by_clone_call(void) {
    Pair pair = on_the_ring();
    use(pair, syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}

static int cloned(void *argument) {
    Pair pair = *(Pair *)argument;
    close(pair.near);
    echo(pair.far);
    return 7;
}

static void fork_by_clone_function(void) {
    static char stack[1 << 16];
    Pair pair = on_the_ring();
    use(pair, clone(cloned, stack + sizeof stack, SIGCHLD, &pair));
}

static void fork_with_a_terminal(void) {
    int terminal;
    Pair pair = on_the_ring();
    use(pair, forkpty(&terminal, NULL, NULL, NULL));
}

static void daemon_echoes(void) {
    Pair pair = on_the_ring();
    pid_t child = fork();
    if (child == 0) {
        close(pair.near);
        must(daemon(1, 1) == 0, "daemon");
        echo(pair.far);
        _exit(0);
    }
    observe("the middle one ended with %d", status_of(child));
    close(pair.far);
    ask_echo(pair.near, 300);
    shutdown(pair.near, SHUT_WR);
    char byte;
    observe_result("after the end", recv(pair.near, &byte, 1, 0));
}

/* The child's own new connection, made after a fork past the library. */
static void new_connection_in_a_child(void) {
    Pair old = on_the_ring();
    pid_t child = syscall(SYS_fork);
    if (child == 0) {
        Pair pair = connected();
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        close(old.far);
        _exit(3);
    }
    observe("the child ended with %d", status_of(child));
    talk(old.near, old.far);
    observe("talked");
}

/* Parent and child take turns on the same end. */
static void both_use_one_end(void) {
    Pair pair = on_the_ring();
    int turn[2], back[2];
    char byte = 0;
    must(pipe(turn) == 0 && pipe(back) == 0, "pipe");
    pid_t child = fork();
    for (int i = 0; i < 100; i++) {
        if (child == 0) {
            must(read(turn[0], &byte, 1) == 1, "turn");
            talk(pair.far, pair.near);
            must(write(back[1], &byte, 1) == 1, "back");
        } else {
            talk(pair.near, pair.far);
            must(write(turn[1], &byte, 1) == 1, "turn");
            must(read(back[0], &byte, 1) == 1, "back");
        }
    }
    if (child == 0)
        _exit(5);
    observe("the child ended with %d", status_of(child));
    talk(pair.near, pair.far);
    observe("talked");
}

static void spawned_cat_echoes(void) {
    Pair pair = on_the_ring();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair.far, 0);
    posix_spawn_file_actions_adddup2(&actions, pair.far, 1);
    posix_spawn_file_actions_addclose(&actions, pair.near);
    posix_spawn_file_actions_addclose(&actions, pair.far);
    char *argv[] = {"cat", NULL};
    pid_t child;
    must(posix_spawn(&child, "/bin/cat", &actions, NULL, argv, environ) == 0, "posix_spawn");
    close(pair.far);
    ask_echo(pair.near, 100);
    shutdown(pair.near, SHUT_WR);
    observe("cat ended with %d", status_of(child));
}

/* A connection whose far end has that number, which is free, and is closed on exec as the near one is. */
static Pair connected_by_number(int number) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1), filler;
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    while ((filler = open("/dev/null", O_RDONLY | O_CLOEXEC)) < number)
        must(filler >= 0, "open");
    close(filler);
    pair.far = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    must(pair.far == number, "accept4");
    close(listener);
    return pair;
}

/* What is to be done at a start was said once, before the number was a connection, which other programs do not get. */
static void spawned_by_a_list_that_is_older(void) {
    enum { NUMBER = 40 };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, NUMBER, 0);
    posix_spawn_file_actions_adddup2(&actions, NUMBER, 1);
    posix_spawn_file_actions_t moved = actions;
    for (int round = 0; round < 2; round++) {
        Pair pair = connected_by_number(NUMBER);
        talk_until_on_ring(pair, 1);
        char *argv[] = {"cat", NULL}, got[8];
        pid_t child;
        must(send(pair.near, "before, ", 8, 0) == 8, "send");
        must(posix_spawn(&child, "/bin/cat", round == 0 ? &actions : &moved, NULL, argv, environ) == 0, "posix_spawn");
        close(pair.far);
        int ready = poll(&(struct pollfd){.fd = pair.near, .events = POLLIN}, 1, 5000);
        ssize_t length = recv(pair.near, got, 8, ready == 1 ? MSG_WAITALL : MSG_DONTWAIT);
        observe("%zd: %.*s", length, length < 0 ? 0 : (int)length, got);
        if (length < 0)
            return;
        ask_echo(pair.near, 100);
        shutdown(pair.near, SHUT_WR);
        observe("cat ended with %d", status_of(child));
        observe_result("after the end", recv(pair.near, got, 1, 0));
        close(pair.near);
    }
}

static void exec_in_a_child_of_vfork(void) {
    Pair pair = on_the_ring();
    for (int i = 0; i < 10; i++) {
        pid_t child = vfork();
        if (child == 0) {
            close(pair.near);
            dup2(pair.far, 0);
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        observe("true ended with %d", status_of(child));
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
    }
}

/* What a child of vfork puts in the place of a connection is not the connection; what it leaves there is. */
static void other_files_in_a_child_of_vfork(void) {
    Pair pair = on_the_ring();
    int pipes[2];
    must(pipe(pipes) == 0, "pipe");
    for (int i = 0; i < 3; i++) {
        char bytes[16] = "";
        must(send(pair.far, "for us", 6, 0) == 6, "send");
        pid_t child = vfork();
        if (child == 0) {
            dup2(pipes[1], pair.near);
            ssize_t written = write(pair.near, "by the pipe", 11);
            struct pollfd readable = {pair.near, POLLIN, 0};
            int ready = poll(&readable, 1, 0);
            ssize_t kept = write(pair.far, "!", 1);
            _exit(written == 11 && ready == 0 && kept == 1 ? 7 : 8);
        }
        observe("ended with %d", status_of(child));
        observe_result("read", read(pipes[0], bytes, sizeof bytes));
        observe("%s", bytes);
        observe_result("recv", recv(pair.near, bytes, 7, MSG_WAITALL));
        observe("%.7s", bytes);
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT));
    }
    talk(pair.near, pair.far);
    talk_until_on_ring(pair, 1);
}

static void exec_that_fails(void) {
    Pair pair = on_the_ring();
    observe_result("execl", execl("/nowhere", "nowhere", NULL));
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    observe("system ended with %d", WEXITSTATUS(system("exit 4")));
    talk(pair.near, pair.far);
    observe("talked");
}

enum { BY_FORK, BY_VFORK, BY_SPAWN, BY_PIDFD_SPAWN, BY_SYSTEM, BY_POPEN };

/* `posix_spawn` that tells a descriptor of the child: newer C libraries have it. Ours always has. */
#pragma weak pidfd_spawn
int pidfd_spawn(int *child, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                char *const arguments[], char *const environment[]);

/* Starts a program, and tells a descriptor of it. */
static int start_by_descriptor(const char *path, char *const arguments[]) {
    int descriptor = -1;
    if (pidfd_spawn != NULL) {
        must(pidfd_spawn(&descriptor, path, NULL, NULL, arguments, environ) == 0, "pidfd_spawn");
        return descriptor;
    }
    pid_t child;
    must(posix_spawn(&child, path, NULL, NULL, arguments, environ) == 0, "posix_spawn");
    descriptor = (int)syscall(SYS_pidfd_open, child, 0);
    must(descriptor >= 0, "pidfd_open");
    return descriptor;
}

/* The status of a child that is known by its descriptor. */
static int status_by_descriptor(int child) {
    siginfo_t info = {.si_code = 0};
    must(waitid((idtype_t)3 /* P_PIDFD */, (id_t)child, &info, WEXITED) == 0, "waitid");
    close(child);
    return info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
}

/* Starts a shell command that has the connection as its descriptor 9, which stays ours, too; waits for its end. */
static int run_beside_us(int how, int fd, char *command) {
    char *argv[] = {"sh", "-c", command, NULL};
    pid_t child = -1;
    if (how == BY_SYSTEM) {
        must(dup2(fd, 9) == 9, "dup2");
        int status = system(command);
        close(9);
        return WEXITSTATUS(status);
    }
    if (how == BY_POPEN) {
        must(dup2(fd, 9) == 9, "dup2");
        FILE *input = popen(command, "w");
        must(input != NULL, "popen");
        close(9);
        return WEXITSTATUS(pclose(input));
    }
    if (how == BY_SPAWN) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 9);
        must(posix_spawn(&child, "/bin/sh", &actions, NULL, argv, environ) == 0, "posix_spawn");
        return status_of(child);
    }
    if (how == BY_PIDFD_SPAWN) {
        must(dup2(fd, 9) == 9, "dup2");
        int descriptor = start_by_descriptor("/bin/sh", argv);
        close(9);
        return status_by_descriptor(descriptor);
    }
    child = how == BY_FORK ? fork() : vfork();
    if (child == 0) {
        dup2(fd, 9);
        execv("/bin/sh", argv);
        _exit(9);
    }
    return status_of(child);
}

/* A program that is started reads and writes a connection that we go on using. */
static void beside_us(int how) {
    Pair pair = on_the_ring();
    char bytes[64];
    setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(pair.far, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (int round = 0; round < 4; round++) {
        must(send(pair.near, "for the child\n", 14, 0) == 14, "send");
        observe("ended with %d", run_beside_us(how, pair.far, "dd bs=1 count=14 status=none <&9 | tr a-z A-Z"));
        must(send(pair.near, "before, ", 8, 0) == 8, "send");
        observe("ended with %d", run_beside_us(how, pair.near, "printf 'the child, ' >&9"));
        must(send(pair.near, "after", 5, 0) == 5, "send");
        ssize_t got = recv(pair.far, bytes, 24, MSG_WAITALL);
        observe("%.*s", (int)got, bytes);
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
    }
}

static void forked_program_beside_us(void) { beside_us(BY_FORK); }

static void vforked_program_beside_us(void) { beside_us(BY_VFORK); }

static void spawned_program_beside_us(void) { beside_us(BY_SPAWN); }

static void program_with_a_descriptor_beside_us(void) { beside_us(BY_PIDFD_SPAWN); }

static void shell_command_beside_us(void) { beside_us(BY_SYSTEM); }

static void shell_command_with_a_pipe_beside_us(void) { beside_us(BY_POPEN); }

/* Half of what was sent is read before the exec, the rest after it. */
static void exec_with_bytes_unread(void) {
    Pair pair = on_the_ring();
    char line[32], number[16];
    must(send(pair.near, "one\ntwo\nthree\n", 14, 0) == 14, "send");
    observe_result("recv", recv(pair.far, line, 4, 0));
    pid_t child = fork();
    if (child == 0) {
        close(pair.near);
        dup2(pair.far, 0);
        snprintf(number, sizeof number, "%d", pair.far);
        execl("/bin/cat", "cat", NULL);
        _exit(9);
    }
    close(pair.far);
    must(send(pair.near, "four\n", 5, 0) == 5, "send");
    shutdown(pair.near, SHUT_WR);
    observe("cat ended with %d", status_of(child));
}

static void parent_ends_first(void) {
    Pair pair = on_the_ring();
    int done[2];
    must(pipe(done) == 0, "pipe");
    if (fork() == 0) {
        close(pair.far);
        pid_t parent = fork();
        if (parent != 0)
            _exit(0);
        pause_ms(50);
        ask_echo(pair.near, 300);
        must(write(done[1], "x", 1) == 1, "done");
        _exit(0);
    }
    close(pair.near);
    echo(pair.far);
    char byte;
    observe_result("the grandchild", read(done[0], &byte, 1));
}

/* A child changes a wait set of its parent's, and ends: the parent finds the set as the child left it. */
static void set_changed_by_a_child(void) {
    Pair pair = on_the_ring();
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "add");
    pid_t child = fork();
    if (child == 0)
        _exit(epoll_ctl(set, EPOLL_CTL_DEL, pair.far, NULL) == 0 ? 0 : 1);
    observe("the child ended with %d", status_of(child));
    observe_result("change", epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &event));
    observe_result("delete", epoll_ctl(set, EPOLL_CTL_DEL, pair.far, NULL));
    observe_result("add", epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event));
    must(send(pair.near, "x", 1, 0) == 1, "send");
    observe_result("wait", epoll_wait(set, &event, 1, 1000));
}

/* What a started program does: changes what belongs to the connection, and not to its descriptor. */
static int change(int fd, const char *what) {
    int two = 2, one = 1;
    switch (*what) {
    case 'b':
        return fcntl(fd, F_SETFL, 0);
    case 'n':
        return fcntl(fd, F_SETFL, O_NONBLOCK);
    case 'l':
        return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two);
    default:
        return setsockopt(fd, IPPROTO_TCP, TCP_INQ, &one, sizeof one);
    }
}

static void changed_by_a_program(int fd, char *what) {
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    char *argv[] = {"processes", "change", number, what, NULL};
    pid_t program;
    must(posix_spawn(&program, "/proc/self/exe", NULL, NULL, argv, environ) == 0, "posix_spawn");
    observe("the program ended with %d", status_of(program));
}

static void observe_receive(int fd) {
    char bytes[8], control[64];
    struct iovec vector = {bytes, 1};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct pollfd item = {.fd = fd, .events = POLLIN};
    struct timeval time = {0, 100000};
    must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0, "SO_RCVTIMEO");
    observe("poll %d", poll(&item, 1, 200));
    observe_result("recvmsg", recvmsg(fd, &header, 0));
    observe("%zu of control", header.msg_controllen);
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    observe_result("recv", recv(fd, bytes, 1, 0));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    observe("waited %d", (ended.tv_sec - begun.tv_sec) * 1000 + (ended.tv_nsec - begun.tv_nsec) / 1000000 >= 50);
}

/* Whoever had a connection, too, may leave it changed. When it is all ours again, it is as it was left. */
static void changed_by_a_started_program(void) {
    static char *changes[] = {"nonblocking", "blocking", "low water", "inq"};
    for (int i = 0; i < 4; i++) {
        Pair pair = on_the_ring();
        if (*changes[i] == 'b')
            must(fcntl(pair.near, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
        changed_by_a_program(pair.near, changes[i]);
        for (int round = 0; round < 40; round++) {
            char byte;
            must(send(pair.near, "x", 1, 0) == 1 && recv(pair.far, &byte, 1, 0) == 1, "talk");
        }
        must(send(pair.far, "x", 1, 0) == 1, "send");
        observe("%s", changes[i]);
        observe_receive(pair.near);
        close(pair.near), close(pair.far);
    }
}

/* A child in a PID namespace of its own: numbers of threads mean nothing between it and its parent. */
static void into_numbers_of_its_own(int by_setns) {
    Pair pair = on_the_ring();
    char bytes[16];
    must(send(pair.near, "0123456789", 10, 0) == 10, "send");
    if (by_setns) {
        int namespace = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
        must(setns(namespace, 0) == 0, "setns");
        close(namespace);
    } else {
        must(unshare(CLONE_NEWPID) == 0, "unshare");
    }
    pid_t child = fork();
    if (child == 0) {
        observe("first of its namespace: %d", getpid() == 1);
        observe_result("recv", recv(pair.far, bytes, 4, 0));
        observe_result("send", send(pair.far, "answer", 6, 0));
        _exit(0);
    }
    observe("ended with %d", status_of(child));
    observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    observe_result("recv", recv(pair.near, bytes, sizeof bytes, 0));
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
}

static void a_child_with_numbers_of_its_own(void) { into_numbers_of_its_own(0); }
static void a_child_after_setns(void) { into_numbers_of_its_own(1); }

/* Which has what is known of the one before it at the same place. */
static void a_program_gets_a_fresh_connection(void) {
    Pair before = on_the_ring();
    int out[2];
    char got[16];
    close(before.near), close(before.far);
    Pair pair = connected();
    must(pipe(out) == 0, "pipe");
    pid_t child = vfork();
    if (child == 0) {
        dup2(pair.far, 0);
        dup2(out[1], 1);
        execl("/bin/sh", "sh", "-c", "sleep 0.7; exec head -c 13", NULL);
        _exit(127);
    }
    for (int i = 0; i < 5; i++, pause_ms(50)) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
    }
    must(send(pair.near, "for the child", 13, 0) == 13, "send");
    struct pollfd heard = {.fd = out[0], .events = POLLIN};
    observe("heard %d", poll(&heard, 1, 5000));
    if (heard.revents & POLLIN) {
        ssize_t length = read(out[0], got, sizeof got);
        observe("%.*s", (int)length, got);
    }
    close(pair.near), close(pair.far);
    observe("program %d", status_of(child));
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(fork_by_library),
        CASE(fork_without_handlers),
        CASE(fork_by_system_call),
        CASE(fork_by_clone_call),
        CASE(fork_by_clone_function),
        CASE(fork_with_a_terminal),
        CASE(daemon_echoes),
        CASE(new_connection_in_a_child),
        CASE(both_use_one_end),
        CASE(spawned_cat_echoes),
        CASE(spawned_by_a_list_that_is_older),
        CASE(exec_in_a_child_of_vfork),
        CASE(other_files_in_a_child_of_vfork),
        CASE(forked_program_beside_us),
        CASE(vforked_program_beside_us),
        CASE(spawned_program_beside_us),
        CASE(program_with_a_descriptor_beside_us),
        CASE(shell_command_beside_us),
        CASE(shell_command_with_a_pipe_beside_us),
        CASE(exec_that_fails),
        CASE(exec_with_bytes_unread),
        CASE(parent_ends_first),
        CASE(set_changed_by_a_child),
        CASE(changed_by_a_started_program),
        CASE(a_child_with_numbers_of_its_own),
        CASE(a_child_after_setns),
        CASE(a_program_gets_a_fresh_connection),
        {0},
    };
    if (argc == 4 && strcmp(argv[1], "change") == 0)
        return change(atoi(argv[2]), argv[3]) != 0;
    return run_cases(cases, argc, argv);
}
