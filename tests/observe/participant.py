"""Takes part in a channel, as it is told by lines on its standard input; says `ready`, and `done` after each.

    participant.py publisher|subscriber|client|server NAME [OPTION=VALUE …]

    wait COUNT                  until so many others are there
    send COUNT BYTES PAUSE      messages of so many bytes, with so many seconds between
    take COUNT                  messages, each given back
    hold COUNT                  messages, none of them given back
    watch COUNT                 messages, each given back, waited for by an epoll set of its own
    drain COUNT                 so many times until everything was given back
    ask COUNT BYTES             requests, each after the answer to the one before
    serve COUNT                 requests, each answered by its own bytes
"""

from __future__ import annotations

import ctypes
import select
import sys
import time
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "crates/channel-c/python"))

import millrace  # noqa: E402

PATIENCE_MS = 20_000


def watch(end: Any) -> None:
    """A message, waited for as a program does that waits for other things, too."""
    with select.epoll() as own:
        own.register(end.fileno(), select.EPOLLIN)
        while end.pop() is None:
            assert own.poll(PATIENCE_MS / 1000), "nothing came"


def obey(end: Any, verb: str, count: int, rest: list[str], held: list[object]) -> None:
    """One line."""
    if verb == "wait":
        return end.wait(count, PATIENCE_MS / 1000)
    for _ in range(count):
        if verb == "send":
            end.send(bytes(int(rest[0])))
            time.sleep(float(rest[1]))
        elif verb == "take":
            assert end.receive(PATIENCE_MS / 1000) is not None, "nothing came"
        elif verb == "hold":
            held.append(end._take("receive", ctypes.c_int64(PATIENCE_MS)))
            assert held[-1] is not None, "nothing came"
        elif verb == "watch":
            watch(end)
        elif verb == "drain":
            end.drain(PATIENCE_MS / 1000)
        elif verb == "ask":
            number = end.send(bytes(int(rest[0])))
            reply = end.receive(PATIENCE_MS / 1000)
            assert reply is not None and reply.sequence == number, "no answer"
        elif verb == "serve":
            request = end.receive(PATIENCE_MS / 1000)
            assert request is not None, "nothing came"
            request.reply(bytes(request))


def main() -> None:
    """See above."""
    role, name, *words = sys.argv[1:]
    options: dict[str, str | int] = {"pool_bytes": 1 << 20}
    if role in ("client", "server"):
        options["timeout_ms"] = PATIENCE_MS
    for word in words:
        key, _, value = word.partition("=")
        options[key] = int(value) if value.isdigit() else value
    end = getattr(millrace, role.capitalize())(name, **options)
    held: list[object] = []
    print("ready", flush=True)
    for line in sys.stdin:
        verb, count, *rest = line.split()
        obey(end, verb, int(count), rest, held)
        print("done", flush=True)


if __name__ == "__main__":
    main()
