"""socat as a super-server: a shell that is started on the connection's own socket."""

from __future__ import annotations

import hashlib

from program import Program, Results
from site_of_run import Site, check, sha256

LINES = 2000


def _run(site: Site) -> Results:
    port, big = site.port(), site.data("big", 8 << 20)
    family, address = ("TCP6", f"[{site.address}]") if site.placement.is_ipv6 else ("TCP4", site.address)
    site.serve(["socat", f"{family}-LISTEN:{port},bind={address},reuseaddr,fork", "EXEC:/bin/bash,nofork"], port)
    client = ["socat", "-t", "30", "STDIO", f"{family}:{address}:{port}"]
    said = [f"line {number}\n" for number in range(LINES)]
    loads = {
        "commands": ("echo ready\nexpr 6 \\* 7\n" + "true\n" * LINES + "exit 3\n", b"ready\n42\n"),
        "lines back": ("while read -r line; do echo $line; done\n" + "".join(said), "".join(said).encode()),
        "a file down": (f"cat {big}\n", big.read_bytes()),
        "a child's output": (f"(cat {big}) & wait; echo end\n", big.read_bytes() + b"end\n"),
    }
    results: Results = {}
    for name, (text, expected) in loads.items():
        commands = site.directory / "commands"
        commands.write_text(text)
        results[name] = sha256(site.client(client, stdin=commands).output)
        check(results[name] == hashlib.sha256(expected).hexdigest(), f"{name}: not what the shell says")
    return results


PROGRAM = Program(
    name="socat",
    loads="a shell on the connection's own socket, as a super-server starts it: commands, 2 000 lines back, 8 MiB down, verified",
    packages=["socat", "bash"],
    run=_run,
)
