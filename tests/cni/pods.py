"""Pods with interfaces of the switch's: alone, behind another plugin, and on two nodes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from site_of_cni import WAIT_S, Site, check, inside, namespace

TALK = [sys.executable, str(Path(__file__).with_name("talk.py"))]
PORT = "7000"
BYTES = 16 << 20
NODES = {"node-a": ("192.0.2.1", "192.0.2.2"), "node-b": ("192.0.2.2", "192.0.2.1")}
"""Each with its own address, and the other's."""
NETWORK = 100
OVERLAY_MTU = 1450


def address_of(made: dict[str, Any], number: int = 0) -> str:
    """The address that a pod was given."""
    return str(made["ips"][number]["address"]).partition("/")[0]


def talks(client: str, server: str, address: str, mtu: int = 1500) -> None:
    """Ping, also of the longest packets, and TCP with every byte compared, from one pod to the other."""
    inside(client, "ping", "-c", "3", "-i", "0.05", "-W", "5", address)
    inside(client, "ping", "-c", "2", "-i", "0.05", "-W", "5", "-M", "do", "-s", str(mtu - 28), address)
    path = server if "/" in server else f"/run/netns/{server}"
    listens = subprocess.Popen(
        ["nsenter", f"--net={path}", "--", *TALK, "serve", address, PORT], stdout=subprocess.PIPE, text=True
    )
    try:
        assert listens.stdout
        check(listens.stdout.readline() == "listening\n", f"nobody listens in {server}")
        inside(client, *TALK, "call", address, PORT, str(BYTES))
        check(listens.wait(WAIT_S) == 0, "the server did not end well")
    finally:
        listens.kill()
        listens.wait()


def link(pod: str, name: str = "fast0") -> dict[str, Any] | None:
    """What the kernel says of an interface in a pod."""
    links = json.loads(inside(pod, "ip", "-json", "address", "show"))
    return next((each for each in links if each["ifname"] == name), None)


def has_an_interface(site: Site) -> None:
    """ADD, CHECK and DEL of TAP interfaces; packets between pods, as TCP likes them; what a killed switch leaves."""
    ipam = site.addresses(routes=[{"dst": "0.0.0.0/0"}, {"dst": "::/0"}])
    ipam["ranges"].append([{"subnet": "fd93::/64"}])
    site.network("fast", port="tap", mtu=1400, ipam=ipam)
    made = {pod: site.tool("add", "fast", pod) for pod in ("one", "two")}
    for pod, result in made.items():
        found, told = link(pod), result["interfaces"][0]
        check(found is not None and "UP" in found["flags"] and found["mtu"] == 1400, found)
        assert found
        check(found["address"] == told["mac"] and told["sandbox"] == f"/run/netns/{pod}" and "socketPath" not in told, told)
        addresses = [each["local"] for each in found["addr_info"] if each["family"] == "inet"]
        check(addresses == [address_of(result)], addresses)
        check("default via 10.93.0.1" in inside(pod, "ip", "route"), inside(pod, "ip", "route"))
        check("default via fd93::1" in inside(pod, "ip", "-6", "route"), inside(pod, "ip", "-6", "route"))
        site.tool("check", "fast", pod)
    talks("one", "two", address_of(made["two"]), 1400)
    inside("one", "ping", "-c", "3", "-i", "0.05", "-W", "5", address_of(made["two"], 1))
    inside("one", "ip", "link", "set", "fast0", "down")
    check("not as it was made" in str(site.tool("check", "fast", "one", fails=True)), "CHECK of an interface that is down")
    site.tool("del", "fast", "one")
    check(link("one") is None and link("two") is not None, "the interface of a pod that has gone, and another's")
    # The pod's namespace is gone before anybody says so, as when it was killed with its machine.
    subprocess.run(["ip", "netns", "delete", "two"], check=True)
    deadline = time.monotonic() + WAIT_S
    while any(port["state"] == "connected" for port in site.ports()):
        check(time.monotonic() < deadline, f"a port without an interface: {site.ports()}")
        time.sleep(0.05)
    site.tool("del", "fast", "two")
    check(site.is_clean(), site.ports())
    # The switch is killed: interfaces are gone with it.
    site.tool("add", "fast", "apart")
    assert site.switch
    site.switch.kill()
    site.switch.wait()
    check(link("apart") is None, "an interface whose switch is dead")
    site.start_switch()
    site.tool("del", "fast", "apart")
    check(site.is_clean(), site.ports())


def is_behind_another(site: Site) -> None:
    """A pod has a network of another plugin's, and ours in the same list: each has its interface, and keeps it."""
    first = {"type": "ptp", "ipam": site.addresses("10.94.0.0/24", leases="first", routes=[{"dst": "10.95.0.0/16"}])}
    ours = {
        "type": "millrace-cni", "port": "tap", "interface": "fast1", "switch": str(site.control), "directory": str(site.sockets),
        "ipam": site.addresses(leases="second", routes=[{"dst": "10.96.0.0/16"}]),
    }  # fmt: skip
    for version in ("0.4.0", "1.0.0"):
        site.chain("both", version, first, ours)
        made = {pod: site.tool("add", "both", pod) for pod in ("one", "two")}
        result = made["one"]
        own = [each["name"] for each in result["interfaces"] if each.get("sandbox")]
        check(own == ["fast0", "fast1"], result["interfaces"])
        check([each["interface"] for each in result["ips"]] == [1, 2], result["ips"])
        for pod in made:
            check(link(pod, "fast0") is not None and link(pod, "fast1") is not None, f"interfaces of {pod}")
        # By itself: the other plugin wants every address of the result on its own interface.
        container = "cnitool-" + hashlib.sha512(b"/run/netns/one").hexdigest()[:20]
        site.plugin("CHECK", container, {"cniVersion": version, "name": "both", **ours, "prevResult": result})
        routes = inside("one", "ip", "route")
        check("10.95.0.0/16 via 10.94.0.1 dev fast0" in routes and "10.96.0.0/16 via 10.93.0.1 dev fast1" in routes, routes)
        talks("one", "two", address_of(made["two"], 1))
        for pod in made:
            site.tool("del", "both", pod)
            check(link(pod, "fast0") is None and link(pod, "fast1") is None, f"interfaces of {pod}")
        check(site.is_clean(), site.ports())


def of_two_nodes(site: Site) -> None:
    """Two nodes, each with a switch of its own, which a tunnel joins: pods of one talk with pods of the other."""
    for name in NODES:
        namespace(site.stack, name)
    subprocess.run("ip link add under netns node-a type veth peer name under netns node-b".split(), check=True)
    nodes = {}
    for number, (name, (own, other)) in enumerate(NODES.items()):
        for words in (f"address add {own}/24 dev under", "link set under up"):
            subprocess.run(["ip", "-n", name, *words.split()], check=True)
        place = site.place / name
        place.mkdir()
        config = f'[[port]]\nname = "tunnel"\nvxlan = {{ local = "{own}", remote = "{other}", vni = {NETWORK} }}\n'
        pods = [f"{name}-pod{pod}" for pod in (1, 2)]
        nodes[name] = node = Site(site.stack, place, name, pods, config)
        # One network, of which each node gives a part away.
        first = 10 + 100 * number
        ipam = node.addresses(first=f"10.93.0.{first}", last=f"10.93.0.{first + 80}")
        node.network("fast", port="tap", mtu=OVERLAY_MTU, ipam=ipam)
    made = {pod: node.tool("add", "fast", pod) for name, node in nodes.items() for pod in (f"{name}-pod1", f"{name}-pod2")}
    talks("node-a-pod1", "node-b-pod1", address_of(made["node-b-pod1"]), OVERLAY_MTU)
    talks("node-b-pod2", "node-a-pod2", address_of(made["node-a-pod2"]), OVERLAY_MTU)
    talks("node-a-pod1", "node-a-pod2", address_of(made["node-a-pod2"]), OVERLAY_MTU)
    for node in nodes.values():
        tunnel = next(port for port in node.ports() if port["name"] == "tunnel")["counters"]
        # Both conversations between the nodes, and not the one beside them.
        least, most = 2 * BYTES, 3 * BYTES
        carried = tunnel["received_bytes"] + tunnel["transmitted_bytes"]
        check(least < carried < most, f"the tunnel carried {carried} bytes")
    for name, node in nodes.items():
        for pod in (f"{name}-pod1", f"{name}-pod2"):
            node.tool("check", "fast", pod)
            node.tool("del", "fast", pod)
        check(node.is_clean(), node.ports())
