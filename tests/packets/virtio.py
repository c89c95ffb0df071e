"""vhost-user, with DPDK's `net_virtio_user` at the front end and `net_vhost` at the back end, and our own two ends under death."""

from __future__ import annotations

import array
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import road
from wrong import check

if TYPE_CHECKING:
    from run import Run, Started

PROGRAM = road.REPOSITORY / "target/xtask/examples/virtio"
RING = 1024
"""Descriptors in a ring of testpmd's: what it has sent and takes with it when it goes."""
BURST = 32
"""Packets that our side has in hand, and that are lost, or come twice, when it is killed."""
JUMBO = ("--max-pkt-len=9100", "--rx-offloads=0x2000")
"""Packets that testpmd takes in several buffers."""


@dataclass(frozen=True)
class Way:
    """How the two ends are: of ours, which, and whether it listens; then, of testpmd's, further parameters."""

    ours: str = "vhost-user"
    role: str = "server"
    queues: int = 1
    parameters: str = ""

    @property
    def device(self) -> str:
        """testpmd's, but for its path."""
        if self.ours == "vhost-user":
            listens = ",server=1" if self.role == "client" else ""
            return f"net_virtio_user0,path={{}},queues={self.queues},queue_size={RING}{listens}{self.parameters}"
        listens = ",client=1" if self.role == "server" else ""
        return f"net_vhost0,iface={{}},queues={self.queues}{listens}"

    def words(self) -> list[str]:
        """Of our side."""
        packed = ["--packed"] if self.ours == "virtio-user" and "packed" in self.parameters else []
        return ["--queues", str(self.queues), *packed, *(["--unsealed"] if self.ours == "vhost-user" else [])]


def our_side(run: Run, way: Way, *words: str) -> Started:
    """Starts it."""
    return run.program([str(PROGRAM), way.ours, way.role, str(run.socket), *way.words(), *words])


def testpmd(run: Run, way: Way, mode: str, *options: str) -> Started:
    """DPDK's end."""
    run.started += 1
    name = f"testpmd{run.started}"
    process = run.testpmd_with(name, way.device.format(run.socket), mode, *options, queues=way.queues)
    if way.role == "client":
        run.until(lambda: run.socket.exists() or process.poll() is not None, f"{name} listens")
    return process, name


def both(run: Run, way: Way, words: list[str], mode: str, *options: str) -> tuple[Started, Started]:
    """Whoever listens is first."""
    if way.role == "server":
        ours = our_side(run, way, *words)
        return ours, testpmd(run, way, mode, *options)
    theirs = testpmd(run, way, mode, *options)
    return our_side(run, way, *words), theirs


def begin(run: Run, ours: Started, theirs: Started, mode: str) -> None:
    """Our side sends once testpmd has started: what came before it throws away."""
    process, name = ours
    run.until_said(name, "connected")
    run.until_said(theirs[1], f"{mode} packet forwarding")
    time.sleep(0.1)
    assert process.stdin
    process.stdin.write(b"!")
    process.stdin.flush()


def receives(run: Run, way: Way, *options: str, size: int = 64, sleeps: bool = False) -> None:
    """testpmd sends: everything arrives, but what it takes with it when it ends."""
    words = [*(["--sleep"] if sleeps else []), "count", str(size)]
    (ours, our_name), (theirs, name) = both(run, way, words, "txonly", *options)
    run.until_said(our_name, "flows")
    time.sleep(0.2)
    _, sent = run.stop(theirs, name)
    run.until_said(our_name, "closed")
    result = run.finish(ours, our_name)
    print(f"        {result.received} packets", flush=True)
    check(result.wrong == 0 and result.drops == 0, f"{result} {run.said(our_name)}")
    check(0 <= sent - result.received <= RING * way.queues and result.received > 10_000, f"testpmd sent {sent}: {result}")


def sends(run: Run, way: Way, *options: str, size: int = 64) -> None:
    """testpmd receives: as many as were sent, exactly."""
    count = 500_000 if size < 2048 else 50_000
    ours, theirs = both(run, way, ["--wait", "send", str(count), str(size)], "rxonly", *options)
    begin(run, ours, theirs, "rxonly")
    run.until_said(ours[1], "sent")
    # What lies in the rings is read within that time.
    time.sleep(0.5)
    received, _ = run.stop(*theirs)
    result = run.finish(*ours)
    check(received == count == result.transmitted and result.drops == 0, f"testpmd received {received}: {result}")


def exchanges(run: Run, way: Way, mode: str) -> None:
    """testpmd returns what it gets: all of it, unchanged, and in order."""
    count = 50_000
    words = ["--wait", "exchange", str(count), *(["mac"] if mode == "mac" else [])]
    ours, theirs = both(run, way, words, mode)
    begin(run, ours, theirs, mode)
    run.until(lambda: "result" in run.said(ours[1]), "all was exchanged")
    result = run.finish(*ours)
    check(result.wrong == 0 and result.received == count == result.transmitted and result.drops == 0, f"{result}")


def reconnects(run: Run, way: Way) -> None:
    """testpmd is killed and started again: our port goes on with the next, and its counters with it."""
    (ours, our_name), (theirs, name) = both(run, way, ["count", "64"], "txonly")
    for times in range(1, 4):
        run.until_said(our_name, "connected", times)
        run.until_said(name, "txonly packet forwarding")
        run.until_said(our_name, "flows")
        theirs.kill()
        theirs.wait()
        run.until_said(our_name, "closed: the peer has gone", times)
        if times < 3:
            # testpmd does not take the place of a dead one.
            if way.role == "client":
                run.socket.unlink()
            theirs, name = testpmd(run, way, "txonly")
    result = run.finish(ours, our_name)
    check(result.connections == 3 and result.wrong == 0 and result.received > 10_000, f"{result}")


def is_killed(run: Run, way: Way, turns: int) -> None:
    """Ours is killed under load, again and again; testpmd, who listens, goes on with the next."""
    (ours, our_name), (theirs, _) = both(run, way, ["count", "64"], "txonly")
    for _ in range(turns):
        run.until_said(our_name, "connected")
        time.sleep(random.uniform(0.02, 0.2))
        ours.kill()
        ours.wait()
        ours, our_name = our_side(run, way, "count", "64")
    run.until_said(our_name, "flows")
    check(theirs.poll() is None, "testpmd has gone with ours")
    result = run.finish(ours, our_name)
    check(result.wrong == 0 and result.drops == 0 and result.received > 10_000, f"{result}")


def refuses(run: Run) -> None:
    """Memory that testpmd could take away is not taken, unless it is trusted."""
    process, name = run.program([str(PROGRAM), "vhost-user", "server", str(run.socket), "count", "64"])
    testpmd(run, Way(), "txonly")
    run.until_said(name, "closed: a region's memory is not sealed against shrinking")
    result = run.finish(process, name)
    check(result.received == 0 and result.connections == 0, f"{result}")


def numbers(path: str) -> array.array[int]:
    """Those that were written."""
    with open(path, "rb") as file:
        data = file.read()
    found = array.array("Q")
    found.frombytes(data[: len(data) // 8 * 8])
    return found


def survives(run: Run, packed: bool, turns: int, is_asked: bool = False) -> None:
    """The back end ends under load, again and again: the next goes on where it was. What is lost is what those had in hand that were
    killed: who is asked to end has nothing in hand then."""
    # Twelve million go by in a second where both ends have a processor: enough for all kills.
    count, record = 10_000_000, run.place / "numbers"
    front = ["virtio-user", "server", str(run.socket), *(["--packed"] if packed else [])]
    ours, name = run.program([str(PROGRAM), *front, "number", str(count), "64"])
    back = [str(PROGRAM), "vhost-user", "client", str(run.socket), "collect", str(record)]
    kills = 0
    while "sent" not in run.said(name):
        receiver, receiver_name = run.program(back)
        run.until_said(receiver_name, "connected")
        time.sleep(random.uniform(0.002, 0.03))
        if kills < turns:
            kills += 1
            if is_asked:
                assert receiver.stdin
                receiver.stdin.close()
            else:
                receiver.kill()
            receiver.wait(20)
        else:
            run.until_said(name, "sent")
    size = -1
    while size != (now := record.stat().st_size):
        size = now
        time.sleep(0.2)
    came = numbers(str(record))
    check(run.finish(ours, name).transmitted == count, "not all were sent")
    check(all(one < two for one, two in zip(came, came[1:], strict=False)), "out of order, or twice")
    lost = count - len(came)
    print(f"        {kills} ends, {lost} lost in hand", flush=True)
    most = 0 if is_asked else kills * BURST
    check(kills >= min(turns, 5) and 0 <= lost <= most, f"{lost} of {count} lost by {kills} ends")


def outlives(run: Run, packed: bool, turns: int) -> None:
    """The front end is killed under load, again and again: the back end goes on with the next, and what it counts is right."""
    ours, name = run.program([str(PROGRAM), "vhost-user", "server", str(run.socket), "count", "64"])
    front = [str(PROGRAM), "virtio-user", "client", str(run.socket), *(["--packed"] if packed else []), "number", "100000000", "64"]
    for times in range(1, turns + 1):
        sender, _ = run.program(front)
        run.until_said(name, "connected", times)
        time.sleep(random.uniform(0.005, 0.05))
        sender.kill()
        sender.wait()
        run.until_said(name, "closed: the peer has gone", times)
    result = run.finish(ours, name)
    check(result.connections == turns and result.wrong == 0 and result.drops == 0, f"{result}")
    check(result.received > 10_000, f"{result}")


SAMPLE = {
    "vhost-user: receives, packed, four queues",
    "vhost-user: receives packets of three segments",
    "vhost-user: sends packets of five buffers",
    "vhost-user: is killed and comes back",
    "virtio-user: exchanges, mac, packed",
    "virtio: the back end is killed, packed",
    "virtio: the back end is restarted",
    "virtio: the front end is killed",
}
"""What is played in the sample: each way at least once."""


def cases(thorough: bool) -> dict[str, Callable[[Run], None]]:
    """Each by its name."""
    turns = 200 if thorough else 12
    split, packed = Way(), Way(parameters=",packed_vq=1")
    plain = Way(parameters=",mrg_rxbuf=0,in_order=0")
    four, four_packed = Way(queues=4), Way(queues=4, parameters=",packed_vq=1")
    listens = Way(role="client")
    front, front_packed = Way("virtio-user", "client"), Way("virtio-user", "client", parameters=",packed")
    segments = "--txpkts=64,128,700"
    return {
        "vhost-user: receives": lambda run: receives(run, split),
        "vhost-user: receives, packed": lambda run: receives(run, packed),
        "vhost-user: receives, each packet in a buffer": lambda run: receives(run, plain),
        "vhost-user: receives, four queues": lambda run: receives(run, four),
        "vhost-user: receives, packed, four queues": lambda run: receives(run, four_packed),
        "vhost-user: receives packets of three segments": lambda run: receives(run, split, segments, size=892),
        "vhost-user: receives packets of three segments, packed": lambda run: receives(run, packed, segments, size=892),
        "vhost-user: receives by interrupts": lambda run: receives(run, split, sleeps=True),
        "vhost-user: receives by interrupts, packed": lambda run: receives(run, packed, sleeps=True),
        "vhost-user: sends": lambda run: sends(run, split),
        "vhost-user: sends, packed": lambda run: sends(run, packed),
        "vhost-user: sends, each packet in a buffer": lambda run: sends(run, plain),
        "vhost-user: sends packets of five buffers": lambda run: sends(run, split, *JUMBO, size=9018),
        "vhost-user: sends packets of five buffers, packed": lambda run: sends(run, packed, *JUMBO, size=9018),
        "vhost-user: exchanges, io": lambda run: exchanges(run, split, "io"),
        "vhost-user: exchanges, mac, packed, four queues": lambda run: exchanges(run, four_packed, "mac"),
        "vhost-user: testpmd is killed and comes back": lambda run: reconnects(run, split),
        "vhost-user: is killed and comes back": lambda run: is_killed(run, listens, turns),
        "vhost-user: refuses unsealed memory": refuses,
        "virtio-user: receives": lambda run: receives(run, front),
        "virtio-user: receives, packed": lambda run: receives(run, front_packed),
        "virtio-user: receives, two queues, listens": lambda run: receives(run, Way("virtio-user", queues=2)),
        "virtio-user: sends": lambda run: sends(run, front),
        "virtio-user: sends packets of five buffers, packed": lambda run: sends(run, front_packed, size=9018),
        "virtio-user: exchanges, io": lambda run: exchanges(run, front, "io"),
        "virtio-user: exchanges, mac, packed": lambda run: exchanges(run, front_packed, "mac"),
        "virtio-user: testpmd is killed and comes back": lambda run: reconnects(run, front),
        "virtio: the back end is killed": lambda run: survives(run, False, turns),
        "virtio: the back end is killed, packed": lambda run: survives(run, True, turns),
        "virtio: the back end is restarted": lambda run: survives(run, False, turns, True),
        "virtio: the back end is restarted, packed": lambda run: survives(run, True, turns, True),
        "virtio: the front end is killed": lambda run: outlives(run, False, 2 * turns),
        "virtio: the front end is killed, packed": lambda run: outlives(run, True, 2 * turns),
    }
