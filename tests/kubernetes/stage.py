"""The cluster as the cases see it: pods that are made and deleted, and what the agent says of their connections."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from harness import road

import archives
from cluster import Cluster, ClusterFailed, wait_for

SOCKET = "millrace.dev/socket"
METRICS = 9464
RING_S = 15.0
HARDENED = {
    "runAsUser": 1000, "runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
# Prints a line that stays away when a connection was lost or a byte was wrong.
TALK_SERVER = ["/bin/talk", "serve", "0.0.0.0", "7100"]


class Failed(Exception):
    """What should hold does not."""


def expect(holds: object, what: str) -> None:
    """Fails where something does not hold."""
    if not holds:
        raise Failed(what)


class Stage:
    """The cluster, and what the cases share."""

    def __init__(self, millrace: Path, of: Cluster) -> None:
        self.millrace = millrace
        self.cluster = of

    def pod(
        self, name: str, command: list[str], device: str | None = SOCKET, patience: bool = True, label: str | None = None, **more: object
    ) -> None:
        """Makes a pod, and waits until it runs; it asks by a device request or by the label, and `more` is for its container."""
        self.cluster("apply", "-f", "-", given=pod(name, command, device, label, **more))
        if patience:
            wait_for(f"pod {name}", lambda: self.phase(name) == "Running")

    def phase(self, name: str) -> str:
        """How far a pod has come."""
        status = self.cluster.get("pod", name)["status"]
        if status["phase"] == "Failed":
            raise ClusterFailed(f"pod {name}: {status} {self.log(name)}")
        return str(status["phase"])

    def service(self, name: str, port: int) -> str:
        """A Service in front of the pod of the same name; its address."""
        spec = {"selector": {"pod": name}, "ports": [{"port": port, "targetPort": port}]}
        self.cluster("apply", "-f", "-", given={"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
        return self.cluster.forward(name, name)

    def address(self, name: str) -> str:
        """A pod's own address."""
        return str(self.cluster.get("pod", name)["status"]["podIP"])

    def log(self, name: str) -> str:
        """What a pod's program printed."""
        return self.cluster("logs", name)

    def execute(self, name: str, *command: str) -> str:
        """Runs a command in a pod."""
        return self.cluster("exec", name, "--", *command)

    def delete(self, *names: str) -> None:
        """Deletes pods, and waits until they are gone."""
        self.cluster("delete", "pod", "--ignore-not-found", *names, patience_s=90)

    def connections(self) -> list[dict[str, Any]]:
        """What the agent knows of, asked on the node."""
        listing = subprocess.run([self.millrace, "ps", "--json"], capture_output=True, timeout=20, check=True)
        return road.parsed(listing.stdout)

    def agent(self) -> dict[str, Any]:
        """The status of the agent's pod."""
        status: dict[str, Any] = self.cluster.get("pods", "--namespace=millrace")["items"][0]["status"]
        return status

    def restarts(self) -> int:
        """How often the agent's container alone was started again."""
        containers = self.agent()["containerStatuses"]
        return int(next(each["restartCount"] for each in containers if each["name"] == "agent"))

    def segment_bytes(self) -> int:
        """Memory that all rings have, by the agent's metrics."""
        with urllib.request.urlopen(f"http://{self.agent()['podIP']}:{METRICS}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return int(next(line.split()[-1] for line in lines if line.startswith("millrace_segment_bytes ")))

    def of_pod(self, name: str) -> list[dict[str, Any]]:
        """The ends of connections that a pod's programs have."""
        number = self.cluster.get("pod", name)["metadata"]["uid"]
        return [end for connection in self.connections() for end in connection["ends"] if end.get("pod") == number]

    def is_on_ring(self, name: str) -> bool:
        """Whether each connection of a pod is on the ring, and there is one."""
        ends = self.of_pod(name)
        return bool(ends) and all(end["road"] == "shm" and end["reason"] == "none" for end in ends)

    def reasons(self, name: str) -> list[str]:
        """Why each end of a pod is where it is."""
        return sorted(end["reason"] for end in self.of_pod(name))

    def events(self, name: str) -> str:
        """What events say of why a pod's connections are not accelerated."""
        which = f"involvedObject.name={name},reason=NotAccelerated"
        return self.cluster("get", "events", f"--field-selector={which}", "-o", "jsonpath={.items[*].message}")

    def share(self, name: str) -> float:
        """How much of what a pod's programs sent and got went by rings."""
        ways = [end[way] for end in self.of_pod(name) for way in ("sent", "received")]
        ring = sum(way["shm_bytes"] for way in ways)
        return ring / max(1, ring + sum(way["kernel_bytes"] for way in ways))

    def talks(self, client: str, server: str, **more: Any) -> None:
        """A conversation on the ring of which every byte is compared, from its beginning to its end.

        A server that slept while the agent was replaced asks for the new one a second after it was woken, and the conversation may be
        at rest by then. The next one finds it ready.
        """
        for _ in range(3):
            self.pod(client, ["/bin/talk", "call", self.address(server), "7100"], **more)
            wait_for(f"{client} to talk", lambda: "ready" in self.log(client).split())
            try:
                wait_for(f"{client} on the ring", lambda: self.is_on_ring(client), RING_S)
                return
            except ClusterFailed:
                ends = self.of_pod(client)
                self.hangs_up(client)
        raise Failed(f"{client} is not on the ring: {ends}")

    def hangs_up(self, client: str) -> None:
        """Ends the conversation, which compares once more."""
        self.execute(client, "/bin/kill", "-TERM", "1")
        wait_for(f"{client} to end", lambda: self.phase(client) == "Succeeded")
        expect("done" in self.log(client).split(), f"{client}: {self.log(client)}")
        self.delete(client)


def pod(name: str, command: list[str], device: str | None = SOCKET, label: str | None = None, **more: object) -> dict[str, Any]:
    """What a pod of one container is."""
    container: dict[str, Any] = {"name": "c", "image": archives.WORK, "imagePullPolicy": "Never", "command": command}
    container |= {"securityContext": HARDENED, **more}
    if device:
        container["resources"] = {"limits": {device: 1}}
    labels = {"pod": name} if label is None else {"pod": name, SOCKET: label}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False,
                 "terminationGracePeriodSeconds": 5, "enableServiceLinks": False},
    }  # fmt: skip
