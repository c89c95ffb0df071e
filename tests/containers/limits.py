"""What the machine's owner, or the engine, puts on a container: memory limits, seccomp profiles, freezing, checkpoints."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from harness import road

from engines import PATIENCE_S, Container, EngineFailed
from stage import AGENT, BRIDGE, PLACE, Case, Side, Stage, check_road

MEMORY = ("--memory=48m", "--memory-swap=48m")
RINGS_KIB = 32
"""Less than the rings of one connection that has carried `talk`'s messages."""
NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
DEFAULT_PROFILE = Path("/usr/share/containers/seccomp.json")
DOCUMENT = road.REPOSITORY / "docs/containers.md"
# What `talk`, its C library and runc's own last steps in a container need.
OF_THE_PROGRAM = (
    "accept access arch_prctl bind brk capget capset chdir clock_nanosleep clone close close_range connect dup3 epoll_create1 epoll_ctl "
    "epoll_pwait execve exit exit_group faccessat faccessat2 fchdir fchown fcntl fstat fstatfs futex getcwd getdents64 getpid getppid "
    "getrandom gettid getuid listen lseek mmap mprotect munmap nanosleep newfstatat open openat pipe2 prctl pread64 prlimit64 read "
    "recvfrom rseq rt_sigaction rt_sigreturn sched_getaffinity sendto set_robust_list set_tid_address setgid setgroups setsockopt "
    "setuid sigaltstack socket statfs statx tgkill umask uname unlinkat write"
).split()


def documented_calls() -> list[list[str]]:
    """The system calls of the library, as the document lists them: by what their refusal means."""
    section = DOCUMENT.read_text().partition("## System calls\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([a-z_0-9]+)`", line) for line in section.splitlines() if line.startswith("|")]
    return [row for row in rows if row]


def profile(name: str, calls: set[str]) -> str:
    """The option for a profile that allows just these."""
    path = PLACE / f"{name}.json"
    rules = [{"names": sorted(calls), "action": "SCMP_ACT_ALLOW"}]
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": rules}))
    return f"--security-opt=seccomp={path}"


def keeps_to_its_system_calls(stage: Stage) -> str | None:
    """The calls that the document names are in the engine's default profile, and enough. Without, programs run as without the device."""
    ours = {call for row in documented_calls() for call in row}
    rules = [rule for rule in json.loads(DEFAULT_PROFILE.read_text())["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    default = {name for rule in rules if not rule.get("includes") for name in rule["names"]}
    if not ours or not ours <= default:
        return f"not in the engine's default profile: {sorted(ours - default)}"
    outputs = []
    for name, calls, on_ring in (("all", ours, True), ("none", set(), False)):
        side = Side((profile(name, {*calls, *OF_THE_PROGRAM}),))
        with ExitStack() as stack:
            server, client = stage.converse(stack, Case(name, side, side))
            wrong = check_road(stage, Case(name, on_ring=on_ring))
            if client.finish() != 0 or wrong:
                return f"{name} of the calls allowed: {wrong} {client.output}"
            outputs.append((server.output, client.output))
    return None if outputs[0] == outputs[1] else str(outputs)


def stays_unaffected_without_any_call(stage: Stage) -> str | None:
    """Each of the library's calls refused alone, at both ends: the conversation is as without the device."""
    numbers = dict(re.findall(r"__NR_(\w+) (\d+)", NUMBERS.read_text()))
    calls = [call for row in documented_calls() for call in row]
    for error in (errno.EPERM, errno.ENOSYS):
        said = [refuse(stage, device, error, [numbers[call] for call in calls]) for device in (False, True)]
        for call, plain, ours in zip(calls, *said, strict=True):
            # Some calls the program itself cannot do without.
            if plain.endswith("done") and plain != ours:
                return f"{call} refused by error {error}: without the device {plain!r}, with it {ours!r}"
    return None


def refuse(stage: Stage, device: bool, error: int, numbers: list[str]) -> list[str]:
    """What clients say to whom, as to their servers, one system call is refused, and how they end; of each call."""
    serve = f"for n in {' '.join(numbers)}; do /bin/confine {error} $n -- /bin/talk serve 0.0.0.0 $((7300 + n)) & done; sleep 1000000"
    said = []
    with ExitStack() as stack:
        server = stage.start(stack, Side(), device, "/bin/sh", "-c", serve)
        client = stage.start(stack, Side(), device, "/bin/sleep", "1000000")
        for number in numbers:
            target = f"{server.address()} {7300 + int(number)}"
            call = (
                f": > /tmp/said; /bin/confine {error} {number} -- /bin/talk call {target} >> /tmp/said 2>&1 & p=$!; "
                "for i in 1 2 3 4 5 6 7 8 9 10; do case $(cat /tmp/said) in *ready*|*failed*|*error*) break;; esac; sleep 0.5; done; "
                "kill -TERM $p; wait $p; echo $?; cat /tmp/said"
            )
            said.append(client.execute("sh", "-c", call))
    return said


def memory_group(container: Container) -> Path:
    """Its control group that limits memory, in either hierarchy."""
    lines = Path(f"/proc/{container.facts()['State']['Pid']}/cgroup").read_text().splitlines()  # type: ignore[index]
    of_memory = [line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"]
    unified = next(line.split(":", 2)[2] for line in lines if line.startswith("0::"))
    return Path(f"/sys/fs/cgroup/memory{of_memory[0]}" if of_memory else f"/sys/fs/cgroup{unified}")


def shared_memory_kib(container: Container) -> int:
    """Memory of memory files that its control group is charged for."""
    stat = dict(line.split() for line in (memory_group(container) / "memory.stat").read_text().splitlines())
    return int(stat.get("total_shmem", stat["shmem"])) // 1024


def segments_of_agent() -> int:
    """Segments that the agent holds."""
    links = Path(f"/proc/{AGENT[-1].pid}/fd").iterdir()
    return sum("millrace-segment" in os.readlink(link) for link in links if link.is_symlink())


def ends_when_memory_is_out(stage: Stage) -> str | None:
    """A program that meets its container's limit is killed, its peer hears of it as ever, and the agent holds nothing of it."""
    outputs = []
    case = Case("out of memory", Side(MEMORY), Side(MEMORY))
    for device in (False, True):
        with ExitStack() as stack:
            server, client = stage.converse(stack, case, device, "busy")
            wrong = check_road(stage, case) if device else None
            charged = [shared_memory_kib(end) for end in (server, client)] if device else [0]
            if wrong or max(charged) > RINGS_KIB:
                return wrong or f"charged to the containers: {charged} KiB"
            said = [exhaust(stage, client)]
            again = stage.start(stack, case.client, device, "/bin/talk", "busy", *stage.target(case, server))
            again.wait_for("ready")
            said += [exhaust(stage, server), stage.podman("wait", again.name), again.output]
            outputs.append(said)
            if device and (left := left_behind(stage)):
                return left
    return None if outputs[0] == outputs[1] else f"without the device {outputs[0]}, with it {outputs[1]}"


def exhaust(stage: Stage, container: Container) -> str:
    """Has its program take more memory than there is; how it ended."""
    stage.podman("kill", "--signal=USR1", container.name)
    return stage.podman("wait", container.name)


def left_behind(stage: Stage) -> str | None:
    """What the agent still has, though the programs are gone."""
    end = time.monotonic() + PATIENCE_S
    while stage.roads() or segments_of_agent():
        if time.monotonic() > end:
            return f"left with the agent: {stage.roads()}, {segments_of_agent()} segments"
        time.sleep(0.05)
    return None


def stands_still(stage: Stage) -> str | None:
    """Either end frozen under traffic: nothing is lost."""
    outputs = []
    for device in (False, True):
        with ExitStack() as stack:
            server, client = stage.converse(stack, BRIDGE, device, "busy")
            for end in (server, client, server):
                stage.podman("pause", end.name)
                time.sleep(0.2)
                stage.podman("unpause", end.name)
            status = client.finish()
            outputs.append((status, client.output, server.output))
    return None if outputs[0] == outputs[1] and outputs[0][0] == 0 else str(outputs)


def checkpoints_run_here() -> str | None:
    """Why CRIU does not work on this machine."""
    try:
        checked = subprocess.run(["criu", "check"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no CRIU here"
    said = checked.stderr.strip().splitlines()
    return f"CRIU does not run here: {said[0] if said else checked.returncode}" if checked.returncode else None


def is_not_continued_twice(stage: Stage) -> str | None:
    """A checkpoint of one end fails and leaves it as it was, or the connection is reset when it is restored."""
    with ExitStack() as stack:
        server, client = stage.converse(stack, BRIDGE)
        try:
            stage.podman("container", "checkpoint", "--tcp-established", "--keep", server.name)
        except EngineFailed as error:
            went_on = client.finish() == 0
            return None if went_on and str(error) else f"the checkpoint failed, and the connection: {client.output}"
        stage.podman("container", "restore", "--tcp-established", server.name)
        return None if client.finish() != 0 and "failed: " in client.output else f"went on: {client.output}"
