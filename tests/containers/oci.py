"""Containers by runc alone, from a configuration to which the CDI's own library has applied the device.

The library also checks the specification against its schema. It is a Go module: without Go there are no such containers.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

from engines import GROUP, PATIENCE_S, EngineFailed

INJECT = Path(__file__).with_name("inject")
USER = 1000


def fetch_modules() -> None:
    """Gets what that program is made of, while there is a network."""
    if shutil.which("go") is not None:
        subprocess.run(["go", "mod", "download"], cwd=INJECT, check=True)


def build_injector(place: Path) -> Path | None:
    """The program that applies devices; `None` without Go."""
    if shutil.which("go") is None:
        return None
    program = place / "inject"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=INJECT, check=True, capture_output=True)
    return program


def make_namespaces(left: str, right: str) -> None:
    """Two network namespaces that reach each other: 10.91.0.1 is in the left one."""
    commands = [
        f"ip netns add {left}", f"ip netns add {right}",
        f"ip link add to-right netns {left} type veth peer name to-left netns {right}",
        f"ip -n {left} addr add 10.91.0.1/24 dev to-right", f"ip -n {right} addr add 10.91.0.2/24 dev to-left",
        f"ip -n {left} link set to-right up", f"ip -n {right} link set to-left up",
    ]  # fmt: skip
    for command in commands:
        subprocess.run(command.split(), check=True)


class OciContainer:
    """A container that runs, without privilege and with a read-only root."""

    def __init__(self, name: str, root: Path, injector: Path | None, namespace: str, command: list[str]) -> None:
        """Without an injector it has no device; without a network namespace it gets one of its own."""
        self.name = name
        self._bundle = root.parent / f"bundle-{name}"
        self._bundle.mkdir()
        subprocess.run(["cp", "-a", str(root), str(self._bundle / "rootfs")], check=True)
        subprocess.run(["runc", "spec"], cwd=self._bundle, check=True)
        file = self._bundle / "config.json"
        configuration = json.loads(file.read_text())
        self._adapt(configuration, namespace, command)
        if injector:
            words = [str(injector), "/etc/cdi", "millrace.dev/socket=all"]
            done = subprocess.run(words, input=json.dumps(configuration), capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise EngineFailed(done.stderr)
            configuration = json.loads(done.stdout)
        file.write_text(json.dumps(configuration))
        with open(self._bundle / "output", "wb") as output:
            self._process = subprocess.Popen(
                ["runc", "run", "--bundle", str(self._bundle), name], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    @staticmethod
    def _adapt(configuration: dict[str, object], namespace: str, command: list[str]) -> None:
        process: dict[str, object] = configuration["process"]  # type: ignore[assignment]
        process |= {"terminal": False, "args": command, "user": {"uid": USER, "gid": USER}, "capabilities": {}}
        linux: dict[str, list[dict[str, str]]] = configuration["linux"]  # type: ignore[assignment]
        linux["cgroupsPath"] = f"/{GROUP}/{time.monotonic_ns():064x}"  # type: ignore[assignment]
        for kind in linux["namespaces"]:
            if kind["type"] == "network" and namespace:
                kind["path"] = f"/run/netns/{namespace}"

    @property
    def output(self) -> str:
        """What its program printed."""
        return (self._bundle / "output").read_text()

    def wait_for(self, line: str) -> None:
        """Until its program has printed this line."""
        end = time.monotonic() + PATIENCE_S
        while line not in self.output.splitlines():
            if time.monotonic() > end or self._process.poll() is not None:
                raise EngineFailed(f"expected {line!r}, got {self.output[-300:]!r}")
            time.sleep(0.05)

    def wait(self) -> str:
        """What it printed until it ended, or the runtime about it."""
        self._process.wait(PATIENCE_S)
        return self.output

    def finish(self) -> int:
        """SIGTERM, and the program's exit status."""
        subprocess.run(["runc", "kill", self.name, str(int(signal.SIGTERM))], check=True)
        return self._process.wait(PATIENCE_S)

    def remove(self) -> None:
        """Kills and removes it."""
        subprocess.run(["runc", "delete", "--force", self.name], capture_output=True, check=False)
        self._process.wait(PATIENCE_S)
        shutil.rmtree(self._bundle)
