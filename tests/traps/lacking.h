/* For C libraries that lack what the cases use: included before all else. */
#pragma once
#define _GNU_SOURCE
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define strerrorname_np strerror
#define close_range(first, last, flags) ((int)syscall(SYS_close_range, first, last, flags))
#define closefrom(first) ((void)close_range(first, ~0U, 0))

#ifndef __GLIBC__
#define TCP_RECV_QUEUE 1
#define SO_TIMESTAMP_NEW 63
#define SO_TIMESTAMPNS_NEW 64
/* Stacks of 2 KiB are too small for the library, and for many a signal. */
#undef PTHREAD_STACK_MIN
#define PTHREAD_STACK_MIN 8192
#endif

#if defined __GLIBC__ && __GLIBC_MINOR__ < 34
#define _Fork fork
#endif

#ifndef __GLIBC__
/* To the first thread, which is the only one that the cases queue signals to. */
static inline int pthread_sigqueue(pthread_t thread, int signal, const union sigval value) {
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = signal;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value = value;
    (void)thread;
    return (int)syscall(SYS_rt_tgsigqueueinfo, getpid(), getpid(), signal, &info);
}
#endif
