"""The programs that are looked at: run under Millrace, they do one thing with TCP and wait.

    traffic.py server PORT                   echoes
    traffic.py states PORT                   connections in every state that `millrace ps` tells apart
    traffic.py ping PORT COUNT BYTES PAUSE   messages of content() to the echo and back
    traffic.py sink PORT                     reads and throws away, on the next port
    traffic.py bulk PORT MEGABYTES           content() to the sink, as fast as it goes
    traffic.py named PORT NAME               calls itself NAME
    traffic.py steady PORT BYTES PAUSE       messages of that size to the echo and back, for ever
    traffic.py churn PORT RATE               so many connections a second, each for a short time; one in ten stays
    traffic.py marking PORT                  echoes, and makes a system call for each message that begins with a mark
    traffic.py marked PORT ROUNDS            ROUNDS messages and a marked one, again and again
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
import time

SO_RCVLOWAT = 18
STAY_S = 60
INTRODUCTION_S = 0.2
MESSAGE = 8192
MARK = b"!"


def content(count: int) -> bytes:
    """The bytes of every stream, the same in every process."""
    return random.Random(7).randbytes(count)


def serve(connection: socket.socket) -> None:
    """Echoes until the end, and keeps the connection."""
    try:
        while data := connection.recv(1 << 16):
            connection.sendall(data)
    except OSError:
        pass
    time.sleep(STAY_S)


def server(port: int) -> None:
    """Accepts for ever."""
    listener = socket.create_server(("127.0.0.1", port))
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def ping(connection: socket.socket, data: bytes, size: int, pause: float = 0.0) -> None:
    """Sends `data` in messages of `size` bytes, each after the echo of the one before."""
    for start in range(0, len(data), size):
        message = data[start : start + size]
        connection.sendall(message)
        got = 0
        while got < len(message):
            got += len(connection.recv(1 << 16))
        if pause:
            time.sleep(pause)


def connected(port: int, count: int) -> socket.socket:
    """A connection that has carried `count` messages of 100 bytes each way."""
    connection = socket.create_connection(("127.0.0.1", port))
    data = content(100 * count)
    ping(connection, data[:2000], 100)
    if len(data) > 2000:
        # It has been offered, and on a busy machine the agent takes its time.
        time.sleep(INTRODUCTION_S)
    ping(connection, data[2000:], 100)
    return connection


def glance(connection: socket.socket, count: int) -> None:
    """Messages whose echo is looked for between sleeps. It might wait by an instruction that no library sees, for all that one can tell."""
    for _ in range(count):
        connection.sendall(bytes(100))
        got = 0
        while got < 100:
            time.sleep(0.002)
            with contextlib.suppress(BlockingIOError):
                got += len(connection.recv(100, socket.MSG_DONTWAIT))


def steady(port: int, size: int, pause: float) -> None:
    """Never ends."""
    connection = connected(port, 0)
    while True:
        ping(connection, content(size), size, pause)


def churn(port: int, rate: float) -> None:
    """Never ends."""
    kept = []
    while True:
        connection = connected(port, 40)
        if len(kept) < 20 and random.random() < 0.1:
            kept.append(connection)
        time.sleep(1 / rate)


def states(port: int) -> None:
    """Says the port of each connection, by the name of its state."""
    left, _right = socket.socketpair()
    kept = {name: connected(port, 200) for name in ("joined", "half_closed", "low_water", "passed_fd", "urgent_data")}
    kept["idle"] = connected(port, 0)
    kept["short"] = connected(port, 2)
    kept["unseen"] = connected(port, 0)
    glance(kept["unseen"], 200)
    kept["half_closed"].shutdown(socket.SHUT_WR)
    kept["low_water"].setsockopt(socket.SOL_SOCKET, SO_RCVLOWAT, 100)
    socket.send_fds(left, [b"x"], [kept["passed_fd"].fileno()])
    kept["urgent_data"].send(b"!", socket.MSG_OOB)
    reader, writer = os.pipe()
    until, _life = os.pipe()
    if os.fork() == 0:
        gone = connected(port, 200)
        os.set_inheritable(gone.fileno(), True)
        os.write(writer, str(gone.getsockname()[1]).encode())
        # It ends with this process, at the end of its input.
        os.dup2(until, 0)
        os.execvp("cat", ["cat"])
    ports = {name: connection.getsockname()[1] for name, connection in kept.items()}
    ports["exec"] = int(os.read(reader, 16))
    time.sleep(0.3)
    print(" ".join(f"{name}={number}" for name, number in ports.items()), flush=True)
    time.sleep(STAY_S)


def sink(port: int) -> None:
    """Answers the first 2000 bytes, and no others."""
    listener = socket.create_server(("127.0.0.1", port + 1))
    print("ready", flush=True)
    connection, _ = listener.accept()
    got = 0
    while data := connection.recv(1 << 16):
        connection.sendall(data[: max(0, 2000 - got)] or b"")
        got += len(data)


def bulk(port: int, megabytes: int) -> None:
    """Sends."""
    connection = socket.create_connection(("127.0.0.1", port + 1))
    ping(connection, content(2000), 100)
    print("ready", connection.getsockname()[1], flush=True)
    sys.stdin.readline()
    data = content(1 << 20)
    for start in list(range(0, 1 << 20, MESSAGE)) * megabytes:
        connection.sendall(data[start : start + MESSAGE])
    print("done", flush=True)
    time.sleep(STAY_S)


def marking(port: int) -> None:
    """Echoes on the second next port, on the first processor."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    listener = socket.create_server(("127.0.0.1", port + 2))
    print("ready", flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(64):
        if data == MARK:
            os.getppid()
        connection.sendall(data)


def marked(port: int, rounds: int) -> None:
    """Asks the other one, from the last processor, and makes the same system call."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    connection = socket.create_connection(("127.0.0.1", port + 2))
    print("ready", flush=True)
    end = time.monotonic() + STAY_S
    while time.monotonic() < end:
        for message in [MARK, *[b"message"] * rounds]:
            connection.sendall(message)
            connection.recv(64)
            if message == MARK:
                os.getppid()


def main() -> None:
    """See above."""
    role, port, *rest = sys.argv[1:]
    if role == "server":
        server(int(port))
    elif role == "sink":
        sink(int(port))
    elif role == "marking":
        marking(int(port))
    elif role == "marked":
        marked(int(port), int(rest[0]))
    elif role == "steady":
        steady(int(port), int(rest[0]), float(rest[1]))
    elif role == "churn":
        churn(int(port), float(rest[0]))
    elif role == "states":
        states(int(port))
    elif role == "bulk":
        bulk(int(port), int(rest[0]))
    elif role == "named":
        with open("/proc/self/comm", "w") as comm:
            comm.write(rest[0])
        connection = connected(int(port), 50)
        print("ready", connection.getsockname()[1], flush=True)
        time.sleep(STAY_S)
    else:
        count, size, pause = int(rest[0]), int(rest[1]), float(rest[2])
        connection = socket.create_connection(("127.0.0.1", int(port)))
        ping(connection, content(2000), 100)
        print("ready", connection.getsockname()[1], flush=True)
        sys.stdin.readline()
        ping(connection, content(count * size), size, pause)
        print("done", flush=True)
        time.sleep(STAY_S)


if __name__ == "__main__":
    main()
