#!/usr/bin/python3
"""The CNI plugin as runtimes run it: by the specification's own `cnitool`, with its `host-local`, on a switch that runs.

    tests/cni/run.py [--kills N] [CASE ...]

README.md says what is checked. A CASE is a part of the names of those to run. Exits with 0 when every case was right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import isolate, road  # noqa: E402

MILLRACE = road.REPOSITORY / "target/release/millrace"
PLUGIN = road.REPOSITORY / "target/xtask/millrace-cni"
TOOL = Path(__file__).with_name("tool")
BUILT = road.REPOSITORY / "target/cni"
BUILT_OF = ("github.com/containernetworking/cni/cnitool", "github.com/containernetworking/plugins/plugins/ipam/host-local")
WAIT_S = 20.0
PODS = ("one", "two", "apart")


class Wrong(Exception):
    """What was not as it must be."""


def check(holds: bool, what: object) -> None:
    """Raises what is wrong."""
    if not holds:
        raise Wrong(str(what))


class Site:
    """A node: a switch, a network, and pods, all of which end with it."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self.stack = stack
        self.place = place
        self.control = place / "switch.sock"
        self.sockets = place / "sockets"
        self.leases = place / "leases"
        self.switch: subprocess.Popen[bytes] | None = None
        self.start_switch()
        for pod in PODS:
            subprocess.run(["ip", "netns", "add", pod], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "delete", pod], check=True)

    def start_switch(self) -> None:
        """Starts it, and waits until it answers."""
        argv = [str(MILLRACE), "switch", "--control", str(self.control), "run"]
        with open(self.place / "switch.log", "ab") as log:
            self.switch = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        self.stack.callback(self.stop_switch)
        deadline = time.monotonic() + WAIT_S
        while subprocess.run([*self.asks(), "show"], capture_output=True, check=False).returncode != 0:
            check(time.monotonic() < deadline, "the switch does not answer")
            time.sleep(0.02)

    def stop_switch(self) -> None:
        """Ends it."""
        if self.switch:
            self.switch.terminate()
            self.switch.wait(WAIT_S)
            self.switch = None

    def asks(self) -> list[str]:
        """How a question to the switch begins."""
        return [str(MILLRACE), "switch", "--control", str(self.control)]

    def ports(self) -> list[dict[str, Any]]:
        """What the switch says of its ports."""
        done = subprocess.run([*self.asks(), "show", "--json"], capture_output=True, check=True)
        return list(json.loads(done.stdout)["ports"])

    def network(self, name: str, version: str = "1.1.0", **more: object) -> dict[str, Any]:
        """A network's configuration, as cnitool finds it."""
        addresses = {"type": "host-local", "dataDir": str(self.leases), "ranges": [[{"subnet": "10.93.0.0/24"}]]}
        plugin = {"type": "millrace-cni", "switch": str(self.control), "directory": str(self.sockets), "ipam": addresses, **more}
        directory = self.place / "net.d"
        directory.mkdir(exist_ok=True)
        listed = {"cniVersion": version, "name": name, "plugins": [plugin]}
        (directory / f"{name}.conflist").write_text(json.dumps(listed))
        return {"cniVersion": version, "name": name, **plugin}

    def tool(self, command: str, network: str, pod: str, fails: bool = False) -> Any:
        """Runs cnitool; returns what it printed."""
        environment = {
            **os.environ, "NETCONFPATH": str(self.place / "net.d"), "CNI_PATH": f"{PLUGIN.parent}:{BUILT}", "CNI_IFNAME": "fast0",
        }  # fmt: skip
        argv = [str(BUILT / "cnitool"), command, network, f"/run/netns/{pod}"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S)
        check((done.returncode != 0) == fails, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.stdout.startswith("{") else done.stderr

    def plugin(self, command: str, container: str, config: dict[str, Any]) -> None:
        """Runs the plugin itself, as a runtime does."""
        given, environment = json.dumps(config), plugin_environment(command, container)
        done = subprocess.run([str(PLUGIN)], input=given, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S)
        check(done.returncode == 0, done.stdout)

    def is_clean(self) -> bool:
        """Whether nothing of pods is left: no port, no socket, no address."""
        leases = [path.name for path in self.leases.rglob("10.*")]
        return not self.ports() and not leases and not list(self.sockets.rglob("*.sock"))


def plugin_environment(command: str, container: str) -> dict[str, str]:
    """How a runtime says what is to be done."""
    return {
        **os.environ, "CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_NETNS": "/run/netns/one", "CNI_IFNAME": "fast0",
        "CNI_PATH": f"{PLUGIN.parent}:{BUILT}",
    }  # fmt: skip


def comes_and_goes(site: Site) -> None:
    """ADD, CHECK and DEL, in the versions of the specification."""
    for version in ("0.3.1", "0.4.0", "1.0.0", "1.1.0"):
        site.network("fast", version, mtu=1400)
        made = site.tool("add", "fast", "one")
        interface = made["interfaces"][0]
        check(made["cniVersion"] == version and interface["name"] == "fast0", made)
        check(made["ips"][0]["address"].startswith("10.93.0.") and made["ips"][0]["interface"] == 0, made)
        check(len(site.ports()) == 1 and len(list(site.sockets.rglob("port.sock"))) == 1, site.ports())
        if version != "0.3.1":
            site.tool("check", "fast", "one")
        site.tool("del", "fast", "one")
        site.tool("del", "fast", "one")
        check(site.is_clean(), f"version {version}: {site.ports()}")


def carries(site: Site) -> None:
    """Packets from pod to pod, and not to another VLAN."""
    site.network("fast", vlan=7)
    site.network("apart", vlan=8)
    made = {pod: site.tool("add", "fast", pod)["interfaces"][0] for pod in ("one", "two")}
    made["apart"] = site.tool("add", "apart", "apart")["interfaces"][0]
    check(len({one["mac"] for one in made.values()}) == 3, made)
    for target, lost in (("two", False), ("apart", True)):
        ports = [f"memif-client:{made[pod]['socketPath']}" for pod in ("one", target)]
        macs = ["--from-mac", made["one"]["mac"], "--to-mac", made[target]["mac"]]
        argv = [str(MILLRACE), "load", "packets", *ports, *macs, "--rate", "5000", "--time", "0.5", "--whole", "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WAIT_S)
        check(done.returncode == 0, done.stderr)
        found = json.loads(done.stdout)
        check(not any(found["faults"].values()) and found["sent"] > 1000, found)
        check(found["received"] == 0 if lost else found["received"] > 0.9 * found["sent"], found)
    for network, pod in (("fast", "one"), ("fast", "two"), ("apart", "apart")):
        site.tool("del", network, pod)
    check(site.is_clean(), site.ports())


def notices(site: Site) -> None:
    """CHECK and STATUS say what is missing."""
    site.network("fast")
    site.tool("status", "fast", "one")
    site.tool("add", "fast", "one")
    site.stop_switch()
    check("no switch answers" in str(site.tool("status", "fast", "one", fails=True)), "STATUS without a switch")
    site.start_switch()
    check("has no port" in str(site.tool("check", "fast", "one", fails=True)), "CHECK of a switch that was started anew")
    site.tool("del", "fast", "one")
    check(site.is_clean(), site.ports())


def collects(site: Site) -> None:
    """What is of nobody any more is taken away."""
    config = site.network("fast")
    for container in ("kept", "left"):
        site.plugin("ADD", container, config)
    valid = [{"containerID": "kept", "ifname": "fast0"}]
    site.plugin("GC", "", {**config, "cni.dev/valid-attachments": valid})
    check([port["name"] for port in site.ports()] == ["cni/kept/fast0"], site.ports())
    check(len(list(site.leases.rglob("10.*"))) == 1, "an address is left of a pod that is no more")
    for container in ("kept", "left"):
        site.plugin("DEL", container, config)
    check(site.is_clean(), site.ports())


def killed(site: Site, kills: int) -> None:
    """SIGKILL at a random moment of ADD."""
    config = site.network("fast")
    rng = random.Random(7)
    begun = time.monotonic()
    site.plugin("ADD", "whole", config)
    takes_s = time.monotonic() - begun
    site.plugin("DEL", "whole", config)
    cut = 0
    for number in range(kills):
        environment = plugin_environment("ADD", f"pod{number}")
        plugin = subprocess.Popen([str(PLUGIN)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
        assert plugin.stdin
        plugin.stdin.write(json.dumps(config).encode())
        plugin.stdin.close()
        time.sleep(rng.uniform(0, 1.2 * takes_s))
        plugin.kill()
        cut += plugin.wait() != 0
        site.plugin("DEL", f"pod{number}", config)
    deadline = time.monotonic() + WAIT_S
    while not site.is_clean():
        # What host-local was at when its parent was killed goes on for a moment, and is for the next DEL or GC.
        for number in range(kills):
            site.plugin("DEL", f"pod{number}", config)
        check(time.monotonic() < deadline, f"something is left: {site.ports()}")
    print(f"        {cut} of {kills} were killed before their end", flush=True)


def cases(kills: int) -> dict[str, Callable[[Site], None]]:
    """Each by its name."""
    return {
        "a port comes and goes": comes_and_goes,
        "packets from pod to pod": carries,
        "what is missing is told": notices,
        "what was left is collected": collects,
        "killed in the midst": lambda site: killed(site, kills),
    }


def missing() -> str | None:
    """What there is not, with who has it."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("go") is None:
        return "there is no go (Debian's package is golang-go)"
    return None


def build() -> None:
    """The plugin and the tool, while there is a network."""
    argv = ["cargo", "build", "--quiet", "--profile", "xtask", "--package", "millrace-cni"]
    subprocess.run(argv, check=True, cwd=road.REPOSITORY)
    BUILT.mkdir(exist_ok=True)
    subprocess.run(["go", "build", "-o", f"{BUILT}/", *BUILT_OF], check=True, cwd=TOOL)


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="how often it is killed (default: %(default)s)")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    every = cases(options.kills)
    wanted = {name: case for name, case in every.items() if not options.cases or any(part in name for part in options.cases)}
    if why := missing():
        print(f"skipped: {why}")
        print(f"0 passed, 0 failed, {len(wanted)} skipped")
        return 0
    if not isolate.is_inside():
        build()
    isolate.ensure()
    failed = 0
    for name, case in wanted.items():
        began = time.monotonic()
        wrong = ""
        with tempfile.TemporaryDirectory(prefix="millrace-cni-") as place, ExitStack() as stack:
            try:
                case(Site(stack, Path(place)))
            except (Wrong, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                wrong = str(error)
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'ok':8}{time.monotonic() - began:5.1f} s  {name}{': ' + wrong if wrong else ''}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
