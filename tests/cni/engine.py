"""The plugin under those who run plugins: podman, with the networks of the Container Network Interface, and Multus."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from site_of_cni import BUILT, PACKAGED, PLUGIN, WAIT_S, Site, Wrong, check, inside

from pods import address_of, link, talks

PACKAGES = ("podman|podman", "runc|runc", "containernetworking-plugins", "busybox-static", "catatonit")
MULTUS = Path(__file__).with_name("multus")
GROUP = "millrace-cni-test"
"""Of control groups: every hierarchy has one of this name while a case is under way."""
ENGINE_S = 60.0


def build() -> None:
    """Multus, of its module."""
    built = BUILT / "multus"
    print(f"building {built}, which takes some minutes the first time", file=sys.stderr, flush=True)
    argv = ["go", "build", "-o", str(built), "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"]
    subprocess.run(argv, check=True, cwd=MULTUS)


class Podman:
    """podman as root, whose containers get networks by plugins. What it writes goes with the run."""

    def __init__(self, site: Site) -> None:
        self.site = site
        place = Path("/run/podman-test")
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(place)], check=True)
        site.stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=False)
        site.stack.callback(remove_groups)
        # What engines and plugins keep there is not the machine's, and every user's podman has its locks in the other place.
        for name in ("upper", "work"):
            (place / name).mkdir()
        options = f"lowerdir=/var/lib,upperdir={place}/upper,workdir={place}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, "/var/lib"], check=True)
        site.stack.callback(subprocess.run, ["umount", "--lazy", "/var/lib"], check=False)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)
        site.stack.callback(subprocess.run, ["umount", "--lazy", "/dev/shm"], check=False)
        files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000)
        directories = json.dumps([str(PLUGIN.parent), str(BUILT), str(PACKAGED)])
        (place / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\nlog_driver = "k8s-file"\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'[network]\nnetwork_backend = "cni"\ncni_plugin_dirs = {directories}\n'
        )
        self.environment = {**os.environ, "CONTAINERS_CONF": str(place / "containers.conf"), "HOME": str(place)}
        self.command = [
            "podman", "--root", f"{place}/storage", "--runroot", f"{place}/run", "--tmpdir", f"{place}/tmp",
            "--network-config-dir", str(site.place / "net.d"),
        ]  # fmt: skip
        self._make_image(place)

    def __call__(self, *words: str) -> str:
        """Runs a podman command; what it printed."""
        done = subprocess.run(
            [*self.command, *words], env=self.environment, cwd="/", capture_output=True, text=True, timeout=ENGINE_S, check=False
        )
        if done.returncode != 0:
            raise Wrong(f"podman {' '.join(words[:6])}: {done.stderr.strip()[-800:]}")
        return done.stdout.strip()

    def _make_image(self, place: Path) -> None:
        """A shell and no more."""
        root = place / "image"
        for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
            (root / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        (root / "bin/sleep").symlink_to("busybox")
        archive = place / "image.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
        self("import", "-q", str(archive), "localhost/pod:1")

    def start(self, name: str, network: str) -> dict[str, Any]:
        """A container in the background; what podman says of it."""
        self.site.stack.callback(lambda: self("rm", "-f", "-t", "0", "-i", name))
        self("run", "-d", "--pull=never", f"--name={name}", f"--network={network}", f"--cgroup-parent=/{GROUP}",
             "localhost/pod:1", "/bin/sleep", "1000000")  # fmt: skip
        return dict(json.loads(self("inspect", name))[0])


def remove_groups() -> None:
    """Removes control groups, the innermost first; what is in them may just be ending."""
    deadline = time.monotonic() + WAIT_S
    for top in Path("/sys/fs/cgroup").glob(f"*/{GROUP}"):
        for directory, _, _ in os.walk(top, topdown=False):
            while True:
                try:
                    os.rmdir(directory)
                    break
                except OSError:
                    check(time.monotonic() < deadline, f"{directory} is not empty")
                    time.sleep(0.05)


def runs_pods(site: Site) -> None:
    """Containers of podman get an interface of the switch's, and talk; killed or removed, they leave nothing."""
    site.network("fast", "0.4.0", port="tap", mtu=1400)
    podman = Podman(site)
    found = {name: podman.start(name, "fast") for name in ("client", "server")}
    spaces = {name: f"/proc/{facts['State']['Pid']}/ns/net" for name, facts in found.items()}
    networks = {name: facts["NetworkSettings"]["Networks"]["fast"] for name, facts in found.items()}
    for name, network in networks.items():
        interface = link(spaces[name], "eth0")
        check(interface is not None and interface["address"] == network["MacAddress"], (interface, network))
    check(len(site.ports()) == 2, site.ports())
    talks(spaces["client"], spaces["server"], networks["server"]["IPAddress"], 1400)
    podman("kill", "--signal=KILL", "server")
    podman("rm", "-f", "-t", "0", "client")
    site.until_clean()
    # A container that is started again is another pod to the plugin.
    podman("start", "server")
    check(len(site.ports()) == 1, site.ports())
    pid = json.loads(podman("inspect", "server"))[0]["State"]["Pid"]
    os.kill(pid, 9)
    site.until_clean()


def gives_two_networks(site: Site) -> None:
    """Multus gives a pod two networks of ours: a TAP interface each, in VLANs that are apart."""
    common = {"type": "millrace-cni", "port": "tap", "switch": str(site.control), "directory": str(site.sockets)}
    delegates = [
        {"cniVersion": "1.0.0", "name": "first", **common, "vlan": 7, "ipam": site.addresses("10.93.0.0/24")},
        {"cniVersion": "1.0.0", "name": "second", **common, "vlan": 8, "ipam": site.addresses("10.94.0.0/24")},
    ]
    site.chain("multus", "1.0.0", {
        "type": "multus", "delegates": delegates, "cniDir": str(site.place / "multus"), "binDir": str(PLUGIN.parent), "logLevel": "error",
    })  # fmt: skip
    made = {pod: site.tool("add", "multus", pod) for pod in ("one", "two")}
    addresses = {}
    for pod in made:
        interfaces = [link(pod, name) for name in ("fast0", "net1")]
        check(None not in interfaces, interfaces)
        addresses[pod] = [each["addr_info"][0]["local"] for each in interfaces if each]
    check(address_of(made["two"]) == addresses["two"][0], made["two"])
    check(sorted(port["vlan"] for port in site.ports()) == ["access 7", "access 7", "access 8", "access 8"], site.ports())
    for address in addresses["two"]:
        talks("one", "two", address)
    inside("one", "ip", "address", "del", f"{addresses['one'][0]}/24", "dev", "fast0")
    for pod in made:
        site.tool("del", "multus", pod)
        check(link(pod, "fast0") is None and link(pod, "net1") is None, f"interfaces of {pod}")
    check(site.is_clean(), site.ports())
