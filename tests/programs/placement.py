"""Where the two ends of a program's connections are: one address family and two network namespaces, or one."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

SERVER, CLIENT = "server", "client"
SERVER_NAMESPACE, CLIENT_NAMESPACE = "millrace-server", "millrace-client"


@dataclass(frozen=True)
class Placement:
    """The server's address, and the command prefix that puts a program on its side."""

    name: str
    address: str
    separate: bool = False

    @property
    def is_ipv6(self) -> bool:
        """Whether the server's address is an IPv6 one."""
        return ":" in self.address

    def at(self, port: int) -> str:
        """Address and port as URLs and configuration files want them."""
        return f"[{self.address}]:{port}" if self.is_ipv6 else f"{self.address}:{port}"

    def prefix(self, side: str) -> list[str]:
        """Enters the side's network namespace; nothing where both sides are in one."""
        namespace = SERVER_NAMESPACE if side == SERVER else CLIENT_NAMESPACE
        return ["nsenter", f"--net=/run/netns/{namespace}"] if self.separate else []


LOOPBACK = Placement("loopback", "127.0.0.1")
IPV6 = Placement("IPv6", "::1")
NAMESPACES = Placement("namespaces", "10.77.0.1", separate=True)
PLACEMENTS = {placement.name: placement for placement in (LOOPBACK, NAMESPACES, IPV6)}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Namespaces:
    """Two network namespaces with a veth pair between them, for the time of a run."""

    def __enter__(self) -> Namespaces:
        self.__exit__()
        sides = ((SERVER_NAMESPACE, "veth-server", NAMESPACES.address), (CLIENT_NAMESPACE, "veth-client", "10.77.0.2"))
        for namespace, _, _ in sides:
            _ip("netns", "add", namespace)
        _ip(
            "link",
            "add",
            "veth-server",
            "netns",
            SERVER_NAMESPACE,
            "type",
            "veth",
            "peer",
            "name",
            "veth-client",
            "netns",
            CLIENT_NAMESPACE,
        )
        for namespace, device, address in sides:
            _ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in (SERVER_NAMESPACE, CLIENT_NAMESPACE):
            subprocess.run(["ip", "netns", "delete", namespace], stderr=subprocess.DEVNULL, check=False)
