"""A guest of QEMU's with Debian's stock kernel, whose network device's back end is ours."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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


def initramfs(place: Path, name: str, kernel: machine.Kernel, commands: str) -> Path:
    """A guest's only file system."""
    tree = place / f"{name}-files"
    for directory in ("bin", "proc", "sys", "dev", "modules"):
        (tree / directory).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin/busybox")
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


def qemu(run: Run, number: int, socket: Path, packed: bool, commands: str) -> str:
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
            *("-kernel", str(kernel.image), "-initrd", str(initramfs(run.place, name, kernel, commands))),
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


def cases(program: str) -> dict[str, Callable[[Run], None]]:
    """Each by its name."""
    return {
        "vhost-user: a guest pings": lambda run: pings(run, program, False, 0),
        "vhost-user: a guest pings, packed": lambda run: pings(run, program, True, 0),
        "vhost-user: a guest pings, and ours is killed": lambda run: pings(run, program, False, 4),
        "vhost-user: two guests talk, with offloads": lambda run: talk(run, program),
    }
