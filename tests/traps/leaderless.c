/* The main thread ends, and the others go on: the process has no descriptors any more by its own number. */
#include "traps.h"

static Pair pair;

static void start_and_end(void *(*work)(void *)) {
    start_thread(work, NULL);
    pthread_exit(NULL);
}

/* Until the main thread has ended. */
static void await_end_of_main(void) {
    char path[64], line[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    for (int patience = 1000; patience > 0 && state != 'Z'; patience--) {
        FILE *file = fopen(path, "r");
        must(file != NULL && fgets(line, sizeof line, file) != NULL, path);
        fclose(file);
        state = strrchr(line, ')')[2];
        pause_ms(2);
    }
    must(state == 'Z', "the main thread's end");
}

static void *become_cat(void *unused) {
    dup2(pair.far, 0);
    execl("/bin/cat", "cat", NULL);
    return unused;
}

static void *become_cat_later(void *unused) {
    await_end_of_main();
    return become_cat(unused);
}

/* The program that it becomes reads what came before. */
static void unread_by_a_program(void) {
    pair = on_the_ring();
    fcntl(pair.near, F_SETFD, FD_CLOEXEC);
    must(send(pair.near, "unread\n", 7, 0) == 7, "send");
    start_and_end(become_cat_later);
}

static void *start_a_reader(void *unused) {
    char command[64];
    await_end_of_main();
    snprintf(command, sizeof command, "dd bs=1 count=7 status=none <&%d", pair.far);
    observe("ended with %d", system(command));
    talk(pair.near, pair.far);
    exit(0);
    return unused;
}

static void unread_by_a_command(void) {
    pair = on_the_ring();
    must(send(pair.near, "unread\n", 7, 0) == 7, "send");
    start_and_end(start_a_reader);
}

static void *send_and_wait(void *unused) {
    char byte;
    await_end_of_main();
    must(send(pair.near, "unread\n", 7, 0) == 7, "send");
    shutdown(pair.near, SHUT_WR);
    observe_result("its end", recv(pair.near, &byte, 1, 0));
    exit(0);
    return unused;
}

/* What lies in the ring of another process, which becomes a program. */
static void unread_by_another_process(void) {
    pair = connected();
    wait_for_both(pair);
    pid_t reader = fork();
    must(reader >= 0, "fork");
    char message[64] = "a message";
    if (reader == 0) {
        close(pair.near);
        for (int i = 0; i < 200; i++)
            must(recv(pair.far, message, sizeof message, MSG_WAITALL) == sizeof message &&
                     send(pair.far, message, sizeof message, 0) == sizeof message,
                 "talk");
        pause_ms(500);
        become_cat(NULL);
    }
    close(pair.far);
    for (int i = 0; i < 200; i++)
        must(send(pair.near, message, sizeof message, 0) == sizeof message &&
                 recv(pair.near, message, sizeof message, MSG_WAITALL) == sizeof message,
             "talk");
    start_and_end(send_and_wait);
}

static void *new_connection(void *unused) {
    await_end_of_main();
    pair = connected();
    for (int i = 0; i < 20; i++)
        talk(pair.near, pair.far), talk(pair.far, pair.near);
    must(send(pair.near, "unread\n", 7, 0) == 7, "send");
    return start_a_reader(unused);
}

/* A connection that begins afterwards. */
static void connected_afterwards(void) { start_and_end(new_connection); }

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(unread_by_a_program),
        CASE(unread_by_a_command),
        CASE(unread_by_another_process),
        CASE(connected_afterwards),
        {0},
    };
    return run_cases(cases, argc, argv);
}
