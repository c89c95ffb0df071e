/* Programs that have the kernel read and write for them, by io_uring. */
#include "beside.h"
#include "killed.h"
#include <liburing.h>

static struct io_uring ring;

/* What io_uring_queue_init does with a ring that it has set up. */
static void map_ring(int fd, struct io_uring_params *parameters) {
    must(fd >= 0, "io_uring_setup");
    must(io_uring_queue_mmap(fd, parameters, &ring) == 0, "mmap");
    for (unsigned i = 0; i < parameters->sq_entries; i++)
        ring.sq.array[i] = i;
}

static void set_up(void) {
    must(io_uring_queue_init(8, &ring, 0) == 0, "set up");
}

/* Shows the kernel what has been prepared, as liburing does before it enters the kernel. */
static unsigned show(void) {
    unsigned count = ring.sq.sqe_tail - ring.sq.sqe_head;
    ring.sq.sqe_head = ring.sq.sqe_tail;
    __atomic_store_n(ring.sq.ktail, ring.sq.sqe_tail, __ATOMIC_RELEASE);
    return count;
}

/* The ways in which a request comes to the kernel. */
static int by_waiting(void) {
    return io_uring_submit_and_wait(&ring, 1);
}

static int by_waiting_some_time(void) {
    struct __kernel_timespec time = {.tv_sec = 10};
    struct io_uring_cqe *entry;
    return io_uring_submit_and_wait_timeout(&ring, &entry, 1, &time, NULL);
}

static int by_getting_events(void) {
    return io_uring_submit_and_get_events(&ring);
}

static int by_entering(void) {
    return io_uring_enter(ring.ring_fd, show(), 1, IORING_ENTER_GETEVENTS, NULL);
}

static int by_entering_again(void) {
    return io_uring_enter2(ring.ring_fd, show(), 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static int by_number(void) {
    return syscall(SYS_io_uring_enter, ring.ring_fd, show(), 0, 0, NULL, 0);
}

static int by_too_great_a_number(void) {
    return syscall(SYS_io_uring_enter, ring.ring_fd, show() + 5, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static int by_submitting(void) {
    return io_uring_submit(&ring);
}

/* Where a thread of the kernel's looks for requests. */
static int by_showing(void) {
    unsigned count = show();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(ring.sq.kflags, __ATOMIC_RELAXED) & IORING_SQ_NEED_WAKEUP)
        io_uring_enter(ring.ring_fd, 0, 0, IORING_ENTER_SQ_WAKEUP, NULL);
    return count;
}

static int (*submit)(void) = by_submitting;

static ssize_t completed(void) {
    struct io_uring_cqe *entry;
    must(io_uring_wait_cqe(&ring, &entry) == 0, "wait");
    ssize_t result = entry->res;
    io_uring_cqe_seen(&ring, entry);
    return result;
}

static ssize_t complete(void) {
    must(submit() == 1, "submit");
    return completed();
}

static ssize_t kernel_receives(int fd, void *bytes, size_t length) {
    io_uring_prep_recv(io_uring_get_sqe(&ring), fd, bytes, length, MSG_WAITALL);
    return complete();
}

static ssize_t kernel_sends(int fd, const void *bytes, size_t length) {
    io_uring_prep_send(io_uring_get_sqe(&ring), fd, bytes, length, 0);
    return complete();
}

/* Every way of sending and of receiving in turn: one stream. */
static void mix(Pair pair) {
    unsigned char sent = 0, expected = 0;
    int wrong = 0;
    for (int round = 0; round < 60; round++) {
        unsigned char message[40], got[40];
        for (size_t i = 0; i < sizeof message; i++)
            message[i] = sent++;
        ssize_t out = round % 3 == 1 ? kernel_sends(pair.near, message, sizeof message)
                                     : send(pair.near, message, sizeof message, 0);
        ssize_t in = round % 4 < 2 ? kernel_receives(pair.far, got, sizeof got)
                                   : recv(pair.far, got, sizeof got, MSG_WAITALL);
        for (ssize_t i = 0; i < in; i++)
            wrong += got[i] != expected++;
        if (out != 40 || in != 40)
            observe("round %d: %zd %zd", round, out, in);
    }
    observe("wrong bytes: %d", wrong);
}

static void unread_bytes(Pair pair) {
    char bytes[80];
    must(send(pair.near, "bytes that nobody has read yet, in both directions", 50, 0) == 50, "send");
    must(send(pair.far, "and others", 10, 0) == 10, "send");
    observe("set up: %d", io_uring_queue_init(8, &ring, 0));
    ssize_t got = kernel_receives(pair.far, bytes, 50);
    observe("received %.*s", (int)got, bytes);
    got = kernel_receives(pair.near, bytes, 10);
    observe("received %.*s", (int)got, bytes);
}

static void set_up_on_the_ring(void) {
    Pair pair = on_the_ring();
    unread_bytes(pair);
    mix(pair);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
}

static void set_up_by_number(void) {
    Pair pair = on_the_ring();
    struct io_uring_params parameters = {0};
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    map_ring(syscall(SYS_io_uring_setup, 8, &parameters), &parameters);
    char bytes[8];
    ssize_t got = kernel_receives(pair.far, bytes, 6);
    observe("received %.*s", (int)got, bytes);
    mix(pair);
}

#ifdef __x86_64__
/* As liburing does it where it is linked in: nothing of the C library is called. */
static void set_up_unseen_before(void) {
    struct io_uring_params parameters = {0};
    long fd;
    __asm__ volatile("syscall" : "=a"(fd) : "a"(SYS_io_uring_setup), "D"(8L), "S"(&parameters) : "rcx", "r11", "memory");
    map_ring(fd, &parameters);
    for (int i = 0; i < 3; i++) {
        Pair pair = connected();
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        must(send(pair.near, "unread", 6, 0) == 6, "send");
        char bytes[8];
        ssize_t got = kernel_receives(pair.far, bytes, 6);
        observe("received %.*s", (int)got, bytes);
        mix(pair);
    }
}
#endif

static void a_set_that_the_kernel_changes(void) {
    Pair pair = on_the_ring();
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = 7}}, found = {0};
    must(io_uring_queue_init(8, &ring, 0) == 0, "set up");
    io_uring_prep_epoll_ctl(io_uring_get_sqe(&ring), set, pair.far, EPOLL_CTL_ADD, &event);
    observe("add: %zd", complete());
    for (int i = 0; i < 3; i++) {
        char bytes[8];
        must(send(pair.near, "message", 7, 0) == 7, "send");
        int count = epoll_wait(set, &found, 1, 1000);
        observe("waited: %d, %d", count, found.data.fd);
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    }
    io_uring_prep_poll_add(io_uring_get_sqe(&ring), pair.far, POLLIN);
    must(send(pair.near, "message", 7, 0) == 7, "send");
    observe("polled: %zd", complete());
}

/* A connection on the ring beside others, with bytes unread in both directions. */
static Pair with_unread_bytes(int connections) {
    Pair pair = connected();
    talk_until_on_ring(pair, connections);
    must(send(pair.near, "unread there", 12, 0) == 12, "send");
    must(send(pair.far, "unread here", 11, 0) == 11, "send");
    return pair;
}

static void take_unread(Pair pair) {
    char bytes[16];
    ssize_t got = kernel_receives(pair.far, bytes, 12);
    observe("received %.*s", (int)got, bytes);
    got = recv(pair.near, bytes, 11, MSG_WAITALL);
    observe("received %.*s", (int)got, bytes);
}

static void close_both(Pair pair) {
    close(pair.near);
    close(pair.far);
}

static void files_are_read_and_written(void) {
    char written[64] = "what is in the file", found[64] = "";
    FILE *file = tmpfile();
    must(file != NULL, "tmpfile");
    for (int i = 0; i < 100; i++) {
        io_uring_prep_write(io_uring_get_sqe(&ring), fileno(file), written, sizeof written, i * sizeof written);
        must(complete() == sizeof written, "write");
        io_uring_prep_read(io_uring_get_sqe(&ring), fileno(file), found, sizeof found, i * sizeof found);
        must(complete() == sizeof found && memcmp(written, found, sizeof found) == 0, "read");
    }
    fclose(file);
}

static void used_for_files_only(void) {
    Pair pair = on_the_ring(), later;
    set_up();
    files_are_read_and_written();
    talk_until_on_ring(pair, 1);
    later = connected();
    talk_until_on_ring(later, 2);
    files_are_read_and_written();
    talk_until_on_ring(pair, 2);
    io_uring_queue_exit(&ring);
    talk_until_on_ring(pair, 2);
}

static void used_for_files_by_number(void) {
    Pair pair = on_the_ring();
    struct io_uring_params parameters = {0};
    map_ring(syscall(SYS_io_uring_setup, 8, &parameters), &parameters);
    submit = by_number;
    files_are_read_and_written();
    submit = by_too_great_a_number;
    files_are_read_and_written();
    talk_until_on_ring(pair, 1);
}

static void each_way_of_submission(void) {
    int (*ways[])(void) = {by_submitting,     by_waiting, by_waiting_some_time,  by_getting_events, by_entering,
                           by_entering_again, by_number,  by_too_great_a_number, NULL};
    Pair other = on_the_ring();
    set_up();
    for (int way = 0; ways[way] != NULL; way++) {
        Pair pair = with_unread_bytes(2);
        submit = ways[way];
        take_unread(pair);
        mix(pair);
        close_both(pair);
        talk_until_on_ring(other, 1);
    }
}

static void registered_files(void) {
    Pair other = on_the_ring();
    int none[4] = {-1, -1, -1, -1};
    set_up();
    must(io_uring_register_files(&ring, none, 4) == 0, "register");
    for (int way = 0; way < 3; way++) {
        Pair pair = with_unread_bytes(2);
        int files[1] = {pair.far};
        if (way == 0)
            must(io_uring_register_files_update(&ring, 1, files, 1) == 1, "update");
        if (way == 1) {
            struct io_uring_files_update update = {.offset = 1, .fds = (unsigned long)files};
            must(syscall(SYS_io_uring_register, ring.ring_fd, IORING_REGISTER_FILES_UPDATE, &update, 1) == 1, "update");
        }
        if (way == 2) {
            io_uring_prep_files_update(io_uring_get_sqe(&ring), files, 1, 1);
            observe("updated: %zd", complete());
        }
        char bytes[16];
        struct io_uring_sqe *request = io_uring_get_sqe(&ring);
        io_uring_prep_recv(request, 1, bytes, 12, MSG_WAITALL);
        io_uring_sqe_set_flags(request, IOSQE_FIXED_FILE);
        observe("received: %.*s", (int)complete(), bytes);
        mix(pair);
        talk_until_on_ring(other, 1);
    }
}

static void one_after_the_other(void) {
    Pair other = on_the_ring(), pair = with_unread_bytes(2);
    char bytes[2][16];
    set_up();
    for (int i = 0; i < 2; i++) {
        struct io_uring_sqe *request = io_uring_get_sqe(&ring);
        io_uring_prep_recv(request, pair.far, bytes[i], 6, MSG_WAITALL);
        io_uring_sqe_set_flags(request, i == 0 ? IOSQE_IO_LINK : 0);
    }
    must(submit() == 2 && completed() == 6 && completed() == 6, "receive");
    observe("received %.6s%.6s", bytes[0], bytes[1]);
    mix(pair);
    talk_until_on_ring(other, 1);
}

/* The kernel begins with a request when another one, or the program, has let it; by then its number is another file. */
static void begins_late(unsigned flags_of_first, unsigned flags_of_second) {
    enum { NUMBER = 100 };
    Pair other = on_the_ring(), pair = with_unread_bytes(2);
    int pipes[2];
    char byte, bytes[16];
    must(pipe(pipes) == 0, "pipe");
    set_up();
    struct io_uring_sqe *request = io_uring_get_sqe(&ring);
    io_uring_prep_read(request, pipes[0], &byte, 1, 0);
    io_uring_sqe_set_flags(request, flags_of_first);
    request = io_uring_get_sqe(&ring);
    io_uring_prep_recv(request, NUMBER, bytes, 12, MSG_WAITALL);
    io_uring_sqe_set_flags(request, flags_of_second);
    must(submit() == 2, "submit");
    must(dup2(pair.far, NUMBER) == NUMBER, "dup2");
    must(write(pipes[1], "!", 1) == 1, "write");
    observe("first: %zd", completed());
    observe("received: %.*s", (int)completed(), bytes);
    pair.far = NUMBER;
    mix(pair);
    talk_until_on_ring(other, 1);
}

static void late_by_a_link(void) {
    begins_late(IOSQE_IO_LINK, 0);
}

static void late_by_a_drain(void) {
    begins_late(0, IOSQE_IO_DRAIN);
}

static void by_a_thread_of_the_kernel(void) {
    Pair other = on_the_ring(), pair = with_unread_bytes(2);
    char bytes[16];
    set_up();
    struct io_uring_sqe *request = io_uring_get_sqe(&ring);
    io_uring_prep_recv(request, pair.far, bytes, 12, MSG_WAITALL);
    io_uring_sqe_set_flags(request, IOSQE_ASYNC);
    observe("received: %.*s", (int)complete(), bytes);
    mix(pair);
    talk_until_on_ring(other, 1);
}

static void read_unasked(void) {
    Pair pair = with_unread_bytes(1);
    must(io_uring_queue_init(8, &ring, IORING_SETUP_SQPOLL) == 0, "set up");
    submit = by_showing;
    take_unread(pair);
    mix(pair);
}

static void ready_and_spliced(void) {
    Pair other = on_the_ring(), pair = with_unread_bytes(2);
    char bytes[16];
    int pipes[2];
    must(pipe(pipes) == 0, "pipe");
    set_up();
    io_uring_prep_poll_add(io_uring_get_sqe(&ring), pair.near, POLLIN);
    observe("ready: %zd", complete());
    io_uring_prep_splice(io_uring_get_sqe(&ring), pair.far, -1, pipes[1], -1, 12, 0);
    observe("spliced: %zd", complete());
    observe("from the pipe: %.*s", (int)read(pipes[0], bytes, sizeof bytes), bytes);
    must(write(pipes[1], "by the pipe", 11) == 11, "write");
    io_uring_prep_splice(io_uring_get_sqe(&ring), pipes[0], -1, pair.near, -1, 11, 0);
    observe("spliced: %zd", complete());
    observe("received: %.*s", (int)recv(pair.far, bytes, 11, MSG_WAITALL), bytes);
    talk_until_on_ring(other, 1);
}

static void a_set_is_polled(void) {
    Pair pair = on_the_ring();
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = 7}};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event) == 0, "epoll_ctl");
    set_up();
    for (int i = 0; i < 3; i++) {
        char bytes[8];
        io_uring_prep_poll_add(io_uring_get_sqe(&ring), set, POLLIN);
        must(submit() == 1, "submit");
        must(send(pair.near, "message", 7, 0) == 7, "send");
        observe("ready: %zd", completed());
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
    }
}

static void closed_by_the_kernel(void) {
    Pair other = on_the_ring();
    set_up();
    for (int reads_before = 0; reads_before < 2; reads_before++) {
        Pair pair = with_unread_bytes(2);
        char bytes[16];
        if (reads_before)
            observe_result("recv", recv(pair.near, bytes, 11, MSG_WAITALL));
        io_uring_prep_close(io_uring_get_sqe(&ring), pair.near);
        observe("closed: %zd", complete());
        observe_result("send", send(pair.near, "x", 1, MSG_NOSIGNAL));
        observe_result("recv", recv(pair.far, bytes, 12, MSG_WAITALL));
        observe_result("recv", recv(pair.far, bytes, sizeof bytes, 0));
        close(pair.far);
    }
    talk_until_on_ring(other, 1);
}

static void passed_by_the_kernel(void) {
    int road[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, road) == 0, "socketpair");
    if (fork() == 0) {
        char note, bytes[16];
        int fd = take(road[1], &note, 1);
        observe("received: %.*s", (int)recv(fd, bytes, 12, MSG_WAITALL), bytes);
        _exit(0);
    }
    Pair other = on_the_ring(), pair = with_unread_bytes(2);
    set_up();
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {"!", 1};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&header);
    *control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(control), &pair.far, sizeof(int));
    io_uring_prep_sendmsg(io_uring_get_sqe(&ring), road[0], &header, 0);
    ssize_t passed = complete();
    wait(NULL);
    observe("passed: %zd", passed);
    talk_until_on_ring(other, 1);
}

/* Sockets that the kernel connects and accepts. */
static void made_by_the_kernel(void) {
    Pair other = on_the_ring(), pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    set_up();
    io_uring_prep_connect(io_uring_get_sqe(&ring), pair.near, (struct sockaddr *)&address, length);
    observe("connected: %zd", complete());
    io_uring_prep_accept(io_uring_get_sqe(&ring), listener, NULL, NULL, 0);
    pair.far = complete();
    must(pair.far >= 0, "accept");
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    mix(pair);
    talk_until_on_ring(other, 1);
}

/* One that is asked about before it is connected, by a request that stays. */
static void polled_before_it_is_connected(void) {
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    set_up();
    io_uring_prep_poll_add(io_uring_get_sqe(&ring), pair.near, POLLIN);
    must(complete() > 0, "poll");
    io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), pair.near, POLLIN | POLLRDHUP);
    must(submit() == 1 && completed() > 0, "poll");
    must(connect(pair.near, (struct sockaddr *)&address, length) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    char bytes[8];
    for (int i = 0; i < 50; i++) {
        must(send(pair.near, "message", 7, 0) == 7 && recv(pair.far, bytes, 7, MSG_WAITALL) == 7, "there");
        must(send(pair.far, "message", 7, 0) == 7 && recv(pair.near, bytes, 7, MSG_WAITALL) == 7, "back");
        struct io_uring_cqe *entry;
        while (io_uring_peek_cqe(&ring, &entry) == 0)
            io_uring_cqe_seen(&ring, entry);
    }
    must(send(pair.far, "message", 7, 0) == 7, "send");
    observe("ready: %zd", completed() & POLLIN);
}

static void used_by_a_child(void) {
    Pair pair = with_unread_bytes(1);
    set_up();
    if (fork() == 0) {
        take_unread(pair);
        _exit(0);
    }
    wait(NULL);
    ring.sq.sqe_head = ring.sq.sqe_tail = *ring.sq.ktail;
    mix(pair);
}

static void *reads_and_writes(void *count) {
    for (int i = 0; i < *(int *)count; i++)
        must(syscall(SYS_io_uring_enter, ring.ring_fd, 8, 0, 0, NULL, 0) >= 0, "enter");
    return NULL;
}

/* Threads that show the kernel what any of them has prepared. */
static void submitted_by_threads(void) {
    Pair pair = with_unread_bytes(1);
    int count = 2000;
    set_up();
    pthread_t thread = start_thread(reads_and_writes, &count);
    for (int i = 0; i < 500; i++) {
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        show();
        syscall(SYS_io_uring_enter, ring.ring_fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        completed();
    }
    pthread_join(thread, NULL);
    take_unread(pair);
    mix(pair);
}

/* The peer is killed with bytes of ours unread, and a request is what hears of that. */
static void asked_after_a_kill(ssize_t (*ask)(int)) {
    pid_t peer;
    int fd = to_one_that_stops(&peer);
    leave_unread_and_kill(fd, peer);
    set_up();
    observe("%s", strerrorname_np(-ask(fd)));
    observe_error(fd);
    observe("%zd", ask(fd));
}

static ssize_t receive_one(int fd) {
    char byte;
    return kernel_receives(fd, &byte, 1);
}

static ssize_t send_one(int fd) {
    io_uring_prep_send(io_uring_get_sqe(&ring), fd, "x", 1, MSG_NOSIGNAL);
    return complete();
}

static void receives_after_a_kill(void) {
    asked_after_a_kill(receive_one);
}

static void sends_after_a_kill(void) {
    asked_after_a_kill(send_one);
}

/* The request is there before the kill. */
static void receives_beside_a_kill(void) {
    pid_t peer;
    char byte;
    int fd = to_one_that_stops(&peer);
    must(send(fd, "unread", 6, 0) == 6, "send");
    set_up();
    io_uring_prep_recv(io_uring_get_sqe(&ring), fd, &byte, 1, 0);
    must(submit() == 1, "submit");
    kill(peer, SIGKILL);
    must(waitpid(peer, NULL, 0) == peer, "waitpid");
    observe("%s", strerrorname_np(-completed()));
    observe_error(fd);
}

/* What a peer has said that was killed then is read by requests. */
static void last_words_after_a_kill(void) {
    pid_t peer;
    int fd = to_one_that_is_told("leave", &peer);
    kill(peer, SIGKILL);
    must(waitpid(peer, NULL, 0) == peer, "waitpid");
    set_up();
    static char words[64 * LAST_WORDS];
    ssize_t got = kernel_receives(fd, words, sizeof words);
    observe("received %zd, the last: %.62s", got, words + sizeof words - 64);
    observe("%zd", receive_one(fd));
    observe_error(fd);
}

/* As above, but what is submitted is not seen. */
static void unseen_beside_a_kill(void) {
    pid_t peer;
    char byte;
    int fd = to_one_that_stops(&peer);
    must(send(fd, "unread", 6, 0) == 6, "send");
    must(io_uring_queue_init(8, &ring, IORING_SETUP_SQPOLL) == 0, "set up");
    io_uring_prep_recv(io_uring_get_sqe(&ring), fd, &byte, 1, 0);
    must(by_showing() == 1, "show");
    pause_ms(50);
    kill(peer, SIGKILL);
    must(waitpid(peer, NULL, 0) == peer, "waitpid");
    observe("%s", strerrorname_np(-completed()));
}

/* Of a connection that is registered the program keeps no descriptor. */
static void registered_and_closed(void) {
    Pair other = on_the_ring(), pair = with_unread_bytes(2);
    int files[1] = {pair.far};
    char bytes[16];
    set_up();
    must(io_uring_register_files(&ring, files, 1) == 0, "register");
    close(pair.far);
    for (int i = 0; i < 3; i++) {
        struct io_uring_sqe *request = io_uring_get_sqe(&ring);
        if (i > 0)
            must(send(pair.near, "unread there", 12, 0) == 12, "send");
        io_uring_prep_recv(request, 0, bytes, 12, MSG_WAITALL);
        io_uring_sqe_set_flags(request, IOSQE_FIXED_FILE);
        observe("received: %.*s", (int)complete(), bytes);
        request = io_uring_get_sqe(&ring);
        io_uring_prep_send(request, 0, "by request.", 11, 0);
        io_uring_sqe_set_flags(request, IOSQE_FIXED_FILE);
        observe("sent: %zd", complete());
        observe("received: %.*s", (int)recv(pair.near, bytes, 11, MSG_WAITALL), bytes);
    }
    must(io_uring_unregister_files(&ring) == 0, "unregister");
    observe_result("recv", recv(pair.near, bytes, 11, MSG_WAITALL));
    observe_result("recv", recv(pair.near, bytes, 11, MSG_WAITALL));
    talk_until_on_ring(other, 1);
}

static ssize_t requests_a_send(int fd, const char *bytes, size_t length) {
    /* Not before a fork, which would leave all to the kernel. */
    if (ring.ring_fd == 0)
        set_up();
    return kernel_sends(fd, bytes, length);
}

static void passed_on_beside_requests(void) {
    passed_on_beside(requests_a_send);
}

/* A program may not be allowed to use it, as in most containers. */
static int has_io_uring(void) {
    return syscall(SYS_io_uring_setup, 0, NULL) >= 0 || (errno != ENOSYS && errno != EPERM && errno != EACCES);
}

int main(int argc, char **argv) {
    const Case cases[] = {CASE(set_up_on_the_ring),
                          CASE(set_up_by_number),
#ifdef __x86_64__
                          CASE(set_up_unseen_before),
#endif
                          CASE(a_set_that_the_kernel_changes),
                          CASE(used_for_files_only),
                          CASE(used_for_files_by_number),
                          CASE(each_way_of_submission),
                          CASE(registered_files),
                          CASE(one_after_the_other),
                          CASE(late_by_a_link),
                          CASE(late_by_a_drain),
                          CASE(by_a_thread_of_the_kernel),
                          CASE(read_unasked),
                          CASE(ready_and_spliced),
                          CASE(a_set_is_polled),
                          CASE(closed_by_the_kernel),
                          CASE(passed_by_the_kernel),
                          CASE(made_by_the_kernel),
                          CASE(polled_before_it_is_connected),
                          CASE(receives_after_a_kill),
                          CASE(sends_after_a_kill),
                          CASE(receives_beside_a_kill),
                          CASE(last_words_after_a_kill),
                          CASE(unseen_beside_a_kill),
                          CASE(registered_and_closed),
                          CASE(passed_on_beside_requests),
                          CASE(used_by_a_child),
                          CASE(submitted_by_threads),
                          {0}};
    if (argc > 1 && !has_io_uring()) {
        observe("skipped: io_uring is not permitted here: %s", strerrorname_np(errno));
        return 0;
    }
    return run_cases(cases, argc, argv);
}
