"""sockperf: ping-pong and throughput on TCP; every message is accounted for."""

from __future__ import annotations

import re

from program import Program, Results
from site_of_run import Site, check


def _run(site: Site) -> Results:
    port = str(site.port())
    site.serve(["sockperf", "sr", "--tcp", "-i", site.address, "-p", port], int(port))
    to = ["--tcp", "-i", site.address, "-p", port, "-t", "1"]
    results: Results = {}
    for size in ("64", "1400", "16000"):
        said = site.client(["sockperf", "pp", *to, "-m", size, "--mps", "200000"]).text
        lost = re.search(
            r"# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)", said
        )
        check(lost, f"sockperf gave no figures: {said}")
        results[f"lost, doubled, disordered at {size} B"] = list(lost.groups()) if lost else []
        check(lost and set(lost.groups()) == {"0"}, f"messages went astray: {said}")
    said = site.client(["sockperf", "tp", *to, "-m", "64"]).text
    check(re.search(r"Summary: Message Rate is (\d+)", said), f"sockperf gave no figures: {said}")
    return results


PROGRAM = Program(
    name="sockperf",
    loads="ping-pong of 64 B to 16 kB, throughput; no message lost, doubled or out of order",
    packages=["sockperf"],
    run=_run,
    placements=("loopback", "namespaces"),
    remark="Debian's sockperf 3.7 has no IPv6",
)
