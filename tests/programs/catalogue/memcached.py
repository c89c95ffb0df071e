"""memcached with four threads, and a client that verifies every value."""

from __future__ import annotations

from program import Program, Results
from site_of_run import Site


def _run(site: Site) -> Results:
    port = site.port()
    site.serve(
        ["memcached", "-l", site.address, "-p", str(port), "-U", "0", "-t", "4", "-m", "128", "-u", "nobody"], port
    )
    return site.script("memcached_client.py", site.address, port)


PROGRAM = Program(
    name="memcached",
    loads="set, get of many keys, incr on 4 connections; values up to 900 kB verified",
    packages=["memcached"],
    run=_run,
)
