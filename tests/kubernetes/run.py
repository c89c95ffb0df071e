#!/usr/bin/python3
"""Pods of a real cluster that ask for Millrace, from its installation to its removal.

    tests/kubernetes/run.py [--millrace PATH] [--image ARCHIVE]

The cases build upon each other and are played in their order. Exits with 0 when all passed. Needs root, and Go to build the programs
of the cluster the first time (`build.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE.parent / "containers")]

from harness import isolate, packages, road  # noqa: E402

import archives  # noqa: E402
import build  # noqa: E402
import cluster  # noqa: E402
import webhook  # noqa: E402
from cluster import PLACE, Cluster, ClusterFailed, wait_for  # noqa: E402
from stage import METRICS, SOCKET, TALK_SERVER, Failed, Stage, expect  # noqa: E402

PACKAGES = (
    "etcd-server|etcd", "runc|runc", "containernetworking-plugins", "nftables|nft", "iproute2|ip", "busybox-static", "redis-server",
    "redis-tools|redis-cli", "openssl|openssl", "buildah|buildah", "musl-tools|musl-gcc",
)  # fmt: skip
MANIFESTS = str(road.REPOSITORY / "deploy/kubernetes")
DEVICES = 1024
ENFORCED = "pod-security.kubernetes.io/enforce"
SPECIFICATION = Path("/etc/cdi/millrace.dev-socket.json")
# Six probes in vain, twenty seconds apart, and what a container may take to end.
PROBED_S = 240.0
CROWD = 200
PLUGINS = Path("/var/lib/kubelet/device-plugins")
SERVER = ["redis-server", "--save", "", "--protected-mode", "no"]


def install(stage: Stage) -> None:
    """`kubectl apply -k deploy/kubernetes`, and the node has the devices."""
    stage.cluster("apply", "-k", MANIFESTS)
    roll_out(stage)
    # The kubelet hears of each resource by a stream of its own.
    for resource in (SOCKET, f"{SOCKET}-variable"):
        wait_for(f"the devices {resource}", lambda resource=resource: stage.cluster.allocatable(resource) == DEVICES)  # type: ignore[misc]


def roll_out(stage: Stage) -> None:
    """Until the agents of this version run everywhere."""
    stage.cluster("--namespace=millrace", "rollout", "status", "daemonset/millrace", "--timeout=150s", patience_s=170)


def pair(stage: Stage) -> None:
    """redis and its client in two pods under the strictest of the Pod Security Standards, at the pod's address and at a Service's."""
    stage.cluster("label", "namespace", "default", f"{ENFORCED}=restricted")
    stage.pod("cache", SERVER)
    service = stage.service("cache", 6379)
    for name, address in (("by-address", stage.address("cache")), ("by-service", service)):
        stage.pod(name, ["redis-benchmark", "-h", address, "-t", "get,set", "-c", "1", "-d", "1024", "-n", "100000000", "-q"])
        wait_for(f"{name} on the ring", lambda name=name: stage.is_on_ring(name))  # type: ignore[misc]
        time.sleep(2)
        print(f"figure: {name}: {stage.share(name):.1%} of all bytes on the ring")
        said = stage.execute(name, "/run/millrace/millrace", "doctor")
        expect("can prove connections of this one" in said, said)
        others = road.parsed(stage.execute(name, "/run/millrace/millrace", "ps", "--json").encode())
        expect({end.get("pod_name") for end in stage.of_pod(name)} == {f"default/{name}"}, f"{name} has another name")
        uid = stage.cluster.get("pod", name)["metadata"]["uid"]
        expect(all(end.get("pod") == uid for each in others for end in each["ends"]), f"{name} sees others: {others}")
        listed = stage.cluster("--namespace=millrace", "exec", "daemonset/millrace", "-c", "agent", "--", "millrace", "ps")
        expect(f"@default/{name}" in listed and "@default/cache" in listed, f"ps: {listed}")
        stage.delete(name)


def unasked(stage: Stage) -> None:
    """A pod that does not ask has nothing of Millrace, and talks with one that does."""
    address = stage.address("cache")
    stage.pod("plain", ["redis-benchmark", "-h", address, "-t", "get", "-c", "1", "-n", "100000000", "-q"], device=None)
    look = "ls -d /run/millrace /etc/ld.so.preload 2>/dev/null; env | grep -i -e millrace -e preload; true"
    seen = stage.execute("plain", "sh", "-c", look)
    expect(not seen, f"a pod without the request has {seen}")
    expect(stage.execute("plain", "redis-cli", "-h", address, "ping") == "PONG", "no answer")
    time.sleep(2)
    expect(not stage.is_on_ring("cache"), "a connection of one end is on the ring")
    stage.delete("plain")


def musl(stage: Stage) -> None:
    """An image with another C library takes the ring by the other resource."""
    stage.pod("musl-echo", TALK_SERVER, device=f"{SOCKET}-variable", image=archives.MUSL)
    stage.talks("musl", "musl-echo", device=f"{SOCKET}-variable", image=archives.MUSL)
    stage.hangs_up("musl")
    stage.delete("musl-echo")


def hostile(stage: Stage) -> None:
    """Root in a pod, with what capabilities a runtime gives by itself, changes nothing of what other pods have."""
    stage.talks("talk", "echo")
    stage.cluster("label", "namespace", "default", f"{ENFORCED}-")
    stage.pod("hostile", ["sleep", "1000"], securityContext={"runAsUser": 0})
    for attempt in (
        "echo x > /run/millrace/libmillrace_preload.so", "rm -f /run/millrace/agent.sock", "echo x > /run/millrace/new",
        "mv /run/millrace/millrace /run/millrace/other", "mount -o remount,rw /run/millrace", "echo /x.so > /etc/ld.so.preload",
        "umount /etc/ld.so.preload", "echo x > /var/lib/millrace/new",
    ):  # fmt: skip
        said = stage.execute("hostile", "sh", "-c", f"{{ {attempt}; }} 2>/dev/null && echo done; true")
        expect(not said, f"a pod could: {attempt}")
    seen = road.parsed(stage.execute("hostile", "/run/millrace/millrace", "ps", "--json").encode())
    expect(not seen and stage.connections(), f"a pod sees others: {seen}")
    stage.delete("hostile")
    stage.hangs_up("talk")


def agent_stands_still(stage: Stage) -> None:
    """Devices are unhealthy while it does not answer, and a pod that asks waits; those that run go on."""
    stage.talks("talk", "echo")
    agent = the_agent()
    os.kill(agent, signal.SIGSTOP)
    try:
        wait_for("the devices to be unhealthy", lambda: stage.cluster.allocatable(SOCKET) == 0)
        stage.pod("waits", ["/bin/talk", "call", stage.address("other-echo"), "7100"], patience=False)
        time.sleep(3)
        expect(stage.phase("waits") == "Pending", "a pod came to a node without an agent")
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_for("the pod to run", lambda: stage.phase("waits") == "Running")
    wait_for("it to be on the ring", lambda: stage.is_on_ring("waits"))
    stage.hangs_up("waits")
    stage.hangs_up("talk")


def the_agent() -> int:
    """Its process; a probe of it has no configuration."""
    found = processes_of("millrace", "--config")
    expect(len(found) == 1, f"agents: {found}")
    return found[0]


def crowd(stage: Stage) -> None:
    """Whoever takes all the places at the agent's metrics that there are for an address is in no other's way."""
    stage.pod("reader", ["sleep", "1000"], device=None)
    agent = stage.agent()["podIP"]
    with ExitStack() as stack:
        for _ in range(CROWD):
            stack.enter_context(socket.create_connection((agent, METRICS), timeout=20))
        said = stage.execute("reader", "wget", "-q", "-O", "-", f"http://{agent}:{METRICS}/metrics")
    expect("millrace_segment_bytes " in said, f"metrics: {said[-300:]}")
    stage.delete("reader")


def rolls(stage: Stage) -> None:
    """New agents start under load: no connection is lost, no byte is wrong, and new connections take the ring again."""
    # Each serves one connection after the other.
    stage.pod("echo", TALK_SERVER)
    stage.pod("other-echo", TALK_SERVER)
    stage.talks("talk", "echo")
    address = stage.address("cache")
    once = f"redis-benchmark -h {address} -t get,set -c 4 -n 4000 -q"
    script = f"while {once} >/dev/null 2>&1; do echo round; done; echo failed; sleep 1000"
    stage.pod("rounds", ["sh", "-c", script])
    stage.pod("load", ["redis-benchmark", "-h", address, "-t", "get", "-c", "2", "-d", "1024", "-n", "1000000000", "-q"])
    wait_for("the load on the ring", lambda: stage.is_on_ring("load"))
    for _ in range(2):
        before = stage.log("rounds").count("round")
        stage.cluster("--namespace=millrace", "rollout", "restart", "daemonset/millrace")
        roll_out(stage)
        wait_for("further rounds", lambda before=before: stage.log("rounds").count("round") > before + 2)  # type: ignore[misc]
    expect("failed" not in stage.log("rounds"), stage.log("rounds")[-300:])
    expect(stage.phase("load") == "Running", "the load has ended")
    wait_for("new connections on the ring", lambda: stage.is_on_ring("rounds"))
    print(f"figure: {stage.log('rounds').count('round')} rounds of 8000 requests without an error while agents were replaced twice")
    stage.hangs_up("talk")
    stage.delete("rounds", "load")


def kubelet_starts_again(stage: Stage) -> None:
    """It has forgotten the plugin, which registers again."""
    stage.talks("talk", "echo")
    stage.cluster.stop_kubelet()
    stage.cluster.start_kubelet()
    wait_for("the devices to be known again", lambda: len(list(PLUGINS.glob("millrace.dev-socket*.sock"))) == 2)
    wait_for("the node", lambda: stage.cluster.is_ready() and stage.cluster.allocatable(SOCKET) == DEVICES)
    wait_for("a pod that starts now", lambda: starts(stage, "late"))
    stage.hangs_up("late")
    stage.hangs_up("talk")


def starts(stage: Stage, name: str) -> bool:
    """A new pod gets the device. One that a kubelet turned away, since it did not know the devices yet, is made again."""
    try:
        stage.talks(name, "other-echo")
    except ClusterFailed as error:
        if "UnexpectedAdmissionError" not in str(error):
            raise
        stage.delete(name)
        return False
    return True


def plugin_dies(stage: Stage) -> None:
    """It is killed and started again; pods are not touched, new ones get the device."""
    stage.talks("talk", "echo")
    old = {path.stat().st_ino for path in PLUGINS.glob("millrace.dev-socket*.sock")}
    for pid in processes_of("millrace-device-plugin"):
        os.kill(pid, signal.SIGKILL)
    wait_for("new sockets", lambda: {path.stat().st_ino for path in PLUGINS.glob("millrace.dev-socket*.sock")} - old)
    wait_for("the devices", lambda: stage.cluster.allocatable(SOCKET) == DEVICES)
    wait_for("a pod that starts now", lambda: starts(stage, "late"))
    stage.hangs_up("late")
    stage.hangs_up("talk")


def processes_of(program: str, word: str | None = None) -> list[int]:
    """Processes of a program, by the path that they were started by; those whose command has this word."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if Path(words[0].decode(errors="replace")).name == program and (word is None or word.encode() in words):
            found.append(int(entry.name))
    return found


def nothing_stays(stage: Stage) -> None:
    """Pods that are deleted, killed or evicted leave no connection and no memory."""
    for name in ("deleted", "killed", "evicted"):
        stage.pod(f"{name}-echo", TALK_SERVER)
        stage.talks(name, f"{name}-echo")
    expect(stage.segment_bytes() > 0, "no memory of rings is counted")
    stage.delete("deleted", "deleted-echo")
    stage.cluster("delete", "pod", "killed", "killed-echo", "--grace-period=0", "--force")
    for name in ("evicted", "evicted-echo"):
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
        stage.cluster("create", f"--raw=/api/v1/namespaces/default/pods/{name}/eviction", "-f", "-", given=eviction)
    stage.delete("echo", "other-echo", "cache")
    wait_for("nothing to be left", lambda: not stage.connections() and stage.segment_bytes() == 0)


def started_again(stage: Stage) -> None:
    """The agent's container alone is ended by its probes and started again: what its end takes away is there again, for the next pod."""
    expect(stage.restarts() == 0, f"the agent's container was started again {stage.restarts()} times before")
    os.kill(the_agent(), signal.SIGSTOP)
    # No pod has Millrace now.
    wait_for("its end to take the devices away", lambda: not SPECIFICATION.exists(), PROBED_S)
    wait_for("the container to be started again", lambda: stage.restarts() == 1)
    wait_for("the devices to be healthy", lambda: SPECIFICATION.exists() and stage.cluster.allocatable(SOCKET) == DEVICES)
    stage.pod("echo", TALK_SERVER)
    stage.talks("talk", "echo")
    stage.hangs_up("talk")
    stage.delete("echo")


def by_helm(stage: Stage) -> None:
    """The chart says what the manifests say; it installs, with quotas that hold for each pod, of which events tell, and goes."""
    chart = str(road.REPOSITORY / "deploy/helm")
    words = ["helm", f"--kubeconfig={PLACE}/kubeconfig", "--namespace=millrace"]
    templated = agents_pod(stage, cluster.run([*words, "template", "millrace", chart, f"--kube-version={build.KUBERNETES}"]))
    customized = agents_pod(stage, stage.cluster("kustomize", MANIFESTS))
    expect(templated == customized, f"the chart has {templated}, the manifests {customized}")
    stage.cluster("apply", "-f", f"{MANIFESTS}/namespace.yaml")
    config = PLACE / "agent.toml"
    config.write_text('metrics = "0.0.0.0:9464"\n[quota]\nends_per_tenant = 2\n')
    chosen = ["--set=devices=7", "--set=events.period=1", f"--set-file=agentConfig={config}", "--wait", "--timeout=150s"]
    cluster.run([*words, "install", "millrace", chart, *chosen], patience_s=170)
    wait_for("the devices", lambda: stage.cluster.allocatable(SOCKET) == 7)
    for name in ("cache", "other-cache"):
        stage.pod(name, SERVER)
        benchmark = ["redis-benchmark", "-h", stage.address(name), "-t", "get", "-c", "5", "-n", "100000000", "-q"]
        stage.pod(f"{name}-load", benchmark)
    for name in ("cache", "other-cache"):
        wait_for(f"{name} at its quota", lambda name=name: stage.reasons(name).count("quota") == 3)  # type: ignore[misc]
        expect(stage.reasons(name).count("none") == 2, f"{name}: {stage.reasons(name)}")
        wait_for(f"an event on {name}", lambda name=name: "quota: The agent's limit" in stage.events(name))  # type: ignore[misc]
        stage.delete(name, f"{name}-load")
    cluster.run([*words, "uninstall", "millrace", "--wait"], patience_s=120)
    is_gone(stage)


def agents_pod(stage: Stage, text: str) -> dict[str, Any]:
    """What a text of objects says of the agents' pod, but for what both ways of installation name differently."""
    objects = json.loads(stage.cluster("apply", "--dry-run=client", "-o", "json", "-f", "-", text=text))["items"]
    pod: dict[str, Any] = next(each for each in objects if each["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    for volume in pod["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = ""
    for container in pod["containers"]:
        container["command"] = [word for word in container["command"] if word not in ("--count=1024", "--patience=30", "--period=30")]
    return pod


def goes(stage: Stage) -> None:
    """`kubectl delete -k`: what pods still use stays until they are gone; else nothing but empty directories."""
    stage.pod("echo", TALK_SERVER)
    stage.talks("talk", "echo")
    remove(stage)
    expect(SPECIFICATION.exists(), "a pod that starts again would not find the device")
    stage.hangs_up("talk")
    install(stage)
    stage.talks("talk", "echo")
    stage.hangs_up("talk")
    stage.delete("echo")
    remove(stage)
    is_gone(stage)


def is_gone(stage: Stage) -> None:
    """Nothing is left on the node but empty directories."""
    wait_for("the agent to be gone", lambda: not agents())
    left = [path for place in ("/etc/cdi", "/var/lib/millrace", "/run/millrace") for path in Path(place).rglob("*")]
    left += list(PLUGINS.glob("millrace*"))
    expect(not left, f"left: {left}")
    wait_for("the devices to go", lambda: stage.cluster.allocatable(SOCKET) == 0)


def remove(stage: Stage) -> None:
    """Takes all of it away."""
    stage.cluster("delete", "-k", MANIFESTS, patience_s=120)
    wait_for("the agent to be gone", lambda: not agents())


def agents() -> list[int]:
    """Processes of the agents' pod."""
    return processes_of("millrace") + processes_of("millrace-device-plugin")


CASES: dict[str, Callable[[Stage], None]] = {
    "installed by kubectl apply -k": install,
    "redis and a client, by address and by Service": pair,
    "a pod that does not ask": unasked,
    "an image with musl": musl,
    "agents are replaced under load": rolls,
    "the kubelet starts again": kubelet_starts_again,
    "the device plugin is killed": plugin_dies,
    "the agent stands still": agent_stands_still,
    "a hostile pod": hostile,
    "a crowd at the agent's metrics": crowd,
    "pods ask by a label": webhook.play,
    "deleted, killed and evicted pods leave nothing": nothing_stays,
    "the agent's container alone is started again": started_again,
    "away by kubectl delete -k": goes,
    "by the chart": by_helm,
}


def main() -> int:
    """Plays the cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millrace", type=Path, default=road.MILLRACE)
    parser.add_argument("--image", type=Path, help="the agent's image; that of `make image`, which is made anew, where none is given")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("run.py: needs root", file=sys.stderr)
        return 1
    if not isolate.is_inside():
        packages.install(PACKAGES)
        try:
            if arguments.image is None:
                subprocess.run(["make", "image"], check=True, cwd=road.REPOSITORY)
            build.ensure()
        except subprocess.CalledProcessError:
            print("run.py: the agent's image could not be made", file=sys.stderr)
            return 1
        except build.BuildFailed as error:
            print(f"run.py: {error}", file=sys.stderr)
            return 1
    isolate.ensure()
    image: Path = arguments.image or max((road.REPOSITORY / "target/package").glob("millrace-image-*.tar"))
    # The kernel takes the rest away, but not control groups.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    passed = failed = 0
    one = Cluster()
    try:
        cluster.make_world()
        (PLACE / "images").mkdir()
        began = time.monotonic()
        one.start([*archives.make(PLACE / "images"), image.resolve()])
        print(f"ok      {time.monotonic() - began:5.1f} s  a cluster of one node", flush=True)
        for name, play in CASES.items():
            began = time.monotonic()
            wrong = None
            try:
                play(Stage(arguments.millrace, one))
            except (Failed, ClusterFailed, subprocess.SubprocessError, KeyError, OSError) as error:
                wrong = f"{type(error).__name__}: {error}"
            took = f"{time.monotonic() - began:5.1f} s"
            print(f"{'FAILED' if wrong else 'ok':8}{took}  {name}{f': {wrong}' if wrong else ''}", flush=True)
            failed += bool(wrong)
            passed += not wrong
            if wrong:
                print(one.failures(), file=sys.stderr)
                # The others stand upon this one.
                break
    finally:
        one.stop()
        cluster.end_containers()
        cluster.remove_groups()
    print(f"{passed} passed, {failed} failed, {len(CASES) - passed - failed} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
