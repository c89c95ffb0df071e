"""As many pods as a node has, each in a network namespace and a control group of its own: what the agent needs for them all."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from harness import scrape
from harness.process import Process

from engines import GROUP, EngineFailed
from stage import AGENT, PLACE, Stage, start_agent, without_agent

AGENT_BYTES_MAX = 64 << 20
"""Of the agent's own, beside what it shares with programs: rings and boards."""
SERVER, PORT = "10.92.0.1", 7000
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
GROUPS = Path("/sys/fs/cgroup/systemd")
PROGRAM = str(Path(__file__).with_name("pod.py"))
MEET_S = 180.0


@dataclass(frozen=True)
class Crowd:
    """How many pods there are, of one program each, how many connections each has, and how long nobody does anything in the end."""

    pods: int
    connections_each: int
    idle_s: float

    @property
    def connections(self) -> int:
        """Of them all."""
        return self.pods * self.connections_each


SAMPLE = Crowd(pods=25, connections_each=40, idle_s=3.0)
WHOLE = Crowd(pods=250, connections_each=40, idle_s=30.0)


def _run(command: str, lines: list[str]) -> None:
    subprocess.run(command.split(), input="\n".join(lines), text=True, check=True)


def _make_network(stack: ExitStack, pods: int) -> None:
    """A bridge that all pods' namespaces have an end of; the server's is number 0."""
    names = ["crowd", *(f"pod{pod}" for pod in range(pods + 1))]
    stack.callback(_run, "ip -force -batch -", [f"netns del {name}" for name in names])
    _run("ip -batch -", [f"netns add {name}" for name in names])
    inside = ["link add bridge type bridge", "link set bridge up"]
    for pod in range(pods + 1):
        inside += [
            f"link add pod{pod} type veth peer name eth0 netns pod{pod}",
            f"link set pod{pod} master bridge", f"link set pod{pod} up",
        ]  # fmt: skip
    _run("ip -n crowd -batch -", inside)
    for pod in range(pods + 1):
        address = SERVER if pod == 0 else f"10.92.{1 + pod // 200}.{1 + pod % 200}"
        _run(f"ip -n pod{pod} -batch -", [f"addr add {address}/16 dev eth0", "link set eth0 up"])


def _start(stage: Stage, pod: int, *command: str) -> Process:
    """A program in a container of this pod."""
    group = GROUPS / GROUP / "kubepods" / f"pod{uuid.uuid4()}" / os.urandom(32).hex()
    group.mkdir(parents=True)
    join = ["sh", "-c", JOIN, str(group), "nsenter", f"--net=/run/netns/pod{pod}"]
    return Process([*join, str(stage.millrace), "run", "--", *command], PLACE / f"crowd{pod}")


def _own_bytes(pid: int) -> int:
    """Resident memory of a process that it shares with nobody, or has from files."""
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(1024 * int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssFile:"))


def _spent(pid: int) -> tuple[int, float]:
    """How often a process has given up the processor or lost it, and its processor time in seconds."""
    switches = re.findall(r"ctxt_switches:\t(\d+)", Path(f"/proc/{pid}/status").read_text())
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, switches)), (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _roads(metrics: Path) -> dict[str, int]:
    """How many ends have which road, and why."""
    values = scrape.metrics(metrics).items()
    return {name.removeprefix("millrace_ends"): int(value) for name, value in values if name.startswith("millrace_ends{")}


def _until(what: str, is_so: Callable[[], bool], processes: list[Process], deadline: float) -> None:
    """Waits for something that these processes bring about."""
    while not is_so():
        ended = [process for process in processes if process.code() is not None]
        if ended:
            raise EngineFailed(f"{what}: ended with {ended[0].code()}: {ended[0].errors.read_text()[-400:]}")
        if time.monotonic() > deadline:
            raise EngineFailed(f"{what}: not in {MEET_S:.0f} s")
        time.sleep(0.05)


def _meet(stage: Stage, stack: ExitStack, crowd: Crowd, metrics: Path) -> dict[str, int]:
    """Starts all pods at once, and has them talk until all connections are on the ring; the roads that they take."""
    deadline = time.monotonic() + MEET_S
    millrace = str(stage.millrace)
    server = stack.enter_context(_start(stage, 0, millrace, "load", "serve", "echo", "--listen", f"{SERVER}:{PORT}"))
    _until("the server listens", lambda: f":{PORT}" in server.errors.read_text(), [server], deadline)
    command = (sys.executable, "-I", "-S", PROGRAM, SERVER, str(PORT), str(crowd.connections_each))
    pods = [stack.enter_context(_start(stage, pod, *command)) for pod in range(1, crowd.pods + 1)]
    turns = 0
    while True:
        turns += 1
        for pod in pods:
            said = pod.output
            _until("a pod talks", lambda said=said: said.read_text().count("ready") == turns, [server, pod], deadline)  # type: ignore[misc]
        roads = _roads(metrics)
        if roads.get('{road="shm",reason="none"}') == 2 * crowd.connections or time.monotonic() > deadline:
            return roads
        for pod in pods:
            pod.signal(signal.SIGUSR1)


def needs_little(crowd: Crowd, stage: Stage) -> str | None:
    """All connections of all pods take the ring, the agent has little memory for it, and does nothing while they are silent."""
    if not (GROUPS / "cgroup.procs").exists():
        raise EngineFailed("there is no hierarchy of control groups of systemd's")
    config, metrics = PLACE / "crowd.toml", PLACE / "crowd.sock"
    config.write_text(f'metrics = "{metrics}"\n')
    with without_agent(stage), ExitStack() as stack:
        _make_network(stack, crowd.pods)
        agent = start_agent(stage.millrace, "--config", str(config))
        stack.callback(lambda: AGENT.pop().stop())
        before = _own_bytes(agent.pid)
        began = time.monotonic()
        roads = _meet(stage, stack, crowd, metrics)
        took, (_, spent) = time.monotonic() - began, _spent(agent.pid)
        bytes_own = _own_bytes(agent.pid)
        deadline = time.monotonic() + MEET_S
        while (rests := _spent(agent.pid)) != (time.sleep(0.5), _spent(agent.pid))[1] and time.monotonic() < deadline:
            pass
        time.sleep(crowd.idle_s)
        idle = _spent(agent.pid)
    print(
        f"figure: {crowd.connections} connections of {crowd.pods} pods: the agent has {bytes_own / 2**20:.1f} MiB beside rings and "
        f"boards, {before / 2**20:.1f} MiB before; {spent:.2f} s of processor time in the {took:.0f} s until all were on the ring, "
        f"{idle[1] - rests[1]:.2f} s in {crowd.idle_s:.0f} s of silence",
        flush=True,
    )
    if roads != {'{road="shm",reason="none"}': 2 * crowd.connections}:
        return f"the roads of {2 * crowd.connections} ends: {roads}"
    if idle != rests:
        return f"while nothing happened, the agent went from {rests} switches and seconds to {idle}"
    return None if bytes_own <= AGENT_BYTES_MAX else f"the agent has {bytes_own} bytes of its own, and {AGENT_BYTES_MAX} are enough"
