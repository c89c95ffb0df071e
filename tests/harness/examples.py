"""Our examples, which are programs of tests: built of the parts that the unit tests are built of, so that nothing is compiled twice."""

from __future__ import annotations

import subprocess

from harness import road

PLACE = road.REPOSITORY / "target/debug/examples"


def build() -> None:
    """Builds those of all crates: each by itself would have its dependencies with other features."""
    subprocess.run(["cargo", "build", "--quiet", "--workspace", "--examples"], check=True, cwd=road.REPOSITORY)
