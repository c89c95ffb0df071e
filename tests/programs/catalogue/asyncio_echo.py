"""Python's asyncio at both ends."""

from __future__ import annotations

from program import Program, Results
from site_of_run import CLIENTS, PYTHON, Site


def _run(site: Site) -> Results:
    port = site.port()
    site.serve([PYTHON, str(CLIENTS / "asyncio_echo.py"), "server", site.address, str(port)], port)
    return site.script("asyncio_echo.py", "client", site.address, port)


PROGRAM = Program(
    name="asyncio",
    loads="echo on 20 streams: round trips, 4 MiB both ways at once, half-closes; verified",
    packages=["python3"],
    run=_run,
)
