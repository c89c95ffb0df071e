"""iperf3: both directions, parallel streams, both at once."""

from __future__ import annotations

import json

from program import Program, Results
from site_of_run import Site, check

BYTES = 1_000_000_000
LOADS = {
    "upward": [],
    "downward": ["-R"],
    "4 streams upward": ["-P", "4"],
    "4 streams downward": ["-P", "4", "-R"],
    "both ways": ["--bidir"],
    "zero copy": ["-Z"],
    "1 MiB writes": ["-l", "1M"],
    "small writes": ["-l", "512", "-N", "-n", "8000000"],
}


def _run(site: Site) -> Results:
    results: Results = {}
    for name, options in LOADS.items():
        # A server that has not done with one test resets the connection of the next, on every road.
        port = site.port()
        site.serve(["iperf3", "-s", "-1", "-B", site.address, "-p", str(port)], port)
        size = [] if "-n" in options else ["-n", str(BYTES)]
        report = json.loads(site.client(["iperf3", "-J", "-c", site.address, "-p", str(port), *options, *size]).text)
        check("error" not in report, f"{name}: {report.get('error')}")
        received = report["end"]["sum_received"]["bytes"]
        check(received > 0, f"{name}: nothing was received")
        results[name] = len(report["end"]["streams"])
    return results


PROGRAM = Program(
    name="iperf3",
    loads="one and 4 streams, either direction and both at once, zero copy, writes of 512 B to 1 MiB",
    packages=["iperf3"],
    run=_run,
)
