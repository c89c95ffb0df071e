"""Talks HTTP/1.1 to a server that answers GET with bytes and POST with the checksum of the body.

    http_client.py ADDRESS PORT

Several connections at once; a connection is kept until the server says that it closes it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor

CONNECTIONS = 4
REQUESTS = 120


def work(number: int) -> str:
    """One thread's requests; returns a checksum of all answers."""
    source, received = random.Random(number), hashlib.sha256()
    connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
    for request in range(REQUESTS):
        if request % 3:
            connection.request("GET", f"/{number}/{request}" + "x" * source.randrange(200))
        else:
            body = source.randbytes(source.choice((10, 5000, 300_000)))
            connection.request("POST", f"/{number}/{request}", body)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, f"status {response.status}"
        if not request % 3:
            assert answer.decode() == hashlib.sha256(body).hexdigest(), "the server got another body"
        received.update(answer)
    connection.close()
    return received.hexdigest()


with ThreadPoolExecutor(CONNECTIONS) as pool:
    print(json.dumps({"checksums": list(pool.map(work, range(CONNECTIONS)))}))
