/* A program that has a part in Go, by what it says of itself, and so calls the kernel past the C library, too. */
#include "traps.h"

__asm__(".pushsection .note.go.buildid, \"a\", %note\n"
        ".long 4, 4, 4\n"
        ".ascii \"Go\\0\\0\"\n"
        ".ascii \"none\"\n"
        ".popsection");

#ifdef __x86_64__
static long past_the_library(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

/* What has talked by the C library is copied, closed, read and written past it. */
static void used_past_the_library(void) {
    Pair pair = connected();
    char bytes[64] = {0};
    for (int i = 0; i < 10; i++) {
        talk(pair.near, pair.far);
        talk(pair.far, pair.near);
        pause_ms(5);
    }
    long copy = past_the_library(SYS_fcntl, pair.far, F_DUPFD_CLOEXEC, 0);
    must(past_the_library(SYS_close, pair.far, 0, 0) == 0, "close");
    for (int i = 0; i < 100; i++) {
        must(send(pair.near, "a message", 9, 0) == 9, "send");
        must(past_the_library(SYS_read, copy, (long)bytes, sizeof bytes) == 9, "read");
        must(past_the_library(SYS_write, copy, (long)bytes, 9) == 9, "write");
        must(recv(pair.near, bytes, 9, MSG_WAITALL) == 9, "recv");
    }
    int file = memfd_create("file", 0);
    observe("the number is used again: %d", file == pair.far);
    must(write(file, "in a file", 9) == 9 && pread(file, bytes, 9, 0) == 9, "file");
    observe("%.9s", bytes);
    past_the_library(SYS_close, copy, 0, 0);
    observe_result("end", recv(pair.near, bytes, 9, 0));
}
#endif

int main(int argc, char **argv) {
    static const Case cases[] = {
#ifdef __x86_64__
        CASE(used_past_the_library),
#endif
        {0},
    };
    return run_cases(cases, argc, argv);
}
