/* Connections that one thread closes, or puts something else in the place of, while another is in the middle of a message. */
#include "traps.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { MESSAGE = 1 << 20, ROUNDS = 40, BROUGHT = 8192, PAGE = 4096 };

static Pair the_pair;
static char message[MESSAGE];
static atomic_long got;

/* It does not wait in the kernel: so the sender finds it on its ring. */
static void *receive_all(void *unused) {
    static char bytes[1 << 16];
    ssize_t part;
    while ((part = recv(the_pair.far, bytes, sizeof bytes, MSG_DONTWAIT)) != 0) {
        if (part > 0)
            atomic_fetch_add(&got, part);
        else if (errno != EAGAIN)
            break;
    }
    return unused;
}

typedef struct {
    int fd;
    ssize_t sent;
} Sending;

static void *send_message(void *argument) {
    Sending *sending = argument;
    sending->sent = send(sending->fd, message, sizeof message, MSG_NOSIGNAL);
    return NULL;
}

/* Sends by a descriptor that goes as soon as the first bytes have come; `becomes` is what it is then, or less than 0. */
static int is_whole(int fd, int becomes, unsigned *seed) {
    Sending sending = {.fd = fd};
    long before = atomic_load(&got);
    pthread_t sender = start_thread(send_message, &sending);
    while (atomic_load(&got) == before)
        if (rand_r(seed) % 4 == 0)
            sched_yield();
    for (volatile int step = rand_r(seed) % 20000; step > 0; step--)
        ;
    if (becomes < 0)
        close(fd);
    else
        must(dup2(becomes, fd) == fd, "dup2");
    pthread_join(sender, NULL);
    for (int wait = 0; wait < 2000 && atomic_load(&got) - before < sending.sent; wait++)
        usleep(500);
    return sending.sent == MESSAGE && atomic_load(&got) - before == MESSAGE;
}

static void all_are_whole(int becomes, int is_last) {
    unsigned seed = 1;
    int whole = 0;
    pthread_t reader = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (is_last || round == 0) {
            the_pair = on_the_ring();
            reader = start_thread(receive_all, NULL);
        }
        int fd = is_last ? the_pair.near : dup(the_pair.near);
        whole += is_whole(fd, becomes, &seed);
        if (becomes >= 0)
            close(fd);
        if (is_last) {
            pthread_join(reader, NULL);
            close(the_pair.far);
        }
    }
    if (!is_last) {
        close(the_pair.near);
        pthread_join(reader, NULL);
    }
    observe("%d of %d are whole", whole, ROUNDS);
}

static void closed_in_the_middle(void) {
    all_are_whole(-1, 1);
}

static void replaced_in_the_middle(void) {
    all_are_whole(open("/dev/null", O_RDWR), 1);
}

static void a_copy_is_closed_in_the_middle(void) {
    all_are_whole(-1, 0);
}

static void a_copy_is_replaced_in_the_middle(void) {
    all_are_whole(open("/dev/null", O_RDWR), 0);
}

static int faults, a_copy;

/* Brings the memory that a message is sent from, once it has closed a descriptor of the connection. */
static void *bring(void *unused) {
    static char page[PAGE];
    struct uffd_msg told;
    memset(page, 'p', sizeof page);
    for (int brought = 0; brought < BROUGHT / PAGE;) {
        must(read(faults, &told, sizeof told) == sizeof told, "fault");
        if (told.event != UFFD_EVENT_PAGEFAULT)
            continue;
        if (brought++ == 0)
            observe_result("close", close(a_copy));
        struct uffdio_copy copy = {
            .dst = told.arg.pagefault.address & -(__u64)PAGE, .src = (unsigned long)page, .len = PAGE
        };
        must(ioctl(faults, UFFDIO_COPY, &copy) == 0, "bring");
    }
    return unused;
}

static void closed_by_who_brings_the_memory(void) {
    static char bytes[BROUGHT];
    struct uffdio_api api = {.api = UFFD_API};
    faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) != 0) {
        observe("skipped: userfaultfd(2) is refused here");
        return;
    }
    char *memory = mmap(NULL, BROUGHT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {.range = {(unsigned long)memory, BROUGHT}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    must(memory != MAP_FAILED && ioctl(faults, UFFDIO_REGISTER, &all) == 0, "memory");
    the_pair = on_the_ring();
    a_copy = dup(the_pair.near);
    pthread_t bringer = start_thread(bring, NULL);
    observe_result("send", send(the_pair.near, memory, BROUGHT, 0));
    pthread_join(bringer, NULL);
    observe_result("recv", recv(the_pair.far, bytes, BROUGHT, MSG_WAITALL));
    observe("its bytes: %c", bytes[BROUGHT - 1]);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(closed_in_the_middle),
        CASE(replaced_in_the_middle),
        CASE(a_copy_is_closed_in_the_middle),
        CASE(a_copy_is_replaced_in_the_middle),
        CASE(closed_by_who_brings_the_memory),
        {0},
    };
    return run_cases(cases, argc, argv);
}
