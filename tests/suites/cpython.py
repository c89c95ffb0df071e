"""CPython's own tests of sockets, of waiting for them, and of the protocols on top of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cases import Cases, junit
from suite import Suite, Unit

PYTHON = "/usr/bin/python3"
LEFT_OUT = {"*VSOCK*": "waits for ever on a virtual machine whose host does not answer, without Millrace too"}

MODULES = {
    "test_socket": 300,
    "test_select": 60,
    "test_selectors": 120,
    "test_poll": 120,
    "test_epoll": 60,
    "test_asyncio": 600,
    "test_ssl": 300,
    "test_socketserver": 120,
    "test_httplib": 120,
    "test_httpservers": 120,
    "test_ftplib": 120,
    "test_smtplib": 120,
    "test_xmlrpc": 180,
    "test_signal": 240,
    "test_subprocess": 240,
    "test_multiprocessing_fork": 600,
}
"""The modules, with the seconds that each may take: five to ten times what it takes on the kernel's road."""

RESOURCES = {"test_socketserver": ["-u", "network"]}
"""test_socketserver asks for the network, and stays on the loopback interface. Elsewhere that resource is off."""


def _command(module: str, cases: list[str]) -> list[str]:
    ignored = [word for pattern in LEFT_OUT for word in ("-i", pattern)]
    selected = [word for case in cases for word in ("-m", case)]
    return [
        PYTHON,
        "-m",
        "test",
        "-v",
        "--junit-xml",
        "{work}/cases.xml",
        "--tempdir",
        "{work}",
        *ignored,
        *selected,
        *RESOURCES.get(module, []),
        module,
    ]


def _parse(work: Path) -> Cases:
    return junit(work / "cases.xml")


def _units(_: Path) -> list[Unit]:
    return [
        Unit(module, _command(module, []), timeout, _parse, select=partial(_command, module))
        for module, timeout in MODULES.items()
    ]


SUITE = Suite(
    name="cpython",
    origin="Debian package libpython3.11-testsuite",
    packages=["python3", "libpython3.11-testsuite"],
    units=_units,
    left_out=LEFT_OUT,
    quick=frozenset({"test_socket", "test_select", "test_epoll", "test_httplib", "test_httpservers", "test_smtplib"}),
)
