"""Open vSwitch with DPDK at our front end: its ports `dpdkvhostuserclient`, which connect, and `dpdkvhostuser`, which listen."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness import road
from wrong import Wrong, check

if TYPE_CHECKING:
    from run import Run, Started

PROGRAM = road.REPOSITORY / "target/xtask/examples/virtio"
SWITCH = Path("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
COUNT = 50_000


def missing() -> str:
    """What is not here. Nothing: all is."""
    if not SWITCH.exists() or shutil.which("ovs-vsctl") is None:
        return "there is no Open vSwitch with DPDK here (Debian's package is openvswitch-switch-dpdk)"
    return ""


class Switch:
    """An Open vSwitch of a case's own, whose bridge sends by flows only."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.database = run.place / "db.sock"
        self.environment = dict(os.environ, OVS_RUNDIR=str(run.place))
        file = run.place / "conf.db"
        self.command("ovsdb-tool", "create", str(file), str(SCHEMA))
        self.start("ovsdb1", ["ovsdb-server", str(file), f"--remote=punix:{self.database}", "-vsyslog:off"])
        run.until(self.database.exists, "the database listens")
        self.vsctl("--no-wait", "init")
        # Huge pages are the machine's to give. Open vSwitch adds --in-memory, which does not go with --no-huge, unless there is
        # --legacy-mem.
        extra = f"--no-huge --legacy-mem -m 512 --no-pci --no-telemetry --file-prefix={run.place.name}"
        last = min((os.cpu_count() or 1) - 1, 62)
        settings = ["dpdk-init=true", f"dpdk-extra={extra}", "per-port-memory=true", f"pmd-cpu-mask={1 << last:x}"]
        words = [f"other_config:{each}" for each in settings]
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".", *words)
        self.start("ovs1", [str(SWITCH), f"unix:{self.database}", "--disable-system", "-vsyslog:off"])
        self.vsctl("add-br", "ovs0", "--", "set", "bridge", "ovs0", "datapath_type=netdev", "fail_mode=secure")

    def start(self, name: str, argv: list[str]) -> None:
        """Starts a part of it, which ends with the case."""
        self.run.spawn(name, ["env", f"OVS_RUNDIR={self.run.place}", *argv])

    def command(self, *argv: str) -> str:
        """Runs a program to its end."""
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Wrong(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}\n{self.log()}")
        return done.stdout.strip()

    def said(self) -> str:
        """What the switch has said so far."""
        return self.run.said("ovs1") if (self.run.place / "ovs1").exists() else ""

    def log(self) -> str:
        """The end of that."""
        return self.said()[-3000:]

    def vsctl(self, *words: str) -> str:
        """Configures it."""
        return self.command("ovs-vsctl", f"--db=unix:{self.database}", "--timeout=40", *words)

    def add(self, name: str, listens: bool) -> Path:
        """Adds a port; returns its socket."""
        path = self.run.place / name
        if listens:
            options = ["type=dpdkvhostuser"]
        else:
            options = ["type=dpdkvhostuserclient", f"options:vhost-server-path={path}"]
        self.vsctl("add-port", "ovs0", name, "--", "set", "interface", name, *options)
        error = self.vsctl("get", "interface", name, "error")
        check(error == "[]", f"{name}: {error}\n{self.log()}")
        return path

    def flow(self, words: str) -> None:
        """Adds a flow."""
        self.command("ovs-ofctl", "add-flow", "ovs0", words)

    def until_ready(self, *paths: Path) -> None:
        """Waits until packets pass by ports whose front ends have come: until their queues are there, and threads know them."""
        directions = ("tx_qid", "rx_qid")

        def is_ready(path: Path) -> bool:
            since = self.said().rpartition(f"'{path}' connection has been destroyed")[2]
            queues = [f"( {direction} 0 ) of vhost device '{path}' changed to 'enabled'" for direction in directions]
            return all(sign in since for sign in (*queues, f"'{path}' has been added"))

        self.run.until(lambda: all(map(is_ready, paths)), "the switch has the queues")
        # What a front end has changed of a port is heeded some time later, in silence, but before another port is there.
        self.vsctl("add-port", "ovs0", "another", "--", "set", "interface", "another", "type=internal")
        self.vsctl("del-port", "ovs0", "another")

    def counted(self, name: str) -> dict[str, int]:
        """What it has counted of a port by now: in its database is what was so seconds ago.

        Of a port that listens Open vSwitch 3.1 counts nothing but what it has dropped because the ring was full, and such.
        """
        found = self.command("ovs-ofctl", "-O", "OpenFlow14", "dump-ports", "ovs0", name)
        counts = re.findall(r"\b(rx|tx) pkts=(\d+)|\b(ovs_tx_\w+_drops)=(\d+)", found)
        return {one or other: int(count or drops) for one, count, other, drops in counts}


def front(run: Run, path: Path, listens: bool, *words: str) -> Started:
    """Our front end."""
    return run.program([str(PROGRAM), "virtio-user", "server" if listens else "client", str(path), *words])


def begin(ours: Started) -> None:
    """Lets our side send, which waits."""
    process, _ = ours
    assert process.stdin
    process.stdin.write(b"!")
    process.stdin.flush()


def exchange(run: Run, switch: Switch, path: Path, listens: bool, *words: str) -> None:
    """Everything that we send comes back by the port that it came by, unchanged and in order."""
    ours = front(run, path, listens, *words, "--wait", "exchange", str(COUNT))
    switch.until_ready(path)
    begin(ours)
    run.until(lambda: "result" in run.said(ours[1]), "all was exchanged", wait_s=60)
    result = run.finish(*ours)
    check(result.wrong == 0 and result.received == COUNT == result.transmitted and result.drops == 0, f"{result}\n{switch.log()}")


def returns(run: Run, listens: bool, *words: str) -> None:
    """Nothing is lost or changed on the way to the switch and back."""
    switch = Switch(run)
    path = switch.add("vhosta", listens)
    switch.flow("in_port=vhosta,actions=in_port")
    exchange(run, switch, path, not listens, *words)


def joins(run: Run, listens: bool) -> None:
    """What one front end of ours sends arrives at the other, but for what the switch says it has dropped."""
    switch = Switch(run)
    paths = [switch.add("vhosta", False), switch.add("vhostb", listens)]
    switch.flow("in_port=vhosta,actions=output:vhostb")
    receiver = front(run, paths[1], not listens, "--packed", "count", "256")
    sender = front(run, paths[0], True, "--wait", "send", str(COUNT), "256")
    switch.until_ready(*paths)
    begin(sender)
    run.until_said(sender[1], "sent", wait_s=60)
    run.until(lambda: switch.counted("vhosta").get("rx") == COUNT, "the switch has taken all")
    # What lies in the ring is read within that time.
    time.sleep(0.3)
    # It forgets most of what it has counted when the other side goes.
    counted = switch.counted("vhostb")
    sent, result = run.finish(*sender), run.finish(*receiver)
    dropped = sum(count for key, count in counted.items() if key.endswith("_drops"))
    print(f"        {result.received} of {COUNT}, {dropped} dropped by the switch", flush=True)
    check(sent.transmitted == COUNT and sent.drops == 0, f"{sent}")
    check(result.wrong == 0 and 0 < result.received == COUNT - dropped, f"{result} {counted}\n{switch.log()}")
    check(listens or counted.get("tx") == result.received, f"{result} {counted}")


def carries(run: Run) -> None:
    """Packets of many flows and lengths pass between two of ours, at the rate that is found; each that comes is what was sent, in order."""
    switch = Switch(run)
    paths = [switch.add("vhosta", False), switch.add("vhostb", True)]
    switch.flow("in_port=vhosta,actions=output:vhostb")
    ports = [f"virtio-user-server:{paths[0]}", f"virtio-user-client:{paths[1]},packed=1"]
    words = ["--size", "imix", "--flows", "100", "--search", "0.05", "--width", "0.3", "--time", "0.1", "--json"]
    ours = run.spawn("load1", [str(road.MILLRACE), "load", "packets", *ports, *words])
    ours.wait(60)
    check(ours.returncode == 0, f"our generator ended with {ours.returncode}: {run.said('load1')}\n{switch.log()}")
    found = json.loads(run.said("load1"))
    rate = found["found"][0]["rate"]
    check(rate > 0 and found["most"]["received"] > 10_000 and not any(found["most"]["faults"].values()), f"{found}")
    print(f"        {rate / 1e6:.2f} M packets/s with a twentieth lost at most", flush=True)


def reconnects(run: Run, turns: int) -> None:
    """We are killed under load and come back: the switch, which connects, goes on with the next."""
    switch = Switch(run)
    path = switch.add("vhosta", False)
    switch.flow("in_port=vhosta,actions=in_port")
    for _ in range(turns):
        ours, name = front(run, path, True, "send", "1000000000", "64")
        run.until_said(name, "connected", wait_s=30)
        time.sleep(0.2)
        ours.kill()
        ours.wait()
    exchange(run, switch, path, True)


SAMPLE = {"ovs-dpdk: joins two of ours"}
"""What is played in the sample."""


def cases(thorough: bool) -> dict[str, Callable[[Run], None]]:
    """Each by its name."""
    return {
        "ovs-dpdk: returns what we send, by a port that connects": lambda run: returns(run, False),
        "ovs-dpdk: returns what we send, by a port that connects, packed": lambda run: returns(run, False, "--packed"),
        "ovs-dpdk: returns what we send, by a port that listens": lambda run: returns(run, True),
        "ovs-dpdk: joins two of ours": lambda run: joins(run, False),
        "ovs-dpdk: joins two of ours, by one that listens": lambda run: joins(run, True),
        "ovs-dpdk: carries what our generator sends": carries,
        "ovs-dpdk: we are killed and come back": lambda run: reconnects(run, 20 if thorough else 3),
    }
