#!/usr/bin/python3
"""Programs in real containers, and whether each connection took the ring.

    tests/containers/run.py [--millrace PATH] [--whole] [CASE ...]

Exits with 0 when every conversation was right and took the road that it should. Needs root.
"""

from __future__ import annotations

import argparse
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from harness import isolate, packages, road  # noqa: E402

import crowd  # noqa: E402
import engines  # noqa: E402
import kills  # noqa: E402
import limits  # noqa: E402
import oci  # noqa: E402
import packets  # noqa: E402
from engines import EngineFailed  # noqa: E402
from stage import AGENT, BRIDGE, PLACE, PORT, Case, Side, Stage, check_road, start_agent, without_agent  # noqa: E402

PACKAGES = (
    "podman|podman", "runc|runc", "netavark", "iptables|iptables", "uidmap|newuidmap", "slirp4netns|slirp4netns",
    "busybox-static", "musl-tools|musl-gcc", "catatonit", "crun|crun", "strace|strace",
)  # fmt: skip
HARDENED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--user=1000:1000")
MAPPED = ("--uidmap=0:200000:65536", "--gidmap=0:200000:65536")
VARIABLE = "millrace.dev/socket=variable"
HOST = ("--network=host",)
LABEL = "--annotation=millrace.dev/role=worker"
POD = ("--pod=pair",)
CASES = [
    BRIDGE,
    Case("no capability, read-only, another user", Side(HARDENED), Side(HARDENED)),
    Case("different users", Side(("--user=1000:1000",)), Side(("--user=2000:2000",))),
    Case("a user namespace each", Side(MAPPED), Side((*MAPPED, *HARDENED)), on_ring=False),
    Case("IPv6", Side(("--network=six",)), Side(("--network=six",)), "container, IPv6"),
    Case("one pod", Side(POD), Side(POD), "loopback"),
    Case("from the host's network", Side(), Side(HOST)),
    Case("to the host's network", Side(HOST), Side(), "host"),
    Case("a published port", Side(("-p", f"7200:{PORT}")), Side(HOST), "published"),
    Case("rootless, on the host's network", Side(), Side((*HOST, LABEL), engine="rootless")),
    Case("rootless, by user-space NAT", Side(), Side(engine="rootless"), on_ring=False),
    Case("an image with LD_PRELOAD", Side(image="with-variable"), Side(image="with-variable")),
    Case("an image with a list of its own", Side(image="with-list"), Side(image="with-list")),
    Case("an image whose list is a link", Side(image="with-link"), Side(), on_ring=False),
    Case("musl", Side(image="musl"), Side(), on_ring=False),
    Case("musl, by the variable", Side(image="musl", device=VARIABLE), Side()),
    Case("static", Side(image="static"), Side(), on_ring=False),
    Case("made by crun", Side(engine="crun"), Side(HARDENED, device=VARIABLE, engine="crun")),
    Case("one without the device", Side(device=""), Side(), on_ring=False),
]


def talk(stage: Stage, case: Case) -> str | None:
    """Plays a case without and with the device; returns what was wrong."""
    outputs = []
    for device in (False, True):
        with ExitStack() as stack:
            server, client = stage.converse(stack, case, device)
            wrong = check_road(stage, case) if device else None
            status = client.finish()
            if wrong or status != 0:
                return wrong or f"the client ended with {status}: {client.output}"
            outputs.append((client.output, server.output))
    return None if outputs[0] == outputs[1] else f"without the device {outputs[0]}, with it {outputs[1]}"


def keeps_what_the_image_has(stage: Stage) -> str | None:
    """Neither the environment of the image nor its list of libraries is changed, but for the library behind the others."""
    shown = ("/bin/sh", "-c", "cat /etc/ld.so.preload; echo; env | grep -v HOSTNAME")
    said = {}
    for image in ("glibc", "with-variable", "with-list"):
        for device in (False, True):
            with ExitStack() as stack:
                container = stage.start(stack, Side(image=image), device, *shown)
                stage.podman("wait", container.name)
                said[image, device] = container.output.splitlines()
    library = "/run/millrace/$PLATFORM/libmillrace_preload.so"
    for image in ("glibc", "with-variable", "with-list"):
        plain, ours = said[image, False], said[image, True]
        missing = [line for line in plain if line not in ours and "can't open" not in line]
        added = [line for line in ours if line and line not in plain]
        if missing or added != [library]:
            return f"{image}: missing {missing}, added {added}"
    return None


def runs_in_a_container(stage: Stage) -> str | None:
    """`exec` into a container is accelerated as its first program is, and sees its own container's connections only."""
    with ExitStack() as stack:
        server, client = stage.converse(stack, BRIDGE)
        stranger, _ = stage.converse(stack, BRIDGE)
        inner = ["sh", "-c", f"/bin/talk call {server.address()} {PORT} & sleep 2; kill -TERM $!; wait $!"]
        client.finish()  # The server takes one connection after the other.
        said = stranger.execute(*inner)
        if "done" not in said:
            return f"exec: {said}"
        said = server.execute("/run/millrace/millrace", "doctor")
        if "can prove connections of this one" not in said or "by /etc/ld.so.preload" not in said or "bad " in said:
            return f"doctor: {said}"
        seen = road.parsed(server.execute("/run/millrace/millrace", "ps", "--json").encode())
        others = [end for connection in seen for end in connection["ends"] if end.get("container") != server.number]
        return f"a container sees {others}" if others else None


def outlives(stage: Stage) -> str | None:
    """A container that is killed ends its peer's connection; one that is started again goes on."""
    with ExitStack() as stack:
        server, client = stage.converse(stack, BRIDGE)
        stage.podman("kill", "--signal=KILL", server.name)
        stage.podman("wait", server.name)
        if client.finish() == 0 or "failed: " not in client.output:
            return f"after a kill: {client.output}"
        stage.podman("start", server.name)
        end = time.monotonic() + engines.PATIENCE_S
        while server.output.count("listening") < 2 and time.monotonic() < end:
            time.sleep(0.05)
        again = stage.start(stack, Side(), True, "/bin/talk", "call", server.address(), PORT)
        again.wait_for("ready")
        wrong = check_road(stage, BRIDGE)
        return wrong or (None if again.finish() == 0 else f"started again: {again.output}")


def runs_by_runc_alone(stage: Stage) -> str | None:
    """What the CDI's own library makes of the specification, by the reference runtime, without privilege."""
    oci.make_namespaces("left", "right")
    outputs = []
    for injector in (None, stage.injector):
        with ExitStack() as stack:
            ends = []
            for name, command, line in (("left", "serve 0.0.0.0", "listening"), ("right", "call 10.91.0.1", "ready")):
                words = ["/bin/talk", *command.split(), PORT]
                ends.append(oci.OciContainer(name, PLACE / "images/glibc", injector, name, words))
                stack.callback(ends[-1].remove)
                ends[-1].wait_for(line)
            wrong = check_road(stage, BRIDGE) if injector else None
            if wrong or ends[1].finish() != 0:
                return wrong or ends[1].output
            outputs.append([end.output for end in ends])
    return None if outputs[0] == outputs[1] else str(outputs)


def starts_without_an_agent(stage: Stage) -> str | None:
    """With the device and nobody who serves it, programs run as without."""
    with without_agent(stage), ExitStack() as stack:
        _, client = stage.converse(stack, BRIDGE)
        if client.finish() != 0:
            return client.output
    return None


def stays_while_it_is_used(stage: Stage) -> str | None:
    """The directory is not taken away from containers that have it."""
    with ExitStack() as stack:
        stage.converse(stack, BRIDGE)
        removed = subprocess.run([stage.millrace, "cdi", "remove"], capture_output=True, text=True, check=False)
        stayed = Path("/var/lib/millrace/libmillrace_preload.so").exists()
        subprocess.run([stage.millrace, "cdi", "install"], check=True, capture_output=True)
    return None if removed.returncode == 1 and "containers have it" in removed.stderr and stayed else removed.stderr


CHECKPOINT = "checkpoint and restore"
ALONE = "runc alone"
HOOK = "hook killed"
HOOK_WHOLE = "hook killed at every moment"
OTHERS: dict[str, Callable[[Stage], str | None]] = {
    "what an image has stays as it is": keeps_what_the_image_has,
    "exec into a container, and what it sees": runs_in_a_container,
    "killed, started again": outlives,
    "frozen under traffic": limits.stands_still,
    "out of memory": limits.ends_when_memory_is_out,
    "strict seccomp profiles": limits.keeps_to_its_system_calls,
    "installation killed": partial(kills.install_killed, whole=False),
    HOOK: partial(kills.hook_killed, whole=False),
    "label hooks killed": partial(kills.label_hooks_killed, whole=False),
    CHECKPOINT: limits.is_not_continued_twice,
    ALONE: runs_by_runc_alone,
    "no agent": starts_without_an_agent,
    "removed while containers run": stays_while_it_is_used,
    "packet ports": packets.has_ports,
    "packet ports that cannot be had": packets.is_refused,
    "25 pods with 1 000 connections": partial(crowd.needs_little, crowd.SAMPLE),
}
WHOLE: dict[str, Callable[[Stage], str | None]] = {
    "each system call refused": limits.stays_unaffected_without_any_call,
    "installation killed at every moment": partial(kills.install_killed, whole=True),
    HOOK_WHOLE: partial(kills.hook_killed, whole=True),
    "label hooks killed at every moment": partial(kills.label_hooks_killed, whole=True),
    "250 pods with 10 000 connections": partial(crowd.needs_little, crowd.WHOLE),
}
"""With `--whole` only."""


def skipped(stage: Stage, name: str) -> str | None:
    """Why a case cannot be played here."""
    if name in (ALONE, HOOK, HOOK_WHOLE) and stage.injector is None:
        return "its tool is a Go module, and there is no Go here"
    return limits.checkpoints_run_here() if name == CHECKPOINT else None

def make_world() -> None:
    """Directories of the run's own where the machine's are, and a user for rootless containers."""
    engines.remove_groups()
    PLACE.mkdir(mode=0o755)
    (PLACE / "images").mkdir()
    # podman keeps a cache in the last, wherever its storage is.
    for directory in ("/etc/cdi", "/var/lib/millrace", "/var/lib/containers"):
        made = not Path(directory).exists()
        Path(directory).mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", directory], check=True)
        MADE.extend([directory] if made else [])
    # Every user's podman has its locks there.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)
    lines = {
        "passwd": f"{engines.USER_NAME}:x:{engines.USER}:{engines.USER}::{PLACE}/user:/bin/sh",
        "group": f"{engines.USER_NAME}:x:{engines.USER}:",
        "subuid": f"{engines.USER_NAME}:300000:65536",
        "subgid": f"{engines.USER_NAME}:300000:65536",
    }
    for name, line in lines.items():
        real = Path("/etc") / name
        text = real.read_text() if real.exists() else ""
        (PLACE / name).write_text(f"{text}{line}\n")
        if real.exists():
            subprocess.run(["mount", "--bind", str(PLACE / name), str(real)], check=True)
    # Not everywhere may everybody use the machine's.
    os.mknod(PLACE / "tun", stat.S_IFCHR | 0o666, os.makedev(10, 200))
    os.chmod(PLACE / "tun", 0o666)
    subprocess.run(["mount", "--bind", str(PLACE / "tun"), "/dev/net/tun"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of this run's own network namespace


MADE: list[str] = []


def unmake_world() -> None:
    """Control groups and mount points are the machine's: nothing of ours stays."""
    engines.remove_groups()
    for directory in MADE:
        subprocess.run(["umount", "--lazy", directory], check=False)
        os.rmdir(directory)


def main() -> int:
    """Plays the cases that the command line names, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millrace", type=Path, default=road.MILLRACE)
    parser.add_argument("--whole", action="store_true", help="the cases that take longer, too")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    if not isolate.is_inside():
        packages.install((*PACKAGES, "criu|criu") if arguments.whole else PACKAGES)
        oci.fetch_modules()
    isolate.ensure()
    # The kernel takes the rest away, but not control groups and what `finally` below sees to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    make_world()
    failed = passed = left_out = 0
    try:
        subprocess.run([arguments.millrace, "cdi", "install"], check=True, stdout=subprocess.DEVNULL)
        start_agent(arguments.millrace)
        stage = Stage(arguments.millrace)
        stage.prepare()
        todo: list[tuple[str, Callable[[], str | None]]] = [(case.name, partial(talk, stage, case)) for case in CASES]
        others = OTHERS | WHOLE if arguments.whole or arguments.cases else OTHERS
        todo += [(name, partial(check, stage)) for name, check in others.items()]
        for name, play in todo:
            if arguments.cases and name not in arguments.cases:
                continue
            if reason := skipped(stage, name):
                print(f"skipped           {name}: {reason}", flush=True)
                left_out += 1
                continue
            began = time.monotonic()
            try:
                wrong = play()
            except (EngineFailed, subprocess.SubprocessError) as error:
                wrong = str(error)
            took = f"{time.monotonic() - began:5.1f} s"
            print(f"{'FAILED' if wrong else 'ok':8}{took}  {name}{f': {wrong}' if wrong else ''}", flush=True)
            failed += bool(wrong)
            passed += not wrong
        stage.podman("pod", "rm", "-f", "-t", "0", "pair", check=False)
    finally:
        for agent in AGENT:
            agent.stop()
        unmake_world()
    print(f"{passed} passed, {failed} failed, {left_out} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
