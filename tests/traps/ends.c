/* Processes that end together, or in the middle of something, and what they leave to those that go on. */
#include "traps.h"

/* Records of connections in shared memory that nobody has, and nobody will free: no number says who was the last (docs/shm-abi.md).
 * Plain there are none. */
static int records_left(void) {
    enum { HEADER = 4096, ROW = 384, PROCESSES = 80, PLACES = 8 };
    char line[512];
    int left = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    must(maps != NULL, "maps");
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        if (strstr(line, "memfd:millrace-board") == NULL || sscanf(line, "%lx-%lx", &from, &to) != 2)
            continue;
        unsigned used = ((volatile unsigned *)from)[2];
        for (unsigned long row = from + HEADER; used-- != 0 && row + ROW <= to; row += ROW) {
            unsigned holders = *(volatile unsigned *)row;
            unsigned char state = ((volatile unsigned char *)row)[4];
            const volatile unsigned *processes = (volatile unsigned *)(row + PROCESSES);
            int numbers = 0;
            for (int i = 0; i < PLACES; i++)
                numbers += processes[i] != 0;
            left += holders == 0 && state != 0 && numbers == 0;
        }
    }
    fclose(maps);
    return left;
}

enum { CONNECTIONS = 30, ROUNDS = 60 };

/* Two children have connections that their parent closes, and end at the same moment: by themselves, or in the middle of closing. */
static void end_together(int closing) {
    for (int round = 0; round < ROUNDS; round++) {
        Pair pairs[CONNECTIONS];
        int gate[2];
        pid_t children[2];
        for (int i = 0; i < CONNECTIONS; i++)
            pairs[i] = connected();
        must(pipe(gate) == 0, "pipe");
        for (int i = 0; i < 2; i++) {
            must((children[i] = fork()) >= 0, "fork");
            if (children[i] != 0)
                continue;
            char byte;
            close(gate[1]);
            must(read(gate[0], &byte, 1) == 0, "read");
            for (int j = 0; closing && j < CONNECTIONS; j++) {
                close(pairs[j].near);
                close(pairs[j].far);
            }
            exit(0);
        }
        for (int i = 0; i < CONNECTIONS; i++) {
            close(pairs[i].near);
            close(pairs[i].far);
        }
        close(gate[0]);
        close(gate[1]);
        if (closing) {
            usleep(round * 50);
            kill(children[0], SIGKILL);
            kill(children[1], SIGKILL);
        }
        for (int i = 0; i < 2; i++)
            must(waitpid(children[i], NULL, 0) == children[i], "waitpid");
    }
    /* New ones look for records of the dead. */
    for (int i = 0; i < 300; i++) {
        Pair pair = connected();
        close(pair.near);
        close(pair.far);
    }
    observe("records left: %d", records_left());
}

static void two_end_at_once(void) { end_together(0); }

static void two_are_killed_at_once(void) { end_together(1); }

static volatile pid_t victim;
static volatile int is_over;
static volatile sig_atomic_t heard;

static void hear(int signal) {
    (void)signal;
    heard++;
}

/* Kills the child of the moment, after a while. */
static void *kill_victims(void *nothing) {
    (void)nothing;
    for (unsigned random = 1; !is_over;) {
        pid_t child = victim;
        if (child <= 0) {
            sched_yield();
            continue;
        }
        random = random * 1103515245 + 12345;
        for (volatile unsigned i = 0; i < (random >> 16) % 20000; i++) {}
        if (victim == child) {
            victim = 0;
            kill(child, SIGKILL);
        }
    }
    return NULL;
}

static atomic_int beats;

static void *talk_on(void *argument) {
    Pair pair = *(Pair *)argument;
    for (char message[64] = ""; !is_over; beats++) {
        must(send(pair.near, message, sizeof message, 0) == sizeof message, "send");
        must(recv(pair.far, message, sizeof message, MSG_WAITALL) == sizeof message, "recv");
        Pair other = connected();
        must(send(other.near, "o", 1, 0) == 1 && recv(other.far, message, 1, 0) == 1, "exchange");
        close(other.near);
        close(other.far);
    }
    return NULL;
}

/* A child of `vfork` tries to become another program, which gets our connections, and is killed in that: it has our memory, and what it
 * has begun there nobody ends. */
static void killed_children_of_vfork(void) {
    Pair pair = on_the_ring(), other = connected();
    pthread_t killer, talker;
    int wrong = 0;
    signal(SIGUSR1, hear);
    must(pthread_create(&killer, NULL, kill_victims, NULL) == 0 && pthread_create(&talker, NULL, talk_on, &other) == 0, "threads");
    for (int i = 0; i < 150; i++) {
        pid_t child = vfork();
        if (child == 0) {
            victim = syscall(SYS_getpid);
            for (int tries = 0; tries < 1000; tries++)
                execl("/nonexistent/program", "program", NULL);
            victim = 0;
            _exit(0);
        }
        must(child > 0, "vfork");
        int before = heard;
        raise(SIGUSR1);
        wrong += heard != before + 1;
        must(waitpid(child, NULL, 0) == child, "waitpid");
        victim = 0;
        char byte;
        wrong += send(pair.near, "b", 1, 0) != 1 || recv(pair.far, &byte, 1, 0) != 1;
    }
    for (int until = beats + 10; beats < until;)
        usleep(1000);
    is_over = 1;
    pthread_join(killer, NULL);
    pthread_join(talker, NULL);
    observe("wrong: %d, records left: %d", wrong, records_left());
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(two_end_at_once),
        CASE(two_are_killed_at_once),
        CASE(killed_children_of_vfork),
        {0},
    };
    return run_cases(cases, argc, argv);
}
