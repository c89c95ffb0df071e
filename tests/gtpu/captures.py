"""Captures that two programs read, field by field."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rig
from harness import examples
from rig import Fields, check

HERE = Path(__file__).resolve().parent
NAMES = {
    "message": "gtp.message",
    "teid": "gtp.teid",
    "sequence": "gtp.seq_number",
    "npdu": "gtp.npdu_number",
    "extension": "gtp.ext_hdr.next",
    "udp_port": "gtp.ext_hdr.udp_port",
    "pdcp": "gtp.ext_hdr.pdcp_sn",
    "long_pdcp": "gtp.ext_hdr.long_pdcp_sn",
    "ran": "gtp.ext_hdr.ran_cont",
    "xw_ran": "gtp.ext_hdr.xw_ran_cont",
    "session.kind": "gtp.ext_hdr.pdu_ses_con.pdu_type",
    "session.qfi": "gtp.ext_hdr.pdu_ses_con.qos_flow_id",
    "session.ppp": "gtp.ext_hdr.pdu_ses_cont.ppp",
    "session.rqi": "gtp.ext_hdr.pdu_ses_cont.rqi",
    "session.ppi": "gtp.ext_hdr.pdu_ses_cont.ppi",
    "recovery": "gtp.recovery",
    "lost": "gtp.teid_data",
    "peer4": "gtp.gsn_ipv4",
    "peer6": "gtp.gsn_ipv6",
    "supported": "gtp.ext_hdr_type",
    "radio.kind": "nrup.pdu_type",
    "radio.sequence": "nrup.seq_num",
    "radio.polls": "nrup.report_polling",
    "radio.wants_out_of_sequence": "nrup.request_out_of_seq_report",
    "radio.has_report": "nrup.report_delivered",
    "radio.has_data": "nrup.user_data_existence_flag",
    "radio.polls_assistance": "nrup.ass_inf_rep_poll_flag",
    "radio.again": "nrup.retransmission_flag",
    "radio.flush": "nrup.dl_disc_nr_pdcp_pdu_sn",
    "radio.discard_first": "nrup.dl_disc_nr_pdcp_pdu_sn_start",
    "radio.discard_count": "nrup.disc_blk_sz",
    "radio.report_up_to": "nrup.dl_report_nr_pdcp_pdu_sn",
    "radio.desired_bytes": "nrup.desrd_buff_sz_data_radio_bearer",
    "radio.desired_rate": "nrup.desrd_data_rate",
    "radio.final": "nrup.final_frame_ind",
    "radio.lost_first": "nrup.start_num_lost_nru_seq_num",
    "radio.lost_last": "nrup.end_num_lost_nru_seq_num",
    "radio.delivered": "nrup.high_success_delivered_nr_pdcp_sn",
    "radio.transmitted": "nrup.high_tx_nr_pdcp_sn",
    "radio.cause": "nrup.cause_val",
    "radio.delivered_again": "nrup.high_success_delivered_retx_nr_pdcp_sn",
    "radio.transmitted_again": "nrup.high_retx_nr_pdcp_sn",
    "radio.duplicates": "nrup.pdcp_duplication_ind",
    "radio.duplication": "nrup.pdcp_duplication_activation_suggestion",
    "radio.field_kind": "nrup.assistance_info_type",
    "radio.field": "nrup.radio_qa_info",
    "radio.up_delay": "nrup.ul_delay_du_result",
    "radio.down_delay": "nrup.dl_delay_du_result",
}
"""What we call a field, and what tshark does."""
TEXTS = {"ran", "xw_ran", "radio.field", "peer4", "peer6"}
"""Fields that are no numbers."""


def _value(name: str, text: str) -> str:
    if name in ("ran", "xw_ran"):
        # With the kind of the next extension header, which tshark 4.0 takes for the container's last byte.
        return text.replace(":", "")[:-2]
    if name in TEXTS:
        return text.replace(":", "") if name == "radio.field" else text
    if text in ("True", "False"):
        return str(int(text == "True"))
    return str(int(text, 0))


def tshark(capture: Path, *words: str) -> list[str]:
    """Lines that tshark says of a capture."""
    command = ["tshark", "-n", "-r", str(capture), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def theirs(capture: Path) -> list[Fields]:
    """What tshark reads in each message of a capture."""
    fields = [word for name in NAMES.values() for word in ("-e", name)]
    lines = tshark(capture, "-Y", "gtp", "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,", *fields)
    found = []
    for line in lines:
        values = zip(NAMES, line.split("\t"), strict=True)
        found.append({name: [_value(name, text) for text in value.split(",")] for name, value in values if value})
    return found


def compare(capture: Path) -> list[Fields]:
    """Both read the same, and nothing is malformed; returns what it is."""
    wrong = tshark(capture, "-Y", "_ws.malformed || _ws.expert.group == Malformed")
    check(not wrong, f"tshark calls these malformed: {wrong[:3]}")
    # Tunnel Status is younger than tshark 4.0, which takes it for something else.
    read = rig.ours(capture)
    known = [message for message in read if message.get("message") != ["253"]]
    others = theirs(capture)
    check(len(known) == len(others), f"we read {len(known)} messages, and tshark {len(others)}")
    for number, (own, other) in enumerate(zip(known, others, strict=True)):
        check("error" not in own, f"message {number}: {own}")
        # Nor does it know the newer one of two kinds of extension headers that say the same.
        unknown = {"long_pdcp"} if "3" in own.get("extension", []) else set()
        named = {name: values for name, values in own.items() if name in NAMES and name not in unknown}
        check(named == other, f"message {number}: we read {own}, and tshark {other}")
    return read


def written(place: Path, seed: int, count: int) -> None:
    """What we write tshark reads, and what it reads is what we read."""
    capture = place / "written.pcap"
    subprocess.run([examples.PLACE / "gtpu", "write", capture, str(seed), str(count)], check=True)
    read = compare(capture)
    check(len(read) == count, f"{len(read)} of {count} messages")
    kinds = {message["message"][0] for message in read}
    check(kinds == {"1", "2", "26", "31", "253", "254", "255"}, f"only messages of {kinds}")
    frames = {kind for message in read for kind in message.get("radio.kind", [])}
    check(frames == {"0", "1", "2"}, f"only NR RAN containers of {frames}")


def kept(_: Path) -> None:
    """Captures that others' programs made (`captures/README.md`)."""
    captures = sorted((HERE / "captures").glob("*.pcap"))
    check(bool(captures), "no captures are there")
    for capture in captures:
        check(bool(compare(capture)), f"{capture.name} has no messages")


def _ends(is_v6: bool) -> Any:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.layers.l2 import Ether

    internet = IPv6(src="2001:db8::a", dst="2001:db8::1") if is_v6 else IP(src="192.0.2.10", dst="192.0.2.1")
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / internet / UDP(sport=2152, dport=2152)


def _container(chance: random.Random) -> tuple[dict[str, int], Fields]:
    """A PDU Session Container's fields, as scapy calls them, and as we do."""
    given = {"QFI": chance.randrange(64), "type": chance.getrandbits(1)}
    read = {"session.qfi": given["QFI"], "session.kind": given["type"]}
    # A flag, and what is there with it: scapy's name, ours, and how many bits it has.
    groups = [
        ("QMP", [("dlSendTimeRpt", "session.sent", 64), ("dlRecvTime", "session.received", 64), ("ulSendTime", "session.up_sending", 64)]),
        ("dlDelayInd", [("dlDelayRslt", "session.down_delay", 32)]),
        ("ulDelayInd", [("ulDelayRslt", "session.up_delay", 32)]),
        ("SNP", [("UlQFISeqNum", "session.up_sequence", 24)]),
        ("N3N9DelayInd", [("N3N9DelayRslt", "session.network_delay", 32)]),
    ]
    if given["type"] == 0:
        given["RQI"] = read["session.rqi"] = chance.getrandbits(1)
        groups = [
            ("PPP", [("PPI", "session.ppi", 3)]),
            ("QMP", [("dlSendTime", "session.down_sending", 64)]),
            ("SNP", [("dlQFISeqNum", "session.down_sequence", 24)]),
        ]
    for flag, fields in groups:
        if chance.random() < 0.5:
            given[flag] = 1
            for name, ours, bits in fields:
                given[name] = read[ours] = chance.getrandbits(bits)
    return given, {name: [str(value)] for name, value in read.items()}


def _packets(chance: random.Random, count: int, teids: tuple[int, int] | None) -> Iterable[tuple[Any, Fields]]:
    """Users' packets in tunnels, as scapy writes them, and what is to be read in them."""
    from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.packet import Raw

    for number in range(count):
        is_v6 = number % 2 == 1
        teid = teids[is_v6] if teids else chance.getrandbits(32)
        body = Raw(b"Z" * chance.randrange(200))
        ends = UDP(sport=9, dport=9) / body
        internet = IPv6(src="2001:db8:1::2", dst="2001:db8:2::2") if chance.random() < 0.5 else IP(src="10.1.2.3", dst="198.51.100.7")
        packet = internet / ends
        wanted: Fields = {"message": ["255"], "teid": [str(teid)]}
        sequence = chance.getrandbits(16) if chance.random() < 0.5 else None
        if sequence is not None:
            wanted["sequence"] = [str(sequence)]
        numbered = {"S": 0} if sequence is None else {"S": 1, "seq": sequence}
        if chance.random() < 0.7:
            header = GTP_U_Header(teid=teid, E=1, next_ex=0x85, gtp_type=255, **numbered)
            given, read = _container(chance)
            container = GTPPDUSessionContainer(**given)
            wanted |= {"extension": ["133", "0"], **read}
            yield _ends(is_v6) / header / container / packet, wanted
        else:
            yield _ends(is_v6) / GTP_U_Header(teid=teid, gtp_type=255, **numbered) / packet, wanted


def _messages(chance: random.Random) -> Iterable[tuple[Any, Fields]]:
    """One of each other kind."""
    from scapy.contrib import gtp

    sequence = chance.getrandbits(16)
    numbered = {"S": 1, "seq": sequence}
    said = {"teid": ["0"], "sequence": [str(sequence)]}
    teid = chance.getrandbits(32)
    yield _ends(False) / gtp.GTPHeader(teid=0, gtp_type=1, **numbered) / gtp.GTPEchoRequest(), {"message": ["1"], **said}
    recovery = gtp.IE_Recovery(restart_counter=0)
    response = gtp.GTPEchoResponse(IE_list=[recovery])
    yield _ends(True) / gtp.GTPHeader(teid=0, gtp_type=2, **numbered) / response, {"message": ["2"], "recovery": ["0"], **said}
    elements = [gtp.IE_TEIDI(TEIDI=teid), gtp.IE_GSNAddress(length=4, ipv4_address="192.0.2.77")]
    lost = gtp.GTPErrorIndication(IE_list=elements)
    wanted = {"message": ["26"], "lost": [str(teid)], "peer4": ["192.0.2.77"], **said}
    yield _ends(False) / gtp.GTPHeader(teid=0, gtp_type=26, **numbered) / lost, wanted
    yield _ends(True) / gtp.GTP_U_Header(teid=teid, gtp_type=254, S=0), {"message": ["254"], "teid": [str(teid)]}


def from_scapy(place: Path, seed: int, count: int) -> None:
    """What scapy writes is read as it was meant."""
    from scapy.utils import wrpcap

    chance = random.Random(seed)
    made = [*_messages(chance), *_packets(chance, count, None)]
    capture = place / "scapy.pcap"
    wrpcap(str(capture), [packet for packet, _ in made])
    read = compare(capture)
    check(len(read) == len(made), f"{len(read)} of {len(made)} messages")
    for number, (own, (_, wanted)) in enumerate(zip(read, made, strict=True)):
        differs = {name: (own.get(name), values) for name, values in wanted.items() if own.get(name) != values}
        check(not differs, f"message {number}: {differs}")


def through(place: Path, seed: int, count: int) -> None:
    """What scapy writes goes through the function, and scapy reads it, in the other tunnel and otherwise the same."""
    from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
    from scapy.utils import rdpcap, wrpcap

    before, after = place / "before.pcap", place / "after.pcap"
    # The numbers of the first two bearers towards the core network.
    made = [packet for packet, _ in _packets(random.Random(seed), count, (2, 1026))]
    wrpcap(str(before), made)
    subprocess.run([examples.PLACE / "gtpu", "relay", before, after], check=True)
    compare(after)
    # As they are on the wire, with lengths and checksums.
    sent, came = rdpcap(str(before)), rdpcap(str(after))
    check(len(came) == count, f"{len(came)} of {count} packets came")
    for number, (old, new) in enumerate(zip(sent, came, strict=True)):
        check(new[GTP_U_Header].teid == 0xA0, f"packet {number} has TEID {new[GTP_U_Header].teid:#x}")
        check(new[GTP_U_Header].S == 0, f"packet {number} has a sequence number")
        layer = GTPPDUSessionContainer if GTPPDUSessionContainer in old else GTP_U_Header
        check(layer in new, f"packet {number} lost its container")
        if layer is GTPPDUSessionContainer:
            check(bytes(old[layer]) == bytes(new[layer]), f"packet {number}: {old[layer]} became {new[layer]}")
        check(bytes(old[layer].payload) == bytes(new[layer].payload), f"packet {number}: the user's packet changed")
