"""One end of a conversation: echoes, or sends numbered messages and compares what comes back.

    talk.py serve ADDRESS PORT
    talk.py call ADDRESS PORT [OWN_ADDRESS OWN_PORT]

`call` prints `ready` when enough went there and back, holds the connection until its standard input ends, and then checks once more.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time

ROUNDS_S = 1.0
MESSAGE_BYTES = 2000


def main() -> None:
    """Plays the end that the command line names."""
    role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if role == "serve":
        serve(family, address, port)
    else:
        own = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 5 else None
        call(family, (address, port), own)


def serve(family: int, address: str, port: int) -> None:
    """Echoes one connection to its end."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        print("listening", flush=True)
        connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def call(family: int, target: tuple[str, int], own: tuple[str, int] | None) -> None:
    """Sends and compares."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if own:
            connection.bind(own)
        connection.connect(target)
        end = time.monotonic() + ROUNDS_S
        number = 0
        while time.monotonic() < end:
            exchange(connection, number)
            number += 1
        print("ready", flush=True)
        sys.stdin.read()
        for extra in range(50):
            exchange(connection, number + extra)
        print("done", flush=True)


def exchange(connection: socket.socket, number: int) -> None:
    """One message there and back."""
    message = hashlib.shake_128(number.to_bytes(8, "little")).digest(MESSAGE_BYTES)
    connection.sendall(message)
    answer = b""
    while len(answer) < len(message):
        part = connection.recv(65536)
        if not part:
            sys.exit(f"message {number}: the connection ended")
        answer += part
    if answer != message:
        sys.exit(f"message {number}: another answer")


if __name__ == "__main__":
    main()
