"""Reads what test programs print into the result of each test case."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

NAME_MAX = 200
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
Cases = dict[str, str]

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_TAP = re.compile(r"^(not ok|ok) (\d+)(?: -? ?)?(.*)$")
_KSELFTEST_RUN = re.compile(r"^#\s+RUN\s+(\S+) \.\.\.")
_TINYTEST = re.compile(r"^([\w/]+): ")
_TINYTEST_END = re.compile(r"(OK|SKIPPED|DISABLED)\s*$")
_REDIS = re.compile(r"^\[(ok|err|exception|skip|ignore|timeout)\]: (.*?)(?: \(\d+ ms\))?$")


_CHANGING = re.compile(r"\d+|[A-Z]{20,}")


def _steady(name: str) -> str:
    """A case's name without ports, process ids, counts and test data, which are others in every run."""
    return _CHANGING.sub("N", name)


class _Numbered(Cases):
    """Cases of which several may have one name: those after the first are numbered."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def put(self, name: str, result: str) -> None:
        """Adds a case. Test data in a name may have kilobytes: its end is told by a checksum."""
        if len(name) > NAME_MAX:
            name = f"{name[:NAME_MAX]} … {zlib.crc32(name.encode(errors='replace')):08x}"
        unique = name
        while unique in self:
            self._counts[name] += 1
            unique = f"{name} #{self._counts[name] + 1}"
        self[unique] = result


def _lines(log: Path) -> Iterable[str]:
    return (_ESCAPE.sub("", line) for line in log.read_text(errors="replace").splitlines())


def junit(report: Path) -> Cases:
    """The JUnit XML that CPython's regrtest writes."""
    cases = _Numbered()
    if not report.exists():
        return cases
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        result = FAILED if kinds & {"error", "failure"} else SKIPPED if "skipped" in kinds else PASSED
        cases.put(case.get("name", "?"), result)
    return cases


def tap(log: Path, named: Callable[[str], str] = str) -> Cases:
    """TAP as libuv and Perl's Test::More write it; the number belongs to the name only where no name is given."""
    cases = _Numbered()
    for line in _lines(log):
        match = _TAP.match(line)
        if not match:
            continue
        name, _, directive = match[3].partition(" # ")
        if match[3].startswith("# "):
            name, directive = "", match[3][2:]
        skipped = directive.upper().startswith(("SKIP", "TODO"))
        cases.put(named(name.strip() or match[2]), SKIPPED if skipped else PASSED if match[1] == "ok" else FAILED)
    return cases


def kselftest(log: Path) -> Cases:
    """TAP of the kernel's self-test harness: a skipped case has its name only in the `RUN` line before it."""
    cases = _Numbered()
    name = ""
    for line in _lines(log):
        if match := _KSELFTEST_RUN.match(line):
            name = match[1]
        elif match := _TAP.match(line):
            skipped = "SKIP" in match[3]
            cases.put(name or match[3], SKIPPED if skipped else PASSED if match[1] == "ok" else FAILED)
    return cases


def tinytest(log: Path) -> Cases:
    """The output of libevent's `regress`: a case has failed unless it says otherwise before the next begins."""
    cases: Cases = {}
    name = ""
    for line in _lines(log):
        if match := _TINYTEST.match(line):
            name = match[1]
            cases[name] = FAILED
        if name and (match := _TINYTEST_END.search(line)):
            cases[name] = PASSED if match[1] == "OK" else SKIPPED
            name = ""
    return cases


def perl(log: Path) -> Cases:
    """TAP of tests that put ports and test data into names."""
    return tap(log, _steady)


def redis(log: Path) -> Cases:
    """The output of Redis's `runtest`."""
    results = {"ok": PASSED, "skip": SKIPPED, "ignore": SKIPPED}
    cases = _Numbered()
    for line in _lines(log):
        if match := _REDIS.match(line):
            name = match[2].partition(" in tests/")[0] if match[1] in ("err", "exception") else match[2]
            cases.put(name, results.get(match[1], FAILED))
    return cases


def merged(cases: Cases) -> Cases:
    """For tests that draw by chance what they do, or how often: one case for all whose names differ in numbers.

    It has passed if none failed, whether or not some were skipped.
    """
    together: Cases = {}
    for name, result in cases.items():
        steady = _steady(name.partition(" #")[0])
        together[steady] = FAILED if FAILED in (result, together.get(steady)) else PASSED
    return together
