#!/usr/bin/python3
"""The CNI plugin as runtimes run it: by the specification's own `cnitool`, with its `host-local`, on a switch that runs.

    tests/cni/run.py [--full] [--kills N] [CASE ...]

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

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import engine  # noqa: E402
import pods  # noqa: E402
from harness import isolate, packages, road  # noqa: E402
from site_of_cni import BUILT, PLUGIN, WAIT_S, Site, Wrong, check, plugin_environment  # noqa: E402

TOOL = Path(__file__).with_name("tool")
BUILT_OF = (
    "github.com/containernetworking/cni/cnitool", "github.com/containernetworking/plugins/plugins/ipam/host-local",
    "github.com/containernetworking/plugins/plugins/main/ptp",
)  # fmt: skip


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
        argv = [str(road.MILLRACE), "load", "packets", *ports, *macs, "--rate", "5000", "--time", "0.5", "--whole", "--json"]
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


def interfaces() -> list[str]:
    """Names of what there is in the node's and the pod's network namespaces."""
    both = (["ip", "-json", "link"], ["ip", "-n", "one", "-json", "link"])
    return [str(link["ifname"]) for argv in both for link in json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)]


def killed(site: Site, kills: int, port: str) -> None:
    """SIGKILL at a random moment of ADD."""
    config = site.network("fast", port=port)
    before = interfaces()
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
        check(time.monotonic() < deadline, f"something is left: {site.ports()}")
        # What host-local was at when its parent was killed goes on for a moment, and is for the next DEL or GC.
        for number in range(kills):
            site.plugin("DEL", f"pod{number}", config)
    check(interfaces() == before, f"interfaces are left: {interfaces()}, and there were {before}")
    print(f"        {cut} of {kills} were killed before their end", flush=True)


def cases(kills: int, is_full: bool) -> dict[str, Callable[[Site], None]]:
    """Each by its name."""
    longer = {
        "pods of a container engine": engine.runs_pods,
        "two networks by Multus": engine.gives_two_networks,
    }
    return {
        "a port comes and goes": comes_and_goes,
        "packets from pod to pod": carries,
        "what is missing is told": notices,
        "what was left is collected": collects,
        "killed in the midst": lambda site: killed(site, kills, "memif"),
        "killed in the midst, with an interface": lambda site: killed(site, kills, "tap"),
        "an interface for a pod": pods.has_an_interface,
        "behind another plugin": pods.is_behind_another,
        "pods of two nodes": pods.of_two_nodes,
        **(longer if is_full else {}),
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
    argv = ["cargo", "build", "--quiet", "--workspace", "--bin", "millrace-cni"]
    subprocess.run(argv, check=True, cwd=road.REPOSITORY)
    BUILT.mkdir(exist_ok=True)
    subprocess.run(["go", "build", "-o", f"{BUILT}/", *BUILT_OF], check=True, cwd=TOOL)


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="how often it is killed (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="under a container engine, and by Multus, too")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    every = cases(options.kills, options.full)
    wanted = {name: case for name, case in every.items() if not options.cases or any(part in name for part in options.cases)}
    if why := missing():
        print(f"skipped: {why}")
        print(f"0 passed, 0 failed, {len(wanted)} skipped")
        return 0
    if not isolate.is_inside():
        build()
        if options.full:
            packages.install(engine.PACKAGES)
            engine.build()
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
