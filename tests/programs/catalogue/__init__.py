"""The real programs, one file each; `run.py` runs them in this order."""

from __future__ import annotations

from program import Program

from catalogue import (
    asyncio_echo,
    curl,
    go,
    haproxy,
    iperf3,
    jdk,
    memcached,
    nginx,
    node,
    openssh,
    postgresql,
    prefork,
    redis,
    socat,
    sockperf,
    stress_ng,
    wrk,
)

PROGRAMS: dict[str, Program] = {
    module.PROGRAM.name: module.PROGRAM
    for module in (
        redis,
        memcached,
        nginx,
        haproxy,
        postgresql,
        iperf3,
        sockperf,
        wrk,
        curl,
        openssh,
        socat,
        node,
        jdk,
        asyncio_echo,
        prefork,
        go,
        stress_ng,
    )
}
