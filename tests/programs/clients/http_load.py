"""Asks for one path again and again until a file appears, and counts what failed.

    http_load.py ADDRESS PORT PATH SHA256 END_FILE [keep-alive]

Each request has a connection of its own, unless `keep-alive` is given: then a connection is used until the server
says that it closes it, and a request on a connection that the server closed meanwhile is repeated once on a new
one, as HTTP allows.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import sys
import threading
import time
from pathlib import Path

ADDRESS, PORT, PATH, SHA256, END = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5])
KEEP_ALIVE = "keep-alive" in sys.argv[6:]
THREADS = 4
LIMIT_S = 60.0
done: list[int] = []
failed: list[str] = []


def ask(connection: http.client.HTTPConnection) -> None:
    """One request; its answer must be whole and right."""
    connection.request("GET", PATH, headers={} if KEEP_ALIVE else {"Connection": "close"})
    response = connection.getresponse()
    body = response.read()
    if response.status != 200 or hashlib.sha256(body).hexdigest() != SHA256:
        raise ValueError(f"status {response.status}, {len(body)} bytes")


def load() -> None:
    """One thread's requests."""
    connection = http.client.HTTPConnection(ADDRESS, PORT, timeout=30)
    count, deadline = 0, time.monotonic() + LIMIT_S
    while not END.exists() and time.monotonic() < deadline:
        used = connection.sock is not None
        try:
            try:
                ask(connection)
            except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
                if not used:
                    raise
                connection.close()
                ask(connection)
            count += 1
        except (OSError, ValueError, http.client.HTTPException) as error:
            failed.append(repr(error))
            connection.close()
    connection.close()
    done.append(count)


threads = [threading.Thread(target=load) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"done": sum(done), "failed": failed[:5], "failures": len(failed)}))
