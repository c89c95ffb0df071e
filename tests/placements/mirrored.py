#!/usr/bin/python3
"""Two connections from one source: one to a service's address, which the kernel leads to a local program, and one straight to that.

    mirrored.py serve ADDRESS PORT
    mirrored.py call ADDRESS PORT SERVICE SERVICE_PORT SOURCE_PORT

The client's socket of the second has the addresses of the server's socket of the first, the other way round. The server says which
connection it answers by; the client checks that.
"""

from __future__ import annotations

import socket
import sys
import threading

ROUNDS = 300
WAIT_S = 10.0


def _serve(address: str, port: int) -> None:
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        for number in range(2):
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, number)).start()


def _answer(connection: socket.socket, number: int) -> None:
    with connection:
        while asked := connection.recv(100):
            connection.sendall(b"%d answers %s" % (number, asked))


def _connect(source: tuple[str, int], target: tuple[str, int]) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(WAIT_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.bind(source)
    connection.connect(target)
    return connection


def _call(address: str, port: int, service: tuple[str, int], source_port: int) -> None:
    source = (address, source_port)
    with _connect(source, service) as first, _connect(source, (address, port)) as second:
        for asked in range(ROUNDS):
            for number, connection in enumerate((first, second)):
                connection.sendall(b"%d of %d" % (asked, number))
                answer, wanted = connection.recv(100), b"%d answers %d of %d" % (number, asked, number)
                if answer != wanted:
                    sys.exit(f"connection {number} got {answer!r} in the place of {wanted!r}")
    print("done", flush=True)


if __name__ == "__main__":
    _what, _address, _port, *_more = sys.argv[1:]
    if _what == "serve":
        _serve(_address, int(_port))
    else:
        _call(_address, int(_port), (_more[0], int(_more[1])), int(_more[2]))
