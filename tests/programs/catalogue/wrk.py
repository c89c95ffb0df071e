"""wrk against nginx."""

from __future__ import annotations

import re

from program import Program, Results
from site_of_run import Site, check

import catalogue.web as web


def load(site: Site, url: str, *options: str, seconds: int = 1) -> None:
    """Loads a URL; every answer must be good, and no connection may fail."""
    said = site.client(["wrk", "-t", "2", "-c", "20", "-d", f"{seconds}s", *options, url]).text
    requests = re.search(r"(\d+) requests in", said)
    check(requests and int(requests[1]) > 0, f"wrk made no request: {said}")
    check("Socket errors" not in said and "Non-2xx" not in said, f"wrk saw errors: {said}")


def _run(site: Site) -> Results:
    nginx = web.start(site)
    load(site, f"http://{site.at(nginx.port)}/small", seconds=2)
    load(site, f"http://{site.at(nginx.port)}/small", "-H", "Connection: close")
    load(site, f"https://{site.at(nginx.tls_port)}/small")
    return {"errors": 0}


PROGRAM = Program(
    name="wrk",
    loads="20 connections to nginx: kept, closed after each request, TLS; no error allowed",
    packages=["wrk", "nginx", "openssl"],
    run=_run,
)
