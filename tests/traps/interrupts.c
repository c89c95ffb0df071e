/* Threads and processes that are interrupted where it hurts: by several signals at once, by cancellation, by faults, by a failed exec. */
#include "traps.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/sendfile.h>

enum { PAIRS_OF_SIGNALS = 3000, JUMPS = 500 };

/* ---- What a linked library may have done before: the program's first functions run before any library's. ---- */

static pthread_mutex_t logging = PTHREAD_MUTEX_INITIALIZER;
static int forks_with_log;
static sigjmp_buf out;
static volatile sig_atomic_t may_jump;

static void take_log(void) {
    if (forks_with_log)
        pthread_mutex_lock(&logging);
}

static void give_log(void) {
    if (forks_with_log)
        pthread_mutex_unlock(&logging);
}

static void jump_out(int number) {
    (void)number;
    if (may_jump)
        siglongjmp(out, 1);
}

static void before_all_libraries(void) {
    struct sigaction action = {.sa_handler = jump_out, .sa_flags = SA_NODEFER};
    pthread_atfork(take_log, give_log, give_log);
    sigaction(SIGVTALRM, &action, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*first)(void) = before_all_libraries;

/* ---- Signals. ---- */

typedef struct {
    Pair pair;
    pthread_t thread;
    atomic_int is_over, is_blocked;
    atomic_long rounds;
} Victim;

static volatile sig_atomic_t came[2];

static void count(int number) { came[number == SIGUSR2]++; }

static void move_bytes(Victim *victim) {
    char bytes[4096] = "";
    send(victim->pair.near, bytes, 700, MSG_DONTWAIT);
    recv(victim->pair.far, bytes, sizeof bytes, MSG_DONTWAIT);
    atomic_fetch_add(&victim->rounds, 1);
}

static void *be_interrupted(void *argument) {
    Victim *victim = argument;
    while (!atomic_load(&victim->is_over)) {
        sigset_t blocked;
        move_bytes(victim);
        pthread_sigmask(SIG_BLOCK, NULL, &blocked);
        if (sigismember(&blocked, SIGUSR1) || sigismember(&blocked, SIGUSR2))
            atomic_store(&victim->is_blocked, 1);
    }
    return NULL;
}

static void pause_us(long us) {
    struct timespec time = {.tv_nsec = us * 1000};
    nanosleep(&time, NULL);
}

static void two_signals_at_once(void) {
    Victim victim = {.pair = on_the_ring()};
    handle(SIGUSR1, count, 0);
    handle(SIGUSR2, count, SA_RESTART);
    must(pthread_create(&victim.thread, NULL, be_interrupted, &victim) == 0, "thread");
    for (int i = 0; i < PAIRS_OF_SIGNALS && !atomic_load(&victim.is_blocked); i++) {
        pthread_kill(victim.thread, SIGUSR1);
        pthread_kill(victim.thread, SIGUSR2);
        pause_us(50);
    }
    atomic_store(&victim.is_over, 1);
    pthread_join(victim.thread, NULL);
    observe("%s", atomic_load(&victim.is_blocked) ? "one stays blocked" : "none stays blocked");
    observe("both came: %d", came[0] > 0 && came[1] > 0);
}

static void *be_thrown_out(void *argument) {
    Victim *victim = argument;
    sigsetjmp(out, 1);
    may_jump = 1;
    while (!atomic_load(&victim->is_over))
        move_bytes(victim);
    may_jump = 0;
    return NULL;
}

static void *go_on(void *argument) {
    Victim *victim = argument;
    char bytes[700] = "";
    while (!atomic_load(&victim->is_over)) {
        send(victim->pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
        atomic_fetch_add(&victim->rounds, 1);
        sched_yield();
    }
    return NULL;
}

/* The handler of one of two signals jumps out of whatever the thread was at; another thread goes on. */
static void thrown_out_by(int number) {
    Victim victim = {.pair = on_the_ring()}, other = {.pair = victim.pair};
    handle(SIGUSR2, count, 0);
    must(pthread_create(&victim.thread, NULL, be_thrown_out, &victim) == 0, "thread");
    must(pthread_create(&other.thread, NULL, go_on, &other) == 0, "thread");
    for (int i = 0; i < JUMPS; i++) {
        pthread_kill(victim.thread, number);
        pthread_kill(victim.thread, SIGUSR2);
        pause_us(200);
    }
    long before = atomic_load(&other.rounds), after = before;
    for (int patience = 1000; patience > 0 && after == before; patience--, after = atomic_load(&other.rounds))
        pause_us(1000);
    observe("%s", after == before ? "the other one stands still" : "the other one goes on");
    atomic_store(&victim.is_over, 1);
    atomic_store(&other.is_over, 1);
    pthread_join(victim.thread, NULL);
    pthread_join(other.thread, NULL);
}

static void thrown_out_by_one_of_two_signals(void) {
    handle(SIGUSR1, jump_out, SA_NODEFER);
    thrown_out_by(SIGUSR1);
}

static void thrown_out_by_an_early_handler(void) { thrown_out_by(SIGVTALRM); }

/* A buffer that is not there is told by EFAULT, also while a signal waits. */
static void faults_while_signals_come(void) {
    Pair pair = on_the_ring();
    int file = memfd_create("file", 0);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), bytes[4096];
    struct itimerval often = {.it_interval = {.tv_usec = 60}, .it_value = {.tv_usec = 60}}, never = {0};
    handle(SIGALRM, count, SA_RESTART);
    setitimer(ITIMER_REAL, &often, NULL);
    int wrong = 0;
    for (int i = 0; i < 20000; i++) {
        wrong += ftruncate(file, 4096) != 0 || send(pair.near, page, 600, 0) != 600;
        wrong += ftruncate(file, 0) != 0 || send(pair.near, page, 600, 0) != -1 || errno != EFAULT;
        recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    observe("wrong: %d, blocked: %d %d", wrong, sigismember(&blocked, SIGALRM), sigismember(&blocked, SIGBUS));
}

static void actions_by_number_and_their_masks(void) {
    Pair pair = on_the_ring();
    struct sigaction action, shown;
    /* As the kernel has it. */
    struct { void (*handler)(int); unsigned long flags; void (*restorer)(void); uint64_t mask; } told;
    memset(&action, 0, sizeof action);
    action.sa_handler = count;
    action.sa_flags = SA_RESETHAND;
    sigaddset(&action.sa_mask, SIGUSR1);
    must(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGSEGV, NULL, &shown) == 0, "sigaction");
    observe("its own: %d, blocks USR1: %d, USR2: %d", shown.sa_handler == count, sigismember(&shown.sa_mask, SIGUSR1),
            sigismember(&shown.sa_mask, SIGUSR2));
    must(sigaction(SIGUSR2, &action, NULL) == 0, "sigaction");
    observe_result("rt_sigaction", syscall(SYS_rt_sigaction, SIGUSR2, NULL, &told, 8));
    observe("its own: %d, flags %lx, mask %llx", told.handler == count, told.flags & ~0x4000000UL, (long long)told.mask);
    told.flags &= ~(unsigned long)SA_RESETHAND;
    observe_result("rt_sigaction", syscall(SYS_rt_sigaction, SIGUSR1, &told, NULL, 8));
    raise(SIGUSR1), raise(SIGUSR1), raise(SIGUSR2);
    observe("came: %d %d", (int)came[0], (int)came[1]);
    observe_result("nowhere", syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8));
    talk(pair.near, pair.far);
}

/* A child of vfork has actions of its own. */
static void a_child_of_vfork_resets_an_action(void) {
    Pair pair = on_the_ring();
    handle(SIGSEGV, count, 0);
    pid_t child = vfork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGUSR1, SIG_IGN);
        _exit(0);
    }
    observe("ended with %d", status_of(child));
    raise(SIGSEGV);
    observe("came: %d", (int)came[0]);
    talk(pair.near, pair.far);
}

/* ---- Cancellation. ---- */

enum { RECEIVES, SENDS, WAITS, POLLS, WAYS };

typedef struct {
    Pair pair;
    int way, set;
    atomic_int is_over;
} Cancelled;

static void *call_for_ever(void *argument) {
    Cancelled *cancelled = argument;
    char bytes[64] = "";
    struct epoll_event event;
    struct pollfd entry = {cancelled->pair.far, POLLIN, 0};
    for (;;) {
        if (cancelled->way == RECEIVES)
            recv(cancelled->pair.far, bytes, 1, 0);
        else if (cancelled->way == SENDS)
            send(cancelled->pair.far, bytes, 16, 0);
        else if (cancelled->way == WAITS)
            epoll_wait(cancelled->set, &event, 1, -1);
        else
            poll(&entry, 1, -1);
    }
    return NULL;
}

static void *feed(void *argument) {
    Cancelled *cancelled = argument;
    char bytes[1024] = "";
    while (!atomic_load(&cancelled->is_over)) {
        if (cancelled->way == SENDS)
            recv(cancelled->pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
        else if (cancelled->way == RECEIVES)
            send(cancelled->pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
        sched_yield();
    }
    return NULL;
}

static void cancelled_where_calls_never_wait(void) {
    for (int i = 0; i < 2 * WAYS; i++) {
        Cancelled cancelled = {.pair = connected(), .way = i % WAYS, .set = epoll_create1(0)};
        struct epoll_event event = {.events = EPOLLIN};
        talk(cancelled.pair.near, cancelled.pair.far), talk(cancelled.pair.far, cancelled.pair.near);
        epoll_ctl(cancelled.set, EPOLL_CTL_ADD, cancelled.pair.far, &event);
        must(send(cancelled.pair.near, "unread", 6, 0) == 6, "send");
        pthread_t caller, feeder;
        must(pthread_create(&caller, NULL, call_for_ever, &cancelled) == 0, "thread");
        must(pthread_create(&feeder, NULL, feed, &cancelled) == 0, "thread");
        pause_us(20000);
        struct timespec deadline;
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += 5;
        void *result = NULL;
        pthread_cancel(caller);
        int error = pthread_timedjoin_np(caller, &result, &deadline);
        if (error != 0 || result != PTHREAD_CANCELED)
            observe("way %d: %s", i % WAYS, error != 0 ? "not ended" : "not cancelled");
        atomic_store(&cancelled.is_over, 1);
        pthread_join(feeder, NULL);
        close(cancelled.set), close(cancelled.pair.near), close(cancelled.pair.far);
    }
    observe("all ended");
}


static void *compute_or_sleep(void *argument) {
    Cancelled *cancelled = argument;
    char bytes[64];
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    recv(cancelled->pair.far, bytes, 6, MSG_WAITALL);
    atomic_store(&cancelled->is_over, 1);
    if (cancelled->way == RECEIVES)
        recv(cancelled->pair.far, bytes, sizeof bytes, 0);
    for (volatile int i = 0;; i++)
        ;
    return NULL;
}

/* Between its calls, and asleep in one. */
static void cancelled_at_any_instruction(void) {
    for (int i = 0; i < 20; i++) {
        Cancelled cancelled = {.pair = connected(), .way = i % 2};
        pthread_t thread;
        void *result = NULL;
        talk_until_on_ring(cancelled.pair, 1);
        must(send(cancelled.pair.near, "unread", 6, 0) == 6, "send");
        must(pthread_create(&thread, NULL, compute_or_sleep, &cancelled) == 0, "thread");
        while (!atomic_load(&cancelled.is_over))
            sched_yield();
        pause_us(20000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            observe("%d: not cancelled", i);
        close(cancelled.pair.near), close(cancelled.pair.far);
    }
    observe("all ended");
}

static ssize_t kept;

static void read_what_is_left(void *argument) {
    char bytes[32];
    kept = recv(((Cancelled *)argument)->pair.far, bytes, sizeof bytes, MSG_DONTWAIT);
}

static void *close_cancelled(void *argument) {
    Cancelled *cancelled = argument;
    pthread_cleanup_push(read_what_is_left, cancelled);
    pthread_cancel(pthread_self());
    close(cancelled->pair.far);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *send_file_cancelled(void *argument) {
    Cancelled *cancelled = argument;
    off_t at = 0;
    pthread_cancel(pthread_self());
    kept = sendfile(cancelled->pair.near, cancelled->set, &at, 10);
    pthread_testcancel();
    return NULL;
}

static void cancelled_in_single_calls(void) {
    Cancelled cancelled = {.pair = on_the_ring(), .set = memfd_create("file", 0)};
    char bytes[16];
    pthread_t thread;
    must(write(cancelled.set, "ten bytes!", 10) == 10, "write");
    must(pthread_create(&thread, NULL, send_file_cancelled, &cancelled) == 0, "thread");
    pthread_join(thread, NULL);
    observe_result("sendfile", kept);
    observe_result("recv", recv(cancelled.pair.far, bytes, 10, MSG_WAITALL));
    must(send(cancelled.pair.near, "ten bytes!", 10, 0) == 10, "send");
    must(poll(&(struct pollfd){cancelled.pair.far, POLLIN, 0}, 1, 5000) == 1, "poll");
    must(pthread_create(&thread, NULL, close_cancelled, &cancelled) == 0, "thread");
    pthread_join(thread, NULL);
    observe_result("the cleanup's recv", kept);
}

/* ---- Processes. ---- */

enum { BY_LIST, BY_PATH, BY_ENVIRONMENT, FAILURES };

static void fail_to_exec(int how) {
    char *none[] = {NULL};
    if (how == BY_LIST)
        execl("/nowhere/1", "a", "b", "c", "d", "e", "f", "g", "h", NULL);
    else if (how == BY_PATH)
        execlp("/nowhere/2", "a", NULL);
    else
        execle("/nowhere/3", "a", "b", "c", "d", "e", "f", "g", NULL, none);
}

/* An exec that fails, here or in a child that ends then, takes nothing from the connection: what was unread is read, what is sent comes. */
static void failed_execs(void) {
    for (int i = 0; i < 2 * FAILURES; i++) {
        Pair pair = connected();
        static char bytes[100000];
        talk_until_on_ring(pair, 1);
        fcntl(pair.near, F_SETFD, FD_CLOEXEC), fcntl(pair.far, F_SETFD, FD_CLOEXEC);
        must(send(pair.near, "unread", 6, 0) == 6, "send");
        pid_t child = i % 2 ? fork() : 0;
        if (child == 0) {
            fail_to_exec(i / 2);
            if (i % 2)
                _exit(127);
        } else {
            observe("ended with %d", status_of(child));
        }
        struct linger linger;
        socklen_t length = sizeof linger;
        observe_result("recv", recv(pair.far, bytes, 6, MSG_WAITALL));
        getsockopt(pair.far, SOL_SOCKET, SO_LINGER, &linger, &length);
        observe("linger %d", linger.l_onoff);
        observe_result("send", send(pair.far, bytes, sizeof bytes, 0));
        close(pair.far);
        ssize_t part, got = 0;
        while ((part = recv(pair.near, bytes, sizeof bytes, 0)) > 0)
            got += part;
        observe_result("the end", part);
        observe("got %zd", got);
        close(pair.near);
    }
}

static void execs_with_lists(void) {
    char *environment[] = {"NAME=value", NULL};
    for (int how = 0; how < 3; how++) {
        pid_t child = fork();
        if (child == 0) {
            if (how == 0)
                execl("/bin/echo", "echo", "1", "2", "3", "4", "5", "6", "7", "8", NULL);
            else if (how == 1)
                execlp("echo", "echo", "1", "2", "3", "4", "5", "6", NULL);
            else
                execle("/bin/sh", "sh", "-c", "echo $NAME $0 $1 $2 $3 $4", "a", "b", "c", "d", "e", NULL, environment);
            _exit(9);
        }
        observe("ended with %d", status_of(child));
    }
}

/* A library's handlers take its lock before a fork, which another thread has while it uses connections. */
static void *log_to_others(void *argument) {
    struct sockaddr_in *address = argument;
    while (forks_with_log) {
        pthread_mutex_lock(&logging);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        connect(fd, (struct sockaddr *)address, sizeof *address);
        send(fd, "x", 1, MSG_NOSIGNAL);
        close(fd);
        pthread_mutex_unlock(&logging);
        sched_yield();
    }
    return NULL;
}

static void *accept_all(void *argument) {
    for (int fd; (fd = accept(*(int *)argument, NULL, NULL)) >= 0;)
        close(fd);
    return NULL;
}

static void forks_with_handlers_of_libraries(void) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 100), well = 0;
    Pair pair = on_the_ring();
    pthread_t logs, accepts;
    forks_with_log = 1;
    must(pthread_create(&accepts, NULL, accept_all, &listener) == 0, "thread");
    must(pthread_create(&logs, NULL, log_to_others, &address) == 0, "thread");
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        well += status_of(child) == 0;
    }
    observe("%d ended well", well);
    pthread_mutex_lock(&logging);
    forks_with_log = 0;
    pthread_mutex_unlock(&logging);
    pthread_join(logs, NULL);
    shutdown(listener, SHUT_RDWR);
    pthread_join(accepts, NULL);
    talk(pair.near, pair.far);
}

/* A program without memory goes on. */
static void no_more_memory(void) {
    Pair pair = on_the_ring();
    struct sockaddr_in address;
    int listener = listen_here(&address, 100), made = 0;
    struct rlimit files, none = {4096, 4096};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    must(setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_AS, &none) == 0, "setrlimit");
    for (; made < 400; made++) {
        int near = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(near, (struct sockaddr *)&address, sizeof address) != 0)
            break;
        int far = accept(listener, NULL, NULL);
        if (far < 0 || send(near, "abc", 3, 0) != 3)
            break;
    }
    observe("made %d", made);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(two_signals_at_once),
        CASE(thrown_out_by_one_of_two_signals),
        CASE(thrown_out_by_an_early_handler),
        CASE(faults_while_signals_come),
        CASE(actions_by_number_and_their_masks),
        CASE(a_child_of_vfork_resets_an_action),
        CASE(cancelled_where_calls_never_wait),
        CASE(cancelled_at_any_instruction),
        CASE(cancelled_in_single_calls),
        CASE(failed_execs),
        CASE(execs_with_lists),
        CASE(forks_with_handlers_of_libraries),
        CASE(no_more_memory),
        {0},
    };
    return run_cases(cases, argc, argv);
}
