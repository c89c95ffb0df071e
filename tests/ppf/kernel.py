"""The kernel's own GTP-U peer, where it has one: the device `gtp`, as a base station has it."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "guest"))

import machine  # noqa: E402
from rig import Inside, Skipped, check, ip  # noqa: E402
from site_ppf import CORE, RADIO, Function, far, own  # noqa: E402

USER = "10.45.0.7"
TEID = 815
BYTES = 4 << 20
PORT = 5001
BOOT_S = 600.0
MODULES = ("veth", "gtp")
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
GTP_CMD_NEWPDP = 0
GTPA_LINK, GTPA_VERSION, GTPA_PEER_ADDRESS, GTPA_MS_ADDRESS, GTPA_I_TEI, GTPA_O_TEI = 1, 2, 4, 5, 8, 9
NLM_F_REQUEST, NLM_F_ACK, NLMSG_ERROR = 1, 4, 2


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _said(netlink: socket.socket, family: int, command: int, version: int, attributes: bytes) -> list[bytes]:
    """Asks, and returns what is answered before it is said to be done."""
    body = struct.pack("BBH", command, version, 0) + attributes
    netlink.send(struct.pack("IHHII", 16 + len(body), family, NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
    answers = []
    while True:
        data = netlink.recv(65536)
        while data:
            length, kind = struct.unpack("IH", data[:6])
            if kind == NLMSG_ERROR:
                (error,) = struct.unpack("i", data[16:20])
                check(error == 0, f"the kernel refuses it: {os.strerror(-error)}")
                return answers
            answers.append(data[20:length])
            data = data[(length + 3) & ~3 :]


def _add_tunnel(device: str, out_teid: int) -> None:
    """The user's tunnel: to the function, and from it."""
    with Inside(RADIO), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16) as netlink:
        netlink.bind((0, 0))
        (answer,) = _said(netlink, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1, _attribute(CTRL_ATTR_FAMILY_NAME, b"gtp\0"))
        family = None
        while answer:
            length, kind = struct.unpack("HH", answer[:4])
            if kind == CTRL_ATTR_FAMILY_ID:
                (family,) = struct.unpack("H", answer[4:6])
            answer = answer[(length + 3) & ~3 :]
        check(family is not None, "the kernel does not say the number of its family gtp")
        number = lambda value: struct.pack("I", value)  # noqa: E731
        attributes = [
            (GTPA_LINK, number(socket.if_nametoindex(device))),
            (GTPA_VERSION, number(1)),
            (GTPA_PEER_ADDRESS, socket.inet_aton(own(RADIO))),
            (GTPA_MS_ADDRESS, socket.inet_aton(USER)),
            (GTPA_I_TEI, number(TEID)),
            (GTPA_O_TEI, number(out_teid)),
        ]
        _said(netlink, family, GTP_CMD_NEWPDP, 0, b"".join(_attribute(*one) for one in attributes))


def peer(stack: ExitStack, place: Path) -> None:
    """A user of the kernel's, behind its device `gtp`, pings the data network and sends megabytes by TCP."""
    if shutil.which("ping") is None:
        raise Skipped("there is no ping here (Debian's package is iputils-ping)")
    function = Function(stack, place)
    made = subprocess.run(
        ["ip", "-n", RADIO, "link", "add", "gtp0", "type", "gtp", "role", "sgsn"], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise Skipped(f"this kernel has no device gtp: {made.stderr.strip()}")
    bearer = function.add(core_user=USER, radio=f"{far(RADIO)}/{TEID}")
    ip("link", "set", "gtp0", "up", "mtu", "1450", inside=RADIO)
    ip("address", "add", f"{USER}/32", "dev", "lo", inside=RADIO)
    ip("route", "add", f"{far(CORE)}/32", "dev", "gtp0", "src", USER, inside=RADIO)
    _add_tunnel("gtp0", bearer["teids"]["radio"])
    for length in ("0", "56", "1400"):
        command = ["ip", "netns", "exec", RADIO, "ping", "-n", "-c", "3", "-i", "0.2", "-W", "5", "-I", USER, "-s", length, far(CORE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        check(" 3 received" in done.stdout, f"{length} bytes: {done.stdout} {function.drops()}")
    _transfer(RADIO, USER, CORE, far(CORE))
    _transfer(CORE, far(CORE), RADIO, USER)
    usage = function.ask("bearer", "show", str(bearer["id"]))["usage"]
    check(min(usage["core_bytes"], usage["radio_bytes"]) > BYTES, f"{usage}")
    function.stop()


def _transfer(source: str, source_address: str, target: str, address: str) -> None:
    """Bytes go from one stack to the other, and are those that were sent."""
    data = os.urandom(BYTES)
    with Inside(target):
        listener = socket.create_server((address, PORT))
    with Inside(source):
        sender = socket.socket()
    received = hashlib.sha256()

    def receive() -> None:
        taken, _ = listener.accept()
        with taken:
            taken.settimeout(60)
            while piece := taken.recv(1 << 20):
                received.update(piece)

    with listener, sender:
        listener.settimeout(60)
        sender.settimeout(60)
        sender.bind((source_address, 0))
        thread = threading.Thread(target=receive)
        thread.start()
        try:
            sender.connect((address, PORT))
            sender.sendall(data)
            sender.shutdown(socket.SHUT_WR)
        finally:
            thread.join(60)
    check(received.digest() == hashlib.sha256(data).digest(), f"what {source} sent is not what came")


def prepare() -> None:
    """Has the guest's kernel downloaded, while the run has a network."""
    try:
        machine.require()
        machine.kernel()
    except machine.Lacking:
        # Whoever wants it says so.
        return


def in_guest(_stack: ExitStack, place: Path) -> None:
    """The same in a guest with Debian's stock kernel, which has the device."""
    try:
        machine.require()
        kernel = machine.kernel()
    except machine.Lacking as lacking:
        raise Skipped(str(lacking)) from None
    there = Path("/mnt/tests/ppf/run.py")
    archive = machine.initramfs(kernel, MODULES, ["/usr/bin/python3", str(there), "kernel: the device gtp"])
    report = place / "report"
    with open(report, "wb") as out:
        guest = subprocess.Popen(machine.qemu(kernel, archive, place / "console"), stdin=subprocess.DEVNULL, stdout=out)
    try:
        deadline = time.monotonic() + BOOT_S
        while guest.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        guest.kill()
        guest.wait()
    said = report.read_text(errors="replace")
    console = (place / "console").read_text(errors="replace")
    check("1 passed, 0 failed, 0 skipped" in said, f"the guest says: {said[-2000:]}\n{console[-1500:]}")
