"""PostgreSQL, a process per connection, with pgbench and a large result by checksum."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from placement import SERVER
from program import Program, Results
from site_of_run import Site, check, sha256

USER = "postgres"
BALANCES = """
select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
   and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)
   and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history),
       (select count(*) from pgbench_history)
"""
ROWS = "copy (select number, md5(number::text) from generate_series(1, 400000) number) to stdout"
SETTINGS = {
    "fsync": "off",
    "autovacuum": "off",
    "shared_buffers": "64MB",
    "ssl": "off",
    "max_connections": "40",
    "log_min_messages": "error",
}


def _programs() -> Path:
    """Where the newest installed PostgreSQL keeps its programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    check(found, "PostgreSQL is not installed")
    return found[-1]


def _run(site: Site) -> Results:
    programs, port, data = _programs(), str(site.port()), site.directory / "data"
    data.mkdir()
    shutil.chown(data, USER)
    trust = ["-A", "trust", "-U", USER, "-E", "UTF8", "--locale", "C", "--no-sync"]
    site.client([str(programs / "initdb"), "-D", str(data), *trust], side=SERVER, user=USER, plain=True)
    os.chmod(data / "pg_hba.conf", 0o644)
    with open(data / "pg_hba.conf", "a") as rules:
        rules.write("host all all 10.77.0.0/24 trust\n")
    settings = {**SETTINGS, "listen_addresses": site.address, "port": port, "unix_socket_directories": str(data)}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    site.serve([str(programs / "postgres"), "-D", str(data), *options], int(port), user=USER)
    to = ["-h", site.address, "-p", port, "-U", USER]
    pgbench, database = [str(programs / "pgbench"), *to], "postgres"
    site.client([*pgbench, "-i", "-q", "-s", "2", database])
    results: Results = {}
    for name, load in (
        ("TPC-B", ["-c", "8", "-j", "2", "-t", "150"]),
        ("select only", ["-S", "-c", "8", "-j", "2", "-t", "600"]),
        ("prepared", ["-S", "-M", "prepared", "-c", "4", "-t", "600"]),
        ("a connection each", ["-S", "-C", "-c", "4", "-t", "25"]),
    ):
        said = site.client([*pgbench, "-n", *load, database]).text
        done = re.search(r"actually processed: (\d+)/(\d+)", said)
        check(done and done[1] == done[2] and "failed transactions: 0 " in said, f"{name}: transactions failed: {said}")
        results[name] = int(done[1]) if done else 0
    psql = ["psql", *to, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]
    results["balances"] = site.client([*psql, "-c", BALANCES]).text.strip()
    check(results["balances"] == f"t|{results['TPC-B']}", f"balances do not agree: {results['balances']}")
    results["rows"] = sha256(site.client([*psql, "-c", ROWS]).output)
    return results


PROGRAM = Program(
    name="PostgreSQL",
    loads="pgbench: TPC-B, select only, prepared, a connection per transaction; balances agree, 400 000 rows by checksum",
    packages=["postgresql", "postgresql-client"],
    run=_run,
)
