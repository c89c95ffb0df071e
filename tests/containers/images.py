"""Images made from this machine's own files: a shell, and a program with the C library that it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

TALK = Path(__file__).with_name("talk.c")
CONFINE = Path(__file__).with_name("confine.c")
# What is not in here is not in an image of ours, so a container that needs more of the machine fails.
TOOLS = ("sh", "cat", "sleep", "mount", "env", "id", "kill", "ls", "true")


@dataclass(frozen=True)
class Image:
    """How an image is made, beside its shell."""

    name: str
    compiler: tuple[str, ...] = ("gcc",)
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Texts of further files, by their paths. One that begins with `#include` is compiled to a shared library; `-> PATH` is a link."""

    @property
    def reference(self) -> str:
        """As engines name it."""
        return f"localhost/{self.name}:1"


PRELOADED = "#include <stdlib.h>\nstatic __attribute__((constructor)) void start(void) { setenv(\"OF_THE_IMAGE\", \"yes\", 1); }\n"
IMAGES = [
    Image("glibc"),
    Image("musl", ("musl-gcc",)),
    Image("static", ("gcc", "-static")),
    Image("with-variable", environment={"LD_PRELOAD": "/own.so"}, files={"own.so": PRELOADED}),
    Image("with-link", files={"etc/ld.so.preload": "-> /etc/secret", "etc/secret": "/nowhere.so"}),
    Image("with-list", files={"own.so": PRELOADED, "etc/ld.so.preload": "# of the image\n/own.so"}),
]


def make(image: Image, place: Path) -> Path:
    """The image's file system as a tar archive."""
    root = place / image.name
    for directory in ("bin", "etc", "proc", "dev", "sys", "tmp", "run"):
        (root / directory).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for tool in TOOLS:
        os.symlink("busybox", root / "bin" / tool)
    talk = root / "bin/talk"
    subprocess.run([*image.compiler, "-O2", "-o", str(talk), str(TALK)], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["gcc", "-static", "-O2", "-o", str(root / "bin/confine"), str(CONFINE)], check=True)
    for path, text in image.files.items():
        target = root / path
        if text.startswith("-> "):
            target.symlink_to(text.removeprefix("-> "))
        elif text.startswith("#include"):
            command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target)]
            subprocess.run(command, input=text, text=True, check=True)
        else:
            target.write_text(text)
    for library in libraries(talk):
        target = root / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    archive = place / f"{image.name}.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    return archive


def libraries(program: Path) -> list[Path]:
    """The loader and the libraries of a program, where this machine has them."""
    listing = subprocess.run(["readelf", "-l", "-d", str(program)], capture_output=True, text=True, check=True).stdout
    if "program interpreter" not in listing:
        return []
    loader = Path(listing.split("program interpreter: ")[1].split("]")[0])
    if "musl" in loader.name:
        return [loader]
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return [Path(word) for word in listed.split() if word.startswith("/")]
