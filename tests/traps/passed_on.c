/* Connections that are passed to other processes, or whose reader becomes another program, while the peer goes on sending. */
#include "parts.h"

/* Passes a descriptor, and the part of its stream that is to be received. */
static void pass_part(int road, Part *part) { pass(road, part->fd, part, sizeof *part); }

static int take_part(int road, Part *part) {
    int fd = take(road, part, sizeof *part);
    part->fd = fd;
    return fd >= 0;
}

/* A process that receives the parts that are passed to it, and says how far it came. */
static pid_t receiver_of_parts(int *road) {
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        Part part;
        close(ends[0]);
        while (take_part(ends[1], &part)) {
            receive_part(&part);
            close(part.fd);
            must(send(ends[1], &part, sizeof part, 0) == sizeof part, "send");
        }
        _exit(0);
    }
    close(ends[1]);
    *road = ends[0];
    return child;
}

/* Has the rest of a stream received by the other process. */
static void receive_there(int road, Part part, size_t end) {
    part.end = end;
    pass_part(road, &part);
    must(recv(road, &part, sizeof part, 0) == sizeof part, "recv");
    observe_received(&part);
}

/* Who receives passes the connection to another process in the middle, while a thread goes on sending. */
static void passed_in_the_middle(void) {
    int road;
    pid_t other = receiver_of_parts(&road);
    for (unsigned round = 0; round < ROUNDS; round++) {
        Pair pair = connected();
        pid_t far = far_process(pair, FLOW, FLOW);
        Part sent = {pair.near, 1, 0, FLOW, "never"}, part = {pair.near, 2, 0, 1000 + round * FLOW / ROUNDS, "never"};
        pthread_t sender = start_thread(send_part, &sent);
        receive_part(&part);
        receive_there(road, part, FLOW);
        pthread_join(sender, NULL);
        close(pair.near);
        must_end_well(far);
    }
    close(road);
    must_end_well(other);
}

/* Who receives becomes another program in the middle. Another process may send at the same time. */
static void exec_in_the_middle(int is_shared) {
    for (unsigned round = 0; round < ROUNDS / 2; round++) {
        Pair pair = connected();
        pid_t far = far_process(pair, is_shared ? FLOW : 0, FLOW);
        pid_t receiver = fork();
        if (receiver == 0) {
            Part part = {pair.near, 2, 0, 1000 + round * FLOW / ROUNDS * 2, "never"};
            receive_part(&part);
            part.end = FLOW;
            become_receiver(&part);
        }
        Part sent = {pair.near, 1, 0, FLOW, "never"};
        if (is_shared)
            send_part(&sent);
        close(pair.near);
        must_end_well(receiver);
        must_end_well(far);
    }
}

static void exec_of_the_only_user(void) { exec_in_the_middle(0); }

static void exec_of_the_reader(void) { exec_in_the_middle(1); }

static void exec_of_the_reader_to_the_kernel(void) {
    setenv("MILLRACE", "off", 1);
    exec_in_the_middle(1);
}

/* Sends more than a ring of messages has room for, the last of it with word that more is to come: the kernel holds that back. */
static void send_with_more_to_come(Part *part) {
    for (int message = 0; message < 72; message++) {
        char *block = block_of(part);
        // What is under way is acknowledged before: its acknowledgement would have the rest sent.
        pause_ms(message == 71 ? 60 : 0);
        must(send(part->fd, block, 1000, message == 71 ? MSG_MORE : 0) == 1000, "send");
        free(block);
        part->at += 1000;
    }
}

/* One call that sleeps until it has room. */
static void *send_block(void *argument) {
    Part *part = argument;
    char *block = block_of(part);
    ssize_t sent = send(part->fd, block, BLOCK, MSG_NOSIGNAL);
    free(block);
    part->at += sent > 0 ? sent : 0;
    part->ended = sent == BLOCK ? "exactly" : "early";
    return NULL;
}

enum { BY_PASSING, BY_EXEC, BY_EXEC_ALONE };

typedef struct {
    int by, sleeps, held, send_buffer, receive_buffer, unsent_limit, read_first;
} Full;

/* Nobody reads what is sent, until all buffers are full; then another one is to read it all, and what is sent after that. */
static void full(Full how) {
    int road = -1, size = 0, limit = 0;
    socklen_t length = sizeof size;
    pid_t other = how.by == BY_PASSING ? receiver_of_parts(&road) : 0;
    for (int round = 0; round < 3; round++) {
        Pair pair = on_the_ring();
        if (how.send_buffer)
            must(setsockopt(pair.far, SOL_SOCKET, SO_SNDBUF, &how.send_buffer, sizeof(int)) == 0, "SO_SNDBUF");
        if (how.receive_buffer)
            must(setsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &how.receive_buffer, sizeof(int)) == 0, "SO_RCVBUF");
        if (how.unsent_limit)
            must(setsockopt(pair.far, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &how.unsent_limit, sizeof(int)) == 0, "TCP_NOTSENT_LOWAT");
        Part sent = {pair.far, 2, 0, 0, "exactly"}, received = {pair.near, 2, 0, how.read_first, "never"};
        if (how.held)
            send_with_more_to_come(&sent);
        else
            fill(&sent);
        receive_part(&received);
        pthread_t sender = 0;
        if (how.sleeps) {
            sender = start_thread(send_block, &sent);
            pause_ms(20);
        }
        size_t more = sent.at + (how.sleeps ? BLOCK : 0);
        if (how.by == BY_PASSING)
            receive_there(road, received, more);
        else {
            received.end = more;
            exec_in_child(pair, &received, how.by == BY_EXEC_ALONE);
        }
        if (how.sleeps)
            pthread_join(sender, NULL);
        must(getsockopt(pair.far, SOL_SOCKET, SO_SNDBUF, &size, &length) == 0, "SO_SNDBUF");
        must(getsockopt(pair.far, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &length) == 0, "TCP_NOTSENT_LOWAT");
        observe("sent %s; unsent limit %d, buffer %d", sent.ended, limit, how.send_buffer ? size : 0);
        if (how.receive_buffer) {
            must(getsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &size, &length) == 0, "SO_RCVBUF");
            observe("buffer of the reader %d", size);
        }
        close(pair.far);
        if (how.by != BY_EXEC_ALONE)
            close(pair.near);
    }
    if (road >= 0) {
        close(road);
        must_end_well(other);
    }
}

static void full_and_passed(void) { full((Full){0}); }

static void full_and_passed_after_a_read(void) { full((Full){.read_first = 700}); }

static void full_and_passed_under_a_sleeper(void) { full((Full){.sleeps = 1}); }

static void full_and_passed_with_a_small_buffer(void) { full((Full){.sleeps = 1, .send_buffer = 20000}); }

static void full_and_passed_with_a_chosen_buffer(void) { full((Full){.sleeps = 1, .receive_buffer = 60000}); }

static void full_and_left_to_a_program_with_a_chosen_buffer(void) { full((Full){.by = BY_EXEC, .receive_buffer = 60000}); }

static void full_and_passed_with_an_unsent_limit(void) { full((Full){.sleeps = 1, .unsent_limit = 16384}); }

static void full_and_passed_with_more_to_come(void) { full((Full){.held = 1}); }

static void full_and_left_with_more_to_come(void) { full((Full){.by = BY_EXEC, .held = 1}); }

static void full_and_left_by_exec(void) { full((Full){.by = BY_EXEC}); }

static void full_and_left_by_exec_of_the_only_user(void) { full((Full){.by = BY_EXEC_ALONE}); }

static void full_and_left_by_exec_under_a_sleeper(void) { full((Full){.by = BY_EXEC_ALONE, .sleeps = 1}); }

static void full_and_left_to_a_program_under_a_sleeper(void) { full((Full){.by = BY_EXEC, .sleeps = 1}); }

/* ---- A sender that is stopped while it sleeps for room. ---- */

enum { MUCH = 12 << 20 };

/* A process that sends so much and ends, in small pieces or in large ones. */
static pid_t sender_of_much(Pair pair, int is_large) {
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        Part part = {pair.far, 2, 0, MUCH, "never"};
        close(pair.near);
        while (is_large && part.at < MUCH) {
            char *block = block_of(&part);
            size_t left = MUCH - part.at;
            ssize_t sent = send(part.fd, block, left < BLOCK ? left : BLOCK, MSG_NOSIGNAL);
            free(block);
            if (sent <= 0)
                _exit(8);
            part.at += sent;
        }
        _exit(strcmp(((Part *)send_part(&part))->ended, "exactly") != 0);
    }
    close(pair.far);
    return child;
}

/* It goes on when its reader has gone, or when another one has begun to read. */
static void stopped_and_left(int by, int is_large, int goes_on_late) {
    int road = -1, state;
    pid_t other = by == BY_PASSING ? receiver_of_parts(&road) : 0;
    for (int round = 0; round < 3; round++) {
        Pair pair = connected();
        pid_t sender = sender_of_much(pair, is_large), receiver = 0;
        Part part = {pair.near, 2, 0, 0, "never"};
        do {
            part.end += 100000;
            receive_part(&part);
        } while (on_ring() < 1 && part.end < MUCH / 3);
        pause_ms(200);
        must(kill(sender, SIGSTOP) == 0 && waitpid(sender, &state, WUNTRACED) == sender && WIFSTOPPED(state), "stop");
        part.end = MUCH;
        if (by == BY_PASSING) {
            pass_part(road, &part);
        } else if ((receiver = fork()) == 0) {
            become_receiver(&part);
        }
        close(pair.near);
        pause_ms(goes_on_late ? 400 : 0);
        must(kill(sender, SIGCONT) == 0, "go on");
        if (by == BY_PASSING) {
            must(recv(road, &part, sizeof part, 0) == sizeof part, "recv");
            observe_received(&part);
        } else {
            must_end_well(receiver);
        }
        must_end_well(sender);
    }
    if (road >= 0) {
        close(road);
        must_end_well(other);
    }
}

static void stopped_and_passed(void) { stopped_and_left(BY_PASSING, 0, 1); }

static void stopped_in_a_large_message_and_passed(void) { stopped_and_left(BY_PASSING, 1, 1); }

static void stopped_and_left_by_exec(void) { stopped_and_left(BY_EXEC_ALONE, 0, 1); }

static void stopped_in_a_large_message_and_left_by_exec(void) { stopped_and_left(BY_EXEC_ALONE, 1, 1); }

static void stopped_for_a_moment_and_passed(void) { stopped_and_left(BY_PASSING, 1, 0); }

/* ---- Small pieces: the smallest buffer has memory for a few of those that it has room for, and throws the others away. ---- */

enum { PIECE = 100, PIECES = 100, REST_MS = 2400 };

static Pair with_the_smallest_buffer(void) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1), least = 2304;
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    setsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &least, sizeof least);
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    must(pair.far >= 0, "accept");
    close(listener);
    setsockopt(pair.far, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    talk_until_on_ring(pair, 1);
    return pair;
}

enum { STAYS, IS_SHUT, IS_CLOSED };

static void small_pieces(int by, int sender) {
    int road = -1;
    pid_t other = by == BY_PASSING ? receiver_of_parts(&road) : 0;
    for (int round = 0; round < 3; round++) {
        Pair pair = with_the_smallest_buffer();
        Part sent = {pair.far, 2, 0, 0, "never"}, received = {pair.near, 2, 0, 0, "never"};
        for (int piece = 0; piece < PIECES; piece++) {
            sent.end += PIECE;
            char bytes[PIECE];
            for (; sent.at < sent.end; sent.at++)
                bytes[sent.at % PIECE] = byte_at(sent.seed, sent.at);
            must(send(pair.far, bytes, sizeof bytes, MSG_DONTWAIT) == sizeof bytes, "send");
        }
        if (sender == IS_SHUT)
            shutdown(pair.far, SHUT_WR);
        if (sender == IS_CLOSED)
            close(pair.far);
        if (by == BY_PASSING)
            receive_there(road, received, sent.at);
        else {
            received.end = sent.at;
            exec_in_child(pair, &received, 0);
        }
        if (sender != IS_CLOSED)
            close(pair.far);
        if (by != BY_PASSING)
            close(pair.near);
        // One that has had the agent wait has to wait itself.
        pause_ms(REST_MS);
    }
    if (road >= 0) {
        close(road);
        must_end_well(other);
    }
}

static void small_pieces_passed(void) { small_pieces(BY_PASSING, STAYS); }

static void small_pieces_left_by_exec(void) { small_pieces(BY_EXEC, STAYS); }

static void small_pieces_of_one_that_has_shut_down(void) { small_pieces(BY_EXEC, IS_SHUT); }

static void small_pieces_of_one_that_has_closed(void) { small_pieces(BY_PASSING, IS_CLOSED); }

int main(int argc, char **argv) {
    if (argc == 4)
        return receive_rest(argv + 1);
    static const Case cases[] = {
        CASE(passed_in_the_middle),
        CASE(exec_of_the_only_user),
        CASE(exec_of_the_reader),
        CASE(exec_of_the_reader_to_the_kernel),
        CASE(full_and_passed),
        CASE(full_and_passed_after_a_read),
        CASE(full_and_passed_under_a_sleeper),
        CASE(full_and_passed_with_a_small_buffer),
        CASE(full_and_passed_with_a_chosen_buffer),
        CASE(full_and_left_to_a_program_with_a_chosen_buffer),
        CASE(full_and_passed_with_an_unsent_limit),
        CASE(full_and_passed_with_more_to_come),
        CASE(full_and_left_with_more_to_come),
        CASE(full_and_left_by_exec),
        CASE(full_and_left_by_exec_of_the_only_user),
        CASE(full_and_left_by_exec_under_a_sleeper),
        CASE(full_and_left_to_a_program_under_a_sleeper),
        CASE(stopped_and_passed),
        CASE(stopped_in_a_large_message_and_passed),
        CASE(stopped_and_left_by_exec),
        CASE(stopped_in_a_large_message_and_left_by_exec),
        CASE(stopped_for_a_moment_and_passed),
        CASE(small_pieces_passed),
        CASE(small_pieces_left_by_exec),
        CASE(small_pieces_of_one_that_has_shut_down),
        CASE(small_pieces_of_one_that_has_closed),
        {0},
    };
    return run_cases(cases, argc, argv);
}
