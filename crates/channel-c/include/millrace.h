/* Channels: messages between programs on one machine, without a copy. See docs/channels.md.
 *
 * A publisher's messages go to the subscribers of the same name; a client's requests go each to one server, and their replies
 * come back. Names are resolved by the agent (`millrace agent`).
 *
 * Every function that returns `int` returns 0 or more on success, and a negated error number otherwise:
 *   -EAGAIN     nothing is there now, or there is no room and nobody waits for it
 *   -ETIMEDOUT  not in time
 *   -ENOTCONN   nobody is there who could get the message
 *   -EMSGSIZE   the message is too long
 *   -EINVAL     an argument makes no sense, a loan was made longer, or a loan or message was used twice
 *   -ENOENT     no agent answers;  -EPROTO it has no version in common;  -EACCES, -EDQUOT, -ENOMEM, -EBADF it refuses
 *   -ECHILD     this process is a child of the one that opened the channel (`pop` finds nothing there, and waits are not over in time)
 *   -EPIPE      the client of this request has gone, or its server has died or let the request fall
 * `millrace_error()` says in words what went wrong last in the calling thread.
 *
 * A handle is used by one thread at a time, whichever it is: threads that share one need a lock around each call and around what
 * they do with its messages. Any number of handles may be open in one process. An open that fails leaves NULL; a handle that is NULL
 * is refused (-EINVAL), and closing it does nothing. A handle's messages and loans end with it. Handles, loans and messages are the
 * process's that made them, not its children's.
 */
#ifndef MILLRACE_H
#define MILLRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a publisher does when a subscriber has no room. */
enum millrace_when_full {
    MILLRACE_BLOCK = 0,       /* wait; nothing is lost */
    MILLRACE_FAIL = 1,        /* -EAGAIN */
    MILLRACE_DROP_OLDEST = 2, /* take back the oldest that it has not read */
    MILLRACE_DROP_NEWEST = 3, /* pass it over */
};

/* How to take part. Zero in a field means what is said there. `size` is sizeof(struct millrace_options): a later version of this header
 * may have more fields, which this library takes where they are zero. */
struct millrace_options {
    size_t size;
    const char *agent;   /* the agent's socket; NULL: MILLRACE_AGENT, or the usual places */
    const char *group;   /* of subscribers or servers that name one group, one gets each message; NULL: none */
    uint64_t pool_bytes; /* memory for messages, a multiple of 65536; 0: 8 MiB */
    uint32_t slots;      /* messages outstanding per link, a power of two from 2 to 32768; 0: 1024 */
    uint32_t when_full;  /* enum millrace_when_full */
    int64_t timeout_ms;  /* how long `loan`, `push`, `send` and `reply` wait; 0: for ever */
    int64_t patience_ms; /* after which a publisher goes on without a subscriber that gives nothing back; 0: 1000; -1: never */
    uint32_t redeliver;  /* not 0: what a dead member of a group had goes to another one */
    uint32_t reserved;   /* 0 */
};

/* Memory for a message, to be written in place. `bytes` may be made smaller before it is pushed. */
struct millrace_loan {
    void *data;
    size_t bytes;
    uint64_t number; /* which loan: leave it as it is */
};

/* What `flags` says. */
enum millrace_flags {
    MILLRACE_REDELIVERED = 1, /* a member of the group that has died had read it already */
};

/* A message, where its publisher wrote it: do not write there. Its publisher could change it at any time; what must stay as it was
 * checked, of a publisher that is not trusted, is copied first (memcpy). */
struct millrace_message {
    const void *data;
    size_t bytes;
    uint64_t sequence;  /* as its publisher counts */
    uint64_t publisher; /* whose it is */
    uint64_t lost;      /* messages for us that were given up before it */
    uint64_t number;    /* which message: leave it as it is */
    uint32_t flags;     /* enum millrace_flags */
    uint32_t reserved;
};

#define MILLRACE_NO_KEY NULL

typedef struct millrace_publisher millrace_publisher;
typedef struct millrace_subscriber millrace_subscriber;
typedef struct millrace_client millrace_client;
typedef struct millrace_server millrace_server;

/* What went wrong last in this thread, in words. Valid until its next call. */
const char *millrace_error(void);

/* The `timeout_ms` of a function: how long it waits; 0: not at all; below 0: for ever. Time that is over is -ETIMEDOUT. A descriptor
 * (`_fd`) stays the handle's: it is watched, for reading, and neither read nor closed. `pop` until -EAGAIN, also before the first wait. */

/* Publishers. `key`: the member of a group that it belongs to gets the message, in order; NULL: the one with the fewest. `try_loan` and
 * `try_push` never wait, whatever the options say (-EAGAIN). `dropped`: messages that were given up so far, each counted for every
 * subscriber that it was for; `subscribers`: those that are there. `fd`: readable when somebody has come or gone, or when there is room
 * again after -EAGAIN. */
int millrace_publisher_open(const char *name, const struct millrace_options *options, millrace_publisher **publisher);
int millrace_publisher_loan(millrace_publisher *publisher, size_t bytes, struct millrace_loan *loan);
int millrace_publisher_try_loan(millrace_publisher *publisher, size_t bytes, struct millrace_loan *loan);
int millrace_publisher_push(millrace_publisher *publisher, struct millrace_loan *loan, const uint64_t *key, uint64_t *sequence);
int millrace_publisher_try_push(millrace_publisher *publisher, struct millrace_loan *loan, const uint64_t *key, uint64_t *sequence);
int millrace_publisher_return(millrace_publisher *publisher, struct millrace_loan *loan);
int millrace_publisher_publish(millrace_publisher *publisher);
int millrace_publisher_send(millrace_publisher *publisher, const void *data, size_t bytes, const uint64_t *key);
int millrace_publisher_drain(millrace_publisher *publisher, int64_t timeout_ms);
int millrace_publisher_wait(millrace_publisher *publisher, uint32_t subscribers, int64_t timeout_ms);
int millrace_publisher_subscribers(millrace_publisher *publisher, uint64_t *count);
int millrace_publisher_dropped(millrace_publisher *publisher, uint64_t *count);
int millrace_publisher_fd(millrace_publisher *publisher);
void millrace_publisher_close(millrace_publisher *publisher);

/* Subscribers. `pop` never waits; `receive` does. `lost`: messages for this one that were given up so far. */
int millrace_subscriber_open(const char *name, const struct millrace_options *options, millrace_subscriber **subscriber);
int millrace_subscriber_pop(millrace_subscriber *subscriber, struct millrace_message *message);
int millrace_subscriber_receive(millrace_subscriber *subscriber, int64_t timeout_ms, struct millrace_message *message);
int millrace_subscriber_release(millrace_subscriber *subscriber, struct millrace_message *message);
int millrace_subscriber_wait(millrace_subscriber *subscriber, uint32_t publishers, int64_t timeout_ms);
int millrace_subscriber_publishers(millrace_subscriber *subscriber, uint64_t *count);
int millrace_subscriber_lost(millrace_subscriber *subscriber, uint64_t *count);
int millrace_subscriber_fd(millrace_subscriber *subscriber);
void millrace_subscriber_close(millrace_subscriber *subscriber);

/* Clients; `try_` as of publishers. A reply has its request's number as `sequence`; -EPIPE: there is none to the request of this number.
 * `pending`: requests that have no answer yet. */
int millrace_client_open(const char *name, const struct millrace_options *options, millrace_client **client);
int millrace_client_loan(millrace_client *client, size_t bytes, struct millrace_loan *loan);
int millrace_client_try_loan(millrace_client *client, size_t bytes, struct millrace_loan *loan);
int millrace_client_push(millrace_client *client, struct millrace_loan *loan, const uint64_t *key, uint64_t *request);
int millrace_client_try_push(millrace_client *client, struct millrace_loan *loan, const uint64_t *key, uint64_t *request);
int millrace_client_return(millrace_client *client, struct millrace_loan *loan);
int millrace_client_publish(millrace_client *client);
int millrace_client_pop(millrace_client *client, struct millrace_message *reply);
int millrace_client_receive(millrace_client *client, int64_t timeout_ms, struct millrace_message *reply);
int millrace_client_release(millrace_client *client, struct millrace_message *reply);
int millrace_client_wait(millrace_client *client, uint32_t servers, int64_t timeout_ms);
int millrace_client_pending(millrace_client *client, uint64_t *count);
int millrace_client_fd(millrace_client *client);
void millrace_client_close(millrace_client *client);

/* Servers. `reply` sends the loan and gives the request back. Where it fails both are gone, too, and the client learns that there is no
 * reply; but not where the loan is one that was used, or was made longer: then the request can still be replied to; nor where the request
 * is one that was used: then the loan can still be returned. `release` gives it back without a reply, and its client learns so. */
int millrace_server_open(const char *name, const struct millrace_options *options, millrace_server **server);
int millrace_server_pop(millrace_server *server, struct millrace_message *request);
int millrace_server_receive(millrace_server *server, int64_t timeout_ms, struct millrace_message *request);
int millrace_server_loan(millrace_server *server, const struct millrace_message *request, size_t bytes, struct millrace_loan *loan);
int millrace_server_return(millrace_server *server, struct millrace_loan *loan);
int millrace_server_reply(millrace_server *server, struct millrace_message *request, struct millrace_loan *loan);
int millrace_server_release(millrace_server *server, struct millrace_message *request);
int millrace_server_wait(millrace_server *server, uint32_t clients, int64_t timeout_ms);
int millrace_server_fd(millrace_server *server);
void millrace_server_close(millrace_server *server);

#ifdef __cplusplus
}
#endif

#endif
