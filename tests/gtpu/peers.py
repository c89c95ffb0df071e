"""go-gtp's user plane as the peer on both sides of the function, over the kernel's UDP on addresses of the loopback interface."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from harness import examples, road
from rig import Skipped, check

HERE = Path(__file__).resolve().parent
PEER = road.REPOSITORY / "target/gtpu/peer"
OURS = ("127.0.1.1", "127.0.2.1")
THEIRS = ("127.0.1.2", "127.0.2.2")
TEIDS = (0xC0, 0xA0)
LIMIT_S = 60


def build() -> None:
    """Builds the peer, where there is Go and its modules can be had."""
    if shutil.which("go") is None:
        print("there is no go, without which there is no go-gtp")
        return
    PEER.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", PEER, "."], check=False, cwd=HERE / "peer")


def _function(stack: ExitStack, *more: str) -> tuple[subprocess.Popen[str], list[str]]:
    if not PEER.exists():
        raise Skipped("go-gtp could not be built")
    words = [word for side in (0, 1) for word in (OURS[side], THEIRS[side], str(TEIDS[side]))]
    program = subprocess.Popen(
        [examples.PLACE / "udp", *words, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    stack.callback(lambda: (program.kill(), program.wait()))
    assert program.stdout is not None
    return program, program.stdout.readline().split()


def talks(stack: ExitStack, _: Path) -> None:
    """Packets go both ways with and without containers, echoes are answered, unknown tunnels are told of, and last messages come."""
    program, teids = _function(stack)
    words = [*OURS, *THEIRS, *teids]
    said = subprocess.run([PEER, "talk", *words], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    check(said.returncode == 0, f"{said.stdout}{said.stderr}")
    assert program.stdin is not None and program.stdout is not None
    marked = subprocess.Popen([PEER, "marked", *words], stdout=subprocess.PIPE, text=True)
    stack.callback(lambda: (marked.kill(), marked.wait()))
    assert marked.stdout is not None
    check(marked.stdout.readline() == "ready\n", "the peer is not ready")
    program.stdin.write("mark\n")
    program.stdin.flush()
    check(marked.wait(LIMIT_S) == 0, "no end marker came")
    program.stdin.close()
    check(program.wait(LIMIT_S) == 0, "the function did not end well")


def dies(stack: ExitStack, _: Path) -> None:
    """It answers when it is asked whether it lives, and is missed when it is gone."""
    program, teids = _function(stack, "1")
    peer = subprocess.Popen([PEER, "live", *OURS, *THEIRS, *teids], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(lambda: (peer.kill(), peer.wait()))
    assert program.stdout is not None
    seen: set[str] = set()
    while len(seen) < 2:
        line = program.stdout.readline()
        check(line != "", f"the function has ended, after {seen}")
        seen |= {line.strip()} if line.startswith("PathUp") else set()
    peer.kill()
    peer.wait()
    while len(seen) < 4:
        line = program.stdout.readline()
        check(line != "", f"the function has ended, after {seen}")
        seen |= {line.strip()} if line.startswith("PathDown") else set()
