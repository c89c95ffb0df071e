"""Runs a test runner inside namespaces of its own.

A run gets a network namespace (so fixed ports never meet another program, and nothing leaves the machine),
a mount namespace with an empty `/run` (so a run's agent and named network namespaces are its own) and a PID
namespace whose end is the end of every process that the run started, also of those that hid in a session of
their own. Nothing has to be undone: the kernel takes it all away with the last process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

INSIDE = "MILLRACE_TEST_ISOLATED"
GRACE_S = 20.0
RUN_DIRECTORIES = ("/run/netns", "/run/sshd", "/run/lock", "/run/user")


def is_inside() -> bool:
    """Whether this process already runs inside namespaces of its own."""
    return INSIDE in os.environ


def ensure() -> None:
    """Starts this script again inside namespaces and exits with its status; returns where that is done.

    Without root there are no namespaces to be had: the run then goes on in the caller's, with a warning.
    """
    _reset_signals()
    if is_inside():
        return
    if os.geteuid() != 0:
        print("isolate: not root, so the run shares the machine's network and process ids", file=sys.stderr)
        return
    lifeline_read, lifeline_write = os.pipe()
    command = [
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        str(Path(__file__).resolve()),
        str(lifeline_read),
        *sys.argv,
    ]
    environment = dict(os.environ, **{INSIDE: "1"})
    child = subprocess.Popen(command, pass_fds=[lifeline_read], env=environment, start_new_session=True)
    os.close(lifeline_read)
    sys.exit(_wait_outside(child, lifeline_write))


def _reset_signals() -> None:
    """Undoes what a shell does to background jobs: the programs of a run must not inherit ignored signals."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _wait_outside(child: subprocess.Popen[bytes], lifeline: int) -> int:
    """Waits for the run; an interruption closes the lifeline, which makes the run clean up and end."""

    def cut(*_: object) -> None:
        os.close(lifeline)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    signal.signal(signal.SIGINT, cut)
    signal.signal(signal.SIGTERM, cut)
    return child.wait()


def _prepare_mounts() -> None:
    """Gives the run an empty `/run` and a loopback interface that is up."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"], check=True)
    for directory in RUN_DIRECTORIES:
        os.makedirs(directory, mode=0o755, exist_ok=True)
    os.chmod("/run/lock", 0o1777)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def _watch_lifeline(lifeline: int, runner: subprocess.Popen[bytes]) -> None:
    """Ends the runner when whoever started the run is gone."""
    os.read(lifeline, 1)
    try:
        runner.terminate()
        runner.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        runner.kill()
    except ProcessLookupError:
        pass
    # Whichever of us has reaped the runner: with process 1 the kernel ends whatever it left behind.
    os._exit(128 + signal.SIGTERM)


def _init(lifeline: int, script: list[str]) -> int:
    """Process 1 of the run's PID namespace: starts the runner, and reaps what its programs leave behind."""
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which every program of the run would inherit
    _prepare_mounts()
    runner = subprocess.Popen([sys.executable, *script], start_new_session=True)
    threading.Thread(target=_watch_lifeline, args=(lifeline, runner), daemon=True).start()
    while True:
        pid, status = os.wait()
        if pid == runner.pid:
            runner.returncode = os.waitstatus_to_exitcode(status)
            return runner.returncode if runner.returncode >= 0 else 128 - runner.returncode


if __name__ == "__main__":
    sys.exit(_init(int(sys.argv[1]), sys.argv[2:]))
