#!/usr/bin/python3
"""Conversations between programs in all sorts of places, and whether each took the ring.

    tests/placements/run.py [--millrace PATH] [PLACEMENT ...]

Exits with 0 when every conversation was right and took the road that it should. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import network  # noqa: E402
from harness import isolate, road  # noqa: E402

TALK, MIRRORED = (str(Path(__file__).with_name(name)) for name in ("talk.py", "mirrored.py"))
WAIT_S = 15.0
STRANGER = 23456

Wrap = list[str]


def inside(namespace: str) -> Wrap:
    """Runs a command in a named network namespace."""
    return ["ip", "netns", "exec", namespace]


def unprivileged(user: int = STRANGER) -> Wrap:
    """Runs a command as a container without privilege does: own user, mount and PID namespaces, no capability, another user."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    return [*become, "unshare", "--user", "--mount", "--pid", "--fork", "--kill-child"]


@dataclass(frozen=True)
class Placement:
    """Where two programs run, how they reach each other, and whether that must be accelerated."""

    name: str
    server: Wrap
    client: Wrap
    listen: str
    target: str
    port: int = 7100
    target_port: int = 7100
    caller: str = "call"
    rule: network.Rule | None = None
    """What the kernel does with their packets, for which they are not accelerated."""


LEFT, RIGHT = "left", "right"
MANY = (100, 1500)
WAIT_OF_MANY_S = 60.0
LOOKS_MAX = 50
"""Sockets that the agent may look at for each connection that it introduces, whatever their number."""
METRICS = "127.0.0.1:9464"
PLACEMENTS = [
    Placement("loopback", [], [], "127.0.0.1", "127.0.0.1"),
    Placement("loopback, IPv6", [], [], "::1", "::1"),
    Placement("one foreign namespace", inside(LEFT), inside(LEFT), "127.0.0.1", "127.0.0.1"),
    Placement("two namespaces", inside(LEFT), inside(RIGHT), "10.78.0.1", "10.78.0.1"),
    Placement("two namespaces, IPv6", inside(LEFT), inside(RIGHT), "fd78::1", "fd78::1"),
    Placement("from the host", inside(LEFT), [], "10.79.0.2", "10.79.0.2"),
    Placement("to the host", [], inside(LEFT), "10.79.0.1", "10.79.0.1"),
    # Where no address tells of the other end, the agent looks twice in a second, and not each time at a moment that tells.
    Placement("behind destination NAT", inside(LEFT), inside(RIGHT), "10.78.0.1", "10.99.0.1", target_port=80, caller="call-long"),
    Placement("a client that confines itself", [], [], "127.0.0.1", "127.0.0.1", caller="confine"),
    Placement("unprivileged on the host", unprivileged(), unprivileged(), "127.0.0.1", "127.0.0.1"),
    Placement("two unprivileged containers", inside(LEFT) + unprivileged(), inside(RIGHT) + unprivileged(STRANGER + 1),
              "10.78.0.1", "10.78.0.1"),
    Placement("a shaped loopback interface", [], [], "127.0.0.1", "127.0.0.1", rule=network.shaped("lo")),
    Placement("a container that shapes what it sends", inside(LEFT), inside(RIGHT), "10.78.0.1", "10.78.0.1",
              rule=network.shaped("to-right", LEFT)),
    Placement("across a bridge", inside(LEFT), inside(RIGHT), "10.76.0.1", "10.76.0.1"),
    Placement("across a bridge that shapes what one gets", inside(LEFT), inside(RIGHT), "10.76.0.1", "10.76.0.1",
              rule=network.shaped("left-port")),
    Placement("across a bridge that shapes what one sends", inside(LEFT), inside(RIGHT), "10.76.0.1", "10.76.0.1",
              rule=network.shaped_on_entry("right-port")),
    Placement("a helper of connection tracking", [], [], "127.0.0.1", "127.0.0.1", 7121, 7121, rule=network.helped(7121)),
    Placement("a helper, IPv6", [], [], "::1", "::1", 7122, 7122, rule=network.helped(7122)),
    Placement("a helper on the way to a container", inside(LEFT), [], "10.79.0.2", "10.79.0.2", 7123, 7123, rule=network.helped(7123)),
]  # fmt: skip
LATE = [
    Placement("loopback", [], [], "127.0.0.1", "127.0.0.1"),
    Placement("two namespaces", inside(LEFT), inside(RIGHT), "10.78.0.1", "10.78.0.1", 7205, 7205),
    Placement("behind destination NAT", inside(LEFT), inside(RIGHT), "10.78.0.1", "10.99.0.1", target_port=80),
    Placement("from the host", inside(LEFT), [], "10.79.0.2", "10.79.0.2"),
]
WAIT_OF_LATE_S = 30.0

NAT = """
table ip millrace_test {
    chain out {
        type nat hook output priority -100;
        ip daddr 10.99.0.1 tcp dport 80 dnat to 10.78.0.1:7100;
        ip daddr 10.99.0.1 tcp dport 81 dnat to 10.78.0.1:7205;
    }
    chain back { type nat hook postrouting priority 100; ip daddr 10.78.0.1 masquerade; }
}
"""


def make_network() -> None:
    """Two namespaces that reach each other, one that reaches the host; all go with the run's own namespaces."""
    commands = [
        f"ip netns add {LEFT}", f"ip netns add {RIGHT}",
        f"ip link add to-right netns {LEFT} type veth peer name to-left netns {RIGHT}",
        f"ip link add to-left type veth peer name to-host netns {LEFT}",
        f"ip -n {LEFT} addr add 10.78.0.1/24 dev to-right", f"ip -n {RIGHT} addr add 10.78.0.2/24 dev to-left",
        f"ip -n {LEFT} addr add fd78::1/64 dev to-right nodad", f"ip -n {RIGHT} addr add fd78::2/64 dev to-left nodad",
        "ip addr add 10.79.0.1/24 dev to-left", f"ip -n {LEFT} addr add 10.79.0.2/24 dev to-host",
        f"ip -n {LEFT} link set lo up", f"ip -n {RIGHT} link set lo up", "ip link set to-left up",
        f"ip -n {LEFT} link set to-right up", f"ip -n {RIGHT} link set to-left up", f"ip -n {LEFT} link set to-host up",
        f"ip -n {RIGHT} route add 10.99.0.0/24 via 10.78.0.1",
    ]  # fmt: skip
    for command in commands:
        subprocess.run(command.split(), check=True)
    subprocess.run([*inside(RIGHT), "nft", "-f", "-"], input=NAT, text=True, check=True)
    network.make(LEFT, RIGHT)


class Stage:
    """Starts ends and asks the agent about them."""

    def __init__(self, millrace: str) -> None:
        self.millrace = millrace

    def start(
        self, stack: ExitStack, wrap: Wrap, *words: str, plain: bool = False, program: str = TALK
    ) -> subprocess.Popen[str]:
        """One end; killed when the stack is left. `millrace run` comes last, as in a container."""
        command = [*wrap, *([] if plain else [self.millrace, "run", "--"]), sys.executable, program, *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    def converse(self, stack: ExitStack, place: Placement, own: list[str] | None = None) -> subprocess.Popen[str]:
        """Starts both ends, and waits until enough went there and back."""
        server = self.start(stack, place.server, "serve", place.listen, str(place.port))
        expect(server, "listening")
        client = self.start(stack, place.client, place.caller, place.target, str(place.target_port), *(own or []))
        expect(client, "ready")
        return client

    def connections(self) -> list[dict[str, object]]:
        """What the agent knows."""
        said = subprocess.run([self.millrace, "ps", "--json"], check=True, capture_output=True, text=True, timeout=WAIT_S)
        return json.loads(said.stdout)["connections"]  # type: ignore[no-any-return]

    def roads_at(self, port: int) -> list[list[str]]:
        """The roads of both ends of each connection to a port."""
        pairs: list[list[dict[str, str]]] = [connection["ends"] for connection in self.connections()]  # type: ignore[misc]
        return [[end["road"] for end in pair] for pair in pairs if any(end["local"].endswith(f":{port}") for end in pair)]

    def roads(self) -> Counter[tuple[str, str]]:
        """How many ends have which road, and why."""
        ends = (end for connection in self.connections() for end in connection["ends"])  # type: ignore[attr-defined]
        return Counter((end["road"], end["reason"]) for end in ends)


def expect(process: subprocess.Popen[str], line: str) -> None:
    """Waits for a line of an end's output."""
    assert process.stdout
    said = process.stdout.readline().strip()
    if said != line:
        raise RuntimeError(f"expected {line!r}, got {said!r}")


def finish(client: subprocess.Popen[str]) -> None:
    """Lets the client check once more and end."""
    assert client.stdin
    client.stdin.close()
    expect(client, "done")


def talk(stage: Stage, place: Placement) -> str | None:
    """Plays a placement; returns what was wrong."""
    with ExitStack() as stack:
        if place.rule:
            stack.enter_context(place.rule)
        client = stage.converse(stack, place)
        connections = stage.connections()
        finish(client)
    roads = {(end["road"], end["reason"]) for connection in connections for end in connection["ends"]}  # type: ignore[attr-defined]
    wanted = {("kernel", place.rule.reason)} if place.rule else {("shm", "none")}
    return None if roads == wanted else f"the agent shows {json.dumps(connections)}"


def change(stage: Stage, change: network.Change) -> str | None:
    """The network changes under a conversation that goes on, plain and then under Millrace."""
    for plain in (True, False):

        def converse(stack: ExitStack, change: network.Change, plain: bool = plain) -> subprocess.Popen[str]:
            server = stage.start(stack, inside(LEFT), change.servant, change.listen, str(change.port), plain=plain)
            expect(server, "listening")
            target = (change.target, str(change.target_port or change.port))
            client = stage.start(stack, inside(RIGHT), change.caller, *target, plain=plain)
            expect(client, "ready")
            # Where others want the processors, too, it takes a while until both were seen to ask for long enough.
            deadline = time.monotonic() + WAIT_S
            while not plain and {road for ends in stage.roads_at(change.port) for road in ends} != {"shm"}:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the agent shows {json.dumps(stage.connections())}")
                time.sleep(0.2)
            return client

        try:
            network.play(change, RIGHT if change.at_client else LEFT, converse, finish)
        except RuntimeError as error:
            return f"{'plain' if plain else 'under Millrace'}: {error}"
    return None


def impostor(stage: Stage) -> str | None:
    """Somebody makes a namespace with the addresses and ports of a connection that is under way, and both of its ends there."""
    victim = Placement("victim", inside(LEFT), inside(RIGHT), "10.78.0.1", "10.78.0.1")
    own = ["10.78.0.2", "40078"]
    prepare = "ip addr add 10.78.0.1/32 dev lo && ip addr add 10.78.0.2/32 dev lo && ip link set lo up"
    talkers = " ".join(["exec", stage.millrace, "run", "--", sys.executable, TALK])
    script = (
        f"{prepare} && ({talkers} serve 10.78.0.1 7100 >&2 &) && sleep 0.5 && {talkers} call 10.78.0.1 7100 {' '.join(own)}"
    )
    become = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    with ExitStack() as stack:
        attack = subprocess.Popen(
            [*become, "unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        stack.callback(attack.wait)
        stack.callback(attack.kill)
        client = stage.converse(stack, victim, own)
        expect(attack, "ready")
        connections = stage.connections()
        finish(client)
        finish(attack)
    users = sorted(sorted({end["uid"] for end in connection["ends"]}) for connection in connections)  # type: ignore[attr-defined]
    roads = {end["road"] for connection in connections for end in connection["ends"]}  # type: ignore[attr-defined]
    if users != [[0], [STRANGER]] or roads != {"shm"}:
        return f"the agent shows {json.dumps(connections)}"
    return None


def mirrored(stage: Stage) -> str | None:
    """Ends whose addresses mirror each other, and which are of two connections, since the kernel translates one's: they are not joined."""
    address, service, port = "10.98.0.1", "10.98.9.9", "7140"
    lead = f"chain out {{ type nat hook output priority -100; ip daddr {service} tcp dport 80 dnat to {address}:{port}; }};"
    rules = f"table ip mirrored {{ {lead} chain back {{ type nat hook postrouting priority 100; }}; }}"
    with ExitStack() as stack:
        for command in (f"ip addr add {address}/32 dev lo", f"ip route add {service} dev lo"):
            subprocess.run(command.split(), check=True)
            stack.callback(subprocess.run, command.replace(" add ", " del ").split(), check=True)
        subprocess.run(["nft", rules], check=True)
        stack.callback(subprocess.run, ["nft", "delete table ip mirrored"], check=True)
        for source_port, plain in ((5001, True), (5002, False)):
            with ExitStack() as ends:
                server = stage.start(ends, [], "serve", address, port, plain=plain, program=MIRRORED)
                expect(server, "listening")
                words = [address, port, service, "80", str(source_port)]
                client = stage.start(ends, [], "call", *words, plain=plain, program=MIRRORED)
                said = client.communicate(timeout=WAIT_S * 4)[0]
                if said != "done\n":
                    return f"{'plain' if plain else 'under Millrace'}: the client said {said!r}"
    return None


def own_agent(stage: Stage, stack: ExitStack, config: str) -> Path:
    """Starts an agent with a configuration, at which programs meet until the stack is left; returns where its log is."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (directory / "agent.toml").write_text(config)
    directory.chmod(0o755)
    socket = directory / "agent.sock"
    log = stack.enter_context(open(directory / "log", "w+"))
    agent = subprocess.Popen([stage.millrace, "agent", "--config", directory / "agent.toml", "--socket", socket], stderr=log)
    stack.callback(agent.wait)
    stack.callback(agent.terminate)
    before = os.environ.get("MILLRACE_AGENT")
    os.environ["MILLRACE_AGENT"] = str(socket)
    stack.callback(restore, before)
    deadline = time.monotonic() + WAIT_S
    while not socket.exists() and agent.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return Path(log.name)


def denied(stage: Stage) -> str | None:
    """Two users' programs are not joined where the configuration says so, and one user's are."""
    alike = Placement("one user's", unprivileged(), unprivileged(), "127.0.0.1", "127.0.0.1", 7131, 7131)
    unlike = Placement("two users'", [], unprivileged(), "127.0.0.1", "127.0.0.1", 7132, 7132, rule=network.Rule("policy", ":", ":"))
    for config in ("[join]\nwithin = 'tenant'\n", f"[join]\ndeny = [['user/0', 'user/{STRANGER}']]\n"):
        for place in (alike, unlike):
            with ExitStack() as stack:
                own_agent(stage, stack, config)
                wrong = talk(stage, place)
            if wrong:
                return f"{config}{place.name}: {wrong}"
    return None


def many(stage: Stage, place: Placement) -> str | None:
    """Many connections between two programs, which sleep meanwhile: all take the ring, at a price that does not grow with their number."""
    with ExitStack() as stack:
        log = own_agent(stage, stack, f'metrics = "{METRICS}"\n')
        server = stage.start(stack, place.server, "serve-many", place.listen, str(place.port))
        expect(server, "listening")
        introduced = looked_at = 0
        for count in MANY:
            client = stage.start(stack, place.client, "call-many", place.target, str(place.target_port), str(count))
            expect(client, "ready")
            wanted = {("shm", "none"): 2 * count}
            deadline = time.monotonic() + WAIT_OF_MANY_S
            while (roads := stage.roads()) != wanted and time.monotonic() < deadline:
                assert client.stdin
                client.stdin.write("more\n")
                client.stdin.flush()
                expect(client, "ready")
            if roads != wanted:
                return f"{count} connections: {dict(roads)}; the agent said {log.read_text()}"
            # What the agent has rendered is its answer for a second.
            time.sleep(1)
            now = metrics()
            each = (now["millrace_distant_sockets_total"] - looked_at) / (now["millrace_paired_total"] - introduced)
            if each > LOOKS_MAX:
                return f"{each:.0f} sockets were looked at for each of {count} connections"
            introduced, looked_at = now["millrace_paired_total"], now["millrace_distant_sockets_total"]
            finish(client)
    return None


def late(stage: Stage) -> str | None:
    """One end is offered when the other one has waited in vain already: they take the ring all the same."""
    with ExitStack() as stack:
        clients = []
        for place in LATE:
            server = stage.start(stack, place.server, "serve-late", place.listen, str(place.port))
            expect(server, "listening")
            clients.append(stage.start(stack, place.client, "call-late", place.target, str(place.target_port)))
        for client in clients:
            expect(client, "sent")
        waits, is_vain, joined = ("kernel", "too_short"), ("kernel", "not_both_ends"), ("shm", "none")
        deadline = time.monotonic() + WAIT_OF_LATE_S
        while (roads := stage.roads())[is_vain] < len(LATE) and time.monotonic() < deadline:
            time.sleep(0.2)
        if roads != {is_vain: len(LATE), waits: len(LATE)}:
            return f"before the servers' ends were offered: {dict(roads)}"
        deadline = time.monotonic() + WAIT_OF_LATE_S
        while roads != {joined: 2 * len(LATE)} and time.monotonic() < deadline:
            for client in clients:
                assert client.stdin
                client.stdin.write("more\n")
                client.stdin.flush()
            for client in clients:
                expect(client, "ready")
            roads = stage.roads()
        for client in clients:
            finish(client)
    return None if roads == {joined: 2 * len(LATE)} else f"when they were: {dict(roads)}"


def restore(agent: str | None) -> None:
    """The agent that programs use again."""
    os.environ.pop("MILLRACE_AGENT")
    if agent is not None:
        os.environ["MILLRACE_AGENT"] = agent


def metrics() -> dict[str, float]:
    """What the agent counts."""
    with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def main() -> int:
    """Plays what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default=road.UNDER.split()[0], help="the program to test")
    parser.add_argument("placements", nargs="*", metavar="PLACEMENT", help="a part of a name; all without one")
    options = parser.parse_args()
    isolate.ensure()
    if not isolate.is_inside():
        print("0 passed, 0 failed, 1 skipped: network namespaces need root")
        return 0
    make_network()
    plays: dict[str, Callable[[Stage], str | None]] = {
        place.name: lambda stage, place=place: talk(stage, place) for place in PLACEMENTS  # type: ignore[misc]
    }
    plays["a policy"] = denied
    plays["ends that are offered late"] = late
    plays["an impostor with the same addresses"] = impostor
    plays["two connections whose ends mirror each other"] = mirrored
    for name, place in {"two namespaces": PLACEMENTS[3], "behind destination NAT": PLACEMENTS[7]}.items():
        plays[f"many connections, {name}"] = lambda stage, place=place: many(stage, place)  # type: ignore[misc]
    is_wanted = lambda name: not options.placements or any(part in name for part in options.placements)  # noqa: E731
    changes = [each for each in network.CHANGES if is_wanted(each.name)]
    pool = ThreadPoolExecutor(max(1, len(changes)))

    @cache
    def started(stage: Stage) -> dict[str, Future[str | None]]:
        """All changes of the network, under way at the same time: they wait for the most part."""
        return {each.name: pool.submit(change, stage, each) for each in changes}

    for each in changes:
        plays[each.name] = lambda stage, name=each.name: started(stage)[name].result()  # type: ignore[misc]
    wanted = {name: play for name, play in plays.items() if is_wanted(name)}
    failed = 0
    agent = road.under(f"{options.millrace} run --", "")
    with pool, tempfile.TemporaryDirectory() as directory, road.Agent(agent, Path(directory) / "agent"):
        stage = Stage(options.millrace)
        for name, play in wanted.items():
            began = time.monotonic()
            try:
                wrong = play(stage)
            except (RuntimeError, subprocess.SubprocessError) as error:
                wrong = str(error)
            failed += wrong is not None
            print(f"{'FAILED' if wrong else 'ok'}  {name}  {time.monotonic() - began:.1f} s{'  ' + wrong if wrong else ''}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
