"""What happens to the network between two programs after they connected holds for their connection, on the ring too.

A conversation goes on all the time. When the network is closed it must stand still, as it does without Millrace, and go on without loss
when the network is open again.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

PATIENCE_S = 40.0
STILL_S = 1.5
"""A conversation of which nothing passes for so long stands still."""
FORGETS_S = 3
"""Connection tracking forgets a connection after so long, where it is told to."""

LOOKS_AGAIN_S = 1.1
"""What the agent has seen of the loopback interface it believes for a second."""

Talkers = Callable[[ExitStack, "Change"], subprocess.Popen[str]]


@dataclass(frozen=True)
class Change:
    """What happens to the network, in the namespace of the server or the client, and how it is put back."""

    name: str
    port: int
    change: str
    back: str
    caller: str = "go-on"
    servant: str = "serve-busily"
    listen: str = "10.78.0.1"
    target: str = "10.78.0.1"
    target_port: int | None = None
    at_client: bool = False
    closes: bool = True


def _drop(port: int, hook: str, rule: str) -> tuple[int, str, str]:
    chain = f"chain drops {{ type filter hook {hook} priority 0; {rule} {port} drop; }};"
    return port, f"nft 'table inet drop_{port} {{ {chain} }}'", f"nft delete table inet drop_{port}"


_TRACKING = "cd /proc/sys/net/netfilter && echo {} > nf_conntrack_tcp_timeout_established && echo {} > nf_conntrack_tcp_loose"
CHANGES = [
    Change("what the client sends is dropped", *_drop(7201, "input", "tcp dport")),
    Change("what the server sends is dropped", *_drop(7202, "output", "tcp sport")),
    Change("acknowledgements are dropped", *_drop(7203, "output", "tcp sport"), caller="pour", servant="drain"),
    Change("a link goes down", 7204, "ip link set closing down", "ip link set closing up", listen="10.77.0.1", target="10.77.0.1"),
    Change("connection tracking forgets what is silent", 7205, _TRACKING.format(FORGETS_S, 0), _TRACKING.format(432000, 1),
           target="10.99.0.1", target_port=81, at_client=True, closes=False),
]  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """What the kernel does with packets, from before two programs connect on, and the reason for which they are not accelerated."""

    reason: str
    begin: str
    end: str

    def __enter__(self) -> Rule:
        subprocess.run(self.begin, shell=True, check=True)
        time.sleep(LOOKS_AGAIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(self.end, shell=True, check=True)


def shaped(device: str, namespace: str = "") -> Rule:
    """An interface shapes what goes out by it."""
    tc = f"tc -n {namespace}" if namespace else "tc"
    return Rule("shaped", f"{tc} qdisc add dev {device} root tbf rate 10gbit burst 1mb latency 50ms", f"{tc} qdisc del dev {device} root")


def shaped_on_entry(device: str) -> Rule:
    """An interface may send what comes in by it through another one that shapes it, as limits of what a pod sends are made."""
    return Rule("shaped", f"tc qdisc add dev {device} ingress", f"tc qdisc del dev {device} ingress")


def helped(port: int) -> Rule:
    """Connection tracking reads the FTP of connections to a port."""
    chain = f'chain out {{ type filter hook output priority 0; tcp dport {port} ct helper set "reader"; }};'
    table = f'table inet helped_{port} {{ ct helper reader {{ type "ftp" protocol tcp; }}; {chain} }}'
    return Rule("helper", f"nft '{table}'", f"nft delete table inet helped_{port}")


def make(left: str, right: str) -> None:
    """Two more ways between the two namespaces: a link to be closed, and a bridge."""
    for command in (
        "ip link add crossing type bridge", "ip link set crossing up",
        f"ip link add left-port type veth peer name across netns {left}",
        f"ip link add right-port type veth peer name across netns {right}",
        "ip link set left-port master crossing up", "ip link set right-port master crossing up",
        f"ip -n {left} addr add 10.76.0.1/24 dev across", f"ip -n {right} addr add 10.76.0.2/24 dev across",
        f"ip -n {left} link set across up", f"ip -n {right} link set across up",
        f"ip link add closing netns {left} type veth peer name closing netns {right}",
        f"ip -n {left} addr add 10.77.0.1/24 dev closing", f"ip -n {right} addr add 10.77.0.2/24 dev closing",
        f"ip -n {left} link set closing up", f"ip -n {right} link set closing up",
    ):  # fmt: skip
        subprocess.run(command.split(), check=True)


def _count(client: subprocess.Popen[str]) -> int:
    """How many messages there were."""
    assert client.stdin
    assert client.stdout
    client.stdin.write("\n")
    client.stdin.flush()
    said = client.stdout.readline()
    if not said:
        raise RuntimeError("the client ended")
    return int(said)


def _passes(client: subprocess.Popen[str]) -> bool:
    before = _count(client)
    time.sleep(STILL_S)
    return _count(client) != before


def _await(client: subprocess.Popen[str], passes: bool) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _passes(client) != passes:
        if time.monotonic() > deadline:
            raise RuntimeError(f"messages {'do not' if passes else 'still'} pass after {PATIENCE_S:.0f} s")


@contextmanager
def _changed(namespace: str, change: Change) -> Iterator[None]:
    shell = ["ip", "netns", "exec", namespace, "sh", "-c"]
    subprocess.run([*shell, change.change], check=True)
    try:
        yield
    finally:
        subprocess.run([*shell, change.back], check=True)


def play(change: Change, namespace: str, converse: Talkers, finish: Callable[[subprocess.Popen[str]], None]) -> None:
    """Plays it; raises RuntimeError when something else happens than on the kernel's road."""
    with ExitStack() as stack:
        if not change.closes:
            stack.enter_context(_changed(namespace, change))
        client = converse(stack, change)
        watch = threading.Timer(3 * PATIENCE_S, client.kill)
        stack.callback(watch.cancel)
        watch.start()
        if change.closes:
            with _changed(namespace, change):
                _await(client, passes=False)
            _await(client, passes=True)
        else:
            time.sleep(2 * FORGETS_S)
        finish(client)
