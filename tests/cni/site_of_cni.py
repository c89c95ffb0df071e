"""A node for the CNI plugin: a switch, networks, and pods, which are network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import road

PLUGIN = road.REPOSITORY / "target/debug/millrace-cni"
BUILT = road.REPOSITORY / "target/cni"
PACKAGED = Path("/usr/lib/cni")
"""Where Debian's package has plugins."""
PATH = f"{PLUGIN.parent}:{BUILT}:{PACKAGED}"
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

    def __init__(self, stack: ExitStack, place: Path, inside: str | None = None, pods: Sequence[str] = PODS, config: str = "") -> None:
        """`inside`: the network namespace that the node is; otherwise the run's own."""
        self.stack = stack
        self.place = place
        self.inside = ["nsenter", f"--net=/run/netns/{inside}", "--"] if inside else []
        self.config = place / "switch.toml"
        self.config.write_text(config)
        self.control = place / "switch.sock"
        self.sockets = place / "sockets"
        self.leases = place / "leases"
        self.switch: subprocess.Popen[bytes] | None = None
        self.start_switch()
        for pod in pods:
            namespace(stack, pod)

    def start_switch(self) -> None:
        """Starts it, and waits until it answers."""
        argv = [*self.inside, *self.asks(), "run", "--config", str(self.config)]
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
        return [str(road.MILLRACE), "switch", "--control", str(self.control)]

    def ports(self) -> list[dict[str, Any]]:
        """What the switch says of its ports."""
        done = subprocess.run([*self.asks(), "show", "--json"], capture_output=True, check=True)
        return list(json.loads(done.stdout)["ports"])

    def network(self, name: str, version: str = "1.1.0", **more: object) -> dict[str, Any]:
        """A network's configuration, as cnitool finds it."""
        plugin = {"type": "millrace-cni", "switch": str(self.control), "directory": str(self.sockets), "ipam": self.addresses(), **more}
        self.chain(name, version, plugin)
        return {"cniVersion": version, "name": name, **plugin}

    def chain(self, name: str, version: str, *plugins: dict[str, Any]) -> None:
        """A network of several plugins."""
        directory = self.place / "net.d"
        directory.mkdir(exist_ok=True)
        listed = {"cniVersion": version, "name": name, "plugins": plugins}
        (directory / f"{name}.conflist").write_text(json.dumps(listed))

    def addresses(self, subnet: str = "10.93.0.0/24", first: str = "", last: str = "", leases: str = "", **more: object) -> dict[str, Any]:
        """Who gives addresses, and which."""
        limits = {"rangeStart": first, "rangeEnd": last} if first else {}
        directory = str(self.leases / leases)
        return {"type": "host-local", "dataDir": directory, "ranges": [[{"subnet": subnet, **limits}]], **more}

    def tool(self, command: str, network: str, pod: str, fails: bool = False) -> Any:
        """Runs cnitool; returns what it printed."""
        environment = {
            **os.environ, "NETCONFPATH": str(self.place / "net.d"), "CNI_PATH": PATH, "CNI_IFNAME": "fast0",
        }  # fmt: skip
        argv = [*self.inside, str(BUILT / "cnitool"), command, network, f"/run/netns/{pod}"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S)
        check((done.returncode != 0) == fails, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.stdout.startswith("{") else done.stderr

    def plugin(self, command: str, container: str, config: dict[str, Any]) -> None:
        """Runs the plugin itself, as a runtime does."""
        given, environment = json.dumps(config), plugin_environment(command, container)
        done = subprocess.run([str(PLUGIN)], input=given, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S)
        check(done.returncode == 0, done.stdout)

    def is_clean(self) -> bool:
        """Whether nothing of pods is left: no port, no socket, no record, no address."""
        ports = [port["name"] for port in self.ports() if port["name"].startswith("cni/")]
        leases = [path.name for path in self.leases.rglob("10.*")]
        return not ports and not leases and not list(self.sockets.rglob("*"))

    def until_clean(self) -> None:
        """Waits until nothing of pods is left."""
        deadline = time.monotonic() + WAIT_S
        while not self.is_clean():
            check(time.monotonic() < deadline, f"something is left: {self.ports()} {list(self.sockets.rglob('*'))}")
            time.sleep(0.05)


def plugin_environment(command: str, container: str) -> dict[str, str]:
    """How a runtime says what is to be done."""
    return {
        **os.environ, "CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_NETNS": "/run/netns/one", "CNI_IFNAME": "fast0",
        "CNI_PATH": PATH,
    }  # fmt: skip


def namespace(stack: ExitStack, name: str) -> None:
    """A network namespace for the time of a case."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False, capture_output=True)
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)


def inside(space: str, *command: str) -> str:
    """Runs a command in a pod's network namespace, which is a name or a path; what it printed."""
    path = space if "/" in space else f"/run/netns/{space}"
    argv = ["nsenter", f"--net={path}", "--", *command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WAIT_S)
    check(done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}")
    return done.stdout
