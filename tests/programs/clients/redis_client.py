"""Speaks to Redis on raw sockets: replication, publication, BGSAVE and MONITOR.

redis_client.py ADDRESS PORT REPLICA_PORT
"""

from __future__ import annotations

import hashlib
import json
import random
import socket
import sys
import threading
import time
from typing import Any

KEYS = 3000
MESSAGES = 2000
MONITORED = 1000
WAIT_S = 30.0


class Redis:
    """One connection."""

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.create_connection((address, port), timeout=WAIT_S)
        self._file = self._socket.makefile("rb")

    def send(self, *words: object) -> None:
        """Sends one command."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self._socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))

    def read(self) -> Any:
        """Reads one reply."""
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if kind not in b"+:" or not kind:
            raise RuntimeError(f"not a reply: {line[:80]!r}")
        return rest if kind == b"+" else int(rest)

    def call(self, *words: object) -> Any:
        """Sends one command and reads its reply."""
        self.send(*words)
        return self.read()

    def info(self, section: str) -> dict[str, str]:
        """A section of INFO."""
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def until(condition: Any, what: str) -> None:
    """Waits for a condition that the server reaches on its own."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def replication(master: Redis, replica: Redis) -> dict[str, Any]:
    """Writes keys small and large, pipelined, and compares the data sets."""
    master.call("FLUSHALL")
    until(lambda: replica.info("replication").get("master_link_status") == "up", "replica never came up")
    source = random.Random(1)
    for key in range(KEYS):
        master.send("SET", f"key:{key}", source.randbytes(200_000 if key % 500 == 0 else source.randrange(2000)))
        if key % 64 == 63 or key == KEYS - 1:
            for _ in range(key % 64 + 1):
                master.read()
    acknowledged = master.call("WAIT", 1, int(WAIT_S * 1000))
    digests = {connection.call("DEBUG", "DIGEST").decode() for connection in (master, replica)}
    return {"replicas": acknowledged, "data sets alike": len(digests) == 1, "digest": digests.pop()}


def publication(address: str, port: int) -> dict[str, Any]:
    """One subscriber hears everything that is published, in order."""
    subscriber, publisher = Redis(address, port), Redis(address, port)
    subscriber.call("SUBSCRIBE", "news")
    received = hashlib.sha256()

    def listen() -> None:
        for _ in range(MESSAGES):
            received.update(subscriber.read()[2])

    listener = threading.Thread(target=listen)
    listener.start()
    sent, heard = hashlib.sha256(), 0
    source = random.Random(2)
    for number in range(MESSAGES):
        message = source.randbytes(number * 3 % 4000 + 1)
        sent.update(message)
        heard += publisher.call("PUBLISH", "news", message)
    listener.join(WAIT_S)
    return {"published": heard, "received": received.hexdigest(), "as sent": sent.digest() == received.digest()}


def bgsave(master: Redis, address: str, port: int) -> dict[str, Any]:
    """Saves in a forked child while another connection writes."""
    end = threading.Event()

    def write() -> None:
        writer, number = Redis(address, port), 0
        while not end.is_set():
            writer.call("SET", f"load:{number % 100}", "x" * 500)
            number += 1

    load = threading.Thread(target=write)
    load.start()
    master.call("BGSAVE")
    until(lambda: master.info("persistence")["rdb_bgsave_in_progress"] == "0", "BGSAVE never ended")
    end.set()
    load.join(WAIT_S)
    persistence = master.info("persistence")
    return {"bgsave": persistence["rdb_last_bgsave_status"], "saves": persistence["rdb_saves"]}


def monitor(address: str, port: int) -> dict[str, Any]:
    """A monitoring connection sees every command of another."""
    watcher, writer = Redis(address, port), Redis(address, port)
    watcher.call("MONITOR")
    for number in range(MONITORED):
        writer.call("SET", "monitored", number)
    writer.call("ECHO", "last")
    seen = 0
    while True:
        line = watcher.read()
        seen += b'"monitored"' in line
        if b'"last"' in line:
            return {"monitored": seen}


def main() -> None:
    """Runs everything, prints the results."""
    address, port, replica_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    master, replica = Redis(address, port), Redis(address, replica_port)
    results = (
        replication(master, replica)
        | publication(address, port)
        | bgsave(master, address, port)
        | monitor(address, port)
    )
    print(json.dumps(results))


main()
