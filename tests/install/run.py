#!/usr/bin/python3
"""What `make install` and the Debian package put on a machine, whether it works there, and whether all of it goes again.

    tests/install/run.py

Needs root, for a root file system of its own (an overlay of this one), and what was built by `make build`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import isolate, packages, road  # noqa: E402

PLACE = Path("/run/install-test")
PACKAGE = road.REPOSITORY / "target/package"


def run(*words: str, **options: object) -> str:
    """A command that must succeed; what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:6])}: {(done.stderr or done.stdout)[-500:]}")
    return str(done.stdout)


def make(target: str, stage: Path) -> None:
    """A target of the Makefile, below a directory."""
    run("make", "-o", "build", target, f"DESTDIR={stage}", "PREFIX=/opt/millrace", cwd=road.REPOSITORY)


def files(top: Path) -> list[str]:
    """Everything below, but directories."""
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir())


def uninstall_takes_what_install_brought() -> None:
    """Of both, by the Makefile."""
    stage = PLACE / "stage"
    make("install", stage)
    installed = files(stage)
    assert "opt/millrace/share/man/man1/millrace-ps.1" in installed, installed
    unit = (stage / "opt/millrace/lib/systemd/system/millrace.service").read_text()
    assert "ExecStart=/opt/millrace/bin/millrace agent" in unit, unit
    own = str(stage / "opt/millrace/bin/millrace")
    assert "works" in run(own, "run", "--", "echo", "works")
    make("uninstall", stage)
    assert files(stage) == [], files(stage)


def a_program_in_c_is_built_with_what_was_installed() -> None:
    """By pkg-config, and finds its agent; and what is installed for Python."""
    prefix = PLACE / "opened"
    run("make", "-o", "build", "install", f"PREFIX={prefix}", cwd=road.REPOSITORY)
    environment = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"))
    flags = run("pkg-config", "--cflags", "--libs", "millrace", env=environment).split()
    source, program = road.REPOSITORY / "crates/channel-c/tests/every.c", PLACE / "every"
    run("gcc", str(source), "-o", str(program), *flags, f"-Wl,-rpath,{prefix}/lib")
    library, module = prefix / "lib/libmillrace.so", prefix / "share/doc/millrace/python"
    socket = PLACE / "agent.sock"
    agent = subprocess.Popen([prefix / "bin/millrace", "agent", "--socket", socket], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 10
        while not socket.exists() and time.monotonic() < end:
            time.sleep(0.02)
        asks = dict(os.environ, MILLRACE_AGENT=str(socket), MILLRACE_CHANNEL_LIBRARY=str(library), PYTHONPATH=str(module))
        run(str(program), env=asks)
        run(sys.executable, "-c", "import millrace; millrace.Publisher('a').close()", env=asks)
    finally:
        agent.terminate()
        agent.wait()


def manual_pages_are_right() -> None:
    """By groff, with all its warnings."""
    stage = PLACE / "manual"
    make("install", stage)
    pages = list((stage / "opt/millrace/share/man/man1").iterdir())
    assert len(pages) > 20
    for page in pages:
        done = subprocess.run(["groff", "-k", "-man", "-ww", "-z", "-Tutf8", str(page)], capture_output=True, text=True, check=True)
        assert not done.stderr, done.stderr
    # A subcommand that is not hidden has its page.
    listed = run(str(stage / "opt/millrace/bin/millrace"), "--help").partition("Commands:\n")[2].partition("\n\n")[0]
    names = {line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "} - {"help"}
    missing = {name for name in names if not (stage / f"opt/millrace/share/man/man1/millrace-{name}.1").exists()}
    assert not missing, missing


def shells_complete() -> None:
    """Bash offers the subcommands."""
    millrace = str(road.MILLRACE)
    ask = 'COMP_WORDS=(millrace do); COMP_CWORD=1; _millrace millrace do millrace; echo "${COMPREPLY[@]}"'
    script = f"source <({millrace} completions bash); {ask}"
    assert run("bash", "-c", script).split() == ["doctor"]
    for shell, word in (("zsh", "#compdef millrace"), ("fish", "complete -c millrace")):
        assert word in run(millrace, "completions", shell)


def files_of_package() -> list[str]:
    """What is left of the package in the root that it was installed in."""
    return [path for path in files(PLACE / "upper") if "millrace" in path and not path.startswith(("run/", "var/lib/dpkg"))]


def the_package_comes_and_goes() -> None:
    """Installed by dpkg in a root of its own; used; removed, and nothing of it is left."""
    run("make", "-o", "build", "deb", cwd=road.REPOSITORY)
    package = next(PACKAGE.glob("millrace_*.deb"))
    # It leaves a file where it puts temporary ones.
    environment = {**os.environ, "TMPDIR": str(PLACE)}
    complaints = subprocess.run(["lintian", "--fail-on=error", str(package)], env=environment, capture_output=True, text=True, check=False)
    assert complaints.returncode == 0, complaints.stdout
    root = PLACE / "root"
    for directory in ("upper", "work", "root"):
        (PLACE / directory).mkdir()
    options = f"lowerdir=/,upperdir={PLACE}/upper,workdir={PLACE}/work"
    run("mount", "-t", "overlay", "-o", options, "overlay", str(root))
    run("mount", "--rbind", "/proc", f"{root}/proc")
    run("mount", "--rbind", "/dev", f"{root}/dev")
    shutil.copy(package, root / "millrace.deb")
    inside = ["chroot", str(root)]
    enabled = root / "etc/systemd/system/multi-user.target.wants/millrace.service"
    try:
        # One that was removed comes back as one that is new. No systemd runs there, as in an image that is made.
        for _ in range(2):
            run(*inside, "dpkg", "-i", "/millrace.deb")
            assert enabled.is_symlink(), "the service is not enabled"
            run(*inside, "dpkg", "-r", "millrace")
            assert files_of_package() == ["millrace.deb"], files_of_package()
        run(*inside, "dpkg", "-i", "/millrace.deb")
        assert "works" in run(*inside, "millrace", "run", "--", "echo", "works")
        run(*inside, "millrace", "cdi", "install")
        assert (root / "etc/cdi/millrace.dev-socket.json").exists()
        # Again, as an update does it.
        run(*inside, "dpkg", "-i", "/millrace.deb")
        run(*inside, "dpkg", "-r", "millrace")
        (root / "millrace.deb").unlink()
        end = time.monotonic() + 20
        while (left := files_of_package()) and time.monotonic() < end:
            # The agent that `millrace run` started leaves two seconds after its last program, and listens in /var/lib/millrace until then
            # where that is there: a suite that runs beside this one makes it on the machine to mount its own there.
            time.sleep(0.2)
        assert not left, left
    finally:
        run("umount", "-R", "--lazy", str(root))


def the_package_for_rpm_is_made() -> None:
    """By rpmbuild; there is no such system here to install it on."""
    command = ["rpmbuild", "-bb", "deploy/rpm/millrace.spec", "--define", f"source {road.REPOSITORY}", "--define", f"_topdir {PLACE}/rpm"]
    run(*command, cwd=road.REPOSITORY, env=dict(os.environ, MAKEFLAGS="-o build"))
    made = next((PLACE / "rpm/RPMS").rglob("*.rpm"))
    assert "/usr/lib/millrace/libmillrace_preload.so" in run("rpm", "-qpl", str(made))


CASES: list[Callable[[], None]] = [
    uninstall_takes_what_install_brought,
    a_program_in_c_is_built_with_what_was_installed,
    manual_pages_are_right,
    shells_complete,
    the_package_comes_and_goes,
    the_package_for_rpm_is_made,
]


def main() -> int:
    """Plays every case."""
    if not isolate.is_inside():
        packages.install(("groff|groff", "lintian|lintian", "rpm|rpmbuild", "man-db|man", "pkg-config|pkg-config"))
    isolate.ensure()
    PLACE.mkdir()
    failed = 0
    for case in CASES:
        try:
            case()
            print(f"ok      {case.__name__}", flush=True)
        except (AssertionError, RuntimeError, subprocess.SubprocessError) as error:
            print(f"FAILED  {case.__name__}: {error!r}", flush=True)
            failed += 1
    print(f"{len(CASES) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
