"""Container engines: podman as root and as another user. Each has storage of its own, below `/run`, which goes with the run."""

from __future__ import annotations

import copy
import json
import os
import resource
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from images import Image

DEVICE = "millrace.dev/socket=all"
USER = 23456
USER_NAME = "millrace-test"
GROUP = "millrace-test"
"""Of control groups: every hierarchy has one of this name while a run is under way."""
PATIENCE_S = 30.0


class EngineFailed(Exception):
    """An engine said no, or a container did not do what it was to do in time."""


def configure(place: Path) -> dict[str, str]:
    """The environment for podman: runc, and no more of anything than this machine allows."""
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000)
    place.write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\nlog_driver = "k8s-file"\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    place.chmod(0o644)
    return {"CONTAINERS_CONF": str(place)}


class Podman:
    """podman, as root or as a user without privilege."""

    def __init__(self, place: Path, environment: dict[str, str], user: int = 0) -> None:
        """Its storage is in `place`."""
        self.user = user
        place.mkdir()
        os.chown(place, user, user)
        home = str(place)
        self._environment = {**os.environ, **environment, "HOME": home, "XDG_RUNTIME_DIR": home}
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        storage = ["--root", f"{home}/storage", "--runroot", f"{home}/run", "--tmpdir", f"{home}/tmp"]
        storage += ["--network-config-dir", f"{home}/networks"]
        vfs = ["--storage-driver", "vfs"] if user else []
        self._command = [*become, "podman", *storage, *vfs]
        self._number = 0
        self._kind = "c"

    def by_crun(self, namespace: Path) -> Podman:
        """The same storage and networks, but crun makes the containers, in this mount namespace."""
        other = copy.copy(self)
        other._command = ["nsenter", f"--mount={namespace}", "--", self._command[0], "--runtime=crun", *self._command[1:]]
        other._kind = "crun"
        return other

    def __call__(self, *words: str, check: bool = True) -> str:
        """Runs a podman command; what it printed."""
        done = subprocess.run(
            [*self._command, *words], env=self._environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode != 0:
            raise EngineFailed(f"podman {' '.join(words[:6])} ...: {done.stderr.strip()[-400:]}")
        return done.stdout.strip()

    def load(self, image: Image, archive: Path) -> None:
        """Makes an image of an archive."""
        changes = [f"--change=ENV {name}={value}" for name, value in image.environment.items()]
        self("import", "-q", *changes, str(archive), image.reference)

    def start(self, image: str, options: Sequence[str], command: Sequence[str]) -> Container:
        """A container in the background."""
        self._number += 1
        name = f"{self._kind}{self._number}"
        group = [] if self.user or any(option.startswith("--pod") for option in options) else [f"--cgroup-parent=/{GROUP}"]
        self("run", "-d", "--pull=never", f"--name={name}", *group, *options, f"localhost/{image}:1", *command)
        return Container(self, name)


class Container:
    """A container that runs."""

    def __init__(self, engine: Podman, name: str) -> None:
        self.engine = engine
        self.name = name

    @property
    def output(self) -> str:
        """What its program printed."""
        return self.engine("logs", self.name)

    def wait_for(self, line: str) -> None:
        """Until its program has printed this line."""
        end = time.monotonic() + PATIENCE_S
        while line not in self.output.splitlines():
            if time.monotonic() > end or not self.facts()["State"]["Running"]:
                raise EngineFailed(f"expected {line!r}, got {self.output[-300:]!r}")
            time.sleep(0.05)

    def facts(self) -> dict[str, object]:
        """What `podman inspect` says."""
        return json.loads(self.engine("inspect", self.name))[0]  # type: ignore[no-any-return]

    @property
    def number(self) -> str:
        """Its number in full."""
        return str(self.facts()["Id"])

    def address(self, family: str = "IPAddress") -> str:
        """Its address; `GlobalIPv6Address` for the other family."""
        networks = self.facts()["NetworkSettings"]["Networks"]  # type: ignore[index]
        return next(network[family] for network in networks.values())

    def execute(self, *command: str) -> str:
        """Runs a command in it."""
        return self.engine("exec", self.name, *command)

    def finish(self) -> int:
        """SIGTERM, and the program's exit status."""
        self.engine("kill", "--signal=TERM", self.name)
        return int(self.engine("wait", self.name))

    def remove(self) -> None:
        """Kills and removes it."""
        self.engine("rm", "-f", "-t", "0", self.name, check=False)


def remove_groups() -> None:
    """Removes control groups of this run's, the innermost first."""
    for top in Path("/sys/fs/cgroup").glob(f"*/{GROUP}"):
        for directory, _, _ in os.walk(top, topdown=False):
            os.rmdir(directory)
