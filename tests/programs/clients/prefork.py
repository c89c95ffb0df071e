"""A server as gunicorn is one: the master listens and forks workers, which all accept on the shared socket.

    prefork.py ADDRESS PORT

A worker ends after some requests and the master forks another. Answers HTTP: GET with bytes made of the path, POST
with the checksum of the body.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
from http.server import BaseHTTPRequestHandler

WORKERS = 3
REQUESTS_PER_WORKER = 60


class Handler(BaseHTTPRequestHandler):
    """One connection; `served` counts requests of the worker."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served = 0

    def _answer(self, body: bytes) -> None:
        Handler.served += 1
        self.close_connection = Handler.served >= REQUESTS_PER_WORKER
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Bytes that depend on the path."""
        self._answer(hashlib.sha256(self.path.encode()).digest() * (1 + len(self.path) * 13 % 3000))

    def do_POST(self) -> None:
        """The checksum of what was sent."""
        self._answer(hashlib.sha256(self.rfile.read(int(self.headers["Content-Length"]))).hexdigest().encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def work(listener: socket.socket) -> None:
    """A worker's life."""
    while Handler.served < REQUESTS_PER_WORKER:
        connection, address = listener.accept()
        with connection:
            Handler(connection, address, None)  # type: ignore[arg-type]


def main() -> None:
    """The master's life: keeps the number of workers, ends them when it ends."""
    address, port = sys.argv[1], int(sys.argv[2])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=128)
    workers: set[int] = set()

    def end(*_: object) -> None:
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        while len(workers) < WORKERS:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                work(listener)
                os._exit(0)
            workers.add(pid)
        workers.discard(os.wait()[0])


main()
