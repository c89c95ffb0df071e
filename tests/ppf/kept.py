"""Bearers that are added and removed while packets pass, and a function that is killed."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from idle import looked_at
from rig import Wrong, check
from site_ppf import CORE, RADIO, Api, Function, Peer, far, message, teid_and_body

BATCH = 2000


def _line(number: int, id: int | None = None) -> str:
    known = {} if id is None else {"id": id}
    return json.dumps(known | {"core": {"address": far(CORE), "teid": number}, "radio": {"address": far(RADIO), "teid": number}})


WAKES = 20
"""Of all threads in that time: each AF_XDP port looks for its interface once in a second, and what was changed is synchronised as often."""
LOOKED_AT_S = 1.5


def sleeps(stack: ExitStack, place: Path) -> None:
    """With nothing to do, after there was something."""
    function = Function(stack, place)
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    peers = {side: Peer(stack, side) for side in (RADIO, CORE)}
    peers[RADIO].send(message(bearer["teids"]["radio"], b"first"))
    check(peers[CORE].receive() is not None, "a message passes")
    time.sleep(0.4)
    switches, ticks = looked_at(function.process.pid)
    time.sleep(LOOKED_AT_S)
    later, ticks_later = looked_at(function.process.pid)
    print(f"        {later - switches} switches and {ticks_later - ticks} ticks in {LOOKED_AT_S} s", flush=True)
    check(later - switches <= WAKES, f"it woke {later - switches} times")
    # One in a hundred.
    check(ticks_later - ticks <= LOOKED_AT_S * os.sysconf("SC_CLK_TCK") / 100, f"it had {ticks_later - ticks} ticks")
    function.stop()


def _all(function: Function) -> list[dict[str, Any]]:
    """All bearers, page by page."""
    api = Api(function.socket)
    found: list[dict[str, Any]] = []
    start = 0
    while start is not None:
        status, page = api.ask("GET", f"/v1/bearers?limit=5000&from={start}")
        check(status == 200, f"{status} {page}")
        found += page["bearers"]
        start = page["next"]
    api.close()
    return found


class Load:
    """Numbered messages by one bearer, of which each must arrive, in order."""

    def __init__(self, stack: ExitStack, teid: int) -> None:
        self.peers = {side: Peer(stack, side) for side in (RADIO, CORE)}
        self.teid = teid
        self.sent = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        while not self.over.is_set():
            self.peers[RADIO].send(message(self.teid, self.sent.to_bytes(8, "big")))
            self.sent += 1
            time.sleep(0.0002)

    def numbers(self) -> list[int]:
        """Those that have come by now."""
        return [int.from_bytes(teid_and_body(one)[1], "big") for one in self.peers[CORE].all()]


def changed(stack: ExitStack, place: Path, count: int) -> None:
    """Bearers are added and changed by files, added by the API, listed and removed while packets pass: none of these is lost."""
    function = Function(stack, place)
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    load = Load(stack, bearer["teids"]["radio"])
    load.peers[RADIO].send(message(load.teid, b"first"))
    check(load.peers[CORE].receive() is not None, "the station is known")
    load.thread.start()
    try:
        file = place / "bearers.jsonl"
        file.write_text("".join(f"{_line(number)}\n" for number in range(1, count + 1)))
        began = time.monotonic()
        loaded = function.ask("bearer", "load", str(file))
        took = time.monotonic() - began
        print(f"figure: {count} bearers were added in {took:.2f} s, {count / took:.0f} a second", flush=True)
        check(loaded["added"] == count and not loaded["refused"], f"{loaded['refusals']}")
        api = Api(function.socket)
        seen = len(_all(function))
        check(seen == count + 1, f"{seen} bearers of {count + 1}")
        ids = loaded["ids"]
        file.write_text("".join(f"{_line(number, id)}\n" for number, id in enumerate(ids, count + 1)))
        began = time.monotonic()
        changes = function.ask("bearer", "load", "--change", str(file))
        took = time.monotonic() - began
        print(f"figure: {count} bearers were changed in {took:.2f} s, {count / took:.0f} a second", flush=True)
        done = (changes["changed"], changes["added"], changes["ids"])
        check(done == (count, 0, ids), f"{done[:2]} {changes['refusals']}")
        found = {one["id"]: one["spec"]["radio"]["teid"] for one in _all(function) if one["id"] != bearer["id"]}
        check(found == {id: number for number, id in enumerate(ids, count + 1)}, "each is as it was changed")
        began = time.monotonic()
        for at in range(0, count, BATCH):
            status, gone = api.ask("POST", "/v1/bearers/remove", {"ids": ids[at : at + BATCH]})
            check((status, len(gone["bearers"])) == (200, len(ids[at : at + BATCH])), f"{status}")
        print(f"        and removed in {time.monotonic() - began:.2f} s", flush=True)
        for number in range(50):
            status, one = api.ask("POST", "/v1/bearers", json.loads(_line(number + 1)))
            check(status == 201, f"{status} {one}")
            status, _ = api.ask("DELETE", f"/v1/bearers/{one['id']}")
            check(status == 200, f"{status}")
    finally:
        load.over.set()
        load.thread.join()
    time.sleep(0.3)
    came = load.numbers()
    check(came == list(range(load.sent)), f"{len(came)} of {load.sent} messages came, or out of order")
    check(function.ask("show")["bearers"] == 1, "one is left")
    function.stop()


def restored(stack: ExitStack, place: Path, count: int) -> None:
    """Killed with many bearers: all are there again, and packets flow."""
    function = Function(stack, place)
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    lines = place / "bearers.jsonl"
    lines.write_text("\n".join(_line(10_000 + number) for number in range(count)))
    function.command("bearer", "load", str(lines))
    load = Load(stack, bearer["teids"]["radio"])
    load.thread.start()
    times = []
    try:
        for _ in range(3):
            function.kill()
            load.numbers()
            began = time.monotonic()
            function.launch()
            while not load.numbers():
                check(time.monotonic() < began + 60, f"nothing passes: {function.drops()}")
                time.sleep(0.005)
            times.append(time.monotonic() - began)
            check(function.ask("show")["bearers"] == 1 + count, "all of them are there")
    finally:
        load.over.set()
        load.thread.join()
    listed = ", ".join(f"{one:.2f}" for one in times)
    print(f"figure: killed with {count} bearers, packets again after {listed} s", flush=True)
    function.stop()


def killed(stack: ExitStack, place: Path, kills: int) -> None:
    """Killed under load and in the middle of changes, again and again: what was answered is there, and packets flow again."""
    seed = random.randrange(1 << 32)
    choose = random.Random(seed)
    function = Function(stack, place)
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    load = Load(stack, bearer["teids"]["radio"])
    known: dict[int, dict[str, object]] = {}
    longest, cut = 0.0, 0
    load.thread.start()
    try:
        for kill in range(kills):
            _change_until_killed(function, known, choose)
            load.numbers()
            began = time.monotonic()
            function.launch()
            cut += "cut off" in function.said("function")
            while not load.numbers():
                check(time.monotonic() < began + 20, f"seed {seed}, kill {kill}: nothing passes: {function.drops()}")
                time.sleep(0.005)
            longest = max(longest, time.monotonic() - began)
            found = {one["id"]: one["spec"]["radio"] for one in _all(function)}
            for number, one in known.items():
                check(found.get(number) == one, f"seed {seed}, kill {kill}: bearer {number} is not as it was")
            # What was not answered may be there, too.
            known |= {number: one for number, one in found.items() if number != bearer["id"]}
    finally:
        load.over.set()
        load.thread.join()
    print(f"figure: {kills} kills, {len(known)} bearers, {cut} torn tails; packets again after {longest:.2f} s at most", flush=True)


def _change_until_killed(function: Function, known: dict[int, dict[str, object]], choose: random.Random) -> None:
    timer = threading.Timer(choose.uniform(0.05, 0.3), function.kill)
    timer.start()
    api = Api(function.socket)
    number = 0
    doubtful = None
    try:
        while True:
            number += 1
            time.sleep(0.002)
            if known and choose.random() < 0.2:
                doubtful = choose.choice(list(known))
                status, _ = api.ask("DELETE", f"/v1/bearers/{doubtful}")
                check(status == 200, f"{status} at bearer {doubtful}")
                del known[doubtful]
                doubtful = None
                continue
            lines = "".join(f"{_line(number * 100 + one)}\n" for one in range(choose.randrange(1, 40)))
            status, added = api.ask("POST", "/v1/bearers", lines)
            check(status == 200, f"{status}")
            radio = [json.loads(line)["radio"] for line in lines.splitlines()]
            known |= dict(zip(added["ids"], radio))
    except (OSError, ValueError, Wrong) as error:
        if isinstance(error, Wrong):
            raise
    except Exception as error:  # noqa: BLE001
        # http.client's own: the connection has ended in the middle of an answer.
        check(type(error).__module__ == "http.client", f"{error!r}")
    finally:
        timer.join()
        if doubtful is not None:
            # Whether it is gone nobody has said.
            known.pop(doubtful, None)
