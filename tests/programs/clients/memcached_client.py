"""Sets, gets and verifies values of all sizes on several connections at once.

memcached_client.py ADDRESS PORT
"""

from __future__ import annotations

import hashlib
import json
import random
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

CONNECTIONS = 4
KEYS = 400
LARGE_BYTES = 900_000


def work(number: int) -> str:
    """One connection's work; returns a checksum over everything that came back."""
    source = random.Random(number)
    values = {
        f"c{number}k{key}": source.randbytes(LARGE_BYTES if key % 100 == 0 else source.randrange(1, 4000))
        for key in range(KEYS)
    }
    received = hashlib.sha256()
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as connection:
        file = connection.makefile("rb")
        for key, value in values.items():
            connection.sendall(f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n")
            assert file.readline() == b"STORED\r\n", f"{key} was not stored"
        for start in range(0, KEYS, 10):
            keys = list(values)[start : start + 10]
            connection.sendall(f"get {' '.join(keys)}\r\n".encode())
            for key in keys:
                assert file.readline().split()[1].decode() == key, "another key than asked for"
                value = file.read(len(values[key]) + 2)[:-2]
                assert value == values[key], f"{key} came back changed"
                received.update(value)
            assert file.readline() == b"END\r\n"
        connection.sendall(f"set n{number} 0 0 1\r\n0\r\n".encode())
        file.readline()
        for count in range(1, 501):
            connection.sendall(f"incr n{number} 1\r\n".encode())
            assert int(file.readline()) == count
        connection.sendall(b"quit\r\n")
        assert file.read() == b"", "bytes after quit"
    return received.hexdigest()


with ThreadPoolExecutor(CONNECTIONS) as pool:
    print(json.dumps({"checksums": list(pool.map(work, range(CONNECTIONS)))}))
