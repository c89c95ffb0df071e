#!/usr/bin/python3
"""Asks a real Prometheus for everything that the board for Grafana shows, of a real agent under load: no panel may be empty.

    tests/observe/board.py [--millrace PATH] [--seconds N] [--picture FILE]

The picture is drawn from the board's definition by a browser, not by Grafana. Needs root, for namespaces and control groups.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness import isolate, process, road  # noqa: E402

import panels  # noqa: E402

TRAFFIC = Path(__file__).with_name("traffic.py")
BOARD = road.REPOSITORY / "deploy/grafana/millrace.json"
METRICS, PROMETHEUS, SERVER = 9464, 9090, 7000
WAIT_S = 60.0
# What is declined, and memory, have panels: so there is not enough for all.
CONFIGURATION = f"""metrics = "127.0.0.1:{METRICS}"

[quota]
ends_per_client = 30
bytes_total = 67108864
"""
SCRAPES = f"""global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: millrace
    honor_labels: true
    static_configs: [{{targets: ["127.0.0.1:{METRICS}"]}}]
"""
# As the kubelet names the directories of its pods' logs, and their control groups.
PODS = {"shop/cache-0": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "shop/web-5d9c7": "6ba7b811-9dad-11d1-80b4-00c04fd430c8"}
GROUPS = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup")


class Pods:
    """Control groups with the names of pods', for programs of the load."""

    def __init__(self, stack: ExitStack) -> None:
        """Makes them, and the directories by which the agent knows their names."""
        top = next(Path(place) for place in GROUPS if (Path(place) / "cgroup.procs").exists())
        self.groups = {}
        # In this run's mount namespace only.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/var/log"], check=True)
        for name, uid in PODS.items():
            Path(f"/var/log/pods/{name.replace('/', '_')}_{uid}").mkdir(parents=True)
            self.groups[name] = top / f"kubepods-board-pod{uid}"
            self.groups[name].mkdir(exist_ok=True)
            stack.callback(self._remove, self.groups[name])

    def prefix(self, name: str) -> list[str]:
        """The command that puts a program into a pod."""
        return ["/bin/sh", "-c", f'echo $$ > {self.groups[name]}/cgroup.procs && exec "$@"', "sh"]

    @staticmethod
    def _remove(group: Path) -> None:
        end = time.monotonic() + WAIT_S
        while group.exists() and time.monotonic() < end:
            try:
                group.rmdir()
            except OSError:
                # The last of its programs is just ending.
                time.sleep(0.1)


def start(stack: ExitStack, directory: Path, millrace: Path) -> None:
    """An agent, a Prometheus, and programs in pods and outside that have connections on both roads."""
    environment = {"MILLRACE_AGENT": str(directory / "m/agent.sock")}
    (directory / "agent.toml").write_text(CONFIGURATION)
    (directory / "prometheus.yml").write_text(SCRAPES)

    def run(name: str, *argv: str) -> None:
        stack.callback(process.Process(argv, directory / name, directory, environment).stop)

    run("agent", str(millrace), "agent", "--config", str(directory / "agent.toml"))
    run(
        "prometheus",
        *("prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"),
        *(f"--web.listen-address=127.0.0.1:{PROMETHEUS}", "--log.level=warn"),
    )
    pods = Pods(stack)
    under = [str(millrace), "run", "--", sys.executable, str(TRAFFIC)]
    serve = [*under[:3], str(millrace), "load", "serve", "echo", "--listen", f"127.0.0.1:{SERVER}"]
    run("server", *pods.prefix("shop/cache-0"), *serve)
    until(lambda: is_served(SERVER), "the server listens")
    for number, pause_s in enumerate((0.0, 0.002, 0.01, 0.05)):
        run(f"ping-{number}", *pods.prefix("shop/web-5d9c7"), *under, "steady", str(SERVER), "4096", str(pause_s))
    run("churn", *pods.prefix("shop/web-5d9c7"), *under, "churn", str(SERVER), "5")
    run("states", *under, "states", str(SERVER))
    run("plain", sys.executable, str(TRAFFIC), "steady", str(SERVER), "100", "0.01")


def is_served(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to become true."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def main() -> int:
    """Returns the exit code: 0 when every panel has data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, default=road.MILLRACE)
    parser.add_argument("--seconds", type=int, default=40, metavar="N", help="how long there is load")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the board")
    options = parser.parse_args()
    if shutil.which("prometheus") is None or os.geteuid() != 0:
        print("skipped: needs root, and the Debian package prometheus\n0 passed, 0 failed, 1 skipped")
        return 0
    isolate.ensure()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-board-")))
        start(stack, directory, options.millrace.resolve())
        time.sleep(options.seconds)
        board = panels.Board(BOARD, f"http://127.0.0.1:{PROMETHEUS}", options.seconds)
        if options.picture:
            board.draw(options.picture.resolve())
    empty = [f"{panel.title}: no data for {expr}" for panel in board.panels for expr in panel.empty]
    print("\n".join(empty or [f"{len(board.panels)} panels, each with data"]))
    full = sum(not panel.empty for panel in board.panels)
    print(f"{full} passed, {len(board.panels) - full} failed")
    return int(bool(empty))


if __name__ == "__main__":
    sys.exit(main())
