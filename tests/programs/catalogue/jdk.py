"""The JDK's HttpServer and HttpClient, started from one source file."""

from __future__ import annotations

from program import Program, Results
from site_of_run import CLIENTS, Site

SOURCE = str(CLIENTS / "HttpPeer.java")


def _run(site: Site) -> Results:
    port = site.port()
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", SOURCE]
    site.serve([*java, "server", site.address, str(port)], port)
    return {"said": site.client([*java, "client", site.address, str(port)]).text}


PROGRAM = Program(
    name="JDK",
    loads="HttpServer and HttpClient, 200 bodies of up to 1 MB, 8 at once, verified",
    packages=["default-jdk-headless|java"],
    run=_run,
)
