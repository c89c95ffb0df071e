"""A guest of QEMU's with Debian's stock kernel, whose network device's back end is ours: an example, or `millrace switch`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import kernel as host
from harness import road
from wrong import check

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "guest"))

import machine  # noqa: E402

if TYPE_CHECKING:
    from run import Run

MODULES = ("virtio_pci", "virtio_net")
BOOT_S = 120.0
INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
ip link set eth0 up
echo features $(cat /sys/class/net/eth0/device/features)
"""
PING = """\
ip addr add 10.0.0.1/24 dev eth0
arp -s 10.0.0.2 02:00:00:00:00:02
ping -c 3 10.0.0.2
echo begun
ping -q -A -c COUNT -s 1000 10.0.0.2
"""
SERVE = """\
ip addr add 10.0.0.2/24 dev eth0
echo sum $(nc -l -p 5000 | md5sum)
"""
SEND = """\
ip addr add 10.0.0.1/24 dev eth0
dd if=/dev/urandom of=/data bs=1M count=24
echo sum $(md5sum < /data)
until ping -c 1 -W 1 10.0.0.2; do sleep 1; done
sleep 1
nc 10.0.0.2 5000 < /data
"""
TALK = """\
ip addr add 10.77.0.2/24 dev eth0
ip link set lo up
iperf3 -s > /dev/null 2>&1 &
echo listening
echo sum $(nc -l -p 5000 | md5sum)
"""
SWITCH = """\
[[port]]
name = "host"
tap.interface = "ta"
[[port]]
name = "guest"
vhost_user.path = "{}"
"""
SEND_TO_GUEST = """
import hashlib, random, socket, sys
data = random.Random(1).randbytes(16 << 20)
connection = socket.create_connection(("10.77.0.2", 5000))
for at in range(0, len(data), 1 << 16):
    connection.sendall(data[at:at + (1 << 16)])
connection.shutdown(socket.SHUT_WR)
print(hashlib.md5(data).hexdigest())
"""
TRANSFER_S = 12
"""Each way; more than the deaths of our side take."""


def add_program(tree: Path, name: str) -> None:
    """One of this machine's programs, with its libraries."""
    program = shutil.which(name)
    if program is None:
        raise machine.Lacking(f"there is no {name} here")
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for file in (program, *re.findall(r"(/\S+) \(0x", listed)):
        target = tree / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def initramfs(place: Path, name: str, kernel: machine.Kernel, commands: str, programs: Sequence[str]) -> Path:
    """A guest's only file system."""
    tree = place / f"{name}-files"
    for directory in ("bin", "proc", "sys", "dev", "modules", "tmp"):
        (tree / directory).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin/busybox")
    for program in programs:
        add_program(tree, program)
    order = []
    for module, content in machine.module_files(kernel, MODULES):
        (tree / "modules" / module).write_bytes(content)
        order.append(module)
    (tree / "modules/order").write_text("\n".join(order) + "\n")
    (tree / "init").write_text(f"{INIT}{commands}poweroff -f\n")
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    archive = place / f"{name}.cpio"
    with open(archive, "wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names.encode(), stdout=out, check=True)
    return archive


def qemu(run: Run, number: int, socket: Path, packed: bool, commands: str, programs: Sequence[str] = ()) -> str:
    """Starts a guest; the name of what it says."""
    machine.require()
    kernel = machine.kernel()
    name = f"guest{number}"
    # QEMU 7.2 without KVM falls over when such a device has MSI-X: `vectors=0`.
    device = f"virtio-net-pci,netdev=net,vectors=0,romfile=,mac=02:00:00:00:00:0{number},packed={'on' if packed else 'off'}"
    run.spawn(
        name,
        [
            *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "256", "-smp", "1"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot", "-serial", "stdio"),
            *("-kernel", str(kernel.image), "-initrd", str(initramfs(run.place, name, kernel, commands, programs))),
            *("-append", "console=ttyS0 quiet panic=-1 mitigations=off"),
            *("-object", "memory-backend-memfd,id=memory,size=256M,share=on", "-numa", "node,memdev=memory"),
            *("-chardev", f"socket,id=socket,path={socket},reconnect=1"),
            *("-netdev", "vhost-user,id=net,chardev=socket,queues=1", "-device", device),
        ],
    )
    return name


def pings(run: Run, program: str, packed: bool, kills: int) -> None:
    """The guest pings, and our side, asleep in between, answers each; also when it is killed meanwhile, and another takes its place."""
    back = [program, "vhost-user", "server", str(run.socket), "answer"]
    ours, name = run.program(back)
    # Enough for a death and another start in the midst of them, each time.
    count = 3000 + 15_000 * kills
    said = qemu(run, 1, run.socket, packed, PING.replace("COUNT", str(count)))
    run.until_said(said, "begun", wait_s=BOOT_S)
    for _ in range(kills):
        run.until_said(name, "connected")
        time.sleep(0.3)
        ours.kill()
        ours.wait()
        ours, name = run.program(back)
    run.until(lambda: run.said(said).count("packet loss") == 2, "all pings were sent", wait_s=BOOT_S)
    found = re.findall(r"(\d+) packets transmitted, (\d+) packets received", run.said(said))
    check(len(found) == 2 and found[0] == ("3", "3"), f"{found}")
    sent, received = map(int, found[1])
    lost = sent - received
    print(f"        {lost} of {sent} lost by {kills} kills", flush=True)
    # One is under way at a time: it is in hand when ours dies, or comes while nobody is there.
    check(received == count and 0 <= lost <= 3 * kills, f"{lost} lost\n{run.said(said)}")
    is_packed = re.search(r"features ([01]+)", run.said(said))
    check(is_packed is not None and is_packed[1][34] == "01"[packed], "rings are not of the kind that was wanted")
    result = run.finish(ours, name)
    check(result.drops == 0 and result.wakes > 0, f"{result}")


def talk(run: Run, program: str) -> None:
    """Two guests, one with split rings and one with packed ones, send megabytes by TCP, and leave checksums and segments to each other."""
    sockets = [run.place / "server.sock", run.place / "client.sock"]
    ours, name = run.program([str(Path(program).with_name("join")), *map(str, sockets)])
    server = qemu(run, 2, sockets[0], True, SERVE)
    client = qemu(run, 1, sockets[1], False, SEND)
    sums = lambda: [re.search(r"sum ([0-9a-f]{32})", run.said(guest)) for guest in (server, client)]  # noqa: E731
    run.until(lambda: all(sums()), "all has arrived", wait_s=BOOT_S)
    assert ours.stdin
    ours.stdin.close()
    run.until_said(name, "result")
    one, other = (found[1] for found in sums() if found)
    check(one == other, "what was sent is not what came")
    work, longest = (int(number) for number in re.findall(r"(?:work|longest)=(\d+)", run.said(name)))
    print(f"        {work} packets left work, the longest had {longest} bytes", flush=True)
    check(work > 100 and longest > 9000, f"nothing was left to the other: {run.said(name)}")


def switch(run: Run, number: int) -> subprocess.Popen[bytes]:
    """A switch between the guest and an interface of the kernel's, which stays when the switch dies."""
    config = run.place / "switch.toml"
    config.write_text(SWITCH.format(run.socket))
    argv = [str(road.MILLRACE), "switch", "run", "--config", str(config), "--control", str(run.place / "control.sock")]
    process = run.spawn(f"switch{number}", ["ip", "netns", "exec", "a", *argv])
    run.until(lambda: "the switch works" in run.said(f"switch{number}"), "the switch works")
    return process


def transfers(run: Run, packed: bool, kills: int) -> None:
    """TCP between the guest's kernel and this one's, each way, as fast as it goes and checked, also when ours is killed meanwhile."""
    machine.require()
    host.spaces()
    host.run("ip", "tuntap", "add", "dev", "ta", "mode", "tap", "vnet_hdr", inside="a")
    host.run("ip", "address", "add", "10.77.0.1/24", "dev", "ta", inside="a")
    host.run("ip", "link", "set", "ta", "up", inside="a")
    ours = switch(run, 0)
    said = qemu(run, 1, run.socket, packed, TALK, ["iperf3"])
    run.until_said(said, "listening", wait_s=BOOT_S)
    run.until(lambda: host.ping("-c", 3, "-W", 1) == (3, 3), "the guest answers", wait_s=BOOT_S)
    number = 0
    for way in ([], ["--reverse"]):
        words = ["iperf3", "-J", "-c", "10.77.0.2", "-t", str(TRANSFER_S), *way]
        name = f"iperf{len(way) + 1}"
        transfer = run.spawn(name, ["ip", "netns", "exec", "a", *words])
        for _ in range(kills):
            time.sleep(3)
            ours.kill()
            ours.wait()
            number += 1
            ours = switch(run, number)
        transfer.wait(TRANSFER_S * 4)
        found = json.loads(run.said(name))
        check(transfer.returncode == 0, found.get("error"))
        last = [interval["sum"]["bytes"] for interval in found["intervals"][-3:]]
        total = found["end"]["sum_received"]["bytes"]
        print(f"        {'from' if way else 'to'} the guest: {total >> 20} MiB by {kills} deaths", flush=True)
        check(total > 10 << 20 and sum(last) > 0, f"it does not go on: {last} of {total} bytes")
    sender = run.spawn("sender1", ["ip", "netns", "exec", "a", sys.executable, "-c", SEND_TO_GUEST])
    if kills:
        time.sleep(0.3)
        ours.kill()
        ours.wait()
        ours = switch(run, number + 1)
    run.until(lambda: re.search(r"sum [0-9a-f]{32}", run.said(said)) is not None, "all has arrived", wait_s=BOOT_S)
    sender.wait(BOOT_S)
    arrived = re.search(r"sum ([0-9a-f]{32})", run.said(said))
    check(arrived is not None and arrived[1] == run.said("sender1").strip(), f"{arrived}: {run.said('sender1')}")
    works(run, ours)


def works(run: Run, process: subprocess.Popen[bytes]) -> None:
    """Asks the switch whether segments were left to the other side, and lets it end."""
    control = ["--control", str(run.place / "control.sock")]
    told = subprocess.run([road.MILLRACE, "switch", "show", *control, "--json"], capture_output=True, text=True, check=True)
    ports = {port["name"]: port["counters"] for port in json.loads(told.stdout)["ports"]}
    # Longer packets than a frame, on the average even.
    sizes = [counters["received_bytes"] / max(counters["received_packets"], 1) for counters in ports.values()]
    check(max(sizes) > 1514, f"no segments were left to the other: {ports}")
    process.terminate()
    process.wait(host.WAIT_S)


def cases(program: str) -> dict[str, Callable[[Run], None]]:
    """Each by its name."""
    return {
        "vhost-user: a guest pings": lambda run: pings(run, program, False, 0),
        "vhost-user: a guest pings, packed": lambda run: pings(run, program, True, 0),
        "vhost-user: a guest pings, and ours is killed": lambda run: pings(run, program, False, 4),
        "vhost-user: two guests talk, with offloads": lambda run: talk(run, program),
        "vhost-user: a guest and this kernel talk, with offloads": lambda run: transfers(run, False, 0),
        "vhost-user: a guest and this kernel talk, with offloads, packed": lambda run: transfers(run, True, 0),
        "vhost-user: a guest and this kernel talk, and ours is killed": lambda run: transfers(run, False, 3),
    }
