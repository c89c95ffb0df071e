"""Every verb of millrace.py, by two ends in one process."""

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
        request = server.receive()
        request.reply(str(eval(bytes(request))).encode())  # noqa: S307: the test's own words
        server.receive().drop()

    serving = threading.Thread(target=serve)
    serving.start()
    number = client.send(b"1 + 1")
    reply = client.receive()
    assert reply == b"2" and reply.sequence == number
    number = client.send(b"")
    try:
        client.receive()
        raise AssertionError("a reply")
    except BrokenPipeError as error:
        assert error.request == number
    serving.join()

try:
    millrace.Publisher("no name")
    raise AssertionError("a name with a space")
except OSError as error:
    assert "letters" in str(error), error
