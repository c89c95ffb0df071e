"""A pre-fork server in the manner of gunicorn."""

from __future__ import annotations

from program import Program, Results
from site_of_run import CLIENTS, PYTHON, Site


def _run(site: Site) -> Results:
    port = site.port()
    site.serve([PYTHON, str(CLIENTS / "prefork.py"), site.address, str(port)], port)
    return site.script("http_client.py", site.address, port)


PROGRAM = Program(
    name="pre-fork server",
    loads="3 forked workers that accept on one socket and are replaced; 480 requests on 4 connections, verified",
    packages=["python3"],
    run=_run,
)
