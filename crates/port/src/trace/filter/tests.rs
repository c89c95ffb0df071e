use super::*;

/// A frame with UDP in IPv4, from port 1000 to 2152.
fn udp4(tags: &[u16]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for tag in tags {
        frame.extend(VLAN.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(IPV4.to_be_bytes());
    frame.extend([
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 2, 3, 192, 168, 0, 9,
    ]);
    frame.extend([1000u16, 2152, 8, 0].into_iter().flat_map(u16::to_be_bytes));
    frame
}

/// One with TCP in IPv6 behind extension headers.
fn tcp6(extensions: &[(u8, usize)]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(IPV6.to_be_bytes());
    let mut header = [0; 40];
    header[0] = 0x60;
    header[8] = 0xfd;
    header[23] = 1;
    header[24] = 0xfd;
    header[39] = 2;
    let kinds: Vec<u8> = extensions
        .iter()
        .map(|(kind, _)| *kind)
        .chain([6])
        .collect();
    header[6] = kinds[0];
    frame.extend(header);
    for ((_, length), next) in extensions.iter().zip(&kinds[1..]) {
        let mut extension = vec![0; *length];
        extension[0] = *next;
        extension[1] = (length / 8 - 1) as u8;
        frame.extend(extension);
    }
    frame.extend([80u16, 50_000].into_iter().flat_map(u16::to_be_bytes));
    frame
}

fn is_traced(filter: &str, frame: &[u8]) -> bool {
    let filter: Filter = filter.parse().unwrap();
    filter.matches(frame, Link::Ethernet, Direction::In)
}

#[test]
fn a_packet_is_traced_when_all_terms_hold() {
    let frame = udp4(&[]);
    let holds = [
        "",
        "in",
        "in and udp and host 10.1.2.3",
        "ethertype 0x0800",
        "ethertype 2048 port 2152",
        "proto 17 sport 1000 dport 2152",
        "src 10.0.0.0/8 dst 192.168.0.0/16",
        "host 0.0.0.0/0",
        "dst 192.168.0.9/32",
    ];
    for filter in holds {
        assert!(is_traced(filter, &frame), "{filter}");
    }
    let holds_not = [
        "out",
        "in and tcp",
        "ethertype 0x86dd",
        "vlan 7",
        "port 53",
        "sport 2152",
        "src 192.168.0.9",
        "host 10.1.2.4",
        "dst 192.168.0.8/32",
        "host fd00::1",
        "udp and out",
    ];
    for filter in holds_not {
        assert!(!is_traced(filter, &frame), "{filter}");
    }
}

#[test]
fn tags_are_seen_and_seen_through() {
    for (tags, seen) in [(&[7u16][..], 7), (&[9, 0xe007], 7), (&[9, 7], 9)] {
        let frame = udp4(tags);
        assert!(is_traced(&format!("vlan {seen} and port 2152"), &frame));
        assert!(!is_traced("vlan 8", &frame));
    }
}

#[test]
fn headers_of_ipv6_are_passed_over() {
    for extensions in [&[][..], &[(0, 8)], &[(0, 16), (60, 8), (43, 24)]] {
        let frame = tcp6(extensions);
        assert!(is_traced(
            "tcp host fd00::1 dst fd00::2/127 port 80",
            &frame
        ));
        assert!(!is_traced("udp", &frame));
    }
    // The first fragment has ports, others have none.
    let mut frame = tcp6(&[(FRAGMENT, 8)]);
    assert!(is_traced("tcp port 80", &frame));
    frame[14 + 40 + 3] = 8;
    assert!(is_traced("tcp", &frame) && !is_traced("tcp port 80", &frame));
    let mut frame = udp4(&[]);
    frame[14 + 7] = 1;
    assert!(is_traced("udp", &frame) && !is_traced("udp port 2152", &frame));
}

#[test]
fn frames_that_end_anywhere_have_no_more_than_they_have() {
    for whole in [udp4(&[1, 2]), tcp6(&[(0, 8), (FRAGMENT, 8)])] {
        for length in 0..whole.len() {
            let headers = Headers::parse(&whole[..length], Link::Ethernet);
            assert!(length >= whole.len() - 4 || headers.ports.is_none());
        }
    }
    for length in 0..60 {
        for byte in 0..=255 {
            Headers::parse(&vec![byte; length], Link::Ip);
        }
    }
}

#[test]
fn without_ethernet_the_version_tells() {
    let frame = udp4(&[]);
    let filter: Filter = "udp port 2152".parse().unwrap();
    assert!(filter.matches(&frame[14..], Link::Ip, Direction::Out));
    assert!(!filter.matches(&frame, Link::Ip, Direction::Out));
}

#[test]
fn what_is_no_filter_says_why() {
    let why = |text: &str| text.parse::<Filter>().unwrap_err().to_string();
    assert_eq!(why("ports 5"), "\"ports\" is no term of a filter");
    assert_eq!(why("port"), "something must follow \"port\"");
    assert_eq!(why("port 65536"), "\"65536\" cannot follow \"port\"");
    assert_eq!(why("vlan 4096"), "\"4096\" cannot follow \"vlan\"");
    assert_eq!(
        why("host 10.0.0.0/33"),
        "\"10.0.0.0/33\" cannot follow \"host\""
    );
    assert_eq!(why("in src out"), "\"out\" cannot follow \"src\"");
}
