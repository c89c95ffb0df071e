"""Programs of cases (`tests/traps/traps.h`): each case runs plain and under Millrace, and must observe the same."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import road

TRAPS = road.REPOSITORY / "tests/traps"
LIBRARIES = {"uring": ["-luring"], "lookups": ["-rdynamic"], "sanitized": ["-fsanitize=thread"]}
CASE_S = 60.0
# Most wait most of the time.
AT_A_TIME = 8
# How a case begins the line by which it says that this machine lacks what it needs.
SKIPPED = "skipped: "
MODES = ("eager", "default", "eager-nospin", "chaos:5")


@dataclass(frozen=True)
class Way:
    """A way of running a case under Millrace: its name for people, the mode, and the command before `millrace run`."""

    name: str
    mode: str
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """How a case differs, if it does; or what the machine lacks for it."""

    why: str = ""
    lacks: str = ""

    def __str__(self) -> str:
        return f"skipped: {self.lacks}" if self.lacks else "DIFFERS" if self.why else "the same"


def ways(modes: Iterable[str]) -> tuple[Way, ...]:
    """The modes as they are."""
    return tuple(Way(mode, mode) for mode in modes)


def build(sources: Sequence[Path], built: Path, compiler: str = "cc") -> dict[str, Path]:
    """Compiles programs to `built`; returns each case with its program. For another compiler than `cc` some may need what it lacks."""
    is_own = compiler == "cc"
    built.mkdir(parents=True, exist_ok=True)
    flags = ["-O1", "-Wall", "-Wextra", "-Wno-unused-function", "-pthread", "-I", str(TRAPS)]
    if not is_own:
        flags += ["-include", str(TRAPS / "lacking.h")]
    cases = {}
    for source in sources:
        program = built / source.stem
        libraries = LIBRARIES.get(source.stem, [])
        made = subprocess.run(
            [*shlex.split(compiler), *flags, "-o", program, source, *libraries], stderr=None if is_own else subprocess.DEVNULL, check=is_own
        )
        try:
            made.check_returncode()
            cases.update(cases_of(program))
        except subprocess.CalledProcessError:
            if is_own:
                raise
            print(f"{source.stem}: needs what this C library does not have", flush=True)
    return cases


def cases_of(program: Path) -> dict[str, Path]:
    """The cases of a program that is built, each with the program."""
    names = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    return {f"{program.stem}:{name}": program for name in names}


# Says of each connection that an environment's agent knows on which road it is.
Look = Callable[[dict[str, str]], list[str]]


def observe(argv: Sequence[str], environment: dict[str, str], directory: Path, look: Look, limit_s: float) -> list[str]:
    """Runs one case, and answers what it asks; returns what it said, and how it ended."""
    with open(directory / "errors", "wb") as errors:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=directory,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        # With its children, which hold its output.
        timer = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        seen = []
        try:
            for line in process.stdout:
                if line == "look\n":
                    # It may have been killed meanwhile.
                    with contextlib.suppress(BrokenPipeError):
                        os.write(process.stdin.fileno(), (" ".join(look(environment)) + "\n").encode())
                else:
                    seen.append(line.rstrip("\n"))
            code = process.wait()
        finally:
            timer.cancel()
            # Whoever looks may have failed: what is left of the case goes before its directory does.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = (directory / "errors").read_text(errors="replace").strip()
    return [*seen, f"ended with {code}", *([said] if said else [])]


def compare(
    case: str,
    program: Path,
    millrace: Path,
    under: Iterable[Way],
    look: Look | None = None,
    may_fail: bool = False,
    limit_s: float = CASE_S,
) -> Verdict:
    """Runs one case plain and in every way, each with an agent of its own.

    Plain it must succeed, unless it may fail.
    """
    name = case.partition(":")[2]
    with tempfile.TemporaryDirectory(prefix="millrace-cases-") as temporary:
        directory = Path(temporary)
        plain = observe([str(program), name], dict(os.environ), directory, lambda _: ["ring"] * 100, limit_s)
        if plain[0].startswith(SKIPPED):
            return Verdict(lacks=plain[0].removeprefix(SKIPPED))
        for way in under:
            environment = dict(os.environ, MILLRACE_AGENT=str(directory / way.name / "agent.sock"))
            argv = [*way.before, str(millrace), "run", "--mode", way.mode, "--", str(program), name]
            seen = observe(argv, environment, directory, look or (lambda its: road.roads(millrace, its, in_use=True)), limit_s)
            if seen != plain:
                return Verdict(f"mode {way.name}\nplain:\n  " + "\n  ".join(plain) + "\nunder:\n  " + "\n  ".join(seen))
    return Verdict("" if may_fail or plain[-1] == "ended with 0" else "plain:\n  " + "\n  ".join(plain))
