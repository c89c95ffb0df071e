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

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(two_end_at_once),
        CASE(two_are_killed_at_once),
        {0},
    };
    return run_cases(cases, argc, argv);
}
