"""HAProxy between clients and nginx, speaking HTTP and passing TCP through."""

from __future__ import annotations

from program import Program, Results
from site_of_run import Site, check, sha256

import catalogue.web as web
from catalogue.wrk import load

CONFIGURATION = """
global
    maxconn 512
    nbthread 2
defaults
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend http
    mode http
    bind {http}
    default_backend web
frontend tcp
    mode tcp
    bind {tcp}
    default_backend through
backend web
    mode http
    http-reuse always
    server nginx {nginx}
backend through
    mode tcp
    server nginx {nginx}
"""


def _run(site: Site) -> Results:
    nginx = web.start(site)
    http, tcp = site.port(), site.port()
    configuration = site.directory / "haproxy.cfg"
    configuration.write_text(CONFIGURATION.format(http=site.at(http), tcp=site.at(tcp), nginx=site.at(nginx.port)))
    site.serve(["haproxy", "-db", "-f", str(configuration)], http, tcp)
    body = site.data("body", 8 << 20)
    results: Results = {}
    for name, port in (("HTTP", http), ("TCP", tcp)):
        site.client(["curl", "-sS", "-o", "got", f"http://{site.at(port)}/large"])
        site.client(["curl", "-sS", "-f", "-T", str(body), f"http://{site.at(port)}/upload/{name}"])
        results[name] = [sha256(site.directory / "got"), nginx.uploaded(name)]
        check(results[name] == [nginx.large, sha256(body)], f"{name}: a transfer is damaged")
        load(site, f"http://{site.at(port)}/small")
    return results


PROGRAM = Program(
    name="HAProxy",
    loads="in front of nginx, HTTP with kept connections and plain TCP; wrk, 48 MiB down and 8 MiB up by checksum",
    packages=["haproxy", "nginx", "curl", "wrk", "openssl"],
    run=_run,
)
