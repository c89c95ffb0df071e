"""Every verb of millrace.py, by two ends in one process."""

import errno
import select
import threading

import millrace

SOON = 20.0

with millrace.Publisher("py", pool_bytes=1 << 20) as publisher, millrace.Subscriber("py", group="workers") as subscriber:
    publisher.wait(1, SOON)
    subscriber.wait(1, SOON)
    assert subscriber.pop() is None and subscriber.receive(0.001) is None
    publisher.send(b"hello\0there", key=7)
    message = subscriber.receive(SOON)
    assert message == b"hello\0there" and message.sequence == 0 and not message.redelivered and message.lost == 0
    assert not select.select([subscriber], [], [], 0)[0] or subscriber.pop() is None
    publisher.send(b"")
    assert select.select([subscriber], [], [], SOON)[0]
    assert subscriber.pop() == b""
    publisher.drain(SOON)

with millrace.Client("sums", timeout_ms=20_000) as client, millrace.Server("sums", timeout_ms=20_000) as server:
    server.wait(1, SOON)
    client.wait(1, SOON)

    def serve() -> None:
        request = server.receive(SOON)
        request.reply(str(eval(bytes(request))).encode())  # noqa: S307: the test's own words
        server.receive().drop()

    serving = threading.Thread(target=serve)
    serving.start()
    number = client.send(b"1 + 1")
    reply = client.receive(SOON)
    assert reply == b"2" and reply.sequence == number
    number = client.send(b"")
    try:
        client.receive()
        raise AssertionError("a reply")
    except BrokenPipeError as error:
        assert error.request == number
    serving.join()
    assert client.receive(0.001) is None and server.receive(0.001) is None

# A request that cannot be sent leaves its memory to the next one.
with millrace.Client("nobody", pool_bytes=1 << 16, timeout_ms=1) as client:
    for _ in range(300):
        try:
            client.send(bytes(4096))
            raise AssertionError("nobody serves")
        except OSError as error:
            assert error.errno in (errno.ENOTCONN, errno.ETIMEDOUT), error
    with millrace.Server("nobody") as server:
        server.wait(1, SOON)
        client.wait(1, SOON)
        client.send(bytes(4096))
        assert server.receive() == bytes(4096)

# Time that is over already is no time, and not for ever.
with millrace.Subscriber("silent") as subscriber:
    assert subscriber.receive(-1.5) is None
    try:
        subscriber.wait(1, -1.5)
        raise AssertionError("nobody publishes")
    except TimeoutError:
        pass

for options in ({"slot": 8}, {"agent": 5}, {"group": 5}, {"group": "a\0b"}):
    try:
        millrace.Publisher("py", **options)
        raise AssertionError(options)
    except (TypeError, ValueError):
        pass

with millrace.Publisher("views") as publisher, millrace.Subscriber("views") as subscriber:
    publisher.wait(1, SOON)
    for message in (bytearray(b"array"), memoryview(b"view")):
        publisher.send(message)
        assert subscriber.receive(SOON) == bytes(message)
    for message in ("text", 5, None):
        try:
            publisher.send(message)
            raise AssertionError(message)
        except TypeError:
            pass

try:
    publisher.send(b"late")
    raise AssertionError("a closed one sends")
except ValueError:
    pass

try:
    millrace.Publisher("no name")
    raise AssertionError("a name with a space")
except OSError as error:
    assert "letters" in str(error), error
