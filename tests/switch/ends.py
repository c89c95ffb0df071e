"""`millrace switch` between programs that it does not know."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import examples, road
from rig import Skipped, Wrong, check

WAIT_S = 20.0
COUNT = 50_000


class Programs:
    """Programs that end with the case, and whose output is in files."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self.stack = stack
        self.place = place

    def spawn(self, name: str, argv: list[str], inside: str | None = None) -> subprocess.Popen[bytes]:
        """Starts a program, in a network namespace perhaps, with its output in a file of that name."""
        argv = [*(["ip", "netns", "exec", inside] if inside else []), *argv]
        with open(self.place / name, "wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def said(self, name: str) -> str:
        """What a program has said so far."""
        return (self.place / name).read_text(errors="replace")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > deadline:
                names = [log.name for log in self.place.iterdir() if log.is_file() and not log.suffix]
                logs = "\n".join(f"--- {name}\n{self.said(name)[-1500:]}" for name in names)
                raise Wrong(f"in vain: until {what}\n{logs}")
            time.sleep(0.02)

    def finished(self, process: subprocess.Popen[bytes], name: str) -> dict[str, int]:
        """Lets one of our programs end, and returns what it counted."""
        assert process.stdin
        process.stdin.close()
        process.wait(WAIT_S)
        said = self.said(name)
        found = re.search(r"result wrong=(\d+) connections=(\d+) .* received (\d+) .* transmitted (\d+) ", said)
        check(process.returncode == 0 and found is not None, f"{name} ended with {process.returncode}: {said[-500:]}")
        assert found
        again = re.search(r"^again (\d+)", said, re.MULTILINE)
        names = ("wrong", "connections", "received", "transmitted")
        return {**dict(zip(names, map(int, found.groups()))), "again": int(again[1]) if again else 0}


class Site(Programs):
    """A switch that runs, in a network namespace perhaps, and the programs at its ports; all end with the case."""

    def __init__(self, stack: ExitStack, place: Path, config: str, inside: str | None = None) -> None:
        super().__init__(stack, place)
        self.inside = inside
        (place / "switch.toml").write_text(config)
        self.launch()
        self.until_it_works()

    def launch(self) -> None:
        """Starts the switch."""
        command = [str(road.MILLRACE), "switch", "run", "--config", str(self.place / "switch.toml"), *self.control()]
        self.switch = self.spawn("switch", command, self.inside)

    def until_it_works(self) -> None:
        """Waits for the switch."""
        works = lambda: "the switch works" in self.said("switch")  # noqa: E731
        self.until(lambda: works() or self.switch.poll() is not None, "the switch works")
        check(works(), f"the switch has ended with {self.switch.poll()}: {self.said('switch')}")

    def kill(self) -> None:
        """The switch dies, and has not done so before."""
        self.switch.kill()
        code = self.switch.wait()
        check(code == -signal.SIGKILL, f"the switch had ended with {code}: {self.said('switch')}")

    def stop(self) -> None:
        """The switch ends cleanly, and leaves nothing at its place."""
        self.switch.send_signal(signal.SIGTERM)
        check(self.switch.wait(WAIT_S) == 0, f"the switch did not stop cleanly: {self.said('switch')}")
        left = [path.name for path in self.place.iterdir() if path.is_socket() or path.suffix in (".sock", ".lock")]
        check(not left, f"left behind: {left}")

    def control(self) -> list[str]:
        """Where the switch is asked."""
        return ["--control", str(self.place / "control.sock")]

    def ask(self, *words: str) -> Any:
        """What the switch answers to a command."""
        command = [str(road.MILLRACE), "switch", *self.control(), *words, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    def ports(self) -> dict[str, Any]:
        """What was counted of each port."""
        return {port["name"]: port for port in self.ask("show")["ports"]}

    def until_state(self, name: str, state: str) -> None:
        """Waits until a port says that it is so."""
        self.until(lambda: self.ports()[name]["state"].startswith(state), f"port {name} is {state}")

    def until_passed(self, *names: str, more: int = 1) -> None:
        """Waits until packets have left by each of these ports, more than have now."""
        before = self.ports()
        wanted = {name: before[name]["counters"]["transmitted_packets"] + more for name in names}

        def passed() -> bool:
            ports = self.ports()
            return all(ports[name]["counters"]["transmitted_packets"] >= count for name, count in wanted.items())

        states = lambda: {name: port["state"] for name, port in self.ports().items()}  # noqa: E731
        try:
            self.until(passed, f"packets leave by {', '.join(names)}")
        except Wrong as error:
            raise Wrong(f"{states()}: {error}") from error

    def testpmd(self, name: str, socket: str, mode: str) -> subprocess.Popen[bytes]:
        """DPDK's program as the client of a memif port."""
        return self.testpmd_with(name, f"net_memif0,role=client,socket={self.place / socket},socket-abstract=no", mode)

    def testpmd_with(self, name: str, devices: str, mode: str, *options: str, queues: int = 1) -> subprocess.Popen[bytes]:
        """DPDK's program with any device, or several with spaces between them."""
        if shutil.which("dpdk-testpmd") is None:
            raise Skipped("there is no dpdk-testpmd here (Debian's package is dpdk-dev)")
        if (os.cpu_count() or 1) < 2:
            raise Skipped("dpdk-testpmd needs two processors")
        argv = [
            "dpdk-testpmd", "-l", "0,1", "--no-huge", "-m", "192", "--no-pci", "--no-telemetry", "--single-file-segments",
            f"--file-prefix={name}", *(f"--vdev={device}" for device in devices.split()), "--", "--total-num-mbufs=16384",
            f"--forward-mode={mode}", f"--rxq={queues}", f"--txq={queues}", "--no-flush-rx", "--stats-period=60", *options,
        ]  # fmt: skip
        process = self.spawn(name, argv)
        # Not only until the port says so: DPDK empties the rings when it hears that it is connected, and loses what is there already.
        self.until(lambda: f"{mode} packet forwarding packets/burst" in self.said(name), f"{name} forwards")
        return process

    def ours(self, socket: str, *words: str) -> subprocess.Popen[bytes]:
        """Our side of a memif, as the client of a port."""
        return self.spawn("ours", [str(examples.PLACE / "memif"), "client", str(self.place / socket), *words])

    def exchanged(self, count: int = COUNT) -> None:
        """Waits until all came back, unchanged and in order."""
        self.until(lambda: "result" in self.said("ours"), "all was exchanged")
        found = re.search(r"result wrong=(\d+) .*received (\d+)", self.said("ours"))
        check(found is not None and found[1] == "0" and found[2] == str(count), self.said("ours")[-500:])


def memif(place: Path, name: str) -> str:
    """A port that listens."""
    return f'[[port]]\nname = "{name}"\nmemif.path = "{place / name}.sock"\n'


def through(stack: ExitStack, place: Path) -> None:
    """Packets go through the switch to testpmd, which returns them, and back: all of them, unchanged and in order."""
    flows = '[[flow]]\nname = "there"\nin = "a"\nout = ["b"]\n[[flow]]\nname = "back"\nin = "b"\nout = ["a"]\n'
    site = Site(stack, place, memif(place, "a") + memif(place, "b") + flows)
    site.testpmd("testpmd", "b.sock", "io")
    site.ours("a.sock", "exchange", str(COUNT))
    site.exchanged()
    ports = site.ports()
    for name in ("a", "b"):
        counters = ports[name]["counters"]
        check(counters["received_packets"] == counters["transmitted_packets"] == COUNT and not counters["drops"], f"{ports[name]}")
    hits = {flow["name"]: flow["packets"] for flow in site.ask("flow", "list")["flows"]}
    check(hits == {"there": COUNT, "back": COUNT}, f"{hits}")
    site.stop()


def changes(stack: ExitStack, place: Path) -> None:
    """testpmd's stations are learnt; ports, flows and mirrors come and go while packets pass; testpmd is killed and comes back."""
    site = Site(stack, place, memif(place, "a") + memif(place, "b"))
    theirs = site.testpmd("testpmd1", "b.sock", "io")
    site.ask("flow", "add", "there", "in=a", "out=b")
    site.ask("flow", "add", "back", "in=b", "out=a")
    site.ours("a.sock", "exchange", str(COUNT))
    for turn in range(5):
        site.ask("add-port", "c", "memif", f"path={place / 'c.sock'}", "vlan.access=5")
        site.ask("mirror", "add", "look", str(place / "look.pcapng"), "ports=b")
        site.ask("flow", "add", f"more{turn}", "priority=500", "ip_proto=tcp", f"dst_port={turn}", "drop")
        site.ask("mirror", "del", "look")
        site.ask("del-port", "c")
    site.exchanged()
    theirs.kill()
    theirs.wait()
    site.until(lambda: site.ports()["b"]["state"].startswith("connecting: the peer has gone"), "testpmd is missed")
    site.testpmd("testpmd2", "b.sock", "io")
    (place / "ours").unlink()
    site.ours("a.sock", "exchange", str(COUNT))
    site.exchanged()
