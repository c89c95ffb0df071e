"""The file in which both ends write what they did; `traffic/src/ledger.rs` writes the same words."""

from __future__ import annotations

import errno
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

CLIENT, SERVER = 0, 1
SIDES = {"client": CLIENT, "server": SERVER}
SLOTS = 1024
SLOT_BYTES, SIDE_BYTES = 256, 64
UNDER_WAY, DONE, GAVE_UP, WRONG = 0, 1, 2, 3
_ERROR = 1000
_NAMES = {UNDER_WAY: "under way", DONE: "done", GAVE_UP: "gave up", WRONG: "wrong bytes"}


def how(code: int) -> str:
    """A direction's ending in words."""
    return _NAMES.get(code) or errno.errorcode.get(code - _ERROR, f"error {code - _ERROR}")


def error(name: str) -> int:
    """The code of a direction that ended with this error."""
    return _ERROR + int(getattr(errno, name))


@dataclass(frozen=True)
class End:
    """What one end of a connection did so far."""

    sent: int
    received: int
    read_end: int
    write_end: int
    wrong_at: int
    wrong_ahead: int
    main: int
    worker: int

    @property
    def has_begun(self) -> bool:
        """Whether a process has taken the connection up."""
        return self.main != 0

    @property
    def has_ended(self) -> bool:
        """Whether both directions have ended."""
        return self.read_end != UNDER_WAY and self.write_end != UNDER_WAY

    def __str__(self) -> str:
        wrong = f", wrong at {self.wrong_at - 1} ({self.wrong_ahead - 1} ahead)" if self.wrong_at else ""
        return (
            f"sent {self.sent} ({how(self.write_end)}), received {self.received} ({how(self.read_end)}){wrong}"
            if self.has_begun
            else "never began"
        )


class Ledger:
    """The mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(SLOTS * SLOT_BYTES))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._next = 0

    def take(self) -> int:
        """A fresh slot."""
        slot = self._next % SLOTS
        self._next += 1
        self._map[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = bytes(SLOT_BYTES)
        return slot

    def finish(self, slot: int) -> None:
        """Tells the client of a connection to send nothing more."""
        struct.pack_into("=Q", self._map, slot * SLOT_BYTES, 1)

    def end(self, slot: int, side: int) -> End:
        """What an end has written."""
        return End(*struct.unpack_from("=8Q", self._map, slot * SLOT_BYTES + SIDE_BYTES * (1 + side)))
