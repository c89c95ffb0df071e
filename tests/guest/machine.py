"""A machine for one command: QEMU without KVM, Debian's stock kernel, and this machine's files below it, which it cannot change.

The kernel is downloaded by apt and unpacked, not installed. The machine ends with its command, and with whoever started it.
"""

from __future__ import annotations

import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import road

PLACE = road.REPOSITORY / "target/guest"
# A program that is needed, and the Debian package that brings it.
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
FIRMWARE = Path("/usr/share/seabios/bios-256k.bin")
KERNEL_PACKAGE = "linux-image-amd64"
# What the root file system needs, and sock_diag; modules of the kernel's that they need come by themselves.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "tcp_diag")
MEMORY_MB = 2048
PROCESSORS = 2

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
for module in $(cat /modules/order); do insmod /modules/$module || echo "no module $module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro root /lower
mount -t tmpfs tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new
# Users other than root find the repository also where they may not enter the directories above it; everybody where those are hidden below.
mount --bind REPOSITORY /new/mnt
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs devtmpfs /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm
mount -t tmpfs -o mode=1777 tmpfs /new/tmp
mount -t tmpfs -o mode=0755 tmpfs /new/run
ip link set lo up
stty -F /dev/ttyS1 raw
chroot /new COMMAND < /dev/null > /dev/ttyS1 2>&1
echo "ended with $?" > /dev/ttyS1
poweroff -f
"""


class Lacking(Exception):
    """What this machine has not, in a sentence."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that has been unpacked."""

    image: Path
    modules: Path

    @property
    def release(self) -> str:
        """As `uname -r` has it."""
        return self.modules.name


def require() -> None:
    """Whether a guest can run here.

    Raises:
        Lacking: It cannot.
    """
    if os.uname().machine != "x86_64":
        raise Lacking("the guest is an x86-64 machine")
    packages = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if not FIRMWARE.exists():
        packages.append("seabios")
    if packages:
        raise Lacking(f"a guest needs the Debian packages {' '.join(packages)}")


def kernel() -> Kernel:
    """The newest stock kernel that apt has, downloaded once.

    Raises:
        Lacking: Apt has none, and none was downloaded before.
    """
    text = subprocess.run(["apt-cache", "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Depends: (linux-image-\S+)", text)
    unpacked = sorted(PLACE.glob("linux-image-*/boot"), key=lambda path: path.stat().st_mtime)
    if found is None:
        if not unpacked:
            raise Lacking(f"apt knows no {KERNEL_PACKAGE}: apt-get update")
        return _kernel_in(unpacked[-1].parent)
    place = PLACE / found[1]
    if not place.exists():
        _download(found[1], place)
    return _kernel_in(place)


def _download(package: str, place: Path) -> None:
    """Downloads a package and unpacks it to `place`, which is there when it is whole."""
    archives, partial = PLACE / "archives", place.with_suffix(".part")
    for directory in (archives, partial):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    print(f"downloading {package}", file=sys.stderr)
    got = subprocess.run(["apt-get", "download", "-q", package], cwd=archives, capture_output=True, text=True, check=False)
    if got.returncode != 0:
        raise Lacking(f"apt-get download {package}: {got.stderr.strip().splitlines()[-1]}")
    (archive,) = archives.iterdir()
    subprocess.run(["dpkg-deb", "-x", archive, partial], check=True)
    shutil.rmtree(archives)
    partial.rename(place)


def _kernel_in(place: Path) -> Kernel:
    (image,) = (place / "boot").glob("vmlinuz-*")
    return Kernel(image, place / "lib/modules" / image.name.removeprefix("vmlinuz-"))


def module_files(kernel: Kernel, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Modules, and before each one those that it needs; what is built in is left out."""
    files = {}
    for path in kernel.modules.rglob("*.ko*"):
        files[path.name.partition(".")[0].replace("-", "_")] = path
    seen: set[str] = set()

    def with_needs(name: str) -> Iterator[tuple[str, bytes]]:
        path = files.get(name)
        if name in seen or path is None:
            return
        seen.add(name)
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        needs = re.search(rb"\0depends=([^\0]*)\0", content)
        for need in needs[1].decode().split(",") if needs else ():
            yield from with_needs(need.replace("-", "_"))
        yield f"{name}.ko", content

    for name in names:
        yield from with_needs(name)


def initramfs(kernel: Kernel, more_modules: Sequence[str], command: Sequence[str]) -> Path:
    """Makes the first file system of a guest, which runs `command` as root where this machine's files are."""
    tree = PLACE / "initramfs"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "proc", "dev", "lower", "upper", "new", "modules"):
        (tree / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin/busybox")
    order = []
    for name, content in module_files(kernel, (*MODULES, *more_modules)):
        (tree / "modules" / name).write_bytes(content)
        order.append(name)
    (tree / "modules/order").write_text("\n".join(order) + "\n")
    init = INIT.replace("REPOSITORY", shlex.quote(f"/new{road.REPOSITORY}")).replace("COMMAND", shlex.join(command))
    (tree / "init").write_text(init)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    archive = PLACE / "initramfs.cpio"
    with open(archive, "wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names.encode(), stdout=out, check=True)
    return archive


def qemu(kernel: Kernel, archive: Path, console: Path) -> list[str]:
    """The command that boots a guest: what its command says comes on standard output, what the kernel says goes to `console`."""
    root = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"
    kernel_line = "console=ttyS0 quiet panic=-1 mitigations=off"
    words = [
        *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", str(MEMORY_MB), "-smp", str(PROCESSORS)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot"),
        *("-kernel", str(kernel.image), "-initrd", str(archive), "-append", kernel_line, "-virtfs", root),
        *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
        *("-chardev", "stdio,id=report,signal=off", "-serial", "chardev:report"),
    ]
    # It ends with whoever started it, however that ends.
    return ["setpriv", "--pdeathsig", "KILL", "--", *words]
