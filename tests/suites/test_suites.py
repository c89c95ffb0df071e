#!/usr/bin/python3
"""Tests of what the runner reads and how it judges: `python3 tests/suites/test_suites.py`."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cases  # noqa: E402
from cases import FAILED, PASSED, SKIPPED, Cases  # noqa: E402
from compare import compare  # noqa: E402
from harness.cases import observe  # noqa: E402

OUTPUTS: dict[str, tuple[Callable[[Path], Cases], str, Cases]] = {
    "libuv": (
        cases.tap,
        "1..3\nok 1 - tcp_open\n# Output from process\nnot ok 2 - tcp_oob\nok 3 - tty # SKIP Cannot open /dev/tty\n",
        {"tcp_open": PASSED, "tcp_oob": FAILED, "tty": SKIPPED},
    ),
    "Perl": (
        cases.tap,
        "1..3\nok 1 - value\nok 2 - value\nok 3\nnot ok 4 # TODO later\n",
        {"value": PASSED, "value #2": PASSED, "3": PASSED, "4": SKIPPED},
    ),
    "kernel": (
        cases.kselftest,
        "#  RUN           tls.recv ...\n#            OK  tls.recv\nok 1 tls.recv\n"
        "#  RUN           tls.v6 ...\n#      SKIP      no TLS\nok 2 # SKIP no TLS\n"
        "#  RUN           tls.peek ...\n# tls.c:7:peek:Expected 1 == 2\nnot ok 3 tls.peek\n",
        {"tls.recv": PASSED, "tls.v6": SKIPPED, "tls.peek": FAILED},
    ),
    "libevent": (
        cases.tinytest,
        "main/version: OK\nhttp/base: [forking] OK\nmain/fd: [forking] SKIPPED\nutil/live: DISABLED\n"
        "ssl/dirty: [forking] \n  FAIL regress_ssl.c:5: assert\n  [dirty FAILED]\nmain/chatty: progress 1\nprogress 2 OK\n",
        {
            "main/version": PASSED,
            "http/base": PASSED,
            "main/fd": SKIPPED,
            "util/live": SKIPPED,
            "ssl/dirty": FAILED,
            "main/chatty": PASSED,
        },
    ),
    "redis": (
        cases.redis,
        "Testing unit/multi\n\x1b[32m[ok]\x1b[0m: EXEC works (3 ms)\n[err]: WATCH works in tests/unit/multi.tcl\nExpected\n"
        "[skip]: Big keys\n[ready]: 12\n",
        {"EXEC works": PASSED, "WATCH works": FAILED, "Big keys": SKIPPED},
    ),
    "CPython": (
        cases.junit,
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped>no</skipped></testcase>'
        '<testcase name="c"><error/></testcase></testsuite></testsuites>',
        {"a": PASSED, "b": SKIPPED, "c": FAILED},
    ),
}


class Reading(unittest.TestCase):
    """What the suites print becomes results."""

    def test_every_format_gives_the_result_of_each_case(self) -> None:
        for name, (parse, output, expected) in OUTPUTS.items():
            with self.subTest(name), tempfile.NamedTemporaryFile("w") as file:
                file.write(output)
                file.flush()
                self.assertEqual(parse(Path(file.name)), expected)


class Judging(unittest.TestCase):
    """A case under Millrace must do what it did in some plain run."""

    def test_equal_results_agree_also_when_they_are_failures(self) -> None:
        runs = {"a": PASSED, "b": FAILED}
        verdict = compare([runs, runs], [runs], {})
        self.assertEqual((verdict.differences, verdict.flaky, verdict.agreed), ({}, {}, 2))

    def test_one_failure_among_many_repetitions_is_a_difference(self) -> None:
        verdict = compare([{"a": PASSED}] * 3, [{"a": FAILED}, {"a": PASSED}], {})
        self.assertEqual(verdict.differences, {"a": "plain: passed 3; under: failed 1, passed 1"})

    def test_a_case_that_also_fails_plain_is_flaky_and_agrees(self) -> None:
        verdict = compare([{"a": PASSED}, {"a": FAILED}], [{"a": FAILED}], {})
        self.assertEqual((verdict.differences, verdict.flaky), ({}, {"a": "plain: failed 1, passed 1"}))

    def test_a_case_that_never_ran_is_a_difference(self) -> None:
        self.assertIn("a", compare([{"a": PASSED}], [{}], {}).differences)
        self.assertIn("b", compare([{}], [{"b": PASSED}], {}).differences)

    def test_a_repetition_of_some_cases_says_nothing_about_the_others(self) -> None:
        verdict = compare([{"a": PASSED, "b": PASSED}, {"a": PASSED}], [{"a": PASSED, "b": PASSED}, {"a": PASSED}], {})
        self.assertEqual((verdict.differences, verdict.flaky), ({}, {}))

    def test_a_case_known_to_be_flaky_is_listed_and_does_not_decide(self) -> None:
        verdict = compare([{"a": PASSED}], [{"a": FAILED}], {"a": "passed 9, failed 1"})
        self.assertEqual((verdict.differences, verdict.flaky), ({}, {"a": "plain: passed 9, failed 1"}))


class Observing(unittest.TestCase):
    """A case is answered, and ends with who observes it."""

    def test_a_case_does_not_outlive_a_look_that_fails(self) -> None:
        def look(_: dict[str, str]) -> list[str]:
            raise OSError("no agent answers")

        with tempfile.TemporaryDirectory() as temporary:
            number = Path(temporary) / "number"
            script = "echo $$ > number; echo look; exec sleep 30"
            with self.assertRaises(OSError):
                observe(["sh", "-c", script], dict(os.environ), Path(temporary), look, 20.0)
            with self.assertRaises(ProcessLookupError):
                os.kill(int(number.read_text()), 0)


if __name__ == "__main__":
    unittest.main()
