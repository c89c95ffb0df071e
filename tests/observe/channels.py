"""What `millrace channels`, `top`, `doctor` and the metrics say of channels, beside what participants have done."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARTICIPANT = Path(__file__).with_name("participant.py")
HEADING = "CHANNEL KIND WHOSE FROM TO GROUP MSGS MSG/s BYTES BYTES/s REPLIES QUEUED HELD DROPS FULL AGAIN MEM AGE".split()
DROP_NEWEST = 3
IDLE_S = 2.0

Child = subprocess.Popen[str]


def join(site: Any, role: str, name: str, **options: object) -> Child:
    """Starts a participant, and waits until it takes part."""
    library = Path(site.millrace).with_name("libmillrace.so")
    assert library.exists(), f"{library} is missing: it is built from crates/channel-c"
    words = [f"{key}={value}" for key, value in options.items()]
    # For participants alone: to `millrace run` the variable means the other library.
    run = ["env", f"MILLRACE_CHANNEL_LIBRARY={library}", sys.executable, str(PARTICIPANT)]
    child: Child = site.start([*run, role, name, *words])
    assert site.line(child) == "ready"
    return child


def tell(child: Child, order: str) -> None:
    """Says what a participant is to do."""
    assert child.stdin is not None
    child.stdin.write(order + "\n")
    child.stdin.flush()


def order(site: Any, child: Child, what: str) -> None:
    """The same, and waits until that is done."""
    tell(child, what)
    assert site.line(child) == "done"


def meet(site: Any, senders: list[Child], receivers: list[Child]) -> None:
    """Waits until each has a link with each of the other side. All at once: a client's link is made when the server has looked."""
    for own, others in ((senders, receivers), (receivers, senders)):
        for child in own:
            tell(child, f"wait {len(others)}")
    for child in senders + receivers:
        assert site.line(child) == "done"


def who(child: Child) -> str:
    """As listings name it."""
    name = Path(f"/proc/{child.pid}/comm").read_text().strip()
    return f"{name}/{child.pid}"


def rows(listing: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """What a listing says, by channel and both ends and by heading."""
    heading, *lines = (line.split() for line in listing.splitlines())
    assert heading == HEADING, heading
    assert all(len(line) == len(HEADING) for line in lines), lines
    found = {(line[0], line[3], line[4]): dict(zip(HEADING, line, strict=True)) for line in lines}
    assert len(found) == len(lines), "a link is listed twice"
    return found


def company(site: Any) -> dict[str, Child]:
    """Participants that have done something."""
    all_of = {
        "writer": join(site, "publisher", "news"),
        "reader": join(site, "subscriber", "news"),
        "worker": join(site, "subscriber", "news", group="workers"),
        "client": join(site, "client", "sums"),
        "server": join(site, "server", "sums"),
        "flood": join(site, "publisher", "drops", when_full=DROP_NEWEST, slots=4),
        "stuck": join(site, "subscriber", "drops"),
        "alone": join(site, "subscriber", "news/alone"),
    }
    meet(site, [all_of["writer"]], [all_of["reader"], all_of["worker"]])
    meet(site, [all_of["client"]], [all_of["server"]])
    meet(site, [all_of["flood"]], [all_of["stuck"]])
    order(site, all_of["writer"], "send 10 100 0")
    order(site, all_of["reader"], "take 7")
    order(site, all_of["reader"], "hold 2")
    tell(all_of["server"], "serve 5")
    order(site, all_of["client"], "ask 5 10")
    assert site.line(all_of["server"]) == "done"
    order(site, all_of["flood"], "send 10 64 0")
    return all_of


def channels(site: Any) -> None:
    """The listing in words, with filters, and in JSON."""
    nobody = site.ask("channels")
    assert nobody.returncode == 0 and not nobody.stdout and "no program" in nobody.stderr, nobody
    all_of = company(site)
    name = {role: who(child) for role, child in all_of.items()}
    listed = rows(site.ask("channels").stdout)
    expected = {
        ("news", name["writer"], name["reader"]): "- 10 0 1000 0 - 1 2 0 0",
        ("news", name["writer"], name["worker"]): "workers 10 0 1000 0 - 10 0 0 0",
        ("sums", name["client"], name["server"]): "- 5 0 50 0 5 0 0 0 0",
        ("drops", name["flood"], name["stuck"]): "- 4 0 256 0 - 4 0 6 0",
        ("news/alone", "-", name["alone"]): "- - - - - - - - - -",
    }
    shown = "GROUP MSGS MSG/s BYTES BYTES/s REPLIES QUEUED HELD DROPS AGAIN".split()
    assert {place: " ".join(row[column] for column in shown) for place, row in listed.items()} == expected, listed
    for (channel, *_), row in listed.items():
        assert row["FULL"] == "-" if channel == "news/alone" else row["FULL"].isdigit(), row
    check_filters(site, all_of, set(expected))
    check_json(site, all_of)
    check_memory(site, all_of, {place[1:]: row["MEM"] for place, row in listed.items()})
    said = site.ask("doctor").stdout
    assert f"{len(all_of)} participants of channels" in said, said
    check_rates(site)


def check_filters(site: Any, all_of: dict[str, Child], every: set[tuple[str, str, str]]) -> None:
    """All words must fit: a channel's name or a part of it, a role, a process."""

    def chosen(*words: str) -> set[str]:
        fitting = set(rows(site.ask("channels", *words).stdout))
        assert fitting <= every
        return {channel for channel, _, _ in fitting}

    worker = str(all_of["worker"].pid)
    assert chosen("news") == {"news", "news/alone"}
    assert chosen("NEWS/") == {"news/alone"}
    assert chosen("server") == chosen("client") == {"sums"}
    assert chosen(worker) == chosen("news", worker) == {"news"}
    assert chosen("sums", worker) == chosen("nothing-has-this-name") == set()
    assert len(rows(site.ask("channels", worker).stdout)) == 1


def check_json(site: Any, all_of: dict[str, Child]) -> None:
    """For programs: both ends of each link say the same of it."""
    answer = json.loads(site.ask("channels", "--json").stdout)
    assert answer["truncated"] is False
    by_name = {channel["name"]: channel for channel in answer["channels"]}
    assert {name: channel["kind"] for name, channel in by_name.items()} == {
        "news": "messages",
        "news/alone": "messages",
        "drops": "messages",
        "sums": "requests",
    }
    ends = {end["pid"]: end for channel in answer["channels"] for end in channel["ends"]}
    assert set(ends) == {child.pid for child in all_of.values()}
    writer, reader, flood, client, server = (ends[all_of[role].pid] for role in ("writer", "reader", "flood", "client", "server"))
    assert (writer["role"], writer["pool_bytes"], writer["slots"]) == ("publisher", 1 << 20, 1024), writer
    assert (reader["role"], reader["pool_bytes"], flood["slots"]) == ("subscriber", 0, 4), (reader, flood)
    assert {link["peer_pid"] for link in writer["links"]} == {all_of["reader"].pid, all_of["worker"].pid}
    for end in ends.values():
        for link in end["links"]:
            other = next(other for other in ends[link["peer_pid"]]["links"] if other["id"] == link["id"])
            assert (link["sent"], link["received"]) == (other["received"], other["sent"]), (link, other)
    flow = {"messages": 5, "bytes": 50, "dropped": 0, "redelivered": 0, "full": 0, "queued": 0, "held": 0}
    assert client["links"][0]["sent"] == server["links"][0]["sent"] == flow, (client, server)


def check_memory(site: Any, all_of: dict[str, Child], shown: dict[tuple[str, str], str]) -> None:
    """The sender's pool and what the link has, as in JSON; all of it, each pool once, is what the agent has."""
    answer = json.loads(site.ask("channels", "--json").stdout)
    ends = [end for channel in answer["channels"] for end in channel["ends"]]
    name = {child.pid: who(child) for child in all_of.values()}
    pools = {name[end["pid"]]: end["pool_bytes"] for end in ends}
    links = {(name[end["pid"]], name[link["peer_pid"]]): link for end in ends if end["pool_bytes"] for link in end["links"]}
    bytes_ = {place: link["bytes"] + link["replies_bytes"] for place, link in links.items()}
    expected = {place: str(pools[place[0]] + count) for place, count in bytes_.items()}
    assert shown == expected | {("-", who(all_of["alone"])): "-"}, (shown, expected)
    assert [link["replies_bytes"] for link in links.values() if link["received"]] == [1 << 20], links
    assert sum(pools.values()) + sum(bytes_.values()) == series(site, "channel_bytes")[""]


def check_rates(site: Any) -> None:
    """What passes while one looks: in words, in JSON, and from two answers in JSON."""
    writer, reader = join(site, "publisher", "busy"), join(site, "subscriber", "busy")
    meet(site, [writer], [reader])
    tell(reader, "take 2000")
    tell(writer, "send 2000 100 0.002")

    def totals() -> tuple[int, int, dict[str, int]]:
        answer = json.loads(site.ask("channels", "--json").stdout)
        ends = [end for channel in answer["channels"] for end in channel["ends"] if end["pid"] == writer.pid]
        link = ends[0]["links"][0]
        return answer["now_ns"], link["sent"]["messages"], link["per_second"]

    *before, first = totals()
    (row,) = rows(site.ask("channels", "busy").stdout).values()
    *after, second = totals()
    for rate in ({"messages": int(row["MSG/s"]), "bytes": int(row["BYTES/s"]), "dropped": 0}, first, second):
        # Both are rounded down. A pause of 2 ms is never shorter, and the agent may be late with its look by as much again.
        assert 0 < rate["messages"] <= 1000 and 0 <= rate["bytes"] - 100 * rate["messages"] < 100 and not rate["dropped"], rate
    passed_ns, passed = (late - early for early, late in zip(before, after, strict=True))
    assert passed_ns >= 500_000_000, "the table is of half a second"
    assert 0 < passed * 1_000_000_000 / passed_ns <= 1000, (before, after)
    assert site.line(writer) == site.line(reader) == "done"


def series(site: Any, name: str) -> dict[str, int]:
    """A family of the metrics, by its labels."""
    found = (re.fullmatch(rf"millrace_{name}(?:{{(.*)}})? (\d+)", line) for line in site.metrics().splitlines())
    return {match[1] or "": int(match[2]) for match in found if match}


def of_channel(site: Any, name: str, channel: str) -> int | None:
    """What a family says of a channel."""
    values = [value for labels, value in series(site, name).items() if f'channel="{channel}"' in labels.split(",")]
    assert len(values) <= 1, values
    return values[0] if values else None


def metrics_of_channels(site: Any) -> None:
    """Counts that agree with what was done, outlive those who did it, and memory that goes with them."""
    all_of = company(site)
    roles = {"publisher": 2, "subscriber": 4, "client": 1, "server": 1}
    assert series(site, "channel_participants") == {f'role="{role}"': count for role, count in roles.items()}
    assert series(site, "channel_links") == series(site, "channel_links_total") == {"": 4}
    # A message counts for each who gets it.
    wanted = {"news": (20, 2000, 0), "sums": (5, 50, 0), "drops": (4, 256, 6), "news/alone": (0, 0, 0)}
    families = ("channel_messages_total", "channel_sent_bytes_total", "channel_dropped_total")
    for channel, counts in wanted.items():
        assert tuple(of_channel(site, family, channel) for family in families) == counts, channel
        assert of_channel(site, "channel_full_total", channel) is not None, channel
    depths = {"news": (0, 11, 2), "sums": (5, 0, 0), "drops": (0, 4, 0), "news/alone": (0, 0, 0)}
    families = ("channel_replies_total", "channel_queued_messages", "channel_held_messages")
    for channel, counts in depths.items():
        assert tuple(of_channel(site, family, channel) for family in families) == counts, channel
    assert sum(series(site, "channel_memory_bytes").values()) == series(site, "channel_bytes")[""]
    pools = 4 << 20
    links = series(site, "channel_bytes")[""] - pools
    assert 0 < links < pools, "three pools of senders, one for replies, and four links"
    all_of["worker"].send_signal(signal.SIGKILL)
    site.until(lambda: series(site, "channel_links") == {"": 3}, "a dead subscriber's link is over")
    assert of_channel(site, "channel_messages_total", "news") == 20
    for child in all_of.values():
        child.kill()
    site.until(lambda: series(site, "channel_participants") == {}, "nobody takes part")
    site.until(lambda: series(site, "channel_bytes") == {"": 0}, "all memory has come back")
    assert of_channel(site, "channel_messages_total", "news") is None


def top_of_channels(site: Any) -> None:
    """A table of rates below that of connections, where there are channels."""
    assert "RECEIVERS" not in site.ask("top", "--count", "1", "--interval", "0.1").stdout
    writer, reader = join(site, "publisher", "news"), join(site, "subscriber", "news")
    join(site, "subscriber", "news/alone")
    meet(site, [writer], [reader])
    order(site, writer, "send 3 100 0")
    tell(reader, "take 2003")
    tell(writer, "send 2000 100 0.002")
    connections, table = site.ask("top", "--count", "1", "--interval", "0.5").stdout.split("\n\n")
    assert connections.split()[0] == "ID", connections
    heading, *lines = (line.split() for line in table.splitlines())
    assert heading == "CHANNEL KIND SENDERS RECEIVERS LINKS MSG/s BYTES/s DROPS/s QUEUED".split(), heading
    busy, idle = lines
    assert busy[:5] == ["news", "messages", "1", "1", "1"], busy
    messages, bytes_, drops = map(int, busy[5:8])
    # Both are rounded down.
    assert messages > 0 and 0 <= bytes_ - 100 * messages < 100 and drops == 0, busy
    assert idle == "news/alone messages 0 1 0 0 0 0 0".split(), idle
    assert site.line(writer) == site.line(reader) == "done"
    last = site.ask("top", "--count", "1", "--interval", "0.2").stdout.split("\n\n")[1]
    assert last.splitlines()[1].split()[5:] == ["0", "0", "0", "0"], last


def spent(pid: int) -> tuple[int, int]:
    """How often a process has given up the processor or lost it, and its processor time in ticks."""
    status = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    switches = sum(int(count) for text in status for count in re.findall(r"ctxt_switches:\t(\d+)", text))
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return switches, int(words[11]) + int(words[12])


def idle_channels(site: Any) -> None:
    """Whoever waits sleeps: no processor time and no system call, of any participant or of the agent, and then all go on."""
    waiting = {
        "writer": (join(site, "publisher", "news"), "drain 1"),
        "holder": (join(site, "subscriber", "news"), "take 1"),
        "reader": (join(site, "subscriber", "news"), "take 1"),
        "watcher": (join(site, "subscriber", "news"), "watch 1"),
        "client": (join(site, "client", "sums"), "ask 1 10"),
        "silent server": (join(site, "server", "sums"), ""),
        "server": (join(site, "server", "more"), "serve 1"),
        "silent client": (join(site, "client", "more"), ""),
        "silent writer": (join(site, "publisher", "more"), ""),
    }
    child = {role: one for role, (one, _) in waiting.items()}
    meet(site, [child["writer"]], [child["holder"], child["reader"], child["watcher"]])
    meet(site, [child["client"]], [child["silent server"]])
    meet(site, [child["silent client"]], [child["server"]])
    order(site, child["writer"], "send 1 100 0")
    for role in ("reader", "watcher"):
        order(site, child[role], waiting[role][1])
    order(site, child["holder"], "hold 1")
    for one, what in waiting.values():
        if what:
            tell(one, what)
    pids = {role: one.pid for role, one in child.items()} | {"agent": site.children[0].pid}

    def look() -> dict[str, tuple[int, int]]:
        return {role: spent(pid) for role, pid in pids.items()}

    def rests() -> bool:
        before = look()
        time.sleep(IDLE_S / 10)
        return look() == before

    site.until(rests, "everybody sleeps")
    before = look()
    time.sleep(IDLE_S)
    after = look()
    assert before == after, {role: (before[role], after[role]) for role in pids if before[role] != after[role]}
    # They have been waiting for something all the while.
    order(site, child["silent server"], "serve 1")
    order(site, child["silent client"], "ask 1 10")
    assert site.line(child["client"]) == site.line(child["server"]) == "done"
    with_news = join(site, "publisher", "news")
    tell(with_news, "wait 3")
    assert site.line(with_news) == "done"
    order(site, with_news, "send 1 100 0")
    for role in ("holder", "reader", "watcher"):
        assert site.line(child[role]) == "done", role
    child["holder"].kill()
    assert site.line(child["writer"]) == "done"


TESTS = (channels, metrics_of_channels, top_of_channels, idle_channels)
