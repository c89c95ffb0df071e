#!/usr/bin/python3
"""Looks at programs under Millrace with `ps`, `top`, `dump` and `channels`; see README.md.

    tests/observe/run.py [--millrace PATH] [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness import scrape  # noqa: E402

import channels  # noqa: E402
import pcapng  # noqa: E402
from traffic import content  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
TRAFFIC = Path(__file__).with_name("traffic.py")
WAIT_S = 20.0
TESTS: dict[str, Callable[[Any], None]] = {}
QUIET_SECONDS_MAX = 40
# Whom strace stops keeps the other end waiting for longer than it usually spins.
CONFIGURATIONS = {"system_calls": "spin_us = 10000\n"}


def test(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Takes a test into the list."""
    TESTS[function.__name__] = function
    return function


class Skipped(Exception):
    """This machine cannot show it."""


class Site:
    """An agent, an echo server, and whatever else a test starts. Everything ends with it."""

    def __init__(self, millrace: Path, configuration: str = "") -> None:
        """Starts agent and server."""
        self.millrace = str(millrace)
        self.directory = Path(tempfile.mkdtemp(prefix="millrace-observe-"))
        self.environment = dict(os.environ, MILLRACE_AGENT=str(self.directory / "m/agent.sock"))
        self.children: list[subprocess.Popen[str]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        try:
            file = self.directory / "agent.toml"
            file.write_text(f'metrics = "{self.directory}/metrics.sock"\n{configuration}')
            self.start([self.millrace, "agent", "--socket", self.environment["MILLRACE_AGENT"], "--config", str(file)])
            self.until(lambda: self.ask("ps").returncode == 0, "the agent answers")
            self.traffic("server")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends what was started."""
        for child in reversed(self.children):
            child.kill()
            child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, argv: list[str], **how: Any) -> subprocess.Popen[str]:
        """Starts a program whose standard input and output are pipes."""
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=self.environment, **how
        )
        self.children.append(child)
        return child

    def traffic(self, role: str, *rest: object, mode: str = "eager") -> tuple[subprocess.Popen[str], str]:
        """Starts a program under Millrace and waits for its first line."""
        run = [self.millrace, "run", "--mode", mode, "--", sys.executable, str(TRAFFIC)]
        child = self.start([*run, role, str(self.port), *map(str, rest)])
        return child, self.line(child)

    def line(self, child: subprocess.Popen[str]) -> str:
        """The next line that a program says."""
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], WAIT_S)[0], "it says nothing"
        return child.stdout.readline().strip()

    def tell(self, child: subprocess.Popen[str]) -> None:
        """Lets a program go on that waits to be told."""
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()

    def ask(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end."""
        argv = [self.millrace, *arguments]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=WAIT_S, **how)

    def metrics(self) -> str:
        """What the agent tells Prometheus."""
        return scrape.text(self.directory / "metrics.sock")

    def connections(self) -> dict[int, dict[str, Any]]:
        """What `ps --json` says, by the port of the end that connected."""
        import json

        listed = json.loads(self.ask("ps", "--json").stdout)["connections"]
        by_port = {}
        for connection in listed:
            end = connection["ends"][0]
            place = end["local"] if end["active"] else end["remote"]
            by_port[int(place.rpartition(":")[2])] = connection
        return by_port

    @staticmethod
    def until(condition: Callable[[], bool], what: str) -> None:
        """Waits for something to become true."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)


def flow(end: dict[str, Any], direction: str, what: str) -> int:
    """Bytes or messages of one direction, by both roads."""
    return int(end[direction][f"kernel_{what}"] + end[direction][f"shm_{what}"])


@test
def ps(site: Site) -> None:
    """Connections on either road with their reasons, and counts that add up."""
    with socket.create_connection(("127.0.0.1", site.port)) as plain:
        for _ in range(30):
            plain.sendall(b"y" * 10)
            plain.recv(100)
        _, said = site.traffic("states", mode="default")
        ports = {name: int(number) for name, _, number in (word.partition("=") for word in said.split())}
        found = site.connections()
        roads = {}
        for name, port in ports.items():
            ends = found[port]["ends"]
            roads[name] = {(end["road"], end["reason"]) for end in ends}
            # The echo has what was sent, whichever road it took; an end that has gone is not listed.
            for end in ends:
                messages = {"idle": 0, "short": 2}.get(name, 200)
                extra = int(name == "urgent_data" and end["active"])
                assert flow(end, "sent", "bytes") == 100 * messages + extra, (name, end)
                assert flow(end, "received", "bytes") == 100 * messages, (name, end)
                assert flow(end, "sent", "messages") == messages + extra, (name, end)
        assert roads["joined"] == {("shm", "none")}, roads
        assert roads["half_closed"] == {("shm", "none")}, roads
        half = found[ports["half_closed"]]["ends"][0]
        assert (half["sent"]["road"], half["sent"]["reason"]) == ("kernel", "not_established"), half
        assert half["received"]["reason"] in ("none", "sleeping"), half
        unseen = next(end for end in found[ports["unseen"]]["ends"] if end["active"])
        assert (unseen["road"], unseen["received"]["reason"]) == ("shm", "unseen"), unseen
        assert unseen["received"]["shm_bytes"] == 0, unseen
        assert roads["urgent_data"] == {("shm", "urgent_data"), ("shm", "none")}, roads
        for name, reason in [("low_water", "low_water"), ("passed_fd", "passed_fd"), ("exec", "exec")]:
            assert roads[name] == {("kernel", reason)}, (name, roads)
        assert len(found[ports["exec"]]["ends"]) == 1
        assert roads["idle"] == roads["short"] == {("kernel", "too_short")}, roads
        joined = found[ports["joined"]]["ends"][0]
        assert joined["sent"]["shm_bytes"] > 0, joined
        # A program that Millrace does not know of is at the other end; that is known when its offer has waited.
        port = plain.getsockname()[1]
        site.until(
            lambda: site.connections()[port]["ends"][0]["reason"] == "not_both_ends", "the offer has waited enough"
        )
        end = site.connections()[port]["ends"][0]
        assert (end["road"], flow(end, "sent", "bytes"), flow(end, "received", "messages")) == ("kernel", 300, 30)
        listing = site.ask("ps", "kernel", "passed_fd").stdout.splitlines()
        assert len(listing) == 2 and f":{ports['passed_fd']}" in listing[1], listing
        long = site.ask("ps", "--long", f":{ports['joined']}").stdout.splitlines()
        assert len(long) == 3, long


@test
def names(site: Site) -> None:
    """What a program calls itself does not reach the terminal as it is."""
    _, said = site.traffic("named", "\x1b[31mred\n")
    port = said.split()[1]
    for arguments in (["ps"], ["ps", "--json"], ["ps", "--long"], ["top", "--once", "--interval", "0.1"]):
        text = site.ask(*arguments, *([] if "--json" in arguments else [f":{port}"])).stdout
        assert "[31mred" in text and "\x1b" not in text, (arguments, text)


class Terminal:
    """A pseudo-terminal of 80 by 24 with a shell's child on it."""

    def __init__(self, site: Site, *arguments: str) -> None:
        """Starts the command on it, as the leader of a session."""
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = dict(site.environment, TERM="xterm-256color")
        self.child = subprocess.Popen(
            [site.millrace, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(slave, termios.TIOCSCTTY, 0),
        )
        self.said = b""

    def hear(self, seconds: float) -> str:
        """What comes to the screen within this time."""
        start, deadline = len(self.said), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                break
            self.said += os.read(self.master, 1 << 16)
        return self.said[start:].decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Waits until this has come, escape sequences and blanks left out: blanks may be jumps."""
        deadline = time.monotonic() + WAIT_S
        text = text.replace(" ", "")
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]| ", "", self.said.decode(errors="replace")):
            assert time.monotonic() < deadline, (text, self.said)
            self.hear(0.1)

    def check_given_back(self) -> None:
        """The terminal's state is the one before, and the other screen has been left."""
        self.hear(0.3)
        assert termios.tcgetattr(self.slave)[:4] == self.before[:4]
        taken, left = self.said.count(b"\x1b[?1049h"), self.said.count(b"\x1b[?1049l")
        assert taken == left > 0, (taken, left)
        assert self.said.rfind(b"\x1b[?25h") > self.said.rfind(b"\x1b[?25l"), "the cursor is hidden"

    def close(self) -> None:
        """Ends it."""
        self.child.kill()
        self.child.wait()
        os.close(self.master)
        os.close(self.slave)


@test
def top_screen(site: Site) -> None:
    """The screen, its keys, and the terminal after every way out."""
    site.traffic("ping", 1, 1, 0)
    for end, code in [("q", 0), ("\x03", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), ("stop", 0)]:
        terminal = Terminal(site, "top")
        try:
            terminal.wait_for("sorted by bytes")
            terminal.wait_for("shm")
            assert termios.tcgetattr(terminal.slave)[3] & termios.ICANON == 0, "keys come at once"
            os.write(terminal.master, b"/nothing-has-this-name\r")
            terminal.wait_for("only nothing-has-this-name")
            if end == "stop":
                os.write(terminal.master, b"\x1a")
                site.until(
                    lambda pid=terminal.child.pid: Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "T",
                    "it stops",
                )
                terminal.check_given_back()
                terminal.child.send_signal(signal.SIGCONT)
                terminal.hear(0.5)
                assert termios.tcgetattr(terminal.slave)[3] & termios.ICANON == 0
                os.write(terminal.master, b"q")
            elif isinstance(end, str):
                os.write(terminal.master, end.encode())
            else:
                terminal.child.send_signal(end)
            terminal.hear(0.2)
            assert terminal.child.wait(WAIT_S) == code, (end, terminal.child.returncode)
            terminal.check_given_back()
        finally:
            terminal.close()


@test
def top_tables(site: Site) -> None:
    """Tables where the output is a pipe."""
    child, _ = site.traffic("ping", 4000, 500, 0.001)
    site.tell(child)
    tables = site.ask("top", "--count", "2", "--interval", "0.5", f":{site.port}").stdout.split("\n\n")
    assert len(tables) == 2, tables
    rates = [int(line.split()[5]) for line in tables[1].splitlines()[1:]]
    assert max(rates) > 10_000, tables
    reader = site.start([site.millrace, "top", "--interval", "0.1"])
    site.line(reader)
    assert reader.stdout is not None
    reader.stdout.close()
    reader.wait(WAIT_S)


def check_places(packets: list[pcapng.Packet], stream: bytes) -> int:
    """Every byte is the one that the stream has at its place. Returns how many there are."""
    for packet in packets:
        start = packet.sequence - 1
        assert packet.data == stream[start : start + len(packet.data)], (packet.sequence, len(packet.data))
    return sum(len(packet.data) for packet in packets)


def counted(comments: list[str], what: str) -> int:
    """The sum of what comments say of gaps."""
    found = (re.search(rf"(\d+) bytes before this {what}", comment) for comment in comments)
    return sum(int(match[1]) for match in found if match)


def dump(site: Site, child: subprocess.Popen[str], port: str, name: str) -> tuple[list[pcapng.Packet], Path]:
    """Dumps a connection while a program does what it is told to do."""
    path = site.directory / name
    number = site.connections()[int(port)]["id"]
    dumper = site.start([site.millrace, "dump", str(number), "-w", str(path)])
    site.until(path.exists, "the file is there")
    site.tell(child)
    assert site.line(child) == "done"
    time.sleep(0.2)
    dumper.send_signal(signal.SIGTERM)
    assert dumper.wait(WAIT_S) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    packets, closing = pcapng.read(path)
    assert f"{len(packets)} packets" in closing, closing
    return packets, path


@test
def dump_slow(site: Site) -> None:
    """Every byte of a quiet connection at its place."""
    child, said = site.traffic("ping", 300, 700, 0.002)
    port = said.split()[1]
    packets, path = dump(site, child, port, "slow.pcapng")
    stream = content(2000) + content(300 * 700)
    end = site.connections()[int(port)]["ends"][0]
    for source, direction in [(int(port), "sent"), (site.port, "received")]:
        way = [packet for packet in packets if packet.source == source]
        shown = check_places(way, stream)
        comments = [packet.comment for packet in way]
        gone = counted(comments, "were gone")
        # Before the dump 2000 bytes passed, by either road.
        ring = end[direction]["shm_bytes"]
        assert ring - 2000 <= shown + gone <= ring, (shown, gone, ring)
        # An onlooker who lost the processor may have missed an epoch.
        assert gone <= ring // 5, comments
        sequences = [packet.sequence for packet in way]
        assert sequences == sorted(sequences)
    if shutil.which("tshark") is None:
        raise Skipped("tshark is not installed; the rest was right")
    fields = ["-T", "fields", "-e", "tcp.len", "-e", "tcp.checksum.status", "-e", "ip.checksum.status"]
    check = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    listed = subprocess.run(
        ["tshark", "-r", str(path), *check, *fields], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert [int(row[0]) for row in rows] == [len(packet.data) for packet in packets]
    assert all(row[1:] == ["1", "1"] for row in rows), rows[:3]


@test
def dump_fast(site: Site) -> None:
    """Of a fast connection, what is shown is right, and the rest is counted."""
    megabytes = 64
    site.traffic("sink")
    child, said = site.traffic("bulk", megabytes)
    port = said.split()[1]
    packets, path = dump(site, child, port, "fast.pcapng")
    stream = content(2000) + content(1 << 20) * megabytes
    packets = [packet for packet in packets if packet.source == int(port)]
    shown = check_places(packets, stream)
    comments = [packet.comment for packet in packets]
    lost, kernel = (counted(comments, what) for what in ("were gone", "went by"))
    # On a busy machine every byte may be gone before it is copied.
    if packets:
        first, last = packets[0], packets[-1]
        span = last.sequence + len(last.data) - first.sequence
        # What came before the first byte that is shown is not between the first and the last.
        early = counted([first.comment], "were gone") + counted([first.comment], "went by")
        assert shown + lost + kernel - early == span, (shown, lost, kernel, early, span)
    end = site.connections()[int(port)]["ends"][0]
    closing = pcapng.read(path)[1]
    print(f"  {end['sent']['shm_bytes']} bytes took the ring")
    assert f"with {shown} bytes" in closing, closing
    print(f"  {closing}")


@test
def dump_denied(site: Site) -> None:
    """The kernel decides who may look."""
    assert site.ask("dump", "4000000000").returncode == 1
    if os.geteuid() != 0:
        raise Skipped("needs root, to be two users")
    child, said = site.traffic("ping", 1, 1, 0)
    number = str(site.connections()[int(said.split()[1])]["id"])
    assert site.ask("dump", number, "--seconds", "1", "-w", "/dev/null").returncode == 0
    # Root without the right to trace: the same user as the programs, and yet the kernel says no.
    capsh = shutil.which("capsh")
    if capsh is None:
        raise Skipped("needs capsh, to give a right up")
    drop = [capsh, "--drop=cap_sys_ptrace", "--", "-c", f"{site.millrace} dump {number} --seconds 1 -w /dev/null"]
    denied = subprocess.run(drop, env=site.environment, capture_output=True, text=True, timeout=WAIT_S)
    assert denied.returncode == 1 and "does not let you trace" in denied.stderr, denied


def quiet_windows(trace: Path) -> tuple[int, int]:
    """How many of the windows between two marks have no system call, and how many there are."""
    lines = trace.read_text().splitlines()
    marks = [number for number, line in enumerate(lines) if "getppid()" in line]
    gaps = [after - before - 1 for before, after in zip(marks, marks[1:], strict=False)]
    return gaps.count(0), len(gaps)


@test
def system_calls(site: Site) -> None:
    """Two ends that talk without a pause make no system calls."""
    if shutil.which("strace") is None:
        raise Skipped("strace is not installed")
    if len(os.sched_getaffinity(0)) < 2:
        raise Skipped("two ends on one processor do not spin")
    traces = {}
    children = {"marking": site.traffic("marking", mode="default")[0]}
    children["marked"] = site.traffic("marked", 250, mode="default")[0]
    time.sleep(1)
    for role, child in children.items():
        traces[role] = site.directory / role
        site.start(["strace", "-f", "-qq", "-o", str(traces[role]), "-p", str(child.pid)])
    # Whoever else wants the processors meanwhile has them.
    for _ in range(QUIET_SECONDS_MAX):
        time.sleep(1)
        if all(trace.exists() and quiet_windows(trace)[0] > 0 for trace in traces.values()):
            break
    for role, trace in traces.items():
        quiet, windows = quiet_windows(trace)
        print(f"figure: {role}: no system call in {quiet} of {windows} times 250 messages each way")
        assert quiet > 0, trace.read_text()[-2000:]


for _test in channels.TESTS:
    test(_test)


def main() -> int:
    """Runs the tests that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, default=REPOSITORY / "target/release/millrace")
    parser.add_argument("names", nargs="*", choices=[[], *TESTS], metavar="NAME", help=", ".join(TESTS))
    arguments = parser.parse_args()
    passed = failed = skipped = 0
    for name, run in TESTS.items():
        if arguments.names and name not in arguments.names:
            continue
        site = Site(arguments.millrace.resolve(), CONFIGURATIONS.get(name, ""))
        try:
            run(site)
            print(f"{name}: passed")
            passed += 1
        except Skipped as why:
            print(f"{name}: skipped: {why}")
            skipped += 1
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print(f"{name}: FAILED")
            failed += 1
        finally:
            site.close()
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
