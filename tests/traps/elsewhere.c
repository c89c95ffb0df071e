/* Programs in another network namespace than the agent's, as in every container. */
#include "parts.h"
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

static void leave_the_agent_s_network(void) {
    if (unshare(CLONE_NEWNET) != 0) {
        observe("skipped: there is no other network namespace to be had: %s", strerrorname_np(errno));
        exit(0);
    }
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    must(ioctl(fd, SIOCSIFFLAGS, &loopback) == 0, "SIOCSIFFLAGS");
    close(fd);
}

/* A sender closes when nothing has room any more: its FIN waits behind what it has sent. Who has read the beginning becomes another
   program, or starts one that is to read on while it keeps the connection itself. */
static void closed_when_full(int is_alone) {
    leave_the_agent_s_network();
    for (int round = 0; round < 3; round++) {
        Pair pair = on_the_ring();
        Part sent = {pair.far, 2, 0, 0, "exactly"}, received = {pair.near, 2, 0, 700, "never"};
        fill(&sent);
        receive_part(&received);
        close(pair.far);
        received.end = sent.at;
        exec_in_child(pair, &received, is_alone);
        if (!is_alone) {
            char byte;
            observe_result("then", recv(pair.near, &byte, 1, 0));
            close(pair.near);
        }
    }
}

static void closed_when_full_and_left_by_exec(void) { closed_when_full(1); }

static void closed_when_full_and_left_to_a_program(void) { closed_when_full(0); }

int main(int argc, char **argv) {
    if (argc == 4)
        return receive_rest(argv + 1);
    static const Case cases[] = {
        CASE(closed_when_full_and_left_by_exec),
        CASE(closed_when_full_and_left_to_a_program),
        {0},
    };
    return run_cases(cases, argc, argv);
}
