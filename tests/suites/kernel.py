"""The kernel's own self-tests of epoll and of TCP sockets.

They stand in for the Linux Test Project, which none of the package archives here carries. The epoll tests are
written for UNIX socket pairs: they are compiled here with `tcp_socketpair.h`, so that they wait for TCP. The tests
of kernel TLS go on without TLS where the kernel has none, and are then tests of send, recv, peek, poll, splice
and sendfile on plain TCP; with TLS they show that such connections stay on the kernel's road.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from cases import FAILED, PASSED, SKIPPED, Cases, kselftest
from source import debian_contents
from suite import LOG, Suite, Unit

PACKAGE = "linux-source-6.1"
TOP = f"{PACKAGE}/tools/testing/selftests"
HERE = Path(__file__).parent
PROGRAMS = (
    "reuseaddr_conflict",
    "reuseport_addr_any",
    "reuseport_dualstack",
    "reuseport_bpf",
    "reuseport_bpf_cpu",
    "tcp_fastopen_backup_key",
    "tcp_inq",
    "socket",
    "sk_bind_sendto_listen",
    "sk_connect_zero_addr",
    "so_netns_cookie",
    "rxtimestamp",
)
"""Programs that are one case each: exit code 0 is passed, 4 is skipped."""
SKIP_CODE = 4

LEFT_OUT = {
    "all but one cipher of tls.c": "without TLS in the kernel they are the same case",
    "rekey cases of tls.c": "test nothing but TLS, and hang without it",
    "programs that need arguments or a second machine": "no case of their own",
}


def _tls_source(source: str) -> str:
    """`tls.c` without what `LEFT_OUT` names, and in the form that its own harness header compiles."""
    source = re.sub(r"^FIXTURE_VARIANT_ADD\(tls, (?!12_aes_gcm\))\w+\)\n\{.*?^\};\n", "", source, flags=re.M | re.S)
    source = re.sub(r"^TEST_F\(\w+, \w*rekey\w*\)\n\{.*?^\}\n", "", source, flags=re.M | re.S)
    return re.sub(r"(tls_crypto_info_init\([^;{]*?), 0\);", r"\1);", source)


def _compile(sources: list[Path], program: Path, flags: list[str]) -> None:
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-w", *flags, "-o", program, *sources, "-lpthread"], check=True)


def _parse(work: Path) -> Cases:
    return kselftest(work / LOG)


def _parse_program(work: Path) -> Cases:
    code = int((work / "code").read_text()) if (work / "code").exists() else 1
    return {"exit": {0: PASSED, SKIP_CODE: SKIPPED}.get(code, FAILED)}


def _units(sources: Path) -> list[Unit]:
    wanted = [f"{TOP}/{name}" for name in ("net", "filesystems/epoll", "kselftest.h", "kselftest_harness.h")]
    top = debian_contents(PACKAGE, f"usr/src/{PACKAGE}.tar.xz", sources, wanted) / TOP
    include = f"-I{top}"
    tls = top / "net" / "tls_for_suites.c"
    if not tls.exists():
        tls.write_text(_tls_source((top / "net" / "tls.c").read_text()))
    _compile([tls], top / "tls", [include, "-D__test_passed(t)=((t)->passed)"])
    _compile(
        [top / "filesystems/epoll/epoll_wakeup_test.c"],
        top / "epoll",
        [include, "-include", str(HERE / "tcp_socketpair.h")],
    )
    for name in PROGRAMS:
        _compile([top / "net" / f"{name}.c"], top / name, [include])
    single = ["/bin/sh", "-c", '"$0"; echo $? > "$1/code"']
    return [
        Unit("epoll over TCP", ["./epoll"], 300, _parse, top),
        Unit("tls", ["./tls"], 300, _parse, top),
        *(Unit(name, [*single, f"./{name}", "{work}"], 60, _parse_program, top) for name in PROGRAMS),
    ]


SUITE = Suite(
    name="kernel",
    origin=f"Debian package {PACKAGE}, tools/testing/selftests",
    packages=["build-essential", "linux-libc-dev", "xz-utils"],
    units=_units,
    left_out=LEFT_OUT,
    quick=frozenset({"epoll over TCP", "tls", "tcp_inq", "reuseport_bpf"}),
)
