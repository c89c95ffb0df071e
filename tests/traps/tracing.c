/* Programs that say who may trace them, while bytes lie in rings: an agent without privilege is then one that may not. */
#include "parts.h"
#include <sys/prctl.h>

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

/* A process that receives the part which is passed to it, and says how far it came. */
static pid_t receiver_of_part(int *road) {
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        Part part;
        close(ends[0]);
        part.fd = take(ends[1], &part, sizeof part);
        receive_part(&part);
        observe("received %zu of %zu, %s", part.at, part.end, part.ended);
        _exit(0);
    }
    close(ends[1]);
    *road = ends[0];
    return child;
}

static void send_more(Part *sent, size_t bytes) {
    sent->end += bytes;
    send_part(sent);
}

/* What lies unread in both directions when `hide` is called goes to whoever gets the connection then. */
static void pass_beside(void (*hide)(void)) {
    int road;
    for (int round = 0; round < 3; round++) {
        pid_t other = receiver_of_part(&road);
        /* Who has hidden once may stay on the kernel's road. */
        Pair pair = round == 0 ? on_the_ring() : connected();
        Part out = {pair.near, 1, 0, 0, "never"}, in = {pair.far, 2, 0, 0, "never"};
        send_more(&out, 500);
        send_more(&in, 300);
        hide();
        send_more(&out, 700);
        Part read = {pair.near, 2, 0, 300, "never"};
        receive_part(&read);
        observe("received %zu, %s", read.at, read.ended);
        Part rest = {pair.far, 1, 0, 2000, "never"};
        pass(road, pair.far, &rest, sizeof rest);
        send_more(&out, 800);
        must_end_well(other);
        close(road), close(pair.near), close(pair.far);
        prctl(PR_SET_DUMPABLE, 1);
    }
}

static void turn_undumpable(void) { observe_result("PR_SET_DUMPABLE", prctl(PR_SET_DUMPABLE, 0)); }

static void turn_undumpable_by_number(void) { observe_result("PR_SET_DUMPABLE", syscall(SYS_prctl, PR_SET_DUMPABLE, 0)); }

static void name_another(void) { observe_result("PR_SET_PTRACER", prctl(PR_SET_PTRACER, getpid())); }

static void name_nobody(void) { observe_result("PR_SET_PTRACER", prctl(PR_SET_PTRACER, 0)); }

static void name_anybody(void) { observe_result("PR_SET_PTRACER", prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)); }

/* A program hides, and goes on to use its connections. */
static void talk_beside(void (*hide)(void)) {
    Pair pair = on_the_ring();
    must(send(pair.near, "unread", 6, 0) == 6, "send");
    hide();
    char bytes[8];
    must(recv(pair.far, bytes, 6, MSG_WAITALL) == 6, "recv");
    observe("received %.6s", bytes);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    Pair second = connected();
    talk(second.near, second.far);
    talk(second.far, second.near);
    observe("talked");
}

/* An end in a process of its own goes on; the other one hides. */
static void hidden_beside_another_process(void) {
    Pair pair = connected();
    pid_t far = far_process(pair, FLOW, FLOW);
    Part sent = {pair.near, 1, 0, FLOW, "never"}, part = {pair.near, 2, 0, FLOW / 2, "never"};
    pthread_t sender = start_thread(send_part, &sent);
    receive_part(&part);
    turn_undumpable();
    part.end = FLOW;
    receive_part(&part);
    pthread_join(sender, NULL);
    observe("sent %s; received %s", sent.ended, part.ended);
    close(pair.near);
    must_end_well(far);
}

static void undumpable_from_the_start(void) {
    turn_undumpable();
    Pair pair = connected();
    int road;
    pid_t other = receiver_of_part(&road);
    talk(pair.near, pair.far);
    talk(pair.far, pair.near);
    Part sent = {pair.near, 1, 0, 900, "never"}, rest = {pair.far, 1, 0, 900, "never"};
    send_part(&sent);
    pass(road, pair.far, &rest, sizeof rest);
    must_end_well(other);
}

static void undumpable_and_passed(void) { pass_beside(turn_undumpable_by_number); }
static void undumpable_goes_on(void) { talk_beside(turn_undumpable); }
static void another_tracer_and_passed(void) { pass_beside(name_another); }
static void no_tracer_and_passed(void) { pass_beside(name_nobody); }
static void any_tracer_and_passed(void) { pass_beside(name_anybody); }
static void another_tracer_goes_on(void) { talk_beside(name_another); }

/* Whoever lets anybody trace it is on the ring as before. */
static void any_tracer_stays(void) {
    Pair pair = on_the_ring();
    name_anybody();
    talk(pair.near, pair.far);
    observe("on the ring: %d", on_ring() > 0);
}

/* Such a program's child says it anew. */
static void a_child_of_one_with_another_tracer(void) {
    name_another();
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        pass_beside(name_anybody);
        _exit(0);
    }
    must_end_well(child);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(undumpable_and_passed),
        CASE(undumpable_goes_on),
        CASE(undumpable_from_the_start),
        CASE(hidden_beside_another_process),
        CASE(another_tracer_and_passed),
        CASE(another_tracer_goes_on),
        CASE(no_tracer_and_passed),
        CASE(any_tracer_and_passed),
        CASE(any_tracer_stays),
        CASE(a_child_of_one_with_another_tracer),
        {0},
    };
    return run_cases(cases, argc, argv);
}
