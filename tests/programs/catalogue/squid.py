"""Squid between clients and nginx: what it fetches, what it has in its memory, and a tunnel."""

from __future__ import annotations

import shutil

from program import Program, Results
from site_of_run import Site, check, sha256

import catalogue.web as web

USER = "proxy"
CONFIGURATION = """
http_port {at}
http_access allow all
cache_mem 128 MB
maximum_object_size_in_memory 64 MB
pid_filename {top}/squid.pid
cache_log {top}/cache.log
access_log none
cache_store_log none
coredump_dir {top}
netdb_filename none
pinger_enable off
visible_hostname test
shutdown_lifetime 0 seconds
"""


def _run(site: Site) -> Results:
    nginx, port = web.start(site), site.port()
    top = site.directory / "squid"
    top.mkdir()
    shutil.chown(top, USER)
    configuration = top / "squid.conf"
    configuration.write_text(CONFIGURATION.format(at=site.at(port), top=top))
    site.serve(["squid", "-N", "-n", f"test{port}", "-f", str(configuration)], port, user=USER)
    plain, tls = site.at(nginx.port), site.at(nginx.tls_port)
    results: Results = {}
    for name, words in (
        ("fetched", [f"http://{plain}/large"]),
        ("from its memory", [f"http://{plain}/large"]),
        ("through a tunnel", ["--insecure", f"https://{tls}/large"]),
    ):
        site.client(["curl", "-sS", "-f", "-x", f"http://{site.at(port)}", "-o", "got", *words])
        results[name] = sha256(site.directory / "got")
        check(results[name] == nginx.large, f"{name}: the file is damaged")
    body = site.data("body", 8 << 20)
    up = ["-T", str(body), f"http://{plain}/upload/squid"]
    site.client(["curl", "-sS", "-f", "-x", f"http://{site.at(port)}", *up])
    results["up"] = nginx.uploaded("squid")
    check(results["up"] == sha256(body), "up: the file is damaged")
    return results


PROGRAM = Program(
    name="Squid",
    loads="in front of nginx: 48 MiB fetched, from its memory, and through a tunnel with TLS, 8 MiB up, by checksum",
    packages=["squid", "nginx", "curl", "openssl"],
    run=_run,
    quick=False,
)
