#!/usr/bin/python3
"""TCP of which every byte is compared: `talk.py serve ADDRESS PORT`, and `talk.py call ADDRESS PORT BYTES`."""

from __future__ import annotations

import hashlib
import random
import socket
import sys

DIGEST_BYTES = 32
PATIENCE_S = 20.0


def serve(address: tuple[str, int]) -> None:
    """Takes one connection, and answers with the digest of what came."""
    with socket.create_server(address) as listener:
        listener.settimeout(PATIENCE_S)
        print("listening", flush=True)
        connection, _ = listener.accept()
        with connection:
            digest = hashlib.sha256()
            while part := connection.recv(1 << 16):
                digest.update(part)
            connection.sendall(digest.digest())


def call(address: tuple[str, int], count: int) -> None:
    """Sends bytes of any kind, and looks at the digest."""
    data = random.Random(count).randbytes(count)
    with socket.create_connection(address, PATIENCE_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(DIGEST_BYTES), b""))
    if answer != hashlib.sha256(data).digest():
        sys.exit("bytes came otherwise than they were sent")


if __name__ == "__main__":
    place = (sys.argv[2], int(sys.argv[3]))
    serve(place) if sys.argv[1] == "serve" else call(place, int(sys.argv[4]))
