"""Reads what `millrace dump` writes: only as much of pcapng, IP and TCP as that needs, and every length is checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

ENHANCED_PACKET, STATISTICS, COMMENT = 6, 5, 1


@dataclass(frozen=True)
class Packet:
    """One TCP packet."""

    source: int
    target: int
    sequence: int
    data: bytes
    comment: str


def options(body: bytes) -> dict[int, bytes]:
    """The options of a block."""
    found: dict[int, bytes] = {}
    while len(body) >= 4:
        code, length = struct.unpack("=HH", body[:4])
        if code == 0:
            break
        found[code] = body[4 : 4 + length]
        body = body[4 + (length + 3) // 4 * 4 :]
    return found


def checksum(data: bytes) -> int:
    """The Internet checksum; 0 for a header that has its own."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def parse(body: bytes) -> Packet:
    """One enhanced packet block of IPv4."""
    _, _, _, captured, original = struct.unpack("=5I", body[:20])
    assert captured == original
    packet, rest = body[20 : 20 + captured], body[20 + (captured + 3) // 4 * 4 :]
    assert packet[0] == 0x45 and struct.unpack("!H", packet[2:4])[0] == captured
    assert checksum(packet[:20]) == 0
    tcp = packet[20:]
    assert checksum(packet[12:20] + struct.pack("!HH", 6, len(tcp)) + tcp) == 0
    source, target, sequence = struct.unpack("!HHI", tcp[:8])
    return Packet(source, target, sequence, tcp[20:], options(rest).get(COMMENT, b"").decode())


def read(path: Path) -> tuple[list[Packet], str]:
    """All packets, and the comment of the closing statistics."""
    data = path.read_bytes()
    packets, closing, at = [], "", 0
    while at < len(data):
        kind, length = struct.unpack("=II", data[at : at + 8])
        assert length % 4 == 0 and struct.unpack("=I", data[at + length - 4 : at + length])[0] == length
        body = data[at + 8 : at + length - 4]
        if kind == ENHANCED_PACKET:
            packets.append(parse(body))
        elif kind == STATISTICS:
            closing = options(body[12:]).get(COMMENT, b"").decode()
        at += length
    return packets, closing
