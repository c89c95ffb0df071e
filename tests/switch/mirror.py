"""A mirror's file, as tshark reads it."""

from __future__ import annotations

import shutil
import struct
import subprocess
from contextlib import ExitStack
from pathlib import Path

from rig import Ours, Skipped, check, echo, ipv4, mac, tagged

FIELDS = ("frame.len", "eth.dst", "eth.src", "vlan.id", "ip.src", "ip.dst", "udp.dstport", "icmp.seq")
FRAMES = 300


def _frame(serial: int) -> tuple[bytes, list[str]]:
    """A frame, and what tshark has to say of it."""
    kind = serial % 3
    if kind == 0:
        payload = struct.pack("!HHHH", 1000, 2000 + serial, 8 + serial, 0) + bytes(serial)
        protocol, shown = 17, [str(2000 + serial), ""]
    else:
        payload, protocol, shown = echo(serial, 32 + serial), 1, ["", str(serial)]
    frame = mac(255) + mac(1 + serial % 50) + b"\x08\x00" + ipv4("10.0.0.1", f"10.0.1.{serial % 250}", protocol, payload)
    vlan = 10 + serial % 2
    addresses = ["ff:ff:ff:ff:ff:ff", f"02:00:00:00:00:{1 + serial % 50:02x}"]
    shown = [str(len(frame) + 4), *addresses, str(vlan), "10.0.0.1", f"10.0.1.{serial % 250}", *shown]
    return tagged(frame, vlan), shown


def read(stack: ExitStack, place: Path) -> None:
    """Every frame that enters is in the file, in order, and is what it was."""
    if shutil.which("tshark") is None:
        raise Skipped("there is no tshark here (Debian's package is tshark)")
    for name in ("look.pcapng", "look.pcap"):
        capture = place / name
        ports = "".join(f'[[port]]\nname = "{port}"\nmemif.path = "/test"\n' for port in "ab")
        mirror = f'[[mirror]]\nname = "look"\nfile = "{capture}"\nports = ["a"]\ndirection = "in"\n'
        ours = Ours(stack, place, ports + mirror)
        expected = []
        for serial in range(FRAMES):
            frame, shown = _frame(serial)
            check(ours.send("a", frame) == [("b", frame)], f"frame {serial} did not leave")
            expected.append(shown)
        counted = ours.report()["mirrors"][0]
        check(counted["packets"] == FRAMES and not counted["drops"], f"{counted}")
        ours.close()
        command = ["tshark", "-r", str(capture), "-T", "fields", *(word for field in FIELDS for word in ("-e", field))]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
        found = [line.split("\t") for line in lines]
        check(found == expected, f"{len(found)} packets; the first that differs: {next(zip(found, expected), None)}")
