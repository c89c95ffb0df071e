"""As many pods as a node has, each in a network namespace and a control group of its own: what the agent needs for them all."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from harness import scrape
from harness.process import Process

from engines import GROUP, EngineFailed
from stage import AGENT, PLACE, Stage, start_agent, without_agent

PODS, CONNECTIONS = 250, 10_000
AGENT_BYTES_MAX = 64 << 20
"""Of the agent's own, beside rings and boards."""
SERVER, PORT = "10.92.0.1", 7000
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
MEET_S = 120.0


def _run(command: str, lines: list[str]) -> None:
    subprocess.run(command.split(), input="\n".join(lines), text=True, check=True)


def _make_network() -> None:
    """A bridge that all pods' namespaces have an end of; the server's is number 0."""
    made = ["netns add crowd"]
    made += [f"netns add pod{pod}" for pod in range(PODS + 1)]
    _run("ip -batch -", made)
    inside = ["link add bridge type bridge", "link set bridge up"]
    for pod in range(PODS + 1):
        inside += [
            f"link add pod{pod} type veth peer name eth0 netns pod{pod}",
            f"link set pod{pod} master bridge", f"link set pod{pod} up",
        ]  # fmt: skip
    _run("ip -n crowd -batch -", inside)
    for pod in range(PODS + 1):
        address = SERVER if pod == 0 else f"10.92.{1 + pod // 200}.{1 + pod % 200}"
        _run(f"ip -n pod{pod} -batch -", [f"addr add {address}/16 dev eth0", "link set eth0 up"])


def _start(stage: Stage, pod: int, *command: str) -> Process:
    """A program in a container of this pod."""
    group = Path("/sys/fs/cgroup/systemd") / GROUP / "kubepods" / f"pod{uuid.uuid4()}" / os.urandom(32).hex()
    group.mkdir(parents=True)
    millrace = str(stage.millrace)
    join = ["sh", "-c", JOIN, str(group), "ip", "netns", "exec", f"pod{pod}"]
    return Process([*join, millrace, "run", "--", millrace, *command], PLACE / f"crowd{pod}")


def _own_bytes(pid: int) -> int:
    """Resident memory of a process that it shares with nobody, or has from files."""
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(1024 * int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssFile:"))


def _on_ring(metrics: Path) -> int:
    ends = (value for name, value in scrape.metrics(metrics).items() if name.startswith('millrace_ends{road="shm"'))
    return int(sum(ends)) // 2


def needs_little(stage: Stage) -> str | None:
    """The agent's memory with 250 pods and 10 000 connections on the ring."""
    if not Path("/sys/fs/cgroup/systemd/cgroup.procs").exists():
        raise EngineFailed("there is no hierarchy of control groups of systemd's")
    _make_network()
    config, metrics = PLACE / "crowd.toml", PLACE / "metrics.sock"
    config.write_text(f'metrics = "{metrics}"\n')
    with without_agent(stage), ExitStack() as stack:
        agent = start_agent(stage.millrace, "--config", str(config))
        stack.callback(lambda: AGENT.pop().stop())
        before = _own_bytes(agent.pid)
        server = stack.enter_context(_start(stage, 0, "load", "serve", "echo", "--listen", f"{SERVER}:{PORT}"))
        end = time.monotonic() + MEET_S
        while f":{PORT}" not in server.output.read_text() and server.code() is None and time.monotonic() < end:
            time.sleep(0.02)
        each = str(CONNECTIONS // PODS)
        for pod in range(1, PODS + 1):
            stack.enter_context(_start(stage, pod, "load", "idle", f"{SERVER}:{PORT}", "--connections", each))
        while (found := _on_ring(metrics)) < CONNECTIONS and time.monotonic() < end:
            time.sleep(0.5)
        after = _own_bytes(agent.pid)
        said = server.errors.read_text()
    print(f"figure: the agent has {after / 2**20:.1f} MiB for {PODS} pods and {found} connections, {before / 2**20:.1f} MiB for none")
    if found < CONNECTIONS:
        return f"{found} connections are on the ring, and not {CONNECTIONS}: {said}"
    return None if after <= AGENT_BYTES_MAX else f"the agent has {after} bytes of its own, and {AGENT_BYTES_MAX} are enough"
