"""A cluster of one node: etcd, API server, controllers, scheduler, containerd and kubelet, in the namespaces of the run.

Nothing of it touches the machine: what the programs write below `/etc` and `/var` goes to overlays of the run's own, what a kubelet
sets of the kernel goes to files in place of these settings, and pods are on routes of the run's own network namespace. Control groups
are the machine's, and are removed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.process import Process

import build

PLACE = Path("/run/kubernetes-test")
COPIES = Path("/run/kubernetes-settings")
GROUP = "millrace-kubernetes"
"""The control group above those of all pods."""
NODE = "node1"
NODE_ADDRESS = "10.240.0.1"
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/24"
API_ADDRESS = "10.96.0.1"
"""The API server's Service, where pods look for it."""
TOKEN = "of-the-test"
PATIENCE_S = 180.0
# Whose last words are shown when something fails.
PARTS = ("kube-apiserver", "containerd", "kubelet")
CONTAINERD = PLACE / "containerd.sock"
API = "https://127.0.0.1:6443"
# A kubelet sets these, and they are the whole machine's.
SETTINGS = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)  # fmt: skip


class ClusterFailed(Exception):
    """A part of the cluster said no, or something did not come about in time."""


def wait_for(what: str, test: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Until `test` is true."""
    end = time.monotonic() + patience_s
    said: object = None
    while True:
        try:
            said = test()
            if said:
                return
        except (ClusterFailed, subprocess.SubprocessError, OSError, KeyError, IndexError, ValueError) as error:
            said = error
        if time.monotonic() > end:
            raise ClusterFailed(f"waited in vain for {what}: {str(said)[-600:]}")
        time.sleep(0.2)


def make_world() -> None:
    """Directories, settings and a network of the run's own."""
    remove_groups()
    make_groups()
    # File systems of their own: a kubelet asks how full that of its containers is.
    for place in (PLACE, COPIES):
        place.mkdir(mode=0o755)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(place)], check=True)
    for name in ("etc", "var/lib", "var/log"):
        upper = PLACE / "over" / name.replace("/", "-")
        for part in ("upper", "work"):
            (upper / part).mkdir(parents=True)
        options = f"lowerdir=/{name},upperdir={upper}/upper,workdir={upper}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, f"/{name}"], check=True)
    # What is there of an installation on this machine is not this cluster's.
    for name in ("/var/lib/kubelet", "/var/lib/millrace", "/etc/cdi", "/etc/millrace"):
        Path(name).mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", name], check=True)
    for setting in SETTINGS:
        copy = COPIES / setting.replace("/", "-")
        real = Path("/proc/sys") / setting
        copy.write_text(real.read_text())
        subprocess.run(["mount", "--bind", str(copy), str(real)], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    subprocess.run(["ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", "lo"], check=True)
    # Before the rules for Services are asked, there must be a way for the node's own programs.
    subprocess.run(["ip", "route", "add", SERVICES, "dev", "lo", "src", NODE_ADDRESS], check=True)
    subprocess.run(["nft", "-f", "-"], input=_tables(""), text=True, check=True)


def _tables(rules: str) -> str:
    """What a kube-proxy would make of Services: destinations, for pods and for the node itself."""
    chains = "".join(
        f"chain {hook} {{ type nat hook {hook} priority -100; {rules} }}\n" for hook in ("prerouting", "output")
    )
    return f"table ip services {{}}\ndelete table ip services\ntable ip services {{ {chains} }}\n"


class Cluster:
    """The programs, and the hand that holds them."""

    def __init__(self) -> None:
        self._running: dict[str, Process] = {}
        paths = [str(directory) for directory in build.directories()]
        os.environ["PATH"] = ":".join([*paths, os.environ["PATH"]])
        self._kubectl = ["kubectl", f"--kubeconfig={PLACE}/kubeconfig"]
        self._services: dict[str, list[str]] = {}

    def start(self, images: list[Path]) -> None:
        """Starts all of it, and waits until the node takes pods."""
        self._configure()
        self._start_control_plane()
        self._start_node()
        for image in images:
            words = ["ctr", "--address", str(CONTAINERD), "--namespace=k8s.io", "images", "import", "--local", str(image)]
            wait_for(f"the image {image.name}", lambda words=words: run(words) or True)  # type: ignore[misc]
        wait_for("the node", self.is_ready)
        self._run("kube-controller-manager", *self._clients(), f"--service-account-private-key-file={PLACE}/account.key",
                  f"--root-ca-file={PLACE}/certificates/apiserver.crt")  # fmt: skip
        self._run("kube-scheduler", *self._clients())
        wait_for("the account of pods", lambda: self("get", "serviceaccount", "default"))

    def _clients(self) -> list[str]:
        """How the controllers and the scheduler find the API server."""
        config = f"{PLACE}/kubeconfig"
        names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        return [*(f"--{name}={config}" for name in names), "--bind-address=127.0.0.1", "--leader-elect=false"]

    def _configure(self) -> None:
        """Writes keys and configurations."""
        key = PLACE / "account.key"
        run(["openssl", "genrsa", "-out", str(key), "2048"])
        run(["openssl", "rsa", "-in", str(key), "-pubout", "-out", f"{key}.public"])
        (PLACE / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        (PLACE / "kubeconfig").write_text(json.dumps(config))
        (PLACE / "kubeconfig").chmod(0o600)
        (PLACE / "kubelet.yaml").write_text(json.dumps(kubelet_configuration()))
        (PLACE / "containerd.toml").write_text(containerd_configuration())
        (PLACE / "cni").mkdir()
        (PLACE / "cni/10-pods.conflist").write_text(json.dumps(network()))

    def _start_control_plane(self) -> None:
        """etcd and the API server, which then answers."""
        self._run("etcd", f"--data-dir={PLACE}/etcd", "--listen-client-urls=http://127.0.0.1:2379",
                  "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380",
                  "--unsafe-no-fsync")  # fmt: skip
        self._run("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--secure-port=6443",
                  f"--advertise-address={NODE_ADDRESS}", f"--service-cluster-ip-range={SERVICES}",
                  f"--cert-dir={PLACE}/certificates", "--service-account-issuer=https://kubernetes.default.svc",
                  f"--service-account-key-file={PLACE}/account.key.public",
                  f"--service-account-signing-key-file={PLACE}/account.key", f"--token-auth-file={PLACE}/tokens.csv",
                  "--authorization-mode=RBAC", "--allow-privileged=true",
                  "--kubelet-preferred-address-types=InternalIP")  # fmt: skip
        wait_for("the API server", lambda: self("get", "--raw=/readyz") == "ok")

    def _start_node(self) -> None:
        """containerd and the kubelet."""
        self._run("containerd", f"--config={PLACE}/containerd.toml")
        wait_for("containerd", CONTAINERD.exists)
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Starts it, for the first time or again."""
        self._run("kubelet", f"--config={PLACE}/kubelet.yaml", f"--kubeconfig={PLACE}/kubeconfig", f"--hostname-override={NODE}",
                  f"--node-ip={NODE_ADDRESS}", f"--cert-dir={PLACE}/kubelet")  # fmt: skip

    def stop_kubelet(self) -> None:
        """Stops it; pods go on."""
        self._running.pop("kubelet").stop()

    def _run(self, program: str, *words: str) -> None:
        """Starts a program of the cluster."""
        if shutil.which(program) is None:
            raise ClusterFailed(f"{program} is not here: tests/kubernetes/build.py builds it, or a package of the same name has it")
        log = PLACE / f"{program}{time.monotonic_ns()}"
        # None of the cluster's own connections is to be accelerated, nor its programs' limits to be the containers'.
        self._running[program] = Process([program, *words], log, environment={"MILLRACE": "off"}, merged=True)

    def stop(self) -> None:
        """Stops all of it, the last first. Containers end with the run's process namespace."""
        for program in reversed(list(self._running.values())):
            program.stop()

    def failures(self) -> str:
        """The end of what the node's programs and our own said, for a failure."""
        said = [f"--- {name}\n{log_tail(self._running[name].output)}" for name in PARTS if name in self._running]
        said += [f"--- {log.parent.name}\n{log_tail(log)}" for log in sorted(Path("/var/log/pods").glob("millrace_*/*/*.log"))]
        return "\n".join(said)

    def __call__(self, *words: str, given: object = None, text: str | None = None, patience_s: float = 60.0) -> str:
        """Runs kubectl, with an object or a text on its standard input; what it printed."""
        text = text if given is None else json.dumps(given)
        return run([*self._kubectl, *words], given=text, patience_s=patience_s)

    def get(self, *words: str) -> dict[str, Any]:
        """Objects of the API."""
        found: dict[str, Any] = json.loads(self("get", *words, "-o", "json"))
        return found

    def node(self) -> dict[str, Any]:
        """The node."""
        return self.get("node", NODE)

    def is_ready(self) -> bool:
        """Whether the node takes pods."""
        conditions = self.node()["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def allocatable(self, resource: str) -> int:
        """How many of a resource the node has for pods."""
        return int(self.node()["status"]["allocatable"].get(resource, "0"))

    def forward(self, service: str, pod: str) -> str:
        """Leads a Service's address to a pod, as a kube-proxy would; the address."""
        address = str(self.get("service", service)["spec"]["clusterIP"])
        return self.lead(address, [f"dnat to {self.get('pod', pod)['status']['podIP']}"])

    def lead(self, address: str, ways: list[str]) -> str:
        """Leads an address by one of several rules, drawn for each connection; the address."""
        self._services[address] = ways
        rules = ""
        for virtual, all_ways in self._services.items():
            for rest, way in zip(range(len(all_ways), 0, -1), all_ways):
                drawn = f"numgen random mod {rest} == 0 " if rest > 1 else ""
                rules += f"ip daddr {virtual} {drawn}{way};"
        run(["nft", "-f", "-"], given=_tables(rules))
        return address


def kubelet_configuration() -> dict[str, object]:
    """Of a kubelet beside other things on a machine: it evicts nobody for what the machine has no room for."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{GROUP}", "cgroupsPerQOS": True, "enforceNodeAllocatable": ["pods"], "failSwapOn": False,
        "address": NODE_ADDRESS, "healthzBindAddress": "127.0.0.1", "port": 10250, "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"}, "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "localStorageCapacityIsolation": False, "imageGCHighThresholdPercent": 100, "oomScoreAdj": 0,
        "evictionHard": {"memory.available": "1Mi"}, "resolvConf": "", "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "2s",
    }  # fmt: skip


def containerd_configuration() -> str:
    """All its places are the run's."""
    return f"""version = 3
root = "{PLACE}/containerd"
state = "{PLACE}/containerd-state"
[grpc]
address = "{CONTAINERD}"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{PLACE}/cni"
"""


def network() -> dict[str, object]:
    """A route to each pod, by which Services work without a bridge's help."""
    addresses = {"type": "host-local", "dataDir": f"{PLACE}/addresses", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses}]}


def run(words: list[str], given: str | None = None, patience_s: float = 60.0) -> str:
    """Runs a command; what it printed."""
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=patience_s, check=False)
    if done.returncode != 0:
        raise ClusterFailed(f"{' '.join(words[:8])}: {done.stderr.strip()[-800:]}")
    return done.stdout.strip()


def log_tail(path: Path, lines: int = 15) -> str:
    """The end of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def end_containers() -> None:
    """Kills what runs in containers, so that its control groups can be removed."""
    keep = {1, os.getpid(), os.getppid()}
    for pid in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        if pid not in keep:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def make_groups() -> None:
    """Control groups for all pods, in every hierarchy."""
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        if hierarchy.is_symlink() or not (hierarchy / "cgroup.procs").exists():
            continue
        (hierarchy / GROUP).mkdir()
        # In the first version's hierarchy, a new group has no processor and no memory.
        for name in ("cpuset.cpus", "cpuset.mems"):
            if hierarchy.name == "cpuset":
                (hierarchy / GROUP / name).write_text((hierarchy / name).read_text())


def remove_groups() -> None:
    """Removes control groups of this run's, or of one that was killed; the innermost first."""
    for top in Path("/sys/fs/cgroup").glob(f"*/{GROUP}"):
        for directory, _, _ in os.walk(top, topdown=False):
            wait_for(f"{directory} to be empty", lambda directory=directory: os.rmdir(directory) or True, 20.0)  # type: ignore[misc]
