/* Every function of millrace.h, by two ends in one process. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "millrace.h"

#define SOON 20000

static void check(int result, const char *what, int line) {
    if (result < 0) {
        fprintf(stderr, "line %d: %s: %d: %s\n", line, what, result, millrace_error());
        exit(1);
    }
}
#define OK(call) check((call), #call, __LINE__)
#define IS(condition)                                                          \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static void messages(void) {
    struct millrace_options options = {.size = sizeof options, .pool_bytes = 1 << 20, .slots = 4, .when_full = MILLRACE_FAIL};
    millrace_publisher *publisher = NULL, *other = NULL;
    millrace_subscriber *subscriber = NULL;
    struct millrace_loan loan, others;
    struct millrace_message message, again;
    uint64_t key = 7, sequence = 99, count = 99;

    OK(millrace_publisher_open("c/messages", &options, &publisher));
    options.group = "workers";
    OK(millrace_subscriber_open("c/messages", &options, &subscriber));
    OK(millrace_publisher_wait(publisher, 1, SOON));
    OK(millrace_subscriber_wait(subscriber, 1, SOON));
    IS(millrace_subscriber_pop(subscriber, &message) == -EAGAIN);
    IS(millrace_subscriber_receive(subscriber, 1, &message) == -ETIMEDOUT);

    OK(millrace_publisher_open("c/other", &options, &other));
    OK(millrace_publisher_loan(other, 8, &others));
    OK(millrace_publisher_loan(publisher, 100, &loan));
    IS(loan.bytes == 100 && loan.data);
    IS(millrace_publisher_return(publisher, &others) == -EINVAL);
    IS(millrace_publisher_push(other, &loan, NULL, NULL) == -EINVAL);
    millrace_publisher_close(other);
    memcpy(loan.data, "hello", 5);
    loan.bytes = 101;
    IS(millrace_publisher_push(publisher, &loan, &key, &sequence) == -EINVAL && strstr(millrace_error(), "longer"));
    loan.bytes = 5;
    OK(millrace_publisher_push(publisher, &loan, &key, &sequence));
    IS(sequence == 0);
    IS(millrace_publisher_push(publisher, &loan, NULL, NULL) == -EINVAL);
    OK(millrace_publisher_publish(publisher));
    OK(millrace_publisher_send(publisher, "there", 5, NULL));
    OK(millrace_subscriber_receive(subscriber, -1, &message));
    IS(message.bytes == 5 && !memcmp(message.data, "hello", 5));
    IS(message.sequence == 0 && message.flags == 0 && message.lost == 0);
    OK(millrace_subscriber_pop(subscriber, &again));
    IS(again.sequence == 1 && again.publisher == message.publisher);
    OK(millrace_subscriber_release(subscriber, &again));
    IS(millrace_subscriber_release(subscriber, &again) == -EINVAL);
    OK(millrace_subscriber_release(subscriber, &message));
    OK(millrace_publisher_drain(publisher, SOON));

    OK(millrace_publisher_loan(publisher, 8, &loan));
    OK(millrace_publisher_return(publisher, &loan));
    IS(millrace_publisher_return(publisher, &loan) == -EINVAL);
    IS(millrace_publisher_loan(publisher, 1 << 25, &loan) == -EMSGSIZE);
    IS(strstr(millrace_error(), "33554432"));
    for (int i = 0; i < 4; i++)
        OK(millrace_publisher_send(publisher, &i, sizeof i, NULL));
    IS(millrace_publisher_send(publisher, &key, sizeof key, NULL) == -EAGAIN);
    OK(millrace_publisher_try_loan(publisher, 8, &loan));
    IS(millrace_publisher_try_push(publisher, &loan, NULL, NULL) == -EAGAIN);
    OK(millrace_publisher_return(publisher, &loan));
    IS(millrace_publisher_try_loan(publisher, 1 << 25, &loan) == -EMSGSIZE);
    OK(millrace_publisher_subscribers(publisher, &count));
    IS(count == 1 && millrace_publisher_subscribers(publisher, NULL) == -EINVAL);
    OK(millrace_publisher_dropped(publisher, &count));
    IS(count == 0);
    OK(millrace_subscriber_publishers(subscriber, &count));
    IS(count == 1);
    OK(millrace_subscriber_lost(subscriber, &count));
    IS(count == 0);

    struct pollfd polled = {.fd = millrace_subscriber_fd(subscriber), .events = POLLIN};
    IS(polled.fd >= 0 && millrace_publisher_fd(publisher) >= 0);
    IS(poll(&polled, 1, SOON) == 1);
    for (int i = 0; i < 4; i++) {
        OK(millrace_subscriber_pop(subscriber, &message));
        IS(message.bytes == sizeof i && !memcmp(message.data, &i, sizeof i));
        OK(millrace_subscriber_release(subscriber, &message));
    }
    IS(millrace_subscriber_pop(subscriber, &message) == -EAGAIN);
    IS(poll(&polled, 1, 1) == 0);
    OK(millrace_publisher_send(publisher, NULL, 0, NULL));
    IS(poll(&polled, 1, SOON) == 1);
    millrace_subscriber_close(subscriber);
    millrace_publisher_close(publisher);
}

static void requests(void) {
    struct millrace_options options = {.size = sizeof options, .pool_bytes = 1 << 20, .timeout_ms = SOON};
    millrace_client *client = NULL;
    millrace_server *server = NULL;
    struct millrace_loan loan, spare;
    struct millrace_message request, reply;
    uint64_t number = 99, count = 99;

    OK(millrace_client_open("c/requests", &options, &client));
    OK(millrace_server_open("c/requests", &options, &server));
    OK(millrace_server_wait(server, 1, SOON));
    OK(millrace_client_wait(client, 1, SOON));
    IS(millrace_client_pop(client, &reply) == -EAGAIN && millrace_server_pop(server, &request) == -EAGAIN);

    OK(millrace_client_loan(client, 4, &loan));
    memcpy(loan.data, "ping", 4);
    OK(millrace_client_push(client, &loan, NULL, &number));
    OK(millrace_client_publish(client));
    OK(millrace_client_pending(client, &count));
    IS(count == 1);
    OK(millrace_server_receive(server, SOON, &request));
    IS(millrace_server_receive(server, 1, &reply) == -ETIMEDOUT);
    IS(request.bytes == 4 && !memcmp(request.data, "ping", 4));
    OK(millrace_server_loan(server, &request, 1, &loan));
    OK(millrace_server_return(server, &loan));
    OK(millrace_server_loan(server, &request, 4, &loan));
    OK(millrace_server_loan(server, &request, 4, &spare));
    memcpy(loan.data, "pong", 4);
    loan.bytes = 5;
    IS(millrace_server_reply(server, &request, &loan) == -EINVAL);
    loan.bytes = 4;
    OK(millrace_server_reply(server, &request, &loan));
    IS(millrace_server_reply(server, &request, &loan) == -EINVAL);
    IS(millrace_server_return(server, &loan) == -EINVAL);
    IS(millrace_server_reply(server, &request, &spare) == -EINVAL);
    OK(millrace_server_return(server, &spare));
    OK(millrace_client_receive(client, SOON, &reply));
    IS(reply.sequence == number && reply.bytes == 4 && !memcmp(reply.data, "pong", 4));
    OK(millrace_client_release(client, &reply));

    OK(millrace_client_loan(client, 4, &loan));
    OK(millrace_client_return(client, &loan));
    OK(millrace_client_try_loan(client, 0, &loan));
    OK(millrace_client_try_push(client, &loan, NULL, &number));
    OK(millrace_client_publish(client));
    OK(millrace_server_receive(server, -1, &request));
    OK(millrace_server_release(server, &request));
    IS(millrace_client_receive(client, -1, &reply) == -EPIPE && reply.sequence == number);
    IS(millrace_client_fd(client) >= 0 && millrace_server_fd(server) >= 0);
    millrace_client_close(client);
    millrace_server_close(server);
}

static void mistakes(void) {
    struct millrace_options options = {.size = 1};
    struct later {
        struct millrace_options options;
        uint64_t more[2];
    } later = {.options = {.size = sizeof later, .agent = "/nowhere"}};
    millrace_publisher *publisher = NULL;

    IS(millrace_publisher_open("a", &later.options, &publisher) == -ENOENT);
    later.more[1] = 1;
    IS(millrace_publisher_open("a", &later.options, &publisher) == -EINVAL);
    later.options.size = 1 << 20;
    IS(millrace_publisher_open("a", &later.options, &publisher) == -EINVAL);
    IS(millrace_publisher_open(NULL, NULL, &publisher) == -EINVAL);
    IS(millrace_publisher_open("a", &options, &publisher) == -EINVAL);
    IS(strstr(millrace_error(), "version"));
    options = (struct millrace_options){.size = sizeof options, .agent = "/nowhere"};
    IS(millrace_publisher_open("a", &options, &publisher) == -ENOENT);
    publisher = (millrace_publisher *)&options;
    IS(millrace_publisher_open("not a name", NULL, &publisher) == -EINVAL && !publisher);
    IS(millrace_publisher_open("not \xff UTF-8", NULL, &publisher) == -EINVAL);
    IS(millrace_publisher_publish(NULL) == -EINVAL);
    millrace_publisher_close(NULL);
}

/* What a thread leaves is put away when the last of its own memory has gone: errors are told all the same. */
static void put_away(void *seen) {
    *(int *)seen = millrace_publisher_publish(NULL) == -EINVAL && millrace_error();
}

static void *leave(void *seen) {
    pthread_key_t key;
    IS(millrace_publisher_publish(NULL) == -EINVAL);
    IS(!pthread_key_create(&key, put_away) && !pthread_setspecific(key, seen));
    return NULL;
}

static void endings(void) {
    pthread_t thread;
    int seen = 0;

    IS(!pthread_create(&thread, NULL, leave, &seen) && !pthread_join(thread, NULL));
    IS(seen);
}

int main(void) {
    messages();
    requests();
    mistakes();
    endings();
    return 0;
}
