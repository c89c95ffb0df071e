"""stress-ng's socket stressors, which verify what they do."""

from __future__ import annotations

from program import Program, Results
from site_of_run import Site, check

PORTS = 4
"""Workers take ports upward from the one they are given."""

STRESSORS = {
    "send": ["--sock", "2", "--sock-ops", "1500", "--sock-opts", "send"],
    "sendmsg": ["--sock", "2", "--sock-ops", "1500", "--sock-opts", "sendmsg"],
    "sendmmsg": ["--sock", "2", "--sock-ops", "1500", "--sock-opts", "sendmmsg"],
    "zero copy": ["--sock", "2", "--sock-ops", "1000", "--sock-zerocopy"],
    "epoll": ["--epoll", "1", "--epoll-ops", "20000", "--epoll-domain", "ipv4"],
    "many connections": ["--sockmany", "1", "--sockmany-ops", "5000"],
    "passed descriptors": ["--sockfd", "1", "--sockfd-ops", "5000"],
    "abuse": ["--sockabuse", "1", "--sockabuse-ops", "20"],
    "splice": ["--splice", "1", "--splice-ops", "2000"],
    "sendfile": ["--sendfile", "1", "--sendfile-ops", "500"],
}


def _run(site: Site) -> Results:
    results: Results = {}
    family = ["--sock-domain", "ipv6"] if site.placement.is_ipv6 else []
    for name, options in STRESSORS.items():
        first = [site.port() for _ in range(PORTS)][0]
        ports = [] if name in ("splice", "sendfile") else [f"{options[0]}-port", str(first)]
        domain = family if options[0] == "--sock" else []
        command = [
            "stress-ng",
            "--verify",
            "--timeout",
            "20",
            "--temp-path",
            str(site.directory),
            *options,
            *ports,
            *domain,
        ]
        outcome = site.client(command, timeout_s=60)
        said = outcome.text + outcome.errors.read_text(errors="replace")
        check("fail:" not in said and "successful run completed" in said, f"{name}: {said[-800:]}")
        results[name] = "verified"
    return results


PROGRAM = Program(
    name="stress-ng",
    loads="sockets by send, sendmsg, sendmmsg and zero copy, epoll, many connections, passed descriptors, splice, sendfile",
    packages=["stress-ng"],
    run=_run,
    placements=("loopback", "IPv6"),
    quick=False,
)
