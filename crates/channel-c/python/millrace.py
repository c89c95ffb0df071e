"""Channels from Python, by libmillrace. For tests and tools: every message is copied.

    publisher = millrace.Publisher("news")
    publisher.send(b"hello", key=7)

    subscriber = millrace.Subscriber("news", group="workers")
    message = subscriber.receive(timeout=1.0)   # None: not in time
    print(bytes(message), message.sequence)

    client, server = millrace.Client("sums"), millrace.Server("sums")
    number = client.send(b"1 + 1")
    request = server.receive()
    request.reply(b"2")
    print(client.receive())

Options are those of `struct millrace_options` by name: agent, group, pool_bytes, slots, when_full, timeout_ms, patience_ms, redeliver.
A call that fails raises OSError with the error number that millrace.h names. MILLRACE_CHANNEL_LIBRARY says where the library is, if the
system does not know it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from ctypes import POINTER, byref, c_char_p, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

_library = ctypes.CDLL(os.environ.get("MILLRACE_CHANNEL_LIBRARY", "libmillrace.so"))
_library.millrace_error.restype = c_char_p

BLOCK, FAIL, DROP_OLDEST, DROP_NEWEST = range(4)


def _text(text: str | os.PathLike) -> bytes:
    """As C has it: ctypes would take a number for an address, and end a text at its first NUL."""
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise ValueError("a text with a NUL")
    return encoded


def _milliseconds(timeout: float) -> c_int64:
    """As C has it, where less than nothing is for ever: here, as what is left of some time, it is nothing."""
    return c_int64(max(0, int(timeout * 1000)))


def _wait(timeout: float | None) -> c_int64:
    return c_int64(-1) if timeout is None else _milliseconds(timeout)


def _bytes(message: bytes | bytearray | memoryview) -> bytes:
    return message if isinstance(message, bytes) else bytes(memoryview(message))


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("agent", c_char_p),
        ("group", c_char_p),
        ("pool_bytes", c_uint64),
        ("slots", c_uint32),
        ("when_full", c_uint32),
        ("timeout_ms", c_int64),
        ("patience_ms", c_int64),
        ("redeliver", c_uint32),
        ("reserved", c_uint32),
    ]


class _Loan(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("number", c_uint64)]


class _Message(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("sequence", c_uint64),
        ("publisher", c_uint64),
        ("lost", c_uint64),
        ("number", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class Message(bytes):
    """A message's bytes, with what came with them."""

    sequence: int
    publisher: int
    lost: int
    redelivered: bool

    @classmethod
    def _of(cls, message: _Message) -> Message:
        self = cls(ctypes.string_at(message.data, message.bytes) if message.bytes else b"")
        self.sequence, self.publisher, self.lost = message.sequence, message.publisher, message.lost
        self.redelivered = bool(message.flags & 1)
        return self


class _Handle:
    """What every participant has; `_kind` is its name in millrace.h."""

    _kind = ""

    def __init__(self, name: str, **options: str | os.PathLike | int | None) -> None:
        known = {field for field, _ in _Options._fields_} - {"size", "reserved"}
        if unknown := options.keys() - known:
            raise TypeError(f"no options: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
        texts = {key: _text(options[key]) for key in ("agent", "group") if options.get(key) is not None}
        given = options | texts
        self._handle = c_void_p()
        self._call("open", _text(name), byref(_Options(size=ctypes.sizeof(_Options), **given)), byref(self._handle), bare=True)

    def _call(self, verb: str, *arguments: object, bare: bool = False) -> int:
        if not bare and not self._handle:
            raise ValueError(f"the {self._kind} is closed")
        function = getattr(_library, f"millrace_{self._kind}_{verb}")
        result = function(*arguments) if bare else function(self._handle, *arguments)
        if result < 0:
            raise OSError(-result, _library.millrace_error().decode())
        return result

    def _take(self, verb: str, *arguments: object) -> _Message | None:
        message = _Message()
        try:
            self._call(verb, *arguments, byref(message))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ETIMEDOUT):
                return None
            error.request = message.sequence
            raise
        return message

    def wait(self, count: int = 1, timeout: float = 10.0) -> None:
        """Waits until so many others are there."""
        self._call("wait", c_uint32(count), _milliseconds(timeout))

    def fileno(self) -> int:
        """For `select`: readable when there is news."""
        return self._call("fd")

    def close(self) -> None:
        """Leaves the channel."""
        handle, self._handle = self._handle, c_void_p()
        function = getattr(_library, f"millrace_{self._kind}_close")
        function.restype = None
        function(handle)

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Publisher(_Handle):
    """Sends messages to whoever subscribes."""

    _kind = "publisher"

    def send(self, message: bytes, key: int | None = None) -> None:
        """Sends a message and publishes it."""
        message = _bytes(message)
        self._call("send", message, c_size_t(len(message)), byref(c_uint64(key)) if key is not None else None)

    def drain(self, timeout: float = 10.0) -> None:
        """Waits until everybody has given everything back."""
        self._call("drain", _milliseconds(timeout))


class Subscriber(_Handle):
    """Gets messages."""

    _kind = "subscriber"

    def _copied(self, message: _Message | None) -> Message | None:
        if message is None:
            return None
        copy = Message._of(message)
        self._call("release", byref(message))
        return copy

    def pop(self) -> Message | None:
        """The next message, if one is there."""
        return self._copied(self._take("pop"))

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, waited for."""
        return self._copied(self._take("receive", _wait(timeout)))


class Client(_Handle):
    """Sends requests and gets replies. One that has none raises BrokenPipeError, with the request's number in `request`."""

    _kind = "client"

    def send(self, request: bytes, key: int | None = None) -> int:
        """Sends a request; returns its number, which its reply has as `sequence`."""
        request = _bytes(request)
        loan, number = _Loan(), c_uint64()
        self._call("loan", c_size_t(len(request)), byref(loan))
        ctypes.memmove(loan.data, request, len(request))
        try:
            self._call("push", byref(loan), byref(c_uint64(key)) if key is not None else None, byref(number))
        except OSError:
            _library.millrace_client_return(self._handle, byref(loan))
            raise
        self._call("publish")
        return number.value

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next reply, waited for."""
        message = self._take("receive", _wait(timeout))
        if message is None:
            return None
        copy = Message._of(message)
        self._call("release", byref(message))
        return copy


class Request(Message):
    """A request, to be replied to."""

    _server: Server
    _message: _Message

    def reply(self, reply: bytes) -> None:
        """Replies."""
        reply = _bytes(reply)
        loan = _Loan()
        self._server._call("loan", byref(self._message), c_size_t(len(reply)), byref(loan))
        ctypes.memmove(loan.data, reply, len(reply))
        self._server._call("reply", byref(self._message), byref(loan))

    def drop(self) -> None:
        """Lets it fall; its client learns so."""
        self._server._call("release", byref(self._message))


class Server(_Handle):
    """Gets requests."""

    _kind = "server"

    def receive(self, timeout: float | None = None) -> Request | None:
        """The next request, waited for."""
        message = self._take("receive", _wait(timeout))
        if message is None:
            return None
        request = Request._of(message)
        request._server, request._message = self, message
        return request


for _name in ("publisher_send", "publisher_wait", "subscriber_wait"):
    getattr(_library, f"millrace_{_name}").restype = ctypes.c_int
_library.millrace_publisher_send.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(c_uint64)]
