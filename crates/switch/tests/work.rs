//! What is done to packets on their way: segments, checksums, answers, copies, tunnels.

mod rig;

use std::net::{IpAddr, Ipv4Addr};

use millrace_port::{Burst, Checksum, Offload, Offloads, Port, Segment, SegmentKind, pcap};
use millrace_switch::Packet;
use rig::{Rig, frame, mac, port, rig};

/// A TCP packet in IPv4 with so much payload, and no right checksums.
fn tcp(to: u8, from: u8, tag: Option<u16>, payload: usize, may_be_cut: bool) -> Vec<u8> {
    let mut bytes = [mac(to), mac(from)].concat();
    if let Some(tag) = tag {
        bytes.extend([0x81, 0]);
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend([8, 0, 0x45, 2]);
    bytes.extend(((40 + payload) as u16).to_be_bytes());
    bytes.extend([0, 1, if may_be_cut { 0 } else { 0x40 }, 0, 64, 6, 0, 0]);
    bytes.extend([10, 0, 0, from, 10, 0, 0, to]);
    let at = bytes.len() - 20;
    let header = ones_complement(&[&bytes[at..]]);
    bytes[at + 10..at + 12].copy_from_slice(&(!header).to_be_bytes());
    bytes.extend([0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0]);
    // The pseudo-header's sum, as a stack leaves it.
    let length = ((20 + payload) as u16).to_be_bytes();
    let sum = ones_complement(&[&bytes[at + 12..at + 20], &[0, 6], &length]);
    bytes.extend(sum.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..payload).map(|at| (at * 13) as u8));
    bytes
}

fn ones_complement(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2);
    let mut sum: u32 = words
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn is_right(bytes: &[u8]) -> bool {
    let packet = Packet::parse(bytes).unwrap();
    let header = &bytes[packet.at..packet.payload_at];
    let carried = &bytes[packet.payload_at..packet.at + packet.length];
    let length = (carried.len() as u32).to_be_bytes();
    ones_complement(&[header]) == 0xffff
        && ones_complement(&[&header[12..20], &[0, packet.protocol], &length, carried]) == 0xffff
}

/// Of a packet with a tag or without.
fn offload(tag: Option<u16>, segment: Option<u16>) -> Offload {
    let at = tag.map_or(0, |_| 4);
    Offload {
        checksum: Checksum::Partial {
            start: 34 + at,
            offset: 16,
        },
        segment: segment.map(|bytes| Segment {
            kind: SegmentKind::Tcp4,
            has_ecn: false,
            bytes,
            header_bytes: 54 + at,
        }),
    }
}

#[test]
fn what_a_peer_leaves_undone_is_done_for_one_that_does_not_do_it_either() {
    for processors in ["", "processors = [0, 1]\n"] {
        for (tag, ports) in [
            (None, ["", "", ""]),
            (
                Some(10),
                ["vlan.trunk = [10]", "vlan.access = 10", "vlan.trunk = [10]"],
            ),
            (
                None,
                ["vlan.access = 10", "vlan.trunk = [10]", "vlan.access = 10"],
            ),
        ] {
            let text: String = ["a", "b", "c"]
                .iter()
                .zip(ports)
                .map(|(name, rest)| port(name, rest))
                .collect();
            let mut rig = rig(&format!("{processors}{text}"));
            rig.wire("c").offloads = Offloads {
                checksum: true,
                tso4: true,
                ..Offloads::default()
            };
            let one = tcp(255, 1, tag, 500, true);
            rig.inject_with("a", &one, offload(tag, None));
            let large = tcp(255, 1, tag, 60_000, true);
            rig.inject_with("a", &large, offload(tag, Some(1448)));
            rig.settle();
            let at_c = std::mem::take(&mut rig.wire("c").from_switch);
            assert_eq!(
                at_c,
                [
                    (one, offload(tag, None)),
                    (large.clone(), offload(tag, Some(1448)))
                ]
            );
            let at_b: Vec<Vec<u8>> = rig.collect().into_iter().map(|frame| frame.1).collect();
            assert_eq!(at_b.len(), 1 + 60_000usize.div_ceil(1448));
            assert!(at_b.iter().all(|segment| is_right(segment)));
            let mut payload: Vec<u8> = Vec::new();
            for segment in &at_b[1..] {
                let packet = Packet::parse(segment).unwrap();
                payload.extend(&segment[packet.payload_at + 20..]);
            }
            assert_eq!(payload, large[large.len() - 60_000..]);
            rig.check_sums();
        }
    }
}

#[test]
fn what_cannot_be_done_is_dropped_by_cause() {
    let mut rig = rig(&(port("a", "") + &port("b", "")));
    rig.inject_with("a", &frame(255, 1, None, 1), offload(None, Some(100)));
    rig.settle();
    assert!(rig.collect().is_empty());
    assert_eq!(rig.dropped("b", "offload_failed"), 1);
    rig.check_sums();
}

/// Who is in one VLAN has no checksum written to the tag, and so no frame in another.
#[test]
fn no_checksum_takes_a_frame_to_another_vlan() {
    let partial = |start| Offload {
        checksum: Checksum::Partial { start, offset: 0 },
        segment: None,
    };
    for (rest, tag) in [
        ("vlan.access = 10", None),
        ("vlan.trunk = [10]", Some(10)),
        ("vlan = { trunk = [10], native = 10 }", None),
    ] {
        let trunk = port("trunk", "vlan.trunk = [10, 20]");
        let mut rig = rig(&(port("a", rest) + &trunk));
        let bytes = frame(255, 1, tag, 1);
        let at = tag.map_or(0, |_| 4);
        for start in 8 + at..14 + at {
            rig.inject_with("a", &bytes, partial(start));
        }
        rig.settle();
        assert!(rig.collect().is_empty(), "{rest}");
        assert_eq!(rig.dropped("trunk", "offload_failed"), 6);
        rig.inject_with("a", &bytes, partial(14 + at));
        rig.settle();
        let [(_, sent)] = &rig.collect()[..] else {
            panic!("{rest}");
        };
        assert_eq!(sent[..18], frame(255, 1, Some(10), 1)[..18]);
        rig.check_sums();
    }
}

/// The longest packet that a port hands over has no room for a tag: without one it would be in the trunk's native VLAN.
#[test]
fn what_has_no_room_for_its_tag_does_not_leave_without() {
    for processors in ["", "processors = [0, 1]\n"] {
        for flooded in [false, true] {
            let ports = [
                port("a", "vlan.access = 10"),
                port("trunk", "vlan = { trunk = [10], native = 1 }"),
                port("other", "vlan.trunk = [10]"),
            ];
            let mut rig = rig(&format!("{processors}{}", ports.concat()));
            rig.inject("trunk", &frame(255, 2, Some(10), 1));
            rig.collect();
            let to = if flooded { 255 } else { 2 };
            let length = millrace_port::PACKET_BYTES_MAX;
            let small = frame(to, 1, None, 2);
            for bytes in [length - 4, length, length - 3] {
                let mut large = tcp(to, 1, None, 60_000, true);
                large.resize(bytes, 0x5a);
                rig.inject_with("a", &large, offload(None, Some(1448)));
                rig.inject_with("a", &small, Offload::NONE);
            }
            rig.settle();
            let targets = if flooded { 2 } else { 1 };
            let left = rig.collect();
            let tagged = left.iter().all(|one| one.1[12..16] == [0x81, 0, 0, 10]);
            assert!(tagged, "{processors} {flooded}");
            // Three small ones, and the segments of one.
            let segments = (length - 4 - 54usize).div_ceil(1448);
            assert_eq!(left.len(), targets * (3 + segments));
            assert_eq!(rig.dropped("a", "too_large"), 2 * targets as u64);
            rig.check_sums();
        }
    }
}

#[test]
fn who_sends_what_is_too_long_is_told() {
    let mut rig =
        rig(&(port("a", "vlan.trunk = [7]") + &port("b", "mtu = 1000\nvlan.trunk = [7]")));
    rig.inject("b", &frame(255, 2, Some(7), 0));
    rig.collect();
    rig.inject("a", &tcp(2, 1, Some(7), 960, false));
    assert_eq!(rig.collect().len(), 1, "just fits");
    rig.inject("a", &tcp(2, 1, Some(7), 961, true));
    assert!(rig.collect().is_empty(), "may be cut");
    rig.inject("a", &tcp(2, 1, Some(7), 961, false));
    let answers = rig.collect();
    let [(name, answer)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(
        (&name[..], &answer[..16]),
        ("a", &tcp(1, 2, Some(7), 0, true)[..16])
    );
    let packet = Packet::parse(answer).unwrap();
    assert_eq!((packet.protocol, packet.source[1] & 0xff), (1, 2));
    assert_eq!(answer[packet.payload_at..packet.payload_at + 2], [3, 4]);
    assert_eq!(
        answer[packet.payload_at + 6..packet.payload_at + 8],
        1000u16.to_be_bytes()
    );
    // What is cut before it leaves is as long as its segments.
    rig.inject_with(
        "a",
        &tcp(2, 1, Some(7), 9000, false),
        offload(Some(7), Some(960)),
    );
    rig.settle();
    assert_eq!(rig.collect().len(), 10);
    assert_eq!(rig.dropped("a", "too_large"), 2);
    // Nobody can have more answers than some.
    for _ in 0..300 {
        rig.inject("a", &tcp(2, 1, Some(7), 961, false));
    }
    assert_eq!(rig.collect().len(), 99);
    rig.check_sums();
}

/// All packets of a capture.
fn captured(path: &std::path::Path) -> Vec<Vec<u8>> {
    let mut port = pcap::Pcap::read(path, pcap::Pace::Full).unwrap();
    let (mut packets, mut burst) = (Vec::new(), Burst::new(32));
    while port.receive(0, &mut burst) > 0 {
        packets.extend(burst.iter().map(|packet| packet.to_vec()));
    }
    packets
}

#[test]
fn mirrors_have_copies_of_what_enters_and_leaves() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let ports = port("a", "vlan.access = 10")
        + &port("b", "vlan.trunk = [10]")
        + &port("c", "vlan.access = 10");
    let mirror = |name: &str, rest: &str| {
        format!(
            "[[mirror]]\nname = \"{name}\"\nfile = \"{}\"\n{rest}\n",
            path(name).display()
        )
    };
    let mirrors = [
        mirror("all", ""),
        mirror("in.pcap", "ports = [\"a\"]\ndirection = \"in\""),
        mirror("out", "ports = [\"b\"]\ndirection = \"out\""),
    ];
    let mut rig = rig(&(ports + &mirrors.concat()));
    let (plain, tagged) = (frame(255, 1, None, 1), frame(255, 1, Some(10), 1));
    rig.inject("a", &plain);
    let back = frame(1, 2, Some(10), 2);
    rig.inject("b", &back);
    assert_eq!(rig.collect().len(), 3);
    rig.check_sums();
    for name in ["all", "in.pcap", "out"] {
        rig.switch.remove_mirror(name).unwrap();
    }
    let untagged = frame(1, 2, None, 2);
    assert_eq!(captured(&path("in.pcap")), std::slice::from_ref(&plain));
    assert_eq!(captured(&path("out")), std::slice::from_ref(&tagged));
    assert_eq!(
        captured(&path("all")),
        [plain.clone(), tagged, plain, back, untagged]
    );
}

#[test]
fn a_capture_is_played_into_the_switch() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("played");
    let mut port_out =
        pcap::Pcap::write(&path, pcap::Format::Pcapng, pcap::Link::Ethernet).unwrap();
    let mut burst = Burst::new(100);
    for serial in 0..100 {
        assert!(burst.push(&frame(255, 1, None, serial)));
    }
    assert_eq!(port_out.transmit(0, &burst, 0), 100);
    drop(port_out);
    let text = format!(
        "{}[[port]]\nname = \"file\"\npcap.read = \"{}\"",
        port("a", ""),
        path.display()
    );
    let mut rig = rig(&text);
    rig.settle();
    let left = rig.collect();
    let expected: Vec<_> = (0..100)
        .map(|serial| ("a".to_owned(), frame(255, 1, None, serial)))
        .collect();
    assert_eq!(left, expected);
    assert!(
        rig.port("file")
            .state
            .starts_with("closed: the file has ended")
    );
    rig.check_sums();
}

/// Two switches on addresses of the loopback interface, joined by a tunnel.
fn hosts(port_number: u16, networks: &str, rest: &str) -> [Rig; 2] {
    let address = |host: u8| IpAddr::from(Ipv4Addr::new(127, 77, 0, host));
    [(1, 2), (2, 1)].map(|(own, other)| {
        let tunnel = format!(
            "[[port]]\nname = \"tunnel\"\nvxlan = {{ local = \"{}\", remote = \"{}\", port = {port_number}, {networks} }}\n",
            address(own),
            address(other)
        );
        rig(&format!("{}{tunnel}", port("a", rest)))
    })
}

/// Turns of both until a frame has come, or for a while.
fn arrives(hosts: &mut [Rig; 2]) -> Option<Vec<u8>> {
    for _ in 0..2000 {
        hosts[0].settle();
        hosts[1].settle();
        if let Some(frame) = hosts[1].collect().pop() {
            return Some(frame.1);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}

#[test]
fn frames_go_through_a_tunnel_and_back() {
    let mut hosts = hosts(24_789, "vni = 7", "");
    for (serial, length) in [(1, 60), (2, 130), (3, 1500), (4, 9000)] {
        let mut sent = frame(255, 1, None, serial);
        sent.resize(length, 0x5a);
        hosts[0].inject("a", &sent);
        assert_eq!(arrives(&mut hosts), Some(sent));
    }
    assert_eq!(hosts[1].port("tunnel").stations, 1);
    hosts[1].inject("a", &frame(1, 2, None, 5));
    hosts.swap(0, 1);
    assert_eq!(arrives(&mut hosts), Some(frame(1, 2, None, 5)));
    hosts.iter_mut().for_each(Rig::check_sums);
}

#[test]
fn each_vlan_has_its_network() {
    let mut hosts = hosts(
        24_790,
        "vnis = { 10 = 100, 20 = 200 }",
        "vlan.trunk = [10, 20, 30]",
    );
    for vlan in [10, 0x6014] {
        let sent = frame(255, 1, Some(vlan), vlan.into());
        hosts[0].inject("a", &sent);
        let arrived = arrives(&mut hosts);
        // A tag's priority does not go with it.
        assert_eq!(
            arrived,
            Some(frame(255, 1, Some(vlan & 0xfff), vlan.into()))
        );
    }
    hosts[0].inject("a", &frame(255, 1, Some(30), 9));
    assert_eq!(hosts[0].dropped("a", "no_port"), 1);
    hosts.iter_mut().for_each(Rig::check_sums);
}

#[test]
fn datagrams_of_nobody_are_dropped_by_cause() {
    let mut hosts = hosts(24_791, "vni = 7", "");
    let send = |bytes: &[u8], from: u8| {
        let socket =
            std::net::UdpSocket::bind(("127.77.0.".to_owned() + &from.to_string(), 0)).unwrap();
        socket.send_to(bytes, "127.77.0.2:24791").unwrap();
    };
    let header = |vni: u8| vec![8, 0, 0, 0, 0, 0, vni, 0];
    send(&[header(7), frame(255, 1, None, 1)].concat(), 3);
    send(&[header(8), frame(255, 1, None, 2)].concat(), 1);
    send(&[0; 7], 1);
    send(&[header(7), vec![0; 13]].concat(), 1);
    send(&[header(7), frame(255, 1, None, 3)].concat(), 1);
    assert_eq!(arrives(&mut hosts), Some(frame(255, 1, None, 3)));
    assert_eq!(hosts[1].dropped("tunnel", "tunnel_unknown"), 2);
    assert_eq!(hosts[1].dropped("tunnel", "tunnel_malformed"), 2);
    hosts.iter_mut().for_each(Rig::check_sums);
}

#[test]
fn datagrams_of_nobody_are_refused_a_batch_in_a_turn() {
    let mut hosts = hosts(24_793, "vni = 7", "");
    let socket = std::net::UdpSocket::bind("127.77.0.3:0").unwrap();
    for _ in 0..80 {
        socket.send_to(&[0; 7], "127.77.0.2:24793").unwrap();
    }
    let [_, host] = &mut hosts;
    for refused in [32, 64, 80] {
        assert!(host.switch.turn(host.now), "there may be more");
        assert_eq!(host.dropped("tunnel", "tunnel_malformed"), refused);
    }
    assert!(!host.switch.turn(host.now));
    host.check_sums();
}

#[test]
fn datagrams_that_find_no_room_are_counted() {
    let mut hosts = hosts(24_794, "vni = 7", "");
    let socket = std::net::UdpSocket::bind("127.77.0.1:0").unwrap();
    // More than the socket may keep, if the machine lets it have all it wants.
    let datagram = [
        &[8, 0, 0, 0, 0, 0, 7, 0][..],
        &frame(255, 1, None, 1),
        &[0; 8000],
    ]
    .concat();
    for _ in 0..4000 {
        socket.send_to(&datagram, "127.77.0.2:24794").unwrap();
    }
    let [_, host] = &mut hosts;
    while host.switch.turn(host.now) {}
    let report = host.switch.report().unwrap();
    let tunnel = report.ports.iter().find(|port| port.name == "tunnel");
    let received = tunnel.unwrap().counters.received_packets;
    let full = host.dropped("tunnel", "full");
    assert!(full > 0);
    assert_eq!(received + full, 4000);
    // Once.
    assert_eq!(host.dropped("tunnel", "full"), full);
}

#[test]
fn tunnels_of_one_network_to_one_host_cannot_be_two() {
    let mut hosts = hosts(24_792, "vni = 7", "");
    let more = |vni: u32, remote: u8| {
        let text = format!(
            "[[port]]\nname = \"more\"\nvxlan = {{ local = \"127.77.0.1\", remote = \"127.77.0.{remote}\", port = 24792, vni = {vni} }}"
        );
        millrace_switch::Config::parse(&text)
            .unwrap()
            .port
            .remove(0)
    };
    let error = hosts[0].switch.add_port(more(7, 2)).unwrap_err();
    assert!(error.contains("same VNI"), "{error}");
    for (vni, remote) in [(8, 2), (7, 3)] {
        hosts[0].switch.add_port(more(vni, remote)).unwrap();
        hosts[0].switch.remove_port("more").unwrap();
    }
    // The endpoint is still the first tunnel's.
    hosts[0].inject("a", &frame(255, 1, None, 1));
    assert!(arrives(&mut hosts).is_some());
}
