"""The programs of `run.py`: each is a function; `look` asks which roads the connections take now."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time

TALKS = 100
LATE_S = 15.0
RING_S = 5.0
CLONE_NEWPID = 0x20000000
BOARD_ROWS = 16_384
"""Ends of one program that can be on its board."""

Pair = tuple[socket.socket, socket.socket]


def look() -> list[str]:
    """Of each connection: `ring`, or the reasons of its ends."""
    print("look", flush=True)
    return sys.stdin.readline().split()


def pair() -> Pair:
    """The two ends of a fresh connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def talk(near: socket.socket, far: socket.socket) -> None:
    """Messages both ways, each of which is checked."""
    for number in range(TALKS):
        for sender, receiver in ((near, far), (far, near)):
            message = number.to_bytes(4, "big") * 16
            sender.sendall(message)
            got = b""
            while len(got) < len(message):
                got += receiver.recv(len(message) - len(got))
            assert got == message, f"{got!r} in place of {message!r}"


def wait_for_both(near: socket.socket, far: socket.socket) -> None:
    """Waits for both ends as programs do, by a function: only those who do get bytes by the ring. Nothing comes."""
    assert select.select([near, far], [], [], 0.001)[0] == []


def talk_until_on_ring(near: socket.socket, far: socket.socket) -> None:
    """Messages until both ends are on the ring, which must be soon."""
    wait_for_both(near, far)
    deadline = time.monotonic() + RING_S
    while True:
        talk(near, far)
        roads = look()
        if roads == ["ring"]:
            return
        assert time.monotonic() < deadline, f"not on the ring: {roads}"


def talk_beside_another(near: socket.socket, far: socket.socket) -> None:
    """Talks while another process holds the connection: it does not go to the ring, if it was not there before."""
    before = look()
    for _ in range(3):
        talk(near, far)
        time.sleep(0.1)
    assert "ring" in before or "ring" not in look(), "on the ring although two processes hold it"


def be_welcomed() -> None:
    """Sees to it that the agent knows this program: a connection that a fork finds before that stays on the kernel's road."""
    ends = pair()
    talk_until_on_ring(*ends)
    for each in ends:
        each.close()


def idle_child() -> int:
    """A child that holds what its parent has, and does nothing; returns its number."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


def end(child: int) -> None:
    """Kills a child and waits for its end."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def late_socket() -> None:
    """A program whose first TCP socket comes later than a fresh agent waits is accelerated."""
    time.sleep(LATE_S)
    talk_until_on_ring(*pair())


def leaked_to_a_child() -> None:
    """A connection on the ring stays there beside a child that has it, too, and does not use it; also when the child goes."""
    near, far = pair()
    talk_until_on_ring(near, far)
    for way in (signal.SIGKILL, signal.SIGTERM):
        child = idle_child()
        for _ in range(20):
            talk(near, far)
        assert look() == ["ring"], "a child that does nothing changed the road"
        near.sendall(b"unread")
        os.kill(child, way)
        os.waitpid(child, 0)
        assert far.recv(6) == b"unread"
        talk(far, near)
        assert look() == ["ring"], "the end of a child that did nothing changed the road"


def killed_child() -> None:
    """A connection that an idle child held goes to the ring when that has been killed."""
    ends = pair()
    child = idle_child()
    talk_beside_another(*ends)
    end(child)
    talk_until_on_ring(*ends)


def killed_at_once() -> None:
    """So does one whose children were killed before they could do anything; one of them is not waited for."""
    ends = pair()
    for _ in range(50):
        child = os.fork()
        if child == 0:
            os._exit(0)
        end(child)
    os.kill(idle_child(), signal.SIGKILL)
    talk_until_on_ring(*ends)


def killed_users() -> None:
    """A connection that a child has used goes back to the ring when that has been killed, whoever had it first."""
    for is_on_ring in (False, True):
        near, far = pair()
        if is_on_ring:
            talk_until_on_ring(near, far)
        child = os.fork()
        if child == 0:
            talk(near, far)
            signal.pause()
        # It has said all, and sleeps outside of any call on the connection.
        time.sleep(0.5)
        talk(near, far)
        assert "ring" not in look(), "on the ring although two processes use it"
        end(child)
        talk_until_on_ring(near, far)
        near.close()
        far.close()


def killed_after_the_ring() -> None:
    """The close of the last holder that lives resets the connection when bytes are unread."""
    near, far = pair()
    talk_until_on_ring(near, far)
    end(idle_child())
    talk(near, far)
    near.sendall(b"unread")
    far.close()
    try:
        end_of_stream = near.recv(1)
    except ConnectionResetError:
        return
    raise AssertionError(f"{end_of_stream!r} in place of a reset")


def child_of_another_namespace() -> None:
    """Where a child's numbers mean nothing to its parent, what they have in common goes by the kernel, before and after its death."""
    ends = pair()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID) != 0:
        return
    child = idle_child()
    talk_beside_another(*ends)
    end(child)
    talk(*ends)
    roads = look()
    assert roads == ["unsupported/unsupported"], roads


def orphans() -> None:
    """A process whose parent was gone before it could look still sees the deaths of others."""
    for _ in range(10):
        ends = pair()
        if os.fork() != 0:
            os._exit(0)
        for each in ends:
            each.close()
    be_welcomed()
    ends = pair()
    child = idle_child()
    talk(*ends)
    end(child)
    talk_until_on_ring(*ends)


def handed_over() -> None:
    """A child that takes a connection over from a server that sleeps afterwards gets to the ring; what it leaves is not listed."""
    for _ in range(20):
        near, far = pair()
        if os.environ.get("MILLRACE_MODE") == "eager":
            # A fork amid an introduction leaves the connection on the kernel's road.
            talk_until_on_ring(near, far)
        child = os.fork()
        if child == 0:
            near.close()
            while message := far.recv(64):
                far.sendall(message)
            # The end comes without a close: the row is on the parent's board or its own.
            os._exit(0)
        far.close()
        deadline = time.monotonic() + RING_S
        while True:
            for _ in range(TALKS):
                near.sendall(b"x" * 64)
                got = b""
                while len(got) < 64:
                    got += near.recv(64)
            roads = look()
            if roads == ["ring"]:
                break
            assert time.monotonic() < deadline, f"not on the ring: {roads}"
        near.close()
        os.waitpid(child, 0)
    assert look() == [], "connections are listed that are no more"


def killed_in_a_row() -> None:
    """Rows of children that were killed are not listed, and used again."""
    for _ in range(40):
        near, far = pair()
        child = idle_child()
        far.close()
        near.close()
        end(child)
    assert look() == [], "connections are listed that are no more"


def registered_early() -> None:
    """A wait set that had a socket before it was connected hears of what comes by the ring."""
    for flags in (select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET):
        near = socket.socket()
        waiter = select.epoll()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            waiter.register(near, flags)
            near.connect(listener.getsockname())
            far, _ = listener.accept()
        deadline = time.monotonic() + RING_S
        roads: list[str] = []
        while roads != ["ring"] and time.monotonic() < deadline:
            for _ in range(TALKS):
                near.sendall(b"question")
                assert far.recv(8) == b"question"
                far.sendall(b"answer")
                while not any(events & select.EPOLLIN for _, events in waiter.poll(RING_S)):
                    assert time.monotonic() < deadline + RING_S, "the set does not tell of the answer"
                assert near.recv(6) == b"answer"
            roads = look()
        assert roads == ["ring"], f"not on the ring: {roads}"
        near.close()
        far.close()
        waiter.close()


def one_descriptor() -> None:
    """Of a program's descriptors one is ours, however many connections it has."""
    ends = [pair() for _ in range(20)]
    for each in ends:
        wait_for_both(*each)
    deadline = time.monotonic() + RING_S
    while "ring" not in look():
        assert time.monotonic() < deadline, "nothing is on the ring"
        for near, far in ends:
            talk(near, far)
    listed = len(os.listdir("/proc/self/fd"))
    # Three streams, and the one that lists.
    assert listed == 2 * len(ends) + 3 + 1 + 1, f"{listed} descriptors beside {2 * len(ends)} ends"


def full_board() -> None:
    """Connections for which the board has no place take the kernel's road; when others have gone, there is place again."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    ends = [pair() for _ in range(BOARD_ROWS // 2 + 100)]
    talk(*ends[0])
    talk(*ends[-1])
    assert len(look()) <= BOARD_ROWS
    for near, far in ends:
        near.close()
        far.close()
    talk_until_on_ring(*pair())


def agent_stands_still() -> None:
    """Nothing waits for an agent that has been stopped, and no end of a connection is held back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(os.environ["MILLRACE_AGENT"])
        agent = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    os.kill(agent, signal.SIGSTOP)
    try:
        ends = [pair() for _ in range(1000)]
        for near, far in ends:
            talk(near, far)
        for near, far in ends:
            near.close()
            far.settimeout(RING_S)
            assert far.recv(1) == b"", "bytes instead of the end"
            far.close()
    finally:
        os.kill(agent, signal.SIGCONT)
    talk_until_on_ring(*pair())


STRANGERS = 1000
STRANGER = """
import select, socket, sys
sets, listener = select.epoll(), socket.create_server(("127.0.0.1", 0), backlog=1000)
sets.register(listener, select.EPOLLIN)
connections = {}
print(listener.getsockname()[1], flush=True)
while True:
    for number, _ in sets.poll():
        if number == listener.fileno():
            accepted = listener.accept()[0]
            connections[accepted.fileno()] = accepted
            sets.register(accepted, select.EPOLLIN)
        elif data := connections[number].recv(65536):
            connections[number].sendall(data)
        else:
            connections.pop(number).close()
"""
OFFERS_WAIT_S = 10.0


def asleep_among_strangers() -> None:
    """A program may sleep while the agent declines a thousand connections of it: the agent keeps it, and what it has on the ring."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ends = pair()
    talk_until_on_ring(*ends)
    server = subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, text=True, env=dict(os.environ, MILLRACE="off")
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(STRANGERS)]
    for talks in [TALKS // 5, 1]:
        for stranger in strangers:
            for _ in range(talks):
                stranger.sendall(b"hello")
                assert stranger.recv(5, socket.MSG_WAITALL) == b"hello"
        # An agent that was too busy to be told of a connection is told at its next call.
        time.sleep(1.0)
    time.sleep(OFFERS_WAIT_S + 1.0)
    roads = look()
    assert roads.count("ring") == 1, f"{roads.count('ring')} of {len(roads)} connections on the ring"
    assert roads.count("not_both_ends") == STRANGERS, f"{STRANGERS} strangers: {sorted(set(roads))}"
    talk(*ends)
    server.kill()
    server.wait()


USER_OF_IO_URING = """
import ctypes, socket
# With IORING_SETUP_SQPOLL: a thread of the kernel's submits unseen.
made = ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(bytes(8) + b"\2", 256))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1] if made >= 0 else 0, flush=True)
connection, _ = listener.accept()
while data := connection.recv(64):
    connection.sendall(data)
"""


def peer_of_io_uring() -> None:
    """A connection whose other end is kept away by an io_uring that the kernel reads unasked shows that soon, and not that it waits."""
    server = subprocess.Popen([sys.executable, "-c", USER_OF_IO_URING], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    if port != 0:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            # Who waits for its other end does so for ten seconds; on a busy machine the agent takes a moment to hear of it.
            end = time.monotonic() + 5
            roads = []
            while roads != ["io_uring/io_uring"] and time.monotonic() < end:
                for _ in range(TALKS):
                    connection.sendall(b"hello")
                    assert connection.recv(5, socket.MSG_WAITALL) == b"hello"
                roads = [road for road in look() if road != "ring"]
            assert roads == ["io_uring/io_uring"], roads
    server.wait()


CASES = {
    case.__name__.replace("_", "-"): case
    for case in (
        late_socket,
        leaked_to_a_child,
        killed_child,
        killed_at_once,
        killed_users,
        killed_after_the_ring,
        child_of_another_namespace,
        orphans,
        handed_over,
        killed_in_a_row,
        registered_early,
        one_descriptor,
        full_board,
        asleep_among_strangers,
        peer_of_io_uring,
        agent_stands_still,
    )
}

if __name__ == "__main__":
    if sys.argv[1] != "late-socket":
        be_welcomed()
    CASES[sys.argv[1]]()
