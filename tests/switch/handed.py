"""A switch without a capability, and somebody with all who opens interfaces and hands them over, in a network namespace that is not its
own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ends import Site, memif
from harness import road
from harness.process import unprivileged
from kills import held, interfaces
from kinds import FAR, FEW, LOAD, NEAR, Echo
from rig import Interface, check, ip, mac, namespace

USER = 61234
"""Nobody else has that number, and so nothing locked in its name."""
LOCKED_BYTES = 4 << 20
"""What the switch may lock: one queue of the usual size."""
SMALL = ("queues=2", "ring_size=256")
"""Two queues that have room in it twice, as the kernel takes its time to give back what was locked."""


class Poor(Site):
    """A switch that may do nothing that others may not."""

    def launch(self) -> None:
        """Starts it, of a program that its user can reach."""
        self.place.chmod(0o755)
        for path in self.place.iterdir():
            shutil.chown(path, USER, USER)
        home = self.place / "home"
        home.mkdir(exist_ok=True)
        shutil.chown(home, USER, USER)
        if not self.program().exists():
            shutil.copy(road.MILLRACE, self.program())
        limit = ["prlimit", f"--memlock={LOCKED_BYTES}:{LOCKED_BYTES}"]
        command = [str(self.program()), "switch", "run", "--config", str(self.place / "switch.toml"), *self.control()]
        self.switch = self.spawn("switch", [*limit, *unprivileged(USER), *command], self.inside)

    def stop(self) -> None:
        """It leaves nothing in its directory."""
        super().stop()
        left = [path.name for path in (self.place / "home").iterdir()]
        check(not left, f"left behind: {left}")

    def program(self) -> Path:
        """The copy of the program."""
        return self.place / "millrace.copy"

    def control(self) -> list[str]:
        """Where root asks it."""
        return ["--control", str(self.place / "home/control.sock"), "--user", str(USER)]

    def said_to(self, *words: str, become: Sequence[str] = (), inside: str = NEAR) -> str:
        """How a command is refused, by somebody perhaps, and in a namespace."""
        command = ["ip", "netns", "exec", inside, *become, str(self.program()), "switch", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        check(done.returncode == 1 and not done.stdout, f"{words}: {done}")
        return done.stderr

    def add(self, *words: str, inside: str = NEAR) -> None:
        """A port of something that is opened in a namespace."""
        command = [str(road.MILLRACE), "switch", *self.control(), "add-port", *words, "--open", "--json"]
        done = subprocess.run(["ip", "netns", "exec", inside, *command], capture_output=True, text=True)
        check(done.returncode == 0 and json.loads(done.stdout) == {"done": True}, f"{words}: {done}")


def _cable() -> None:
    queues = ("numtxqueues", "2", "numrxqueues", "2")
    ip("link", "add", "xa", *queues, "type", "veth", "peer", "name", "xb", *queues, "netns", FAR, inside=NEAR)
    ip("link", "set", "xa", "up", inside=NEAR)
    ip("link", "set", "xb", "up", inside=FAR)


def _site(stack: ExitStack, place: Path) -> Poor:
    for name in (NEAR, FAR):
        namespace(stack, name)
    _cable()
    home = place / "home"
    home.mkdir()
    return Poor(stack, place, memif(home, "a"))


def _exchange(site: Poor, stack: ExitStack) -> None:
    echo = Echo(stack, FAR, "xb")
    site.ours("home/a.sock", "exchange", str(FEW))
    site.exchanged(FEW)
    echo.close()


def _is_whole(site: Poor, stack: ExitStack) -> None:
    """The kernel has all packets of the interface again: there is no program, and what the other end sends arrives."""
    site.until(lambda: interfaces()["xa"] is False, "the program is gone")
    near, far = Interface(stack, NEAR, "xa"), Interface(stack, FAR, "xb")
    for serial in range(10):
        frame = mac(1) + mac(2) + b"\x88\xb5" + bytes([serial] * 50)
        far.send(frame)
        arrived = near.receive(5)
        check(arrived == frame, f"the kernel has not got a packet: {arrived!r}")
    near.socket.close()
    far.socket.close()


def used(stack: ExitStack, place: Path) -> None:
    """Packets pass between an interface of another namespace and a memif, and are pinged through to a TAP interface that was handed over as
    well; the port is taken away and added again, with one queue and with two; the interface is deleted, and there is another one."""
    site = _site(stack, place)
    site.add("b", "af_xdp", "interface=xa")
    check(interfaces()["xa"], "there is no program at the interface")
    _exchange(site, stack)
    counters = site.ports()["b"]["counters"]
    passed = (counters["received_packets"], counters["transmitted_packets"], counters["drops"])
    check(passed == (FEW, FEW, []), f"{counters}")
    # Two at the end: the kernel sends by whichever queue it likes, and what comes by another one it keeps.
    for words in ((), SMALL):
        site.ask("del-port", "b")
        _is_whole(site, stack)
        site.add("b", "af_xdp", "interface=xa", *words)
        _exchange(site, stack)
    site.add("t", "tap", "interface=t0")
    for inside, name, own, other in ((NEAR, "t0", 1, 2), (FAR, "xb", 2, 1)):
        ip("address", "add", f"10.9.0.{own}/24", "dev", name, inside=inside)
        ip("link", "set", name, "address", mac(own).hex(":"), "up", inside=inside)
        ip("neighbour", "replace", f"10.9.0.{other}", "lladdr", mac(other).hex(":"), "dev", name, inside=inside)
    ping = ["ip", "netns", "exec", NEAR, "ping", "-c", "20", "-i", "0.01", "-W", "5", "-q", "10.9.0.2"]
    done = subprocess.run(ping, capture_output=True, text=True)
    check(" 20 received" in done.stdout, f"{done}")
    ip("link", "delete", "xb", inside=FAR)
    site.until_state("b", "closed: the peer has gone")
    site.ask("del-port", "b")
    _cable()
    site.add("b", "af_xdp", "interface=xa", *SMALL)
    _exchange(site, stack)
    site.stop()
    _is_whole(site, stack)
    check("t0" not in interfaces(), "the TAP interface is still there")


def dies(stack: ExitStack, place: Path) -> None:
    """The switch is killed under load: the kernel has all packets again, and the next switch gets the interface by being handed it."""
    site = _site(stack, place)
    for _ in range(3):
        site.add("b", "af_xdp", "interface=xa", *SMALL)
        load = site.ours("home/a.sock", *LOAD)
        site.until_passed("b", more=1000)
        site.kill()
        load.kill()
        load.wait()
        _is_whole(site, stack)
        site.launch()
        site.until_it_works()
    site.stop()


def refused(stack: ExitStack, place: Path) -> None:
    """What cannot be is said, and nothing is left of it: no port, no program, no descriptor."""
    site = _site(stack, place)
    site.add("taken", "tap", "interface=t1")
    control = site.control()
    before = (sorted(site.ports()), held(site.switch))

    def check_refused(why: str, *words: str, asks: list[str] = control, become: Sequence[str] = (), inside: str = NEAR) -> None:
        said = site.said_to(*asks, *words, become=become, inside=inside)
        check(why in said, f"{words}: {said!r} has no {why!r}")
        _is_whole(site, stack)
        site.until(lambda: (sorted(site.ports()), held(site.switch)) == before, f"all is as before {words}")

    b = ("add-port", "b", "af_xdp", "interface=xa")
    check_refused("opening it takes CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN, or `millrace", "add-port", "b", "af_xdp", "interface=lo")
    check_refused("opening it takes CAP_NET_ADMIN, or `millrace", "add-port", "b", "tap", "interface=t2")
    check_refused("opening it takes CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN\n", *b, "--open", become=unprivileged(USER))
    check_refused(f"--user {USER} says", *b, "--open", asks=control[:2])
    check_refused("no switch answers", *b, "--open", asks=["--control", f"{place}/nobody.sock"])
    check_refused("there is one of that name", "add-port", "taken", "af_xdp", "interface=xa", "--open")
    check_refused("of tap and af_xdp, and nothing else", "add-port", "b", "memif", "path=/x", "--open")
    check_refused("xa: No such device", *b, "--open", inside=FAR)
    check_refused("cannot be handed over, but 64", *b, "queues=64", "--open")
    check_refused("queue 2: ", *b, "queues=3", "ring_size=64", "--open")
    check_refused("RLIMIT_MEMLOCK", *b, "queues=2", "--open")
    check_refused("worker is 9", *b, "worker=9", "--open")
    check_refused("take has", *b, "take=some", "--open")
    site.add("b", "af_xdp", "interface=xa")
    said = site.said_to(*control, "add-port", "c", "af_xdp", "interface=xa", "first_queue=1", "--open")
    check("a program (XDP) already" in said, said)
    _exchange(site, stack)
    site.stop()
