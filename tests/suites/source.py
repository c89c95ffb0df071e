"""Sources of public test suites, by the machine's own package client; nothing of them is committed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path


def _apt_options(state: Path) -> list[str]:
    """Options that let apt read source packages of the machine's own archives, and leave its settings alone."""
    parts = state / "parts"
    for directory in (parts, state / "lists" / "partial", state / "cache" / "archives" / "partial"):
        directory.mkdir(parents=True, exist_ok=True)
    for origin in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if origin.suffix not in (".list", ".sources") or not origin.exists():
            continue
        text = re.sub(r"^(Types:).*$", r"\1 deb-src", origin.read_text(), flags=re.MULTILINE)
        (parts / origin.name).write_text(re.sub(r"^deb ", "deb-src ", text, flags=re.MULTILINE))
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _versions(options: list[str], package: str) -> list[str]:
    """The versions of a source package that the archives have, newest first."""
    shown = subprocess.run(
        ["apt-cache", *options, "showsrc", package], capture_output=True, text=True, check=True
    ).stdout
    found = set(re.findall(rf"^Package: {re.escape(package)}\n(?:.*\n)*?Version: (\S+)$", shown, re.MULTILINE))
    order = sorted(found, key=lambda version: [int(part) for part in re.findall(r"\d+", version)], reverse=True)
    return list(order)


def debian_source(package: str, where: Path) -> Path:
    """Fetches and unpacks a Debian source package once; returns its directory."""
    home = where / package
    if (home / "fetched").exists():
        return Path((home / "fetched").read_text())
    options = _apt_options(where / "apt")
    if not any((where / "apt" / "lists").glob("*_Sources*")):
        subprocess.run(["apt-get", *options, "update", "-qq"], check=True)
    for version in _versions(options, package):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        fetch = ["apt-get", *options, "source", "-qq", f"{package}={version}"]
        if subprocess.run(fetch, cwd=home, stdout=subprocess.DEVNULL, check=False).returncode == 0:
            unpacked = next(entry for entry in home.iterdir() if entry.is_dir())
            (home / "fetched").write_text(str(unpacked))
            return unpacked
    raise RuntimeError(f"no version of the source package {package} could be fetched")


def debian_contents(package: str, member: str, where: Path, paths: list[str]) -> Path:
    """Unpacks `paths` of the tar archive `member` of a binary package that is not worth installing."""
    home = where / package
    if not (home / "fetched").exists():
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package], cwd=home, check=True)
        archive = next(home.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive.name, "."], cwd=home, check=True)
        subprocess.run(["tar", "-xf", member, *paths], cwd=home, check=True)
        archive.unlink()
        (home / member).unlink()
        (home / "fetched").touch()
    return home


def build(directory: Path, commands: list[list[str]], log: Path) -> None:
    """Runs build commands in `directory` once."""
    done = directory / ".built-for-suites"
    if done.exists():
        return
    environment = dict(os.environ, MAKEFLAGS=f"-j{os.cpu_count()}")
    with open(log, "wb") as output:
        for command in commands:
            subprocess.run(command, cwd=directory, env=environment, stdout=output, stderr=output, check=True)
    done.touch()
