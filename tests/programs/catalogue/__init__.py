"""The real programs, one file each; `run.py` runs them in this order."""

from __future__ import annotations

from program import Program

from catalogue import (
    apache,
    asyncio_echo,
    curl,
    go,
    haproxy,
    iperf3,
    jdk,
    mariadb,
    memcached,
    nginx,
    node,
    openssh,
    postgresql,
    prefork,
    rabbitmq,
    redis,
    rsync,
    socat,
    sockperf,
    squid,
    stress_ng,
    wrk,
)

PROGRAMS: dict[str, Program] = {
    module.PROGRAM.name: module.PROGRAM
    for module in (
        redis,
        memcached,
        nginx,
        apache,
        haproxy,
        squid,
        postgresql,
        mariadb,
        rabbitmq,
        iperf3,
        sockperf,
        wrk,
        curl,
        openssh,
        rsync,
        socat,
        node,
        jdk,
        asyncio_echo,
        prefork,
        go,
        stress_ng,
    )
}
