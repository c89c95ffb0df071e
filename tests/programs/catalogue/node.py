"""Node.js: its HTTP server and client."""

from __future__ import annotations

from program import Program, Results
from site_of_run import CLIENTS, Site

SCRIPT = str(CLIENTS / "http_peer.js")


def _run(site: Site) -> Results:
    port = site.port()
    site.serve(["node", SCRIPT, "server", site.address, str(port)], port)
    return {"said": site.client(["node", SCRIPT, "client", site.address, str(port)]).text}


PROGRAM = Program(
    name="Node.js",
    loads="http server and client, 300 bodies of up to 1 MB streamed back while they arrive, verified",
    packages=["nodejs|node"],
    run=_run,
)
