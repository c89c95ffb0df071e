/* Programs, and children of theirs, that give up what the library may need: system calls, the agent, their clock. */
#include "traps.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { ALLOWED_MAX = 16 };

static void install(struct sock_filter *filter, int length) {
    struct sock_fprog program = {length, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    observe_result("filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* From now on the process may read, write and end, and make these system calls; any other kills it. */
static void allow(const int *calls, int count) {
    int allowed[ALLOWED_MAX] = {SYS_read, SYS_write, SYS_exit_group}, length = 0;
    struct sock_filter filter[2 * ALLOWED_MAX + 2];
    memcpy(allowed + 3, calls, count * sizeof *calls);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < count + 3; i++) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    install(filter, length);
}

static void allow_all(void) {
    struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    install(filter, 1);
}

enum { POLLS, SELECTS, COPIES, ACCEPTS, FORKS, MESSAGES, FAULTS, MOVES, KINDS };

static void end_well(int number) {
    (void)number;
    observe("handled");
    _exit(0);
}

static void confined(int kind) {
    Pair pair = on_the_ring();
    struct sockaddr_in address;
    int listener = listen_here(&address, 8), near = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    if (kind == MOVES) {
        pid_t child = vfork();
        if (child == 0)
            _exit(0);
        status_of(child);
    }
    const int calls[KINDS][5] = {
        {SYS_ppoll, SYS_poll, SYS_ppoll, SYS_ppoll, SYS_ppoll},
        {SYS_pselect6, SYS_select, SYS_pselect6, SYS_pselect6, SYS_pselect6},
        {SYS_dup2, SYS_dup3, SYS_dup2, SYS_dup2, SYS_dup2},
        {SYS_accept, SYS_accept, SYS_accept, SYS_accept, SYS_accept},
        {SYS_clone, SYS_wait4, SYS_set_robust_list, SYS_rseq, SYS_clone3},
        {SYS_sendmsg, SYS_sendmmsg, SYS_ppoll, SYS_pselect6, SYS_epoll_pwait},
        {SYS_rt_sigreturn, SYS_rt_sigreturn, SYS_rt_sigreturn, SYS_rt_sigreturn, SYS_rt_sigreturn},
        {SYS_read, SYS_read, SYS_read, SYS_read, SYS_read},
    };
    handle(SIGSEGV, end_well, 0);
    allow(calls[kind], 5);
    char bytes[32] = "0123456789";
    must(write(pair.near, bytes, 10) == 10, "write");
    struct pollfd entry = {pair.far, POLLIN, 0};
    fd_set set;
    struct timeval time = {1, 0};
    FD_ZERO(&set);
    FD_SET(pair.far, &set);
    if (kind == POLLS)
        observe("poll: %d", poll(&entry, 1, 1000));
    else if (kind == SELECTS)
        observe("select: %d", select(pair.far + 1, &set, NULL, NULL, &time));
    else if (kind == COPIES)
        observe("dup2: %d", dup2(pair.far, 80));
    else if (kind == ACCEPTS)
        observe("accept: %d", accept(listener, NULL, NULL) > 0);
    if (kind == FORKS) {
        pid_t child = fork();
        int status;
        if (child == 0) {
            pid_t grandchild = fork();
            if (grandchild == 0)
                _exit(4);
            _exit(wait4(grandchild, &status, 0, NULL) == grandchild ? WEXITSTATUS(status) : 9);
        }
        observe("wait: %d", wait4(child, &status, 0, NULL) == child && WEXITSTATUS(status) == 4);
    }
    if (kind == MESSAGES) {
        struct iovec vector = {"message", 7};
        struct mmsghdr messages = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
        struct timespec second = {1, 0};
        observe_result("sendmsg", sendmsg(pair.near, &messages.msg_hdr, 0));
        observe_result("sendmmsg", sendmmsg(pair.near, &messages, 1, 0));
        observe("ppoll: %d", ppoll(&entry, 1, &second, NULL));
        observe("pselect: %d", pselect(pair.far + 1, &set, NULL, NULL, &second, NULL));
    }
    if (kind == FAULTS)
        *(volatile char *)8 = 1;
    observe_result("read", read(pair.far, bytes, sizeof bytes));
    _exit(0);
}

static void polls_behind_a_filter(void) { confined(POLLS); }
static void selects_behind_a_filter(void) { confined(SELECTS); }
static void copies_behind_a_filter(void) { confined(COPIES); }
static void accepts_behind_a_filter(void) { confined(ACCEPTS); }
static void forks_behind_a_filter(void) { confined(FORKS); }
static void messages_behind_a_filter(void) { confined(MESSAGES); }
static void faults_behind_a_filter(void) { confined(FAULTS); }
static void moves_bytes_behind_a_filter_after_a_vfork(void) { confined(MOVES); }

/* A thread that has moved bytes ends behind a filter of its own, with the calls that the C library makes then. */
static void *ends_confined(void *pair) {
    const int calls[] = {SYS_madvise, SYS_munmap, SYS_futex, SYS_rt_sigprocmask, SYS_exit};
    talk(((Pair *)pair)->near, ((Pair *)pair)->far);
    allow(calls, 5);
    return NULL;
}

static void a_thread_ends_behind_a_filter(void) {
    Pair pair = on_the_ring();
    pthread_join(start_thread(ends_confined, &pair), NULL);
    talk(pair.far, pair.near);
    observe("talked");
}

/* A fork past the C library, with these flags besides. */
static pid_t fork_by_number(long number, uint64_t flags) {
    uint64_t asked[8] = {flags, 0, 0, 0, SIGCHLD};
    if (number == SYS_clone)
        return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    return (pid_t)syscall(number, asked, sizeof asked);
}

/* A new user namespace lets anybody change the root. */
static void change_root(void) {
    if (chroot("/proc/self/fdinfo") != 0)
        must(unshare(CLONE_NEWUSER) == 0 && chroot("/proc/self/fdinfo") == 0, "chroot");
}

/* Mounts of its own may hide any path. */
static void mount_over_paths(void) {
    must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private");
    must(mount("none", "/tmp", "tmpfs", 0, NULL) == 0 && mount("none", "/run", "tmpfs", 0, NULL) == 0, "mount");
}

static void hide_paths(void) {
    if (unshare(CLONE_NEWNS) != 0)
        must(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "unshare");
    mount_over_paths();
}

/* The bytes that a child of a fork has not read are there when it has confined itself, and the peer sees no reset. */
static void child_of_does(pid_t (*fork_it)(void), void (*confine)(void), int starts) {
    Pair pair = on_the_ring();
    char bytes[32];
    must(send(pair.near, "0123456789", 10, 0) == 10, "send");
    pid_t child = fork_it();
    if (child == 0) {
        close(pair.near);
        confine();
        if (starts) {
            dup2(pair.far, 0);
            close(pair.far);
            execl("/usr/bin/head", "head", "-c10", NULL);
            _exit(9);
        }
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
        observe_result("send", send(pair.far, bytes, 7, MSG_NOSIGNAL));
        _exit(0);
    }
    close(pair.far);
    observe("ended with %d", status_of(child));
    if (!starts)
        observe_result("recv", recv(pair.near, bytes, sizeof bytes, 0));
    observe_result("recv", recv(pair.near, bytes, sizeof bytes, 0));
}

static void child_does(void (*confine)(void), int starts) { child_of_does(fork, confine, starts); }

static void hide(void) { must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "prctl"); }

static void limit_and_filter(void) {
    struct rlimit limit = {0, 0};
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    allow_all();
}

static void a_child_opens_nothing_more(void) { child_does(limit_and_filter, 0); }
static void a_child_installs_a_filter(void) { child_does(allow_all, 0); }
static void a_child_hides_and_starts_a_program(void) { child_does(hide, 1); }
static void a_child_changes_its_root(void) { child_does(change_root, 0); }
static void a_child_hides_paths_and_starts_a_program(void) { child_does(hide_paths, 1); }

static pid_t fork_with_mounts(void) {
    pid_t child = fork_by_number(SYS_clone, CLONE_NEWNS);
    return child >= 0 ? child : fork_by_number(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS);
}

static pid_t fork3_with_mounts(void) {
    pid_t child = fork_by_number(SYS_clone3, CLONE_NEWNS);
    return child >= 0 ? child : fork_by_number(SYS_clone3, CLONE_NEWUSER | CLONE_NEWNS);
}

static void a_child_by_number_hides_paths_and_starts_a_program(void) {
    child_of_does(fork_with_mounts, mount_over_paths, 1);
    child_of_does(fork3_with_mounts, mount_over_paths, 1);
}

/* A child that no fork handler knows of gives up all system calls but a few, and goes on with a connection, or with something else that it
 * has put in its place. */
static void child_by_number_behind_a_filter(long number, uint64_t flags, int is_replaced) {
    static const int calls[] = {SYS_recvfrom, SYS_sendto};
    Pair pair = on_the_ring();
    int other[2];
    char byte = 0, got[16];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0, "socketpair");
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    pid_t child = fork_by_number(number, flags);
    if (child == 0) {
        if (is_replaced)
            must(dup2(other[1], pair.far) == pair.far, "dup2");
        allow(calls, 2);
        /* The parent observes meanwhile. */
        must(is_replaced || recv(pair.far, got, sizeof got, 0) == 6, "recv");
        must(send(pair.far, "answer", 6, 0) == 6 && recv(pair.far, &byte, 1, 0) == 1, "send and recv");
        _exit(byte);
    }
    must(child > 0, "clone");
    int near = is_replaced ? other[0] : pair.near;
    observe_result("recv", recv(near, got, sizeof got, 0));
    observe_result("send", send(near, "\7", 1, 0));
    observe("child: %d", status_of(child));
    if (is_replaced)
        observe_result("recv", recv(pair.far, got, sizeof got, 0));
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    close(pair.near), close(pair.far), close(other[0]), close(other[1]);
}

static void children_by_number_behind_a_filter(void) {
    for (int round = 0; round < 8; round++)
        child_by_number_behind_a_filter(round & 4 ? SYS_clone3 : SYS_clone, round & 2 ? CLONE_NEWNET : 0, round & 1);
}

static void a_child_by_number_with_numbers_of_its_own(void) { child_by_number_behind_a_filter(SYS_clone, CLONE_NEWPID | CLONE_NEWNET, 0); }

static void the_clock_is_taken_away(void) {
#ifdef __x86_64__
    Pair pair = on_the_ring();
    char bytes[64];
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0)
        observe_result("prctl", -1);
    for (int i = 0; i < 10; i++) {
        must(send(pair.near, "message", 7, 0) == 7, "send");
        must(poll(&(struct pollfd){pair.far, POLLIN, 0}, 1, 1000) == 1, "poll");
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    }
    close(pair.near), close(pair.far);
#endif
}

/* Calls agree about which descriptors there are. */
static void descriptors_that_are_not_the_program_s(void) {
    Pair pair = on_the_ring();
    int open = 0, copied = 0, answers = 0, value;
    for (int fd = pair.far + 10; fd < 1024; fd++) {
        open += fcntl(fd, F_GETFD) >= 0;
        answers += ioctl(fd, FIONREAD, &value) == 0;
        int copy = dup(fd);
        copied += copy >= 0;
        close(copy);
    }
    observe("open %d, copied %d, answers %d", open, copied, answers);
    int negative = -1;
    must(send(pair.near, "message", 7, 0) == 7, "send");
    observe_result("low-water mark", setsockopt(pair.far, SOL_SOCKET, SO_RCVLOWAT, &negative, sizeof negative));
    observe("poll: %d", poll(&(struct pollfd){pair.far, POLLIN, 0}, 1, 50));
    talk(pair.far, pair.near);
}

static void closes_all_without_ranges(void) {
#ifdef closefrom
    observe("skipped: this C library has no closefrom");
#else
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    Pair pair = on_the_ring();
    install(filter, sizeof filter / sizeof *filter);
    pid_t child = fork();
    if (child == 0) {
        int open = 0;
        closefrom(pair.near);
        for (int fd = pair.near; fd < 1024; fd++)
            open += fcntl(fd, F_GETFD) >= 0;
        _exit(open);
    }
    observe("%d are open", status_of(child));
    talk(pair.near, pair.far);
#endif
}

/* The program begins anew where it may not call `ppoll` and `epoll_pwait`, which it does not by itself; but musl's epoll_wait does. */
static void begin_without_ppoll(const char *name) {
#ifdef __GLIBC__
    enum { OF_EPOLL = SYS_epoll_pwait };
#else
    enum { OF_EPOLL = SYS_ppoll };
#endif
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OF_EPOLL, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    if (getenv("WITHOUT_PPOLL") == NULL) {
        setenv("WITHOUT_PPOLL", "1", 1);
        install(filter, sizeof filter / sizeof *filter);
        execl("/proc/self/exe", "confined", name, NULL);
        must(0, "exec");
    }
}

static atomic_int handled, in_time;
static pthread_t sleeper;
static Pair its_pair;

static void note_signal(int number) {
    (void)number;
    atomic_store(&handled, 1);
}

/* Lets a signal come to a thread that sleeps in a call which has a part, and looks whether it is handled before the call ends. */
static void *interrupt_it(void *sends) {
    static char bytes[1 << 16];
    pause_ms(300);
    pthread_kill(sleeper, SIGUSR1);
    for (int patience = 500; patience > 0 && !atomic_load(&handled); patience--)
        pause_ms(10);
    atomic_store(&in_time, atomic_load(&handled));
    if (sends == NULL)
        send(its_pair.near, bytes, 4, 0);
    while (sends != NULL && recv(its_pair.far, bytes, sizeof bytes, 0) > 0)
        ;
    return NULL;
}

static void waits_by_the_older_calls(void) {
    begin_without_ppoll("waits_by_the_older_calls");
    Pair pair = on_the_ring();
    struct pollfd entry = {.fd = pair.far, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    int beside[2], set = epoll_create1(0);
    must(pipe(beside) == 0, "pipe");
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    must(epoll_ctl(set, EPOLL_CTL_ADD, beside[0], &event) == 0, "epoll_ctl");
    for (int i = 0; i < 3; i++) {
        observe_result("poll", poll(&entry, 1, 0));
        observe_result("epoll_wait", epoll_wait(set, &event, 1, 0));
        if (i == 0)
            must(write(beside[1], "x", 1) == 1, "write");
        else if (i == 1)
            must(send(pair.near, "some", 4, 0) == 4 && read(beside[0], &event, 1) == 1, "send");
    }
    observe_result("poll", poll(&entry, 1, -1));
    observe_result("epoll_wait", epoll_wait(set, &event, 1, -1));
}

enum { BY_SELECT, BY_PSELECT, BY_NUMBER };

/* The program begins anew where it may make one of the calls that wait, and no other. */
static void begin_with_one_wait(const char *name, int call) {
    const int waits[] = {SYS_ppoll, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_pselect6,
#ifdef SYS_select
                         SYS_select, SYS_poll, SYS_epoll_wait
#endif
    };
    enum { WAITS = sizeof waits / sizeof *waits };
    struct sock_filter filter[2 * WAITS + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int length = 1;
    for (int i = 0; i < WAITS; i++) {
        if (waits[i] == call)
            continue;
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, waits[i], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (getenv("WITH_ONE_WAIT") == NULL) {
        setenv("WITH_ONE_WAIT", "1", 1);
        install(filter, length);
        execl("/proc/self/exe", "confined", name, NULL);
        must(0, "exec");
    }
}

static int select_by(int how, int count, fd_set *sets, int timeout_ms) {
    struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    struct timespec exact = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    switch (how) {
    case BY_SELECT: return select(count, &sets[0], &sets[1], &sets[2], timeout_ms < 0 ? NULL : &time);
    case BY_PSELECT: return pselect(count, &sets[0], &sets[1], &sets[2], timeout_ms < 0 ? NULL : &exact, NULL);
#ifdef SYS_select
    default: return syscall(SYS_select, count, &sets[0], &sets[1], &sets[2], timeout_ms < 0 ? NULL : &time);
#else
    default: return select(count, &sets[0], &sets[1], &sets[2], timeout_ms < 0 ? NULL : &time);
#endif
    }
}

static int most(int a, int b) { return a > b ? a : b; }

/* What is told of the far end, by reading, writing and exceptions, and of the pipe. */
static void observe_select(const char *what, int how, int fd, int beside, int timeout_ms) {
    fd_set sets[3];
    for (int i = 0; i < 3; i++) {
        FD_ZERO(&sets[i]);
        FD_SET(fd, &sets[i]);
    }
    if (timeout_ms < 0)
        FD_CLR(fd, &sets[1]);
    FD_SET(beside, &sets[0]);
    int count = select_by(how, most(fd, beside) + 1, sets, timeout_ms);
    if (count < 0)
        observe_result(what, count);
    else
        observe("%s: %d %d%d%d %d", what, count, !!FD_ISSET(fd, &sets[0]), !!FD_ISSET(fd, &sets[1]), !!FD_ISSET(fd, &sets[2]),
                !!FD_ISSET(beside, &sets[0]));
}

static Pair selected;

static void *send_late(void *unused) {
    pause_ms(100);
    must(send(selected.near, "some", 4, 0) == 4, "send");
    return unused;
}

static void selects_alone(const char *name, int how, int call) {
    begin_with_one_wait(name, call);
    int beside[2];
    char bytes[64], big[1 << 16] = {0};
    must(pipe(beside) == 0, "pipe");
    /* Others than `select` are refused: nobody waits by these. */
    selected = connected();
    for (int patience = 100; patience > 0; patience--) {
        fd_set sets[3];
        for (int i = 0; i < 3; i++)
            FD_ZERO(&sets[i]);
        FD_SET(selected.near, &sets[0]), FD_SET(selected.far, &sets[0]);
        must(select_by(how, most(selected.near, selected.far) + 1, sets, 1) == 0, "select");
        talk(selected.near, selected.far), talk(selected.far, selected.near);
        if (on_ring() >= 1)
            break;
    }
    for (int round = 0; round < 3; round++) {
        observe_select("nothing", how, selected.far, beside[0], 0);
        must(send(selected.near, "some", 4, 0) == 4, "send");
        observe_select("bytes", how, selected.far, beside[0], 0);
        observe_select("bytes, endless", how, selected.far, beside[0], -1);
        must(recv(selected.far, bytes, sizeof bytes, 0) == 4, "recv");
        observe_select("a while", how, selected.far, beside[0], 20);
        must(write(beside[1], "x", 1) == 1, "write");
        observe_select("beside", how, selected.far, beside[0], -1);
        must(read(beside[0], bytes, 1) == 1, "read");
        pthread_t sender = start_thread(send_late, NULL);
        observe_select("late", how, selected.far, beside[0], -1);
        pthread_join(sender, NULL);
        must(recv(selected.far, bytes, sizeof bytes, 0) == 4, "recv");
    }
    while (send(selected.far, big, sizeof big, MSG_DONTWAIT) > 0)
        ;
    observe_select("full", how, selected.far, beside[0], 0);
    size_t got = 0;
    for (ssize_t part; (part = recv(selected.near, big, sizeof big, MSG_DONTWAIT)) > 0; got += part)
        pause_ms(1);
    observe("got some: %d", got > 0);
    observe_select("room", how, selected.far, beside[0], 1000);
    shutdown(selected.near, SHUT_WR);
    observe_select("the end", how, selected.far, beside[0], -1);
    close(selected.near);
    pause_ms(20);
    observe_select("both ends", how, selected.far, beside[0], 0);
}

static void selects_and_no_other_wait(void) { selects_alone("selects_and_no_other_wait", BY_SELECT, SYS_pselect6); }

static void pselects_and_no_other_wait(void) { selects_alone("pselects_and_no_other_wait", BY_PSELECT, SYS_pselect6); }

static void selects_by_number_and_no_other_wait(void) {
#ifdef SYS_select
    selects_alone("selects_by_number_and_no_other_wait", BY_NUMBER, SYS_select);
#else
    selects_alone("selects_by_number_and_no_other_wait", BY_NUMBER, SYS_pselect6);
#endif
}

static void signals_where_waits_are_refused(void) {
    enum { COUNT = 1024 };
    static char bytes[1 << 14];
    static struct mmsghdr list[COUNT];
    struct iovec vector = {bytes, sizeof bytes};
    for (int i = 0; i < COUNT; i++)
        list[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
    begin_without_ppoll("signals_where_waits_are_refused");
    handle(SIGUSR1, note_signal, SA_RESTART);
    sleeper = pthread_self();
    for (int sends = 0; sends < 2; sends++) {
        its_pair = connected();
        for (int i = 0; i < 20; i++, pause_ms(5))
            talk(its_pair.near, its_pair.far), talk(its_pair.far, its_pair.near);
        atomic_store(&handled, 0);
        must(send(its_pair.near, bytes, 4, 0) == 4, "send");
        pthread_t other = start_thread(interrupt_it, sends ? bytes : NULL);
        ssize_t part = sends ? sendmmsg(its_pair.near, list, COUNT, 0) : recv(its_pair.far, bytes, 8, MSG_WAITALL);
        observe("some %s: %d", sends ? "sent" : "received", part > 0);
        shutdown(its_pair.near, SHUT_WR);
        pthread_join(other, NULL);
        observe("handled in time: %d", atomic_load(&in_time));
    }
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(polls_behind_a_filter),
        CASE(selects_behind_a_filter),
        CASE(copies_behind_a_filter),
        CASE(accepts_behind_a_filter),
        CASE(forks_behind_a_filter),
        CASE(messages_behind_a_filter),
        CASE(faults_behind_a_filter),
        CASE(moves_bytes_behind_a_filter_after_a_vfork),
        CASE(a_thread_ends_behind_a_filter),
        CASE(a_child_opens_nothing_more),
        CASE(a_child_installs_a_filter),
        CASE(a_child_hides_and_starts_a_program),
        CASE(a_child_changes_its_root),
        CASE(a_child_hides_paths_and_starts_a_program),
        CASE(a_child_by_number_hides_paths_and_starts_a_program),
        CASE(children_by_number_behind_a_filter),
        CASE(a_child_by_number_with_numbers_of_its_own),
        CASE(the_clock_is_taken_away),
        CASE(descriptors_that_are_not_the_program_s),
        CASE(closes_all_without_ranges),
        CASE(signals_where_waits_are_refused),
        CASE(waits_by_the_older_calls),
        CASE(selects_and_no_other_wait),
        CASE(pselects_and_no_other_wait),
        CASE(selects_by_number_and_no_other_wait),
        {0},
    };
    return run_cases(cases, argc, argv);
}
