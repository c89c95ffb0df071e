/* The C library's streams, and its own writes, on connections in use. */
#include "traps.h"
#ifdef __GLIBC__
#include <execinfo.h>
#endif
#include <aio.h>
#include <err.h>
#include <sys/sendfile.h>

static void lines_by_streams(void) {
    Pair pair = on_the_ring();
    must(send(pair.near, "before\n", 7, 0) == 7, "send");
    FILE *out = fdopen(pair.near, "w"), *in = fdopen(pair.far, "r");
    char line[64];
    for (int i = 0; i < 5; i++) {
        fprintf(out, "line %d\n", i);
        fflush(out);
        must(fgets(line, sizeof line, in) != NULL, "fgets");
        line[strcspn(line, "\n")] = 0;
        observe("%s", line);
    }
    fclose(out);
    while (fgets(line, sizeof line, in) != NULL)
        observe("%s", strtok(line, "\n"));
    observe("end %d, error %d", feof(in) != 0, ferror(in) != 0);
    fclose(in);
}

/* A stream that is made of a socket before that is connected. */
static void stream_before_the_connection(void) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1);
    int near = socket(AF_INET, SOCK_STREAM, 0);
    FILE *stream = fdopen(near, "r+");
    must(stream != NULL && connect(near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    Pair pair = {near, accept(listener, NULL, NULL)};
    must(pair.far >= 0, "accept");
    wait_for_both(pair);
    char line[64];
    for (int round = 0; round < 20; round++) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        must(send(pair.far, "a line\n", 7, 0) == 7, "send");
        must(fgets(line, sizeof line, stream) != NULL && strcmp(line, "a line\n") == 0, "fgets");
        fprintf(stream, "another\n"), fflush(stream);
        must(recv(pair.far, line, 8, MSG_WAITALL) == 8 && memcmp(line, "another\n", 8) == 0, "recv");
        pause_ms(1);
    }
    observe("done");
    fclose(stream);
}

static void read_all(int fd) {
    char buffer[256];
    ssize_t part;
    size_t got = 0;
    while (got < sizeof buffer - 1 && (part = recv(fd, buffer + got, sizeof buffer - 1 - got, 0)) > 0)
        got += part;
    buffer[got] = 0;
    for (char *line = strtok(buffer, "\n"); line != NULL; line = strtok(NULL, "\n"))
        observe("%s", line);
}

static void dprintf_between_sends(void) {
    Pair pair = on_the_ring();
    for (int i = 0; i < 5; i++) {
        must(send(pair.near, "sent\n", 5, 0) == 5, "send");
        dprintf(pair.near, "printed %d\n", i);
    }
    shutdown(pair.near, SHUT_WR);
    read_all(pair.far);
}

#ifdef __GLIBC__
static void backtraces_between_sends(void) {
    Pair pair = on_the_ring();
    void *nowhere[] = {(void *)1, (void *)2};
    for (int i = 0; i < 3; i++) {
        must(send(pair.near, "sent\n", 5, 0) == 5, "send");
        backtrace_symbols_fd(nowhere, 2, pair.near);
    }
    shutdown(pair.near, SHUT_WR);
    read_all(pair.far);
}
#endif

/* As a server does that inetd started: the connection becomes standard output. */
static void standard_output_is_the_connection(void) {
    Pair pair = on_the_ring();
    int kept = dup(1);
    must(send(pair.near, "sent\n", 5, 0) == 5, "send");
    fflush(stdout);
    must(dup2(pair.near, 1) == 1, "dup2");
    close(pair.near);
    for (int i = 0; i < 3; i++) {
        printf("printed %d\n", i);
        fflush(stdout);
        must(write(1, "written\n", 8) == 8, "write");
        puts("put");
        fflush(stdout);
    }
    must(dup2(kept, 1) == 1, "dup2");
    read_all(pair.far);
}

static void standard_error_is_the_connection(void) {
    Pair pair = on_the_ring();
    int kept = dup(2);
    must(dup2(pair.near, 2) == 2, "dup2");
    close(pair.near);
    errno = 0;
    perror("perror");
    warnx("warned");
    fprintf(stderr, "printed\n");
    must(write(2, "written\n", 8) == 8, "write");
    must(dup2(kept, 2) == 2, "dup2");
    read_all(pair.far);
}

static void standard_input_is_the_connection(void) {
    Pair pair = on_the_ring();
    char line[64];
    int kept = dup(0);
    must(send(pair.near, "one\ntwo\nthree\n", 14, 0) == 14, "send");
    must(dup2(pair.far, 0) == 0, "dup2");
    close(pair.far);
    FILE *in = fdopen(0, "r");
    must(fgets(line, sizeof line, stdin) != NULL, "fgets");
    observe("%s", strtok(line, "\n"));
    (void)in;
    shutdown(pair.near, SHUT_WR);
    while (fgets(line, sizeof line, stdin) != NULL)
        observe("%s", strtok(line, "\n"));
    must(dup2(kept, 0) == 0, "dup2");
}

/* Input and output of the C library that is done by threads of its own. */
static void asynchronous_io(void) {
    Pair pair = on_the_ring();
    char in[16] = "";
    struct aiocb reading = {.aio_fildes = pair.far, .aio_buf = in, .aio_nbytes = sizeof in};
    struct aiocb writing = {.aio_fildes = pair.near, .aio_buf = "asynchronous", .aio_nbytes = 12};
    must(send(pair.near, "before", 6, 0) == 6, "send");
    must(recv(pair.far, in, 6, MSG_WAITALL) == 6, "recv");
    must(aio_write(&writing) == 0, "aio_write");
    const struct aiocb *list[] = {&writing};
    aio_suspend(list, 1, NULL);
    observe_result("aio_write", aio_return(&writing));
    must(aio_read(&reading) == 0, "aio_read");
    list[0] = &reading;
    aio_suspend(list, 1, NULL);
    observe_result("aio_read", aio_return(&reading));
    observe("%.12s", in);
    talk(pair.near, pair.far);
    observe("talked");
}

static void files_and_pipes(void) {
    Pair pair = on_the_ring();
    int file = memfd_create("file", 0), ends[2];
    off_t at = 0;
    must(pipe(ends) == 0, "pipe");
    must(write(file, "from the file\n", 14) == 14, "write");
    must(send(pair.near, "sent\n", 5, 0) == 5, "send");
    observe_result("sendfile", sendfile(pair.near, file, &at, 14));
    must(send(pair.near, "sent\n", 5, 0) == 5, "send");
    must(write(ends[1], "from the pipe\n", 14) == 14, "write");
    observe_result("splice", splice(ends[0], NULL, pair.near, NULL, 14, 0));
    must(send(pair.near, "sent\n", 5, 0) == 5, "send");
    char first[5];
    must(recv(pair.far, first, 5, MSG_WAITALL) == 5, "recv");
    ssize_t moved = 0, part;
    while (moved < 38 && (part = splice(pair.far, NULL, ends[1], NULL, 38 - moved, 0)) > 0)
        moved += part;
    observe_result("splice", moved);
    char rest[64] = "";
    must(read(ends[0], rest, sizeof rest - 1) > 0, "read");
    observe("%s", rest);
    observe_result("copy_file_range", copy_file_range(pair.far, NULL, file, NULL, 1, 0));
    observe_result("tee", tee(pair.far, ends[1], 1, 0));
}

/* The kernel sends from a connection to a pipe, and to nothing else. */
static void sent_to_what_the_kernel_sends_to(void) {
    Pair pair = on_the_ring();
    int file = memfd_create("file", 0), ends[2];
    char bytes[64] = "";
    off_t at = 0;
    must(pipe(ends) == 0, "pipe");
    must(send(pair.near, "first, ", 7, 0) == 7 && send(pair.near, "second", 6, 0) == 6, "send");
    observe_result("at a place", sendfile(ends[1], pair.far, &at, 5));
    observe_result("to a file", sendfile(file, pair.far, NULL, 5));
    observe_result("to a connection", sendfile(pair.near, pair.far, NULL, 5));
    observe_result("nothing", sendfile(ends[1], pair.far, NULL, 0));
    ssize_t moved = 0, part;
    while (moved < 13 && (part = sendfile(ends[1], pair.far, NULL, 13 - moved)) > 0)
        moved += part;
    observe_result("to a pipe", moved);
    must(read(ends[0], bytes, 13) == 13, "read");
    observe("%s", bytes);
    talk(pair.near, pair.far);
    fcntl(pair.far, F_SETFL, O_NONBLOCK);
    observe_result("nothing there", sendfile(ends[1], pair.far, NULL, 5));
}

/* The kernel splices nothing into a file that is appended to, and takes a socket for one. */
static void nothing_is_spliced_into_what_is_appended_to(void) {
    Pair pair = on_the_ring();
    int ends[2], file = fileno(tmpfile());
    off_t at = 0;
    char bytes[64];
    must(pipe(ends) == 0 && write(ends[1], "in a pipe", 9) == 9 && write(file, "in a file", 9) == 9, "write");
    observe_result("fcntl", fcntl(pair.near, F_SETFL, O_APPEND));
    observe_result("sendfile", sendfile(pair.near, file, &at, 9));
    observe_result("splice", splice(ends[0], NULL, pair.near, NULL, 9, 0));
    observe_result("send", send(pair.near, "sent", 4, 0));
    observe_result("fcntl", fcntl(pair.near, F_SETFL, 0));
    observe_result("sendfile", sendfile(pair.near, file, &at, 9));
    observe_result("splice", splice(ends[0], NULL, pair.near, NULL, 9, 0));
    ssize_t got = recv(pair.far, bytes, 22, MSG_WAITALL);
    observe("%.*s", (int)got, bytes);
}

/* The same, where it was said before the connection was made. */
static void appended_to_from_the_start(void) {
    struct sockaddr_in address;
    int listener = listen_here(&address, 1), file = fileno(tmpfile());
    Pair pair = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    off_t at = 0;
    must(fcntl(pair.near, F_SETFL, O_APPEND) == 0 && write(file, "in a file", 9) == 9, "write");
    must(connect(pair.near, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    pair.far = accept(listener, NULL, NULL);
    for (int i = 0; i < 10; i++) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        pause_ms(5);
    }
    observe_result("sendfile", sendfile(pair.near, file, &at, 9));
    talk(pair.near, pair.far);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(lines_by_streams),
        CASE(stream_before_the_connection),
        CASE(dprintf_between_sends),
#ifdef __GLIBC__
        CASE(backtraces_between_sends),
#endif
        CASE(standard_output_is_the_connection),
        CASE(standard_error_is_the_connection),
        CASE(standard_input_is_the_connection),
        CASE(asynchronous_io),
        CASE(files_and_pipes),
        CASE(sent_to_what_the_kernel_sends_to),
        CASE(nothing_is_spliced_into_what_is_appended_to),
        CASE(appended_to_from_the_start),
        {0},
    };
    return run_cases(cases, argc, argv);
}
