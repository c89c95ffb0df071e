/* Requests that the kernel carries out for a program. */
#pragma once
#include "traps.h"
#include <linux/aio_abi.h>

/* What came of one. */
static long asynchronous(int fd, char *bytes, size_t count, int operation) {
    aio_context_t context = 0;
    struct iocb request = {.aio_fildes = fd,
                           .aio_lio_opcode = operation,
                           .aio_buf = (uintptr_t)bytes,
                           .aio_nbytes = count},
                *requests[1] = {&request};
    struct io_event event = {0};
    must(syscall(SYS_io_setup, 4, &context) == 0, "io_setup");
    must(syscall(SYS_io_submit, context, 1, requests) == 1, "io_submit");
    must(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1, "io_getevents");
    syscall(SYS_io_destroy, context);
    return event.res;
}
