"""nginx: several workers, reloads under load, a proxy to an upstream, TLS."""

from __future__ import annotations

import json
import time

from placement import SERVER
from program import Program, Results
from site_of_run import CLIENTS, PYTHON, Site, check, sha256

import catalogue.web as web

RELOADS = 3


def _reload_under_load(site: Site, nginx: web.Web) -> None:
    """No request fails while nginx replaces its workers; a download from an old worker ends well."""
    end = site.directory / "end"
    address = [site.address, str(nginx.port)]
    loads = [
        site.start(
            [PYTHON, str(CLIENTS / "http_load.py"), *address, path, nginx.small, str(end), *options], side="client"
        )
        for path, options in (("/small", []), ("/proxy/small", ["keep-alive"]))
    ]
    slow = site.start(["curl", "-sS", "-o", "slow", f"http://{site.at(nginx.port)}/slow/large"], side="client")
    for _ in range(RELOADS):
        time.sleep(0.5)
        configuration = ["-c", str(nginx.top / "nginx.conf"), "-p", str(nginx.top)]
        site.client(["nginx", *configuration, "-s", "reload"], side=SERVER)
    time.sleep(0.5)
    end.touch()
    for load in loads:
        outcome = load.wait(60)
        check(outcome.code == 0, f"the load ended with {outcome.code}: {outcome.tail()}")
        counts = json.loads(outcome.text.splitlines()[-1])
        check(counts["done"] > 0 and counts["failures"] == 0, f"requests failed during a reload: {counts}")
    check(slow.wait(60).code == 0, f"the download that began before the reloads failed: {slow.wait(1).tail()}")
    check(sha256(site.directory / "slow") == nginx.large, "the download that began before the reloads is damaged")


def _run(site: Site) -> Results:
    nginx = web.start(site)
    results: Results = {}
    for name, url in (
        ("upstream", f"http://{site.at(nginx.port)}/proxy/large"),
        ("TLS", f"https://{site.at(nginx.tls_port)}/large"),
        ("TLS to upstream", f"https://{site.at(nginx.tls_port)}/proxy/large"),
    ):
        site.client(["curl", "-sS", "--http1.1", "--cacert", str(nginx.top / "certificate.pem"), "-o", "got", url])
        results[name] = sha256(site.directory / "got")
        check(results[name] == nginx.large, f"{name}: the download is damaged")
    _reload_under_load(site, nginx)
    return results


PROGRAM = Program(
    name="nginx",
    loads="3 workers; reloads under load without a failed request, upstream proxy, TLS, 48 MiB downloads by checksum",
    packages=["nginx", "curl", "openssl"],
    run=_run,
)
