"""The two programs of `run.py`: one leaves a connection, the other one says what it sees of that. Orders come as lines of JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

SOME = 6
"""Messages of 100 bytes: so much fits into the smallest ring."""
PATIENCE_MS = 3000
FULL_S = 30.0
"""After which a buffer of the other end's that does not become full is a failure of the case."""
TCP_INFO_UNACKED, TCP_INFO_NOTSENT = 24, 144
"""Where `struct tcp_info` has what is under way, in segments, and what has not been sent yet, in bytes."""
READ = select.POLLIN | select.POLLRDHUP
ALL = READ | select.POLLOUT | select.POLLPRI
SETS = {
    "epoll": READ | select.EPOLLOUT,
    "edge": READ | select.EPOLLOUT | select.EPOLLET,
    "reader": select.EPOLLIN,
    "edge writer": select.EPOLLOUT | select.EPOLLET,
}
"""Sets, by what the connection is registered for."""


def say(word: Any) -> None:
    """Tells the runner."""
    os.write(1, json.dumps(word).encode() + b"\n")


def fill(end: socket.socket, how: str) -> int:
    """Sends nothing, some, or as much as goes; returns how much that was."""
    if how == "none":
        return 0
    if how == "some":
        return sum(end.send(bytes(100)) for _ in range(SOME))
    sent = 0
    deadline = time.monotonic() + FULL_S
    while time.monotonic() < deadline:
        was_stuck, before = is_stuck(end), sent
        # Buffers grow when they are seen to be full.
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += end.send(bytes(16384), socket.MSG_DONTWAIT)
        if was_stuck and sent == before:
            return sent
        time.sleep(0.005)
    raise TimeoutError("the other end's buffer does not become full")


def is_stuck(end: socket.socket) -> bool:
    """Whether what has not been sent yet waits for room at the other end.

    A send buffer that is full does not tell: the other end's may have grown so large, when there was much to read at once, that all of
    it goes there, as fast as it is acknowledged, and an end behind it, too.
    """
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_NOTSENT + 4)
    under_way, not_sent = (struct.unpack_from("I", info, place)[0] for place in (TCP_INFO_UNACKED, TCP_INFO_NOTSENT))
    return under_way == 0 and not_sent != 0


def talk(end: socket.socket, size: int, first: bool) -> None:
    """Messages to and fro, the last of which the leaver gets: each end has then read last, and its ring is open."""
    for _ in range(60):
        if first:
            end.sendall(bytes(size))
        left = size
        while left > 0:
            left -= len(end.recv(left))
        if not first:
            end.sendall(bytes(size))
    # Twice more, so that what came by the kernel has opened both rings.
    for _ in range(2):
        if first:
            end.sendall(b"x")
            end.recv(1)
        else:
            end.recv(1)
            end.sendall(b"x")


def leave(end: socket.socket, ending: str) -> None:
    """Does what the case says; what a signal has to do is the runner's."""
    if ending == "exit":
        os._exit(0)
    if ending == "linger":
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if ending in ("close", "linger"):
        end.close()
    if ending.startswith("shut-write"):
        end.shutdown(socket.SHUT_WR)
    if ending.startswith("shut-both"):
        end.shutdown(socket.SHUT_RDWR)


def leaver() -> None:
    """Makes a connection for each case."""
    kept = None
    for line in sys.stdin:
        case = json.loads(line)
        if kept:
            kept.close()
        kept = end = socket.create_connection(("127.0.0.1", case["port"]))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        talk(end, case["size"], True)
        say("talked")
        while sys.stdin.readline() == "talk\n":
            talk(end, case["size"], True)
            say("talked")
        say(fill(end, case["to_survivor"]))
        sys.stdin.readline()
        leave(end, case["ending"])
        say("left")


class Survivor:
    """One connection, and what is seen of it."""

    def __init__(self, end: socket.socket, case: dict[str, Any]) -> None:
        self._end, self._how, self._to_come = end, case["how"], 0
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._seen: list[Any] = []
        self._woke_by = 0
        self._set: select.epoll | None = None
        if self._how in SETS:
            self._set = select.epoll()
            self._set.register(end, SETS[self._how])

    def close(self) -> None:
        """Lets the connection go."""
        if self._set:
            self._set.close()
        self._end.close()

    def _note(self, what: str, result: Any) -> None:
        self._seen.append(f"{what} {result}")

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))

    def look(self) -> None:
        """Which events there are."""
        if self._set:
            events = self._set.poll(0)
            self._note("look", hex(events[0][1]) if events else "nothing")
            return
        poll = select.poll()
        poll.register(self._end, ALL)
        events = poll.poll(0)
        self._note("look", hex(events[0][1]) if events else "nothing")

    def wait(self) -> None:
        """Sleeps in a call until the end, where that call would sleep."""
        if self._how == "blocking":
            got = self._call(lambda: self._end.recv(1 << 20))
            self._note("recv", len(got) if isinstance(got, bytes) else got)
            return
        poll = self._set or select.poll()
        if isinstance(poll, select.epoll):
            # Writable it is in any case.
            wanted = SETS[self._how]
            poll.modify(self._end, wanted & ~select.EPOLLOUT if wanted & select.EPOLLIN else wanted)
            if not wanted & select.EPOLLIN:
                poll.poll(0)
            events = poll.poll(PATIENCE_MS / 1000)
            self._woke_by = events[0][1] if events and wanted & select.EPOLLET else 0
        else:
            poll.register(self._end, READ)
            events = poll.poll(PATIENCE_MS)
        self._note("wait", hex(events[0][1]) if events else "nothing")

    def read(self) -> None:
        """Reads to the end."""
        got, poll = 0, select.poll()
        poll.register(self._end, select.POLLIN)
        while True:
            if not poll.poll(PATIENCE_MS):
                how = "silence"
                break
            part = self._call(lambda: self._end.recv(1 << 16, socket.MSG_DONTWAIT))
            if not isinstance(part, bytes) or not part:
                how = part if isinstance(part, str) else "end"
                break
            got += len(part)
        share = "all" if got >= self._to_come else "part" if got else "none"
        self._note("read", f"{share} of {'nothing' if self._to_come == 0 else 'it'}, {how}")

    def send(self) -> None:
        """Sends a byte."""
        self._note("send", self._call(lambda: self._end.send(b"x", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)))

    def error(self) -> None:
        """Asks for the error."""
        self._note("error", self._end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def judge(self, steps: list[str], to_come: int) -> list[Any]:
        """Takes the steps; returns what was seen."""
        self._to_come = to_come
        if self._set and self._woke_by:
            # TCP wakes several times for an ending: whoever is quick sees as many edges, which count as one here.
            more = self._set.poll(0)
            self._seen[-1] = f"wait {hex(self._woke_by | (more[0][1] if more else 0))}"
        for step in steps:
            getattr(self, step)()
        return self._seen


def hold_both(end: socket.socket) -> None:
    """Two processes have the end from now on: the one that has used it sleeps in a call until it is killed, the other one goes on."""
    if os.fork() != 0:
        say("sleeps")
        with contextlib.suppress(OSError):
            end.recv(1)
        while True:
            signal.pause()


def survivor() -> None:
    """Serves one connection for each case."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        say(listener.getsockname()[1])
        for line in sys.stdin:
            case = json.loads(line)
            end, _ = listener.accept()
            one = Survivor(end, case)
            talk(end, case["size"], False)
            say("talked")
            while sys.stdin.readline() == "talk\n":
                talk(end, case["size"], False)
                say("talked")
            fill(end, case["to_leaver"])
            if case["holder"]:
                hold_both(end)
            if case["halved"]:
                end.shutdown(socket.SHUT_WR)
            say("filled")
            if case["waits"]:
                one.wait()
            to_come = json.loads(sys.stdin.readline())
            say(one.judge(case["steps"], to_come))
            one.close()
            if case["holder"]:
                return


if __name__ == "__main__":
    {"leave": leaver, "survive": survivor}[sys.argv[1]]()
