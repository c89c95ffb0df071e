"""One side of a conversation by channels, until SIGTERM or the other side's end; every message is compared.

    participant.py speak|listen NAME

Says `met` when both kinds of link are there, and `done` when all was as it must be.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "crates/channel-c/python"))

import millrace  # noqa: E402

PATIENCE_S = 20.0
OPTIONS = {"timeout_ms": int(PATIENCE_S * 1000), "pool_bytes": 1 << 20}
END = b"end"


def answer(request: bytes) -> bytes:
    """What a server makes of a request."""
    return request[::-1] * 3


def speak(name: str) -> None:
    """Publishes, and asks, in turn."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with millrace.Publisher(f"{name}/news", **OPTIONS) as publisher, millrace.Client(f"{name}/sums", **OPTIONS) as client:
        publisher.wait(1, PATIENCE_S)
        client.wait(1, PATIENCE_S)
        print("met", flush=True)
        number = 0
        while number < 100 or not stopped.is_set():
            _exchange(publisher, client, b"%d" % number)
            number += 1
            time.sleep(0.001)
        _exchange(publisher, client, END)
        publisher.drain(PATIENCE_S)


def _exchange(publisher: millrace.Publisher, client: millrace.Client, text: bytes) -> None:
    publisher.send(text)
    asked = client.send(text)
    reply = client.receive(PATIENCE_S)
    assert reply is not None and (reply.sequence, bytes(reply)) == (asked, answer(text)), (text, reply)


def listen(name: str) -> None:
    """Subscribes, and serves, at the same time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with millrace.Subscriber(f"{name}/news", **OPTIONS) as subscriber, millrace.Server(f"{name}/sums", **OPTIONS) as server:
        subscriber.wait(1, PATIENCE_S)
        server.wait(1, PATIENCE_S)
        print("met", flush=True)
        served: list[str] = []
        serving = threading.Thread(target=lambda: served.append(_serve(server)))
        serving.start()
        number = 0
        while (message := subscriber.receive(PATIENCE_S)) != END:
            assert message == b"%d" % number and message.sequence == number, (number, message)
            number += 1
        serving.join()
        assert served == [f"{number} requests"], (served, number)


def _serve(server: millrace.Server) -> str:
    count = 0
    while (request := server.receive(PATIENCE_S)) is not None:
        request.reply(answer(bytes(request)))
        if request == END:
            return f"{count} requests"
        count += 1
    return "no end"


def main() -> None:
    """See above."""
    role, name = sys.argv[1:]
    {"speak": speak, "listen": listen}[role](name)
    print("done", flush=True)


if __name__ == "__main__":
    main()
