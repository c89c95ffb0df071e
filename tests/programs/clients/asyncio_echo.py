"""An asyncio echo server, and a client with many streams that verifies what comes back.

asyncio_echo.py server ADDRESS PORT
asyncio_echo.py client ADDRESS PORT
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys

STREAMS = 20
ROUNDS = 150
BULK_BYTES = 4 << 20


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back everything, then the end."""
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.close()


async def stream(address: str, port: int, number: int) -> str:
    """Round trips of all sizes, then a bulk transfer both ways at once that ends with a half-close."""
    reader, writer = await asyncio.open_connection(address, port)
    source, received = random.Random(number), hashlib.sha256()
    for _ in range(ROUNDS):
        message = source.randbytes(source.choice((1, 64, 700, 5000)))
        writer.write(message)
        answer = await reader.readexactly(len(message))
        assert answer == message, "another message came back"
        received.update(answer)
    if number % 5 == 0:
        bulk = source.randbytes(BULK_BYTES)
        writer.write(bulk)
        writer.write_eof()
        answer = await reader.read(-1)
        assert answer == bulk, "other bytes came back"
        received.update(answer)
    writer.close()
    await writer.wait_closed()
    return received.hexdigest()


async def main(role: str, address: str, port: int) -> None:
    """Either end."""
    if role == "server":
        async with await asyncio.start_server(echo, address, port) as server:
            await server.serve_forever()
    checksums = await asyncio.gather(*(stream(address, port, number) for number in range(STREAMS)))
    print(json.dumps({"checksums": hashlib.sha256("".join(checksums).encode()).hexdigest()}))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
