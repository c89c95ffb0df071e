"""RabbitMQ, whose Erlang machine polls for many threads: a publisher and a consumer at the same time."""

from __future__ import annotations

import shutil

from program import Program, Results
from site_of_run import Site, check

USER = "rabbitmq"
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"


def _run(site: Site) -> Results:
    port, distribution, names, home = site.port(), site.port(), site.port(), site.directory / "home"
    home.mkdir()
    (home / "plugins").write_text("[].")
    (home / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {site.address}:{port}\nloopback_users = none\nlog.console = true\n")
    for path in (home, *home.iterdir()):
        shutil.chown(path, USER)
    environment = {
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"test{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(names),
    }
    # The node would start one, and leave it.
    site.serve(["epmd", "-port", str(names)], names, user=USER)
    site.serve([SERVER], port, user=USER, environment=environment)
    results = site.script("rabbitmq_client.py", site.address, port)
    check(results["received"] == results["sent"], "what was received is not what was sent")
    return results


PROGRAM = Program(
    name="RabbitMQ",
    loads="Erlang: 3 000 messages of up to 20 KB published, consumed and acknowledged at the same time, verified",
    packages=["rabbitmq-server", "python3-pika"],
    run=_run,
    quick=False,
)
