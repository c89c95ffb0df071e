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
PINGS = 3000
INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for module in $(cat /modules/order); do insmod /modules/$module; done
ip link set eth0 up
ip addr add 10.0.0.1/24 dev eth0
arp -s 10.0.0.2 02:00:00:00:00:02
echo features $(cat /sys/class/net/eth0/device/features)
ping -c 3 10.0.0.2
echo begun
ping -q -A -c {PINGS} -s 1000 10.0.0.2
poweroff -f
"""


def initramfs(place: Path, kernel: machine.Kernel) -> Path:
    """The guest's only file system."""
    tree = place / "guest"
    for name in ("bin", "proc", "sys", "modules"):
        (tree / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin/busybox")
    order = []
    for name, content in machine.module_files(kernel, MODULES):
        (tree / "modules" / name).write_bytes(content)
        order.append(name)
    (tree / "modules/order").write_text("\n".join(order) + "\n")
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    archive = place / "guest.cpio"
    with open(archive, "wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names.encode(), stdout=out, check=True)
    return archive


def qemu(run: Run, packed: bool) -> str:
    """Starts the guest; the name of what it says."""
    machine.require()
    kernel = machine.kernel()
    # QEMU 7.2 without KVM falls over when such a device has MSI-X: `vectors=0`.
    device = f"virtio-net-pci,netdev=net,vectors=0,romfile=,mac=02:00:00:00:00:01,packed={'on' if packed else 'off'}"
    run.spawn(
        "guest1",
        [
            *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "256", "-smp", "1"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot", "-serial", "stdio"),
            *("-kernel", str(kernel.image), "-initrd", str(initramfs(run.place, kernel))),
            *("-append", "console=ttyS0 quiet panic=-1 mitigations=off"),
            *("-object", "memory-backend-memfd,id=memory,size=256M,share=on", "-numa", "node,memdev=memory"),
            *("-chardev", f"socket,id=socket,path={run.socket},reconnect=1"),
            *("-netdev", "vhost-user,id=net,chardev=socket,queues=1", "-device", device),
        ],
    )
    return "guest1"


def pings(run: Run, program: str, packed: bool, kills: int) -> None:
    """The guest pings, and our side, asleep in between, answers each; also when it is killed meanwhile, and another takes its place."""
    back = [program, "vhost-user", "server", str(run.socket), "answer"]
    ours, name = run.program(back)
    said = qemu(run, packed)
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
    check(received == PINGS and 0 <= lost <= 3 * kills, f"{lost} lost\n{run.said(said)}")
    is_packed = re.search(r"features ([01]+)", run.said(said))
    check(is_packed is not None and is_packed[1][34] == "01"[packed], "rings are not of the kind that was wanted")
    result = run.finish(ours, name)
    check(result.drops == 0 and result.wakes > 0, f"{result}")


def cases(program: str) -> dict[str, Callable[[Run], None]]:
    """Each by its name."""
    return {
        "vhost-user: a guest pings": lambda run: pings(run, program, False, 0),
        "vhost-user: a guest pings, packed": lambda run: pings(run, program, True, 0),
        "vhost-user: a guest pings, and ours is killed": lambda run: pings(run, program, False, 4),
    }
