"""One end of a conversation: echoes, or sends numbered messages and compares what comes back.

    talk.py serve|serve-busily|serve-late ADDRESS PORT
    talk.py call|call-long ADDRESS PORT [OWN_ADDRESS OWN_PORT]
    talk.py confine ADDRESS PORT
    talk.py call-late ADDRESS PORT
    talk.py go-on ADDRESS PORT
    talk.py pour ADDRESS PORT
    talk.py drain ADDRESS PORT
    talk.py serve-many ADDRESS PORT
    talk.py call-many ADDRESS PORT COUNT

`call` prints `ready` when enough went there and back, holds the connection until its standard input ends, and then checks once more.
`call-long` does so for longer.
`confine` does the same, but before it checks again it forbids itself system calls that the check does not need.
`call-late` sends its first message by many calls, of which `serve-late` needs few, and then prints `sent`. It converses for each
line of its standard input, and once more at its end: only then has the server called often enough to be offered a faster road.
`go-on` does not stop meanwhile, and prints how many messages there were for each line of its standard input. `pour` sends only, not
faster than its server reads: `drain`, which says in the end how much it has read. These and `serve-busily` ask again and again instead
of sleeping, so that nothing goes by the kernel to wake them.
`call-many` does it on many connections, sleeps after what went there and back, as a program with silent connections does, and does all
that again for each line of its standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

ROUNDS_S = 1.0
LONG_S = 4.0
MESSAGE_BYTES = 2000
ROUNDS_OF_MANY = 20
SLEEP_S = 1.0
PIECE_BYTES = 50
PIECES_PAUSE_S = 0.01
PAUSE_S = 0.0002
# getsockopt, ioctl, madvise, mremap, getrusage, ppoll, epoll_pwait, epoll_ctl, sched_getcpu, recvmsg
FORBIDDEN = {"x86_64": (55, 16, 28, 25, 98, 271, 281, 233, 309, 47), "aarch64": (209, 29, 233, 216, 165, 73, 22, 21, 168, 212)}


def main() -> None:
    """Plays the end that the command line names."""
    role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if role in ("serve", "serve-busily"):
        serve(family, address, port, socket.MSG_DONTWAIT if role == "serve-busily" else 0)
    elif role == "serve-late":
        serve(family, address, port, 0, SLEEP_S)
    elif role == "call-late":
        call_late((address, port))
    elif role == "drain":
        drain(family, address, port)
    elif role in ("go-on", "pour"):
        go_on(family, (address, port), role == "go-on")
    elif role == "serve-many":
        serve_many(family, address, port)
    elif role == "call-many":
        call_many(family, (address, port), int(sys.argv[4]))
    else:
        own = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 5 else None
        rounds_s = LONG_S if role == "call-long" else ROUNDS_S
        call(family, (address, port), own, confine if role == "confine" else None, rounds_s)


def accept_one(family: int, address: str, port: int) -> socket.socket:
    """The one connection that a server has."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        print("listening", flush=True)
        return listener.accept()[0]


def receive(connection: socket.socket, flags: int) -> bytes:
    """Some bytes; none at the end."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return connection.recv(65536, flags)


def serve(family: int, address: str, port: int, flags: int, first_after_s: float = 0) -> None:
    """Echoes one connection to its end."""
    with accept_one(family, address, port) as connection:
        time.sleep(first_after_s)
        while data := receive(connection, flags):
            connection.sendall(data)


def drain(family: int, address: str, port: int) -> None:
    """Reads one connection to its end, compares, and says in the end how much there was."""
    with accept_one(family, address, port) as connection:
        number, rest = 0, b""
        while data := receive(connection, socket.MSG_DONTWAIT):
            rest += data
            while len(rest) >= MESSAGE_BYTES:
                if rest[:MESSAGE_BYTES] != message_of(number):
                    sys.exit(f"message {number}: another one")
                number, rest = number + 1, rest[MESSAGE_BYTES:]
        connection.sendall(number.to_bytes(8, "little"))


def call(
    family: int, target: tuple[str, int], own: tuple[str, int] | None, before_more: Callable[[], None] | None, rounds_s: float
) -> None:
    """Sends and compares."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if own:
            connection.bind(own)
        connection.connect(target)
        number = converse(connection, rounds_s)
        print("ready", flush=True)
        sys.stdin.read()
        if before_more:
            before_more()
        for extra in range(50):
            exchange(connection, number + extra)
        print("done", flush=True)


def call_late(target: tuple[str, int]) -> None:
    """Sends one message by many calls, for long enough that the agent knows this program meanwhile; the others when it is told to."""
    with socket.create_connection(target) as connection:
        message = message_of(0)
        pieces = [message[at : at + PIECE_BYTES] for at in range(0, MESSAGE_BYTES, PIECE_BYTES)]
        for piece in pieces[:-1]:
            connection.sendall(piece)
            time.sleep(PIECES_PAUSE_S)
        exchange(connection, 0, sent=MESSAGE_BYTES - PIECE_BYTES)
        print("sent", flush=True)
        while sys.stdin.readline():
            converse(connection)
            print("ready", flush=True)
        converse(connection)
        print("done", flush=True)


def converse(connection: socket.socket, rounds_s: float = ROUNDS_S) -> int:
    """Sends and compares for a while; how many messages there were."""
    end = time.monotonic() + rounds_s
    number = 0
    while time.monotonic() < end:
        exchange(connection, number)
        number += 1
    return number


def go_on(family: int, target: tuple[str, int], answered: bool) -> None:
    """Goes on until its standard input ends."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.connect(target)
        number, more = 0, True

        def work() -> None:
            nonlocal number
            while more:
                if answered:
                    exchange(connection, number, socket.MSG_DONTWAIT)
                else:
                    connection.sendall(message_of(number))
                    time.sleep(PAUSE_S)
                number += 1

        worker = threading.Thread(target=work)
        worker.start()
        time.sleep(ROUNDS_S)
        print("ready", flush=True)
        while sys.stdin.readline():
            print(number, flush=True)
        more = False
        worker.join()
        connection.shutdown(socket.SHUT_WR)
        rest = connection.recv(8)
        expected = b"" if answered else number.to_bytes(8, "little")
        print("done" if rest == expected else f"{rest!r} at the end, and not {expected!r}", flush=True)


def raise_descriptor_limit() -> None:
    """As many descriptors as this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve_many(family: int, address: str, port: int) -> None:
    """Echoes all connections until it is killed."""
    raise_descriptor_limit()
    with socket.socket(family, socket.SOCK_STREAM) as listener, selectors.DefaultSelector() as ready:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1000)
        ready.register(listener, selectors.EVENT_READ)
        print("listening", flush=True)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    ready.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                data = connection.recv(65536)
                if data:
                    connection.sendall(data)
                else:
                    ready.unregister(connection)
                    connection.close()


def call_many(family: int, target: tuple[str, int], count: int) -> None:
    """Talks on each connection and sleeps, as often as it is told; and talks once more at the end."""
    raise_descriptor_limit()
    connections = []
    for _ in range(count):
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.connect(target)
        connections.append(connection)
    more = True
    while more:
        for connection in connections:
            for number in range(ROUNDS_OF_MANY):
                exchange(connection, number)
        time.sleep(SLEEP_S)
        print("ready", flush=True)
        more = sys.stdin.readline() != ""
    for number, connection in enumerate(connections):
        exchange(connection, number)
        connection.close()
    print("done", flush=True)


def confine() -> None:
    """A seccomp filter: this process dies of any system call of the list."""
    numbers = FORBIDDEN[os.uname().machine]
    load_number = (0x20, 0, 0, 0)
    checks = [(0x15, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    allow, kill = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)
    text = b"".join(struct.pack("=HBBI", *line) for line in [load_number, *checks, allow, kill])
    code = ctypes.create_string_buffer(text)
    program = ctypes.create_string_buffer(struct.pack("@HP", len(text) // 8, ctypes.addressof(code)))
    library = ctypes.CDLL(None, use_errno=True)
    pr_set_no_new_privs, pr_set_seccomp, filter_mode = 38, 22, 2
    for arguments in ((pr_set_no_new_privs, 1, 0, 0, 0), (pr_set_seccomp, filter_mode, ctypes.byref(program), 0, 0)):
        if library.prctl(*arguments) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


def message_of(number: int) -> bytes:
    """The message with this number."""
    return hashlib.shake_128(number.to_bytes(8, "little")).digest(MESSAGE_BYTES)


def exchange(connection: socket.socket, number: int, flags: int = 0, sent: int = 0) -> None:
    """One message there and back; of which so much has been sent."""
    message = message_of(number)
    connection.sendall(message[sent:])
    answer = b""
    while len(answer) < len(message):
        part = receive(connection, flags)
        if not part:
            sys.exit(f"message {number}: the connection ended")
        answer += part
    if answer != message:
        sys.exit(f"message {number}: another answer")


if __name__ == "__main__":
    main()
