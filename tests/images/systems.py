"""Root file systems with the C libraries of several systems, made of Debian's packages; kept below `target/images`."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from harness import packages, road

HERE = Path(__file__).resolve().parent
PLACE = road.REPOSITORY / "target/images"
NEEDS = ["binutils", "gcc|cc", "libc6-dev", "musl-tools|musl-gcc", "musl-dev"]
MUSL_LOADER = Path("/lib/ld-musl-x86_64.so.1")
LIBRARY = road.REPOSITORY / "target/release/libmillrace_preload.so"


@dataclass(frozen=True)
class Image:
    """A root file system with the program `/talk` in it."""

    name: str
    root: Path
    on_ring: bool = True
    environment: dict[str, str] = field(default_factory=dict)


def _site() -> str:
    """Where this machine has its Debian packages from."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if not lines:
        raise OSError("this machine has no source of Debian packages")
    return lines[0]


def fetch(suite: str, architecture: str, names: list[str]) -> Path:
    """Unpacks packages of a release of Debian, once."""
    root = PLACE / f"{suite}-{architecture}"
    if root.exists():
        return root
    apt = PLACE / f"apt-{suite}-{architecture}"
    shutil.rmtree(apt, ignore_errors=True)
    (apt / "lists/partial").mkdir(parents=True)
    (apt / "cache/archives/partial").mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb {_site()} {suite} main\n")
    options = [
        f"Dir::Etc::sourcelist={apt}/sources.list", "Dir::Etc::sourceparts=/dev/null", f"Dir::State::lists={apt}/lists",
        f"Dir::State::status={apt}/status", f"Dir::Cache={apt}/cache", f"APT::Architecture={architecture}",
        f"APT::Architectures={architecture}", "APT::Sandbox::User=root",
    ]  # fmt: skip
    words = [word for option in options for word in ("-o", option)]
    with packages.alone():
        subprocess.run(["apt-get", *words, "-qq", "update"], check=True)
        subprocess.run(["apt-get", *words, "-qq", "download", *names], cwd=apt, check=True)
    fresh = apt / "root"
    for package in sorted(apt.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, fresh], check=True)
    for name in ("lib", "lib64"):
        # Newer releases have everything below `usr`, and these links from another package.
        if not (fresh / name).exists():
            (fresh / name).symlink_to(f"usr/{name}")
    _turn_links(fresh)
    os.rename(fresh, root)
    shutil.rmtree(apt)
    return root


def _turn_links(root: Path) -> None:
    """Makes links relative, so that they mean the same for the compiler outside and for programs inside."""
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(directory, name)
            if path.is_symlink() and os.readlink(path).startswith("/"):
                target = os.path.relpath(f"{root}{os.readlink(path)}", directory)
                path.unlink()
                path.symlink_to(target)


def compiler(root: Path) -> list[str]:
    """The compiler of this machine, for the C library of that root."""
    tuple_ = "x86_64-linux-gnu"
    places = [root / "usr/lib" / tuple_, root / "lib" / tuple_]
    return ["cc", f"--sysroot={root}", f"-B{places[0]}", *(f"-L{place}" for place in places)]


def _compile(command: list[str], root: Path, source: str = "talk.c", target: str = "talk", *libraries: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "-O1", "-Wall", "-Wextra", "-o", root / target, HERE / source, *libraries], check=True)


def _compile_for_32_bits(root: Path) -> None:
    """Without the compiler's own parts, which are for 64 bits."""
    tuple_ = "i386-linux-gnu"
    place, loader = root / "usr/lib" / tuple_, root / "lib" / tuple_ / "libc.so.6"
    object_ = root / "talk.o"
    flags = ["-m32", "-fno-stack-protector", "-fno-pie", f"--sysroot={root}", f"-isystem{root}/usr/include/{tuple_}"]
    subprocess.run(["cc", *flags, "-O1", "-c", "-o", object_, HERE / "talk.c"], check=True)
    parts = [place / "crt1.o", place / "crti.o", object_, loader, place / "libc_nonshared.a", place / "crtn.o"]
    link = ["ld", "-melf_i386", "-dynamic-linker", "/lib/ld-linux.so.2", f"-rpath-link={root}/lib/{tuple_}"]
    subprocess.run([*link, "-o", root / "talk", *parts], check=True)


def _bare(name: str, source: Path, files: list[str]) -> Path:
    """A root with a few files of another one, and nothing else."""
    root = PLACE / name
    shutil.rmtree(root, ignore_errors=True)
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / file, root / file)
    return root


def prepare() -> None:
    """What needs the network."""
    packages.install(NEEDS)
    PLACE.mkdir(parents=True, exist_ok=True)
    for suite in ("bullseye", "bookworm", "trixie"):
        fetch(suite, "amd64", ["libc6", "libc6-dev", "linux-libc-dev", "libgcc-s1", "libcrypt-dev", "libcrypt1"])
    fetch("bookworm", "i386", ["libc6", "libc6-dev", "linux-libc-dev"])


def make() -> list[Image]:
    """The images, with their programs."""
    images = []
    for suite in ("bullseye", "bookworm", "trixie"):
        root = PLACE / f"{suite}-amd64"
        _compile(compiler(root), root)
        images.append(Image(f"{suite}", root))
    old, loader = PLACE / "bullseye-amd64", "lib64/ld-linux-x86-64.so.2"
    bare = _bare("bare", old, [loader, "lib/x86_64-linux-gnu/libc.so.6"])
    shutil.copy(old / "talk", bare / "talk")
    images.append(Image("C library alone", bare))
    musl = PLACE / "musl"
    _compile(["musl-gcc"], musl)
    (musl / "lib").mkdir(exist_ok=True)
    shutil.copy(MUSL_LOADER, musl / "lib")
    images.append(Image("musl", musl))
    static = PLACE / "static"
    _compile(["cc", "-static"], static)
    images.append(Image("static", static, on_ring=False))
    narrow = PLACE / "bookworm-i386"
    _compile_for_32_bits(narrow)
    images.append(Image("32 bits", narrow, on_ring=False))
    for image in [image for image in images if image.name in ("bullseye", "trixie", "musl")]:
        command = ["musl-gcc"] if image.name == "musl" else compiler(image.root)
        _compile([*command, "-shared", "-fPIC"], image.root, "own.c", "own.so", "-ldl")
        images.append(Image(f"{image.name} with its own preload", image.root, environment={"LD_PRELOAD": "/own.so"}))
    return images


def lay_out() -> Path:
    """The library as programs of every image find it; returns the directory, which images have as `/millrace`."""
    directory = PLACE / "library"
    environment = dict(os.environ, MILLRACE_LIBRARY=str(LIBRARY))
    command = [road.MILLRACE, "cdi", "install", "--directory", directory]
    command += ["--specifications", PLACE / "specifications"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return directory
