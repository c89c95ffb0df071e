"""MariaDB, a thread per connection: large values both ways by checksum, a dump, and sysbench's transactions."""

from __future__ import annotations

import re
import shutil

from placement import SERVER
from program import Program, Results
from site_of_run import Site, check, sha256

USER = "mysql"
FILL = "create table a (i int primary key, b longblob); insert into a select seq, repeat(md5(seq), seq) from seq_1_to_2000"
ACCOUNT = "create database d; create user t@'%' identified by 'x'; grant all on *.* to t@'%'"


def _run(site: Site) -> Results:
    port, data = str(site.port()), site.directory / "data"
    data.mkdir()
    shutil.chown(data, USER)
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db", "--auth-root-authentication-method=normal"]
    site.client(install, side=SERVER, user=USER, plain=True)
    options = [f"--datadir={data}", f"--port={port}", f"--bind-address={site.address}", f"--socket={data}/socket"]
    few = ["--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"]
    site.serve(["mariadbd", "--no-defaults", *options, *few], int(port), user=USER)
    site.client(["mariadb", f"--socket={data}/socket", "--user=root", "-e", ACCOUNT], side=SERVER, user=USER, plain=True)
    to = ["-h", site.address, "-P", port, "-ut", "-px"]
    site.client(["mariadb", *to, "d", "-e", FILL])
    results: Results = {"rows": sha256(site.client(["mariadb", *to, "-N", "d", "-e", "select * from a order by i"]).output)}
    dump = site.client(["mariadb-dump", *to, "--skip-dump-date", "--compact", "d"]).output
    results["dump"] = sha256(dump)
    site.client(["mariadb", *to, "d", "-e", "drop table a"])
    site.client(["mariadb", *to, "d"], stdin=dump)
    results["dumped and read"] = sha256(site.client(["mariadb", *to, "-N", "d", "-e", "select * from a order by i"]).output)
    check(results["rows"] == results["dumped and read"], "what was dumped and read again is not what was there")
    where = [f"--mysql-host={site.address}", f"--mysql-port={port}", "--mysql-user=t", "--mysql-password=x", "--mysql-db=d"]
    sysbench = ["sysbench", "oltp_read_write", "--db-driver=mysql", *where, "--tables=2", "--table-size=2000"]
    site.client([*sysbench, "prepare"])
    said = site.client([*sysbench, "--threads=4", "--events=400", "--time=0", "run"]).text
    done = re.search(r"total number of events: +(\d+)", said)
    results["transactions"] = int(done[1]) if done else 0
    check(results["transactions"] == 400, f"transactions are missing: {said}")
    return results


PROGRAM = Program(
    name="MariaDB",
    loads="2 000 rows of up to 64 KB and a dump, there and back, by checksum; sysbench's transactions with 4 threads",
    packages=["mariadb-server", "mariadb-client", "sysbench"],
    run=_run,
    quick=False,
)
