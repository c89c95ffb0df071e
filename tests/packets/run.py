#!/usr/bin/python3
"""Ports against the programs whose protocols they speak: Debian's `dpdk-testpmd` with `net_memif`, in both roles, `net_virtio_user`,
`net_vhost`, and `net_pcap`; Open vSwitch (`ovs.py`); the kernel (`kernel.py`, `guest.py`); in namespaces of their own (`containers.py`).

    tests/packets/run.py [--full] [CASE ...]

README.md says what is checked. A CASE is a part of the names of those to run. Exits with 0 when every case was right.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import containers  # noqa: E402
import deaths  # noqa: E402
import guest  # noqa: E402
import kernel  # noqa: E402
import ovs  # noqa: E402
import virtio  # noqa: E402
from harness import isolate, road  # noqa: E402
from wrong import Wrong, check  # noqa: E402

PROGRAM = road.REPOSITORY / "target/xtask/examples/memif"
CAPTURE = PROGRAM.with_name("capture")
WAIT_S = 20.0
RING = 1024
"""Packets that a queue's ring has room for: what a peer has sent and takes with it when it goes."""
MBUFS = 16384
Started = tuple[subprocess.Popen[bytes], str]
"""A program, and the name of its output."""
ROLES = {"client": "server", "server": "client"}
"""Each role, and that of the peer."""


@dataclass(frozen=True)
class Result:
    """What our side counted."""

    wrong: int
    connections: int
    wakes: int
    received: int
    transmitted: int
    drops: int


class Run:
    """The programs of one case; all end with it."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self.stack = stack
        self.place = place
        self.socket = place / "memif.sock"
        self.started = 0

    def spawn(self, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program, with its output in a file of that name."""
        with open(self.place / name, "wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def testpmd(self, role: str, mode: str, *options: str, queues: int = 1, zero_copy: bool = False) -> Started:
        """DPDK's program with one port, which goes on until it is told."""
        self.started += 1
        name = f"testpmd{self.started}"
        device = f"net_memif0,role={role},socket={self.socket},socket-abstract=no,zero-copy={'yes' if zero_copy else 'no'}"
        process = self.testpmd_with(name, device, mode, *options, queues=queues)
        if role == "server":
            self.until(lambda: self.socket.exists() or process.poll() is not None, f"{name} listens")
        return process, name

    def testpmd_with(self, name: str, device: str, mode: str, *options: str, queues: int = 1) -> subprocess.Popen[bytes]:
        """The same with any device, or several with spaces between them."""
        argv = [
            "dpdk-testpmd", "-l", "0,1", "--no-huge", "-m", "192", "--no-pci", "--no-telemetry", "--single-file-segments",
            f"--file-prefix={name}", *(f"--vdev={each}" for each in device.split()), "--",
            f"--total-num-mbufs={MBUFS}", f"--forward-mode={mode}", f"--rxq={queues}", f"--txq={queues}",
            "--no-flush-rx", "--stats-period=60", *options,
        ]  # fmt: skip
        return self.spawn(name, argv)

    def ours(self, role: str, *words: str) -> Started:
        """Our side of a memif."""
        return self.program([str(PROGRAM), role, str(self.socket), *words])

    def program(self, argv: list[str]) -> Started:
        """Our side, of any kind."""
        self.started += 1
        name = f"ours{self.started}"
        process = self.spawn(name, argv)
        self.until_said(name, "ready")
        return process, name

    def both(
        self, role: str, words: list[str], mode: str, *options: str, queues: int = 1, zero_copy: bool = False
    ) -> tuple[subprocess.Popen[bytes], str, subprocess.Popen[bytes], str]:
        """Our side in a role, and DPDK's in the other; whoever listens is first."""
        words = ["--queues", str(queues), *(["--unsealed"] if zero_copy else []), *words]
        if role == "server":
            ours = self.ours(role, *words)
            theirs = self.testpmd(ROLES[role], mode, *options, queues=queues, zero_copy=zero_copy)
        else:
            theirs = self.testpmd(ROLES[role], mode, *options, queues=queues, zero_copy=zero_copy)
            ours = self.ours(role, *words)
        return (*ours, *theirs)

    def said(self, name: str) -> str:
        """What a program has said so far."""
        return (self.place / name).read_text(errors="replace")

    def until(self, holds: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        """Waits."""
        deadline = time.monotonic() + wait_s
        while not holds():
            if time.monotonic() > deadline:
                names = sorted(log.name for log in self.place.glob("*[0-9]"))
                logs = "\n".join(f"--- {name}\n{self.said(name)[-1500:]}" for name in names)
                raise Wrong(f"in vain: until {what}\n{logs}")
            time.sleep(0.02)

    def until_said(self, name: str, line: str, times: int = 1, wait_s: float = WAIT_S) -> None:
        """Waits for what a program says at the start of a line."""
        count = lambda: sum(said.startswith(line) for said in self.said(name).splitlines())  # noqa: E731
        self.until(lambda: count() >= times, f"{name} says {line!r}, {times} times", wait_s)

    def finish(self, process: subprocess.Popen[bytes], name: str) -> Result:
        """Lets our side end, and returns what it counted."""
        assert process.stdin
        process.stdin.close()
        process.wait(WAIT_S)
        pattern = r"result wrong=(\d+) connections=(\d+) wakes=(\d+) seconds=[\d.]+ received (\d+) \d+ (\S+) transmitted (\d+) \d+ (\S+)"
        found = re.search(pattern, self.said(name))
        if process.returncode != 0 or found is None:
            raise Wrong(f"{name} ended with {process.returncode}: {self.said(name)}")
        drops = sum(int(part.partition("=")[2]) for part in f"{found[5]},{found[7]}".split(","))
        return Result(int(found[1]), int(found[2]), int(found[3]), int(found[4]), int(found[6]), drops)

    def stop(self, process: subprocess.Popen[bytes], name: str) -> tuple[int, int]:
        """Ends testpmd; returns how many packets it received and transmitted."""
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
        accumulated = self.said(name).rpartition("Accumulated forward statistics")[2]
        found = re.search(r"RX-packets: (\d+).*?TX-packets: (\d+)", accumulated, re.DOTALL)
        if found is None:
            raise Wrong(f"{name} says nothing of packets: {self.said(name)[-2000:]}")
        return int(found[1]), int(found[2])


def receives(run: Run, role: str, *options: str, size: int = 64, queues: int = 1, zero_copy: bool = False, sleeps: bool = False) -> None:
    """testpmd sends: everything arrives, but what it takes with it when it ends."""
    words = [*(["--sleep"] if sleeps else []), "count", str(size)]
    ours, our_name, theirs, name = run.both(role, words, "txonly", *options, queues=queues, zero_copy=zero_copy)
    run.until_said(our_name, "connected")
    time.sleep(1)
    _, sent = run.stop(theirs, name)
    run.until_said(our_name, "closed")
    result = run.finish(ours, our_name)
    print(f"        {result.received} packets", flush=True)
    check(result.wrong == 0 and result.drops == 0, f"{result}")
    check(0 <= sent - result.received <= RING * queues and result.received > 10_000, f"testpmd sent {sent}: {result}")


def sends(run: Run, role: str, queues: int = 1, size: int = 64) -> None:
    """testpmd receives: as many as were sent, exactly."""
    count = 500_000 if size < 2048 else 50_000
    ours, our_name, theirs, name = run.both(role, ["send", str(count), str(size)], "rxonly", queues=queues)
    run.until_said(our_name, "sent")
    # What lies in the rings is read within that time.
    time.sleep(0.5)
    received, _ = run.stop(theirs, name)
    result = run.finish(ours, our_name)
    check(received == count == result.transmitted and result.drops == 0, f"testpmd received {received}: {result}")


def exchanges(run: Run, role: str, mode: str, queues: int = 1, zero_copy: bool = False) -> None:
    """testpmd returns what it gets: all of it, unchanged, and in order."""
    count = 50_000
    words = ["exchange", str(count), *(["mac"] if mode == "mac" else [])]
    ours, our_name, theirs, name = run.both(role, words, mode, queues=queues, zero_copy=zero_copy)
    run.until(lambda: "result" in run.said(our_name), "all was exchanged")
    result = run.finish(ours, our_name)
    check(result.wrong == 0 and result.received == count == result.transmitted and result.drops == 0, f"{result}")
    theirs.kill()
    theirs.wait()
    check(run.socket.exists() == (role == "client"), "the socket's path is not what it should be")


def reconnects(run: Run, role: str) -> None:
    """testpmd is killed and started again: our port goes on with the next, and its counters with it."""
    ours, our_name, theirs, _ = run.both(role, ["count", "64"], "txonly")
    for times in range(1, 4):
        run.until_said(our_name, "connected", times)
        time.sleep(0.3)
        theirs.kill()
        theirs.wait()
        run.until_said(our_name, "closed: the peer has gone", times)
        if times < 3:
            # testpmd does not take the place of a dead one.
            if role == "client":
                run.socket.unlink()
            theirs, _ = run.testpmd(ROLES[role], "txonly")
    result = run.finish(ours, our_name)
    check(result.connections == 3 and result.wrong == 0 and result.received > 10_000, f"{result}")


def refuses(run: Run) -> None:
    """Memory that testpmd could take away is not taken, unless it is trusted."""
    ours, name = run.ours("server", "count", "64")
    run.testpmd("client", "txonly", zero_copy=True)
    run.until_said(name, "closed: a region's memory is not sealed against shrinking")
    result = run.finish(ours, name)
    check(result.received == 0 and result.connections == 0, f"{result}")


def is_killed(run: Run) -> None:
    """Ours is killed under load, again and again: the next one takes its place, and the last leaves nothing behind."""
    for number in range(3):
        ours, name = run.ours("server", "count", "64")
        theirs, _ = run.testpmd("client", "txonly")
        run.until_said(name, "connected")
        time.sleep(0.2)
        if number < 2:
            ours.kill()
            ours.wait()
            check(run.socket.exists(), "a killed server cannot have removed its path")
        else:
            run.finish(ours, name)
        check(theirs.poll() is None, "testpmd has gone with ours")
        theirs.kill()
        theirs.wait()
    left = [path.name for path in run.place.iterdir() if not path.name.startswith(("ours", "testpmd"))]
    check(not left, f"left behind: {left}")


def captures(run: Run, kind: str) -> None:
    """testpmd, by libpcap, and tcpdump read what we have written, and testpmd and editcap write what we read."""
    count = 20_000
    written, returned = run.place / f"written.{kind}", run.place / "returned.pcap"
    subprocess.run([CAPTURE, "write", kind, written, str(count)], check=True)
    subprocess.run([CAPTURE, "read", written, str(count)], check=True)
    theirs = run.testpmd_with("testpmd1", f"net_pcap0,rx_pcap={written},tx_pcap={returned}", "io")
    run.until_said("testpmd1", "io packet forwarding")
    time.sleep(0.7)
    received, sent = run.stop(theirs, "testpmd1")
    check(received == sent == count, f"testpmd received {received} and sent {sent}")
    subprocess.run([CAPTURE, "read", returned, str(count)], check=True)
    told = subprocess.run(["tcpdump", "-r", written, "-n", "--count"], capture_output=True, text=True, check=True)
    check(told.stdout.split()[:2] == [str(count), "packets"], f"tcpdump: {told.stdout}{told.stderr}")
    for theirs_kind in ("pcapng", "nsecpcap"):
        converted = run.place / theirs_kind
        subprocess.run(["editcap", "-F", theirs_kind, written, converted], check=True)
        subprocess.run([CAPTURE, "read", converted, str(count)], check=True)


def loads(run: Run, *options: str, is_shared: bool = False) -> dict[str, Any]:
    """Our generator sends by one port what testpmd brings to the other, which may be at the same socket; returns its figures."""
    sockets = [run.place / f"port{0 if is_shared else index}" for index in range(2)]
    ports = [f"memif-server:{socket},id={index}" for index, socket in enumerate(sockets)]
    ours = run.spawn("load1", [str(road.MILLRACE), "load", "packets", *ports, "--json", *options])
    run.until(lambda: all(socket.exists() for socket in sockets) or ours.poll() is not None, "our generator listens")
    devices = [f"net_memif{index},role=client,id={index},socket={socket},socket-abstract=no" for index, socket in enumerate(sockets)]
    run.testpmd_with("testpmd1", " ".join(devices), "io")
    ours.wait(WAIT_S * 3)
    said = run.said("load1")
    check(ours.returncode == 0, f"our generator ended with {ours.returncode}: {said}")
    return cast("dict[str, Any]", json.loads(said))


def brings(run: Run, is_shared: bool = False) -> None:
    """At a rate that is no trouble, every byte of every packet is what it was, in many flows and lengths."""
    options = ["--size", "imix", "--flows", "1000", "--rate", "20000", "--whole", "--latency", "--time", "1"]
    found = loads(run, *options, is_shared=is_shared)
    check(not any(found["faults"].values()) and found["sent"] > 15_000, f"{found}")
    check(found["received"] + found["lost"] == found["sent"] and found["latency"]["count"] == found["received"], f"{found}")


def searches(run: Run) -> None:
    """A rate is found and verified, below what passes at most."""
    found = loads(run, "--search", "0.005,0.05", "--width", "0.2", "--time", "0.1", "--latency-at", "0.5,0.9")
    steps, most = found["steps"], found["most"]
    first, second = ((one["loss"], one["rate"]) for one in found["found"])
    check(most["received"] > 10_000 and not any(most["faults"].values()), f"{most}")
    check((first[0], second[0]) == (0.005, 0.05) and 0 <= first[1] <= second[1] <= most["rate"], f"{found['found']}")
    check(found["own"] > 0, f"{found['own']}")
    held = [step for step in steps if step["verdict"] == "held"]
    check(all(step["outcome"]["lost"] <= step["loss"] * step["outcome"]["sent"] for step in held), f"{held}")
    for loss, rate in (first, second):
        verified = [step["rate"] for step in held if step["is_verifying"] and step["loss"] <= loss]
        check(rate == 0 or rate in verified, f"{rate} of {verified}")
    shares = [at["share"] for at in found["latencies"]]
    check(shares == ([0.5, 0.9] if first[1] else []), f"{shares}")
    check(all(at["outcome"]["latency"]["count"] > 0 for at in found["latencies"]), f"{found['latencies']}")
    print(f"        {len(steps)} runs, {first[1] / 1e6:.2f} of {most['rate'] / 1e6:.2f} M packets/s", flush=True)


def cases(thorough: bool) -> dict[str, Callable[[Run], None]]:
    """Each by its name."""
    found: dict[str, Callable[[Run], None]] = {}
    for role in ROLES:
        found[f"memif {role}: receives"] = lambda run, role=role: receives(run, role)
        found[f"memif {role}: receives, four queues"] = lambda run, role=role: receives(run, role, queues=4)
        found[f"memif {role}: receives packets of three segments"] = lambda run, role=role: receives(
            run, role, "--txpkts=64,128,700", size=892
        )
        found[f"memif {role}: sends"] = lambda run, role=role: sends(run, role)
        found[f"memif {role}: sends packets of five segments"] = lambda run, role=role: sends(run, role, size=9018)
        found[f"memif {role}: exchanges, io, two queues"] = lambda run, role=role: exchanges(run, role, "io", queues=2)
        found[f"memif {role}: exchanges, mac"] = lambda run, role=role: exchanges(run, role, "mac")
        found[f"memif {role}: testpmd is killed and comes back"] = lambda run, role=role: reconnects(run, role)
    found["memif server: receives by interrupts"] = lambda run: receives(run, "server", sleeps=True)
    found["memif server: receives, zero-copy"] = lambda run: receives(run, "server", zero_copy=True)
    found["memif server: exchanges, zero-copy, io"] = lambda run: exchanges(run, "server", "io", zero_copy=True)
    found["memif server: refuses unsealed memory"] = refuses
    found["memif server: is killed"] = is_killed
    found.update(virtio.cases(thorough))
    found["load packets: what testpmd brings is checked"] = brings
    found["load packets: two memifs of one socket"] = lambda run: brings(run, is_shared=True)
    found["load packets: the highest rate through testpmd"] = searches
    found.update(guest.cases(str(virtio.PROGRAM)))
    for kind in ("pcap", "pcapng"):
        found[f"{kind}: to libpcap and back"] = lambda run, kind=kind: captures(run, kind)
    return found


def _left() -> set[str]:
    """The cases that are played in the full run only."""
    some = (virtio.cases(False).keys() - virtio.SAMPLE) | deaths.cases(False).keys()
    return some | guest.cases("").keys() | (ovs.cases(False).keys() - ovs.SAMPLE)


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--full", action="store_true", help="all cases, and more turns of each")
    options = parser.parse_args()
    ours = {**kernel.cases(), **containers.cases()}
    theirs = cases(options.full)
    vswitch = ovs.cases(options.full)
    every = {**ours, **deaths.cases(options.full), **theirs, **vswitch}
    if options.cases:
        wanted = {name: case for name, case in every.items() if any(part in name for part in options.cases)}
    else:
        left = set() if options.full else _left()
        wanted = {name: case for name, case in every.items() if name not in left}
        if left:
            print(f"{len(left)} cases are left to the full run")
    if not isolate.is_inside():
        subprocess.run(
            ["cargo", "build", "--quiet", "--profile", "xtask", "--package", "millrace-port", "--examples"],
            check=True,
            cwd=road.REPOSITORY,
        )
    # testpmd leaves files in /run, which is the run's own then.
    isolate.ensure()
    lacking = []
    if absent := kernel.missing():
        lacking.append((f"there is no {', no '.join(absent)} here", ours))
    if absent := ovs.missing():
        lacking.append((absent, vswitch))
    if shutil.which("dpdk-testpmd") is None:
        lacking.append(("there is no dpdk-testpmd here (Debian's package is dpdk-dev)", theirs))
    elif (os.cpu_count() or 1) < 2:
        lacking.append(("dpdk-testpmd needs two processors", theirs))
    passed = failed = skipped = 0
    for why, those in lacking:
        possible = {name: case for name, case in wanted.items() if name not in those}
        print(f"skipped, {len(wanted) - len(possible)} cases: {why}")
        skipped += len(wanted) - len(possible)
        wanted = possible
    for name, case in wanted.items():
        began = time.monotonic()
        verdict, why = "ok", ""
        with tempfile.TemporaryDirectory(prefix="millrace-packets-") as place, ExitStack() as stack:
            try:
                case(Run(stack, Path(place)))
                passed += 1
            except guest.machine.Lacking as error:
                verdict, why = "skipped", f": {error}"
                skipped += 1
            except (Wrong, OSError, subprocess.SubprocessError) as error:
                verdict, why = "FAILED", f": {error}"
                failed += 1
        print(f"{verdict:8}{time.monotonic() - began:5.1f} s  {name}{why}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
