/* Kernel TLS that is set up on a connection in use, while bytes before it are unread: as after a handshake in user space. */
#include "parts.h"
#include <linux/tls.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef SOL_TLS
#define SOL_TLS 282
#endif

static void set_upper(const char *who, int fd) {
    char call[64];
    snprintf(call, sizeof call, "%s: TCP_ULP", who);
    observe_result(call, setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3));
}

/* Each direction has a key of its own. */
static void set_key(int fd, int direction, int version, char key) {
    struct tls12_crypto_info_aes_gcm_128 keys = {.info = {version, TLS_CIPHER_AES_GCM_128}};
    memset(keys.key, key, sizeof keys.key);
    memset(keys.salt, key + 1, sizeof keys.salt);
    observe_result(direction == TLS_TX ? "TLS_TX" : "TLS_RX", setsockopt(fd, SOL_TLS, direction, &keys, sizeof keys));
}

static void send_text(int fd, const char *text) { must(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text), "send"); }

static void receive_text(const char *who, int fd, size_t bytes) {
    char text[256];
    ssize_t got = recv(fd, text, bytes, MSG_WAITALL);
    if (got < 0)
        observe_result(who, got);
    else
        observe("%s: %.*s", who, (int)got, text);
}

/* Records both ways, with both ends' keys in place. */
static void exchange(Pair pair) {
    send_text(pair.near, "first record");
    send_text(pair.near, "second record");
    receive_text("far", pair.far, 12);
    receive_text("far", pair.far, 13);
    send_text(pair.far, "an answer");
    receive_text("near", pair.near, 9);
    for (unsigned i = 1; i <= 2; i++) {
        int to = i == 1 ? pair.far : pair.near, from = i == 1 ? pair.near : pair.far;
        Part sent = {from, i, 0, FLOW, "never"}, received = {to, i, 0, FLOW, "never"};
        observe("a flow: %d", is_exact(&sent, &received));
    }
}

static void set_both(Pair pair, int version) {
    set_upper("near", pair.near);
    set_upper("far", pair.far);
    set_key(pair.near, TLS_TX, version, 'a');
    set_key(pair.far, TLS_RX, version, 'a');
    set_key(pair.far, TLS_TX, version, 'b');
    set_key(pair.near, TLS_RX, version, 'b');
}

static void nothing_unread(void) {
    Pair pair = on_the_ring();
    set_both(pair, TLS_1_2_VERSION);
    exchange(pair);
}

static void version_1_3(void) {
    Pair pair = on_the_ring();
    set_both(pair, TLS_1_3_VERSION);
    exchange(pair);
}

/* Who has sent the last bytes of a handshake encrypts from then on; the other one reads them first, and sets its keys then. */
static void read_before_the_reader_sets_keys(void) {
    Pair pair = on_the_ring();
    send_text(pair.near, "finished");
    set_upper("near", pair.near);
    set_key(pair.near, TLS_TX, TLS_1_2_VERSION, 'a');
    send_text(pair.near, "a record");
    receive_text("far", pair.far, 8);
    set_upper("far", pair.far);
    set_key(pair.far, TLS_RX, TLS_1_2_VERSION, 'a');
    receive_text("far", pair.far, 8);
    send_text(pair.far, "plain");
    set_key(pair.far, TLS_TX, TLS_1_2_VERSION, 'b');
    receive_text("near", pair.near, 5);
    set_key(pair.near, TLS_RX, TLS_1_2_VERSION, 'b');
    exchange(pair);
}

/* The reader sets the protocol up while bytes from before are unread. They come as they were sent, though their sender encrypts now. */
static void unread_when_the_reader_sets_up(void) {
    Pair pair = on_the_ring();
    send_text(pair.near, "finished");
    set_upper("near", pair.near);
    set_key(pair.near, TLS_TX, TLS_1_2_VERSION, 'a');
    set_upper("far", pair.far);
    receive_text("far", pair.far, 8);
    set_key(pair.far, TLS_RX, TLS_1_2_VERSION, 'a');
    set_key(pair.far, TLS_TX, TLS_1_2_VERSION, 'b');
    set_key(pair.near, TLS_RX, TLS_1_2_VERSION, 'b');
    exchange(pair);
}

/* The same, with a record behind them. */
static void unread_before_a_record(void) {
    Pair pair = on_the_ring();
    send_text(pair.near, "finished");
    set_upper("near", pair.near);
    set_key(pair.near, TLS_TX, TLS_1_2_VERSION, 'a');
    send_text(pair.near, "a record");
    set_upper("far", pair.far);
    receive_text("far", pair.far, 8);
    set_key(pair.far, TLS_RX, TLS_1_2_VERSION, 'a');
    receive_text("far", pair.far, 8);
    set_key(pair.far, TLS_TX, TLS_1_2_VERSION, 'b');
    set_key(pair.near, TLS_RX, TLS_1_2_VERSION, 'b');
    exchange(pair);
}

/* Bytes lie unread in both directions. */
static void unread_both_ways(void) {
    Pair pair = on_the_ring();
    send_text(pair.near, "from near");
    send_text(pair.far, "from far");
    set_upper("near", pair.near);
    set_key(pair.near, TLS_TX, TLS_1_2_VERSION, 'a');
    receive_text("near", pair.near, 8);
    set_key(pair.near, TLS_RX, TLS_1_2_VERSION, 'b');
    receive_text("far", pair.far, 9);
    set_upper("far", pair.far);
    set_key(pair.far, TLS_RX, TLS_1_2_VERSION, 'a');
    set_key(pair.far, TLS_TX, TLS_1_2_VERSION, 'b');
    exchange(pair);
}

/* More is unread than a small buffer has room for, in another process that reads it all the time. */
static void a_flow_before(void) {
    Pair pair = connected();
    pid_t far = fork();
    must(far >= 0, "fork");
    if (far == 0) {
        close(pair.near);
        Part received = {pair.far, 1, 0, FLOW, "never"}, records = {pair.far, 2, 0, FLOW, "never"};
        receive_part(&received);
        observe("before: %s", received.ended);
        set_upper("far", pair.far);
        set_key(pair.far, TLS_RX, TLS_1_2_VERSION, 'a');
        receive_part(&records);
        observe("records: %s", records.ended);
        _exit(0);
    }
    close(pair.far);
    Part sent = {pair.near, 1, 0, FLOW, "never"}, records = {pair.near, 2, 0, FLOW, "never"};
    send_part(&sent);
    must(setsockopt(pair.near, IPPROTO_TCP, TCP_ULP, "tls", 3) == 0, "TCP_ULP");
    struct tls12_crypto_info_aes_gcm_128 keys = {.info = {TLS_1_2_VERSION, TLS_CIPHER_AES_GCM_128}};
    memset(keys.key, 'a', sizeof keys.key);
    memset(keys.salt, 'b', sizeof keys.salt);
    must(setsockopt(pair.near, SOL_TLS, TLS_TX, &keys, sizeof keys) == 0, "TLS_TX");
    send_part(&records);
    must_end_well(far);
    observe("sent: %s", records.ended);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        CASE(nothing_unread),
        CASE(version_1_3),
        CASE(read_before_the_reader_sets_keys),
        CASE(unread_when_the_reader_sets_up),
        CASE(unread_before_a_record),
        CASE(unread_both_ways),
        CASE(a_flow_before),
        {0},
    };
    return run_cases(cases, argc, argv);
}
