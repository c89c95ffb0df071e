/* Connections that come to the ring while threads use both of their directions. */
#include "traps.h"

enum { ROUNDS = 100, CONNECTIONS = 6, LONGEST = 16384 };

/* A direction of a connection: who sends so many bytes, and who receives them until the end of the stream. */
typedef struct {
    int from, to;
    unsigned seed;
    size_t bytes;
    const char *ended;
} Direction;

static void *send_to_the_end(void *argument) {
    Direction *direction = argument;
    char message[LONGEST];
    unsigned random = direction->seed;
    for (size_t sent = 0; sent < direction->bytes;) {
        size_t length = next_piece(message, LONGEST, &random, direction->seed, sent, direction->bytes);
        ssize_t part = send(direction->from, message, length, MSG_NOSIGNAL);
        if (part <= 0)
            return NULL;
        sent += part;
    }
    shutdown(direction->from, SHUT_WR);
    return NULL;
}

static void *receive_to_the_end(void *argument) {
    Direction *direction = argument;
    char message[LONGEST];
    size_t received = 0;
    ssize_t part;
    while ((part = recv(direction->to, message, sizeof message, 0)) > 0)
        for (ssize_t i = 0; i < part; i++)
            if (message[i] != byte_at(direction->seed, received++)) {
                direction->ended = "with wrong bytes";
                return NULL;
            }
    direction->ended = part < 0 ? "with an error" : received == direction->bytes ? "exactly" : "early";
    return NULL;
}

/* Each end has a thread that sends and one that receives. Both find at once that the connection is used enough to be offered, and
 * that it can be joined; one of them ends its direction while another joins. There are more threads than processors. */
static void threads_join_one_connection(void) {
    int exact = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        Pair pairs[CONNECTIONS];
        Direction directions[CONNECTIONS][2];
        pthread_t threads[CONNECTIONS][4];
        for (unsigned i = 0; i < CONNECTIONS; i++) {
            Pair pair = pairs[i] = connected();
            size_t bytes = 10000 + round * 1000 + i * 100;
            directions[i][0] = (Direction){pair.near, pair.far, 2 * i, bytes, "never"};
            directions[i][1] = (Direction){pair.far, pair.near, 2 * i + 1, 150000 - bytes, "never"};
            for (int j = 0; j < 4; j++)
                threads[i][j] = start_thread(j % 2 ? receive_to_the_end : send_to_the_end, &directions[i][j / 2]);
        }
        for (unsigned i = 0; i < CONNECTIONS; i++) {
            for (int j = 0; j < 4; j++)
                pthread_join(threads[i][j], NULL);
            const char *there = directions[i][0].ended, *back = directions[i][1].ended;
            if (strcmp(there, "exactly") == 0 && strcmp(back, "exactly") == 0)
                exact++;
            else
                observe("round %u, connection %u: ended %s and %s", round, i, there, back);
            close(pairs[i].near);
            close(pairs[i].far);
        }
    }
    observe("%d ended exactly", exact);
}

/* Bytes of a stream, each with its place. */
static void send_on(int fd, size_t *position, size_t bytes) {
    char message[256];
    for (size_t i = 0; i < bytes; i++)
        message[i] = byte_at(7, *position + i);
    must(send(fd, message, bytes, 0) == (ssize_t)bytes, "send");
    *position += bytes;
}

static int receive_on(int fd, size_t *position, size_t bytes) {
    char message[256];
    int right = 1;
    ssize_t part = recv(fd, message, bytes, 0);
    must(part > 0, "recv");
    for (ssize_t i = 0; i < part; i++)
        right &= message[i] == byte_at(7, (*position)++);
    return right;
}

/* An urgent byte is sent after so many messages. Nobody reads on until the connection could have come to the ring. What the kernel
 * tells to be unread ends at the urgent byte. */
static int urgent_byte_after(int messages) {
    Pair pair = connected();
    size_t sent = 0, received = 0;
    int right = 1;
    for (int i = 0; i < messages; i++) {
        send_on(pair.near, &sent, 100);
        right &= receive_on(pair.far, &received, 100);
        send(pair.far, "x", 1, 0);
        recv(pair.near, &(char){0}, 1, 0);
    }
    send_on(pair.near, &sent, 10);
    must(send(pair.near, "!", 1, MSG_OOB) == 1, "MSG_OOB");
    send_on(pair.near, &sent, 200);
    for (int i = 0; i < 5; i++) {
        struct pollfd both[2] = {{.fd = pair.near, .events = POLLPRI}, {.fd = pair.far, .events = POLLERR}};
        poll(both, 2, 1);
        send(pair.far, "x", 1, 0);
        recv(pair.near, &(char){0}, 1, 0);
    }
    for (int i = 0; i < 100; i++) {
        send_on(pair.near, &sent, 20);
        right &= receive_on(pair.far, &received, 20);
    }
    while (received < sent)
        right &= receive_on(pair.far, &received, sizeof(char[256]));
    close(pair.near);
    close(pair.far);
    return right;
}

static void urgent_byte_before_the_join(void) {
    for (int messages = 0; messages < 12; messages++)
        observe("after %d messages: %s", messages, urgent_byte_after(messages) ? "in order" : "out of order");
}

static void *send_some(void *argument) {
    for (int i = 0; i < 20; i++)
        must(send(*(int *)argument, "x", 1, 0) == 1, "send");
    return NULL;
}

/* Whether a child, that came while another thread's connection was offered, has a descriptor that its parent had not. */
static int forked_meanwhile(int round) {
    Pair pair = connected();
    int next = open("/dev/null", O_RDONLY);
    close(next);
    pthread_t thread = start_thread(send_some, &pair.near);
    for (volatile int i = 0; i < round * 1000; i++)
        ;
    pid_t child = fork();
    if (child == 0)
        _exit(open("/dev/null", O_RDONLY) != next);
    int status;
    must(waitpid(child, &status, 0) == child, "waitpid");
    pthread_join(thread, NULL);
    return status;
}

/* The library looks through the process's memory once before its first offer, so each round is a process. */
static void fork_beside_an_offer(void) {
    int others = 0;
    for (int round = 0; round < 600; round++) {
        pid_t child = fork();
        if (child == 0)
            _exit(forked_meanwhile(round) != 0);
        int status;
        must(waitpid(child, &status, 0) == child, "waitpid");
        others += status != 0;
    }
    observe("%d children had other descriptors", others);
}

static void *wait_for_one(void *set) {
    struct epoll_event event;
    int count = epoll_wait(*(int *)set, &event, 1, 5000);
    return count == 1 && event.events == EPOLLIN ? "readable" : count == 1 ? "something else" : "nothing";
}

/* A thread sleeps on a set since before the process had anything on the ring. What it is to be told of comes by the ring. */
static void asleep_since_before_the_first_join(void) {
    Pair pair = connected();
    int set = epoll_create1(0);
    struct epoll_event event = {.events = 0};
    must(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event) == 0, "epoll_ctl");
    pthread_t thread = start_thread(wait_for_one, &set);
    pause_ms(50);
    for (int rounds = 0; rounds < 20; rounds++) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
    }
    must(send(pair.far, "x", 1, 0) == 1, "send");
    event.events = EPOLLIN;
    must(epoll_ctl(set, EPOLL_CTL_MOD, pair.near, &event) == 0, "epoll_ctl");
    void *told;
    pthread_join(thread, &told);
    observe("%s", (char *)told);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(threads_join_one_connection),
        CASE(urgent_byte_before_the_join),
        CASE(fork_beside_an_offer),
        CASE(asleep_since_before_the_first_join),
        {0},
    };
    return run_cases(cases, argc, argv);
}
