"""Redis: redis-benchmark, replication, publication, BGSAVE under load, MONITOR."""

from __future__ import annotations

from placement import SERVER
from program import Program, Results
from site_of_run import Site, check


def _server(site: Site, port: int, *options: str) -> None:
    directory = site.directory / f"redis-{port}"
    directory.mkdir()
    site.serve(
        [
            "redis-server",
            "--port",
            str(port),
            "--bind",
            site.address,
            "--dir",
            str(directory),
            "--save",
            "",
            "--protected-mode",
            "no",
            "--enable-debug-command",
            "yes",
            "--repl-diskless-sync-delay",
            "0",
            *options,
        ],
        port,
    )


def _benchmark(site: Site, port: int, *options: str) -> int:
    """Runs redis-benchmark; returns how many of its tests gave a figure."""
    said = site.client(["redis-benchmark", "-h", site.address, "-p", str(port), "--csv", *options]).text
    rates = [float(line.split('","')[1]) for line in said.splitlines()[1:] if line.startswith('"')]
    check(rates and min(rates) > 0, f"redis-benchmark gave no figures: {said}")
    return len(rates)


def _run(site: Site) -> Results:
    port, replica = site.port(), site.port()
    _server(site, port)
    _server(site, replica, "--replicaof", site.address, str(port))
    results: Results = {
        "tests": _benchmark(site, port, "-n", "10000", "-c", "50", "-t", "set,get,lpush,lpop,mset,lrange_100"),
        "tests, pipelined": _benchmark(
            site, port, "-n", "40000", "-c", "50", "-P", "16", "-t", "set,get", "-d", "1024"
        ),
    }
    results |= site.script("redis_client.py", site.address, port, replica)
    check(results["data sets alike"], "the replica's data are not the master's")
    check(results["as sent"], "the subscriber received other messages than were published")
    check(results["bgsave"] == "ok", "BGSAVE failed")
    site.client(["redis-cli", "-h", site.address, "-p", str(port), "SHUTDOWN", "NOSAVE"], side=SERVER)
    return results


PROGRAM = Program(
    name="redis",
    loads="redis-benchmark (50 connections, pipelined too), replication, publication, BGSAVE under load, MONITOR",
    packages=["redis-server", "redis-tools"],
    run=_run,
)
