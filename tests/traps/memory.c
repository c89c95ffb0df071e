/* Buffers that are not there, or not any more. */
#include "traps.h"

enum { PAGE = 4096 };

/* Where nothing is; the compiler does not know. */
static void *volatile nowhere = (void *)16, *volatile null = NULL;

static char *pages(int count, int protection) {
    char *place = mmap(NULL, (size_t)count * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(place != MAP_FAILED, "mmap");
    return place;
}

/* One page, and after it nothing. */
static char *page_at_an_edge(void) {
    char *place = pages(2, PROT_READ | PROT_WRITE);
    must(munmap(place + PAGE, PAGE) == 0, "munmap");
    memset(place, 'e', PAGE);
    return place;
}

static void check_rest(int fd) {
    char buffer[3 * PAGE];
    observe_result("rest", recv(fd, buffer, sizeof buffer, MSG_DONTWAIT));
}

static void bad_pointers(void) {
    Pair pair = on_the_ring();
    char byte = 'x';
    observe_result("send", send(pair.near, nowhere, 10, 0));
    observe_result("write", write(pair.near, null, 10));
    observe_result("nothing", send(pair.near, NULL, 0, 0));
    must(send(pair.near, &byte, 1, 0) == 1, "send");
    observe_result("recv", recv(pair.far, nowhere, 10, 0));
    observe_result("read", read(pair.far, null, 10));
    observe_result("of nothing", recv(pair.far, NULL, 0, 0));
    observe_result("readv", readv(pair.far, nowhere, 1));
    observe_result("recvmsg", recvmsg(pair.far, nowhere, 0));
    check_rest(pair.far);
}

static void read_only_target(void) {
    Pair pair = on_the_ring();
    char *target = pages(1, PROT_READ);
    must(send(pair.near, "data", 4, 0) == 4, "send");
    observe_result("recv", recv(pair.far, target, 4, 0));
    must(mprotect(target, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
    observe_result("recv", recv(pair.far, target, 4, 0));
    must(send(pair.near, "data", 4, 0) == 4, "send");
    must(mprotect(target, PAGE, PROT_READ) == 0, "mprotect");
    observe_result("recv", recv(pair.far, target, 4, 0));
    check_rest(pair.far);
}

/* Memory that was good a call ago, and went by every way there is. */
static void memory_that_goes(void) {
    Pair pair = on_the_ring();
    for (int way = 0; way < 6; way++) {
        char *place = pages(2, PROT_READ | PROT_WRITE);
        must(send(pair.near, place, PAGE, 0) == PAGE, "send");
        check_rest(pair.far);
        switch (way) {
        case 0: munmap(place, PAGE); break;
        case 1: mprotect(place, PAGE, PROT_NONE); break;
        case 2: mremap(place, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, pages(2, PROT_NONE)); break;
        case 3: mmap(place, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); break;
        case 4: syscall(SYS_munmap, place, PAGE); break;
        case 5: syscall(SYS_mprotect, place, PAGE, PROT_NONE); break;
        }
        observe_result("send", send(pair.near, place, PAGE, 0));
        must(send(pair.near, "data", 4, 0) == 4, "send");
        observe_result("recv", recv(pair.far, place, 4, 0));
        check_rest(pair.far);
    }
}

/* A large block that the C library gives back to the kernel. */
static void memory_that_is_freed(void) {
    Pair pair = on_the_ring();
    char *place = malloc(1 << 20);
    memset(place, 'f', 1 << 20);
    must(send(pair.near, place + 8 * PAGE, PAGE, 0) == PAGE, "send");
    check_rest(pair.far);
    char *kept = place;
    __asm__ volatile("" : "+r"(kept));
    free(place);
    observe_result("send", send(pair.near, kept + 8 * PAGE, PAGE, 0));
    check_rest(pair.far);
}

static void buffers_over_an_edge(void) {
    Pair pair = on_the_ring();
    char *edge = page_at_an_edge();
    char *target = page_at_an_edge();
    char good[2 * PAGE];
    struct iovec vectors[] = {{good, 100}, {nowhere, 100}, {good, 100}};
    observe_result("send", send(pair.near, edge + PAGE - 100, 100, 0));
    check_rest(pair.far);
    observe_result("writev", writev(pair.near, vectors, 3));
    check_rest(pair.far);
    must(send(pair.near, good, 300, 0) == 300, "send");
    observe_result("recv of what fits", recv(pair.far, target + PAGE - 300, 400, 0));
    must(send(pair.near, good, 300, 0) == 300, "send");
    observe_result("readv", readv(pair.far, vectors, 3));
    check_rest(pair.far);
}

/* A file that is shorter than its mapping: the kernel fails where a program would get SIGBUS. */
static void mapping_beyond_its_file(void) {
    Pair pair = on_the_ring();
    int file = memfd_create("short", 0);
    must(ftruncate(file, 2 * PAGE) == 0, "ftruncate");
    char *place = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(place != MAP_FAILED, "mmap");
    memset(place, 's', 2 * PAGE);
    must(send(pair.near, place + PAGE, 100, 0) == 100, "send");
    check_rest(pair.far);
    must(ftruncate(file, PAGE) == 0, "ftruncate");
    observe_result("send", send(pair.near, place + PAGE, 100, 0));
    must(send(pair.near, "data", 4, 0) == 4, "send");
    observe_result("recv", recv(pair.far, place + PAGE, 4, 0));
    check_rest(pair.far);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(bad_pointers),
        CASE(read_only_target),
        CASE(memory_that_goes),
        CASE(memory_that_is_freed),
        CASE(buffers_over_an_edge),
        CASE(mapping_beyond_its_file),
        {0},
    };
    return run_cases(cases, argc, argv);
}
