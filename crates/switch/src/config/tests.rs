//! What is taken and what is refused.

use super::*;

#[test]
fn the_documented_defaults_are_the_defaults() {
    let documented = Config::parse(include_str!("../../switch.toml"));
    assert_eq!(documented, Ok(Config::default()));
    assert_eq!(Config::parse(""), Ok(Config::default()));
}

#[test]
fn the_documented_examples_are_right() {
    // What is commented out, without the sign.
    let text: String = include_str!("../../switch.toml")
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .skip_while(|line| !line.starts_with("[[port]]"))
        .filter(|line| line.starts_with('[') || is_setting(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let config = Config::parse(&text).unwrap();
    assert_eq!(
        (config.port.len(), config.flow.len(), config.mirror.len()),
        (10, 2, 1)
    );
    assert_eq!(config.device.len(), 1);
}

fn is_setting(line: &str) -> bool {
    let key = line.split_once(" = ").map(|pair| pair.0);
    key.is_some_and(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

#[test]
fn nonsense_is_refused_with_the_field_s_name() {
    let port = |text: &str| format!("[[port]]\nname = \"a\"\nmemif.path = \"/a\"\n{text}");
    let tunnel =
        |text: &str| format!("[[port]]\nname = \"t\"\nvxlan = {{ local = \"10.0.0.1\", {text} }}");
    let ring = |text: &str| format!("[[port]]\nname = \"r\"\nring = {{ {text} }}");
    let cases = [
        ("processors = [0, 0]".to_owned(), "processors"),
        ("spin_us = 1000000".to_owned(), "spin_us"),
        ("spinus = 1".to_owned(), "spinus"),
        ("metrics = \"here\"".to_owned(), "metrics"),
        ("mac.entries = 0".to_owned(), "mac.entries"),
        ("[[port]]\nname = \"a\"".to_owned(), "give one of"),
        (
            "[[port]]\nname = \"a b\"\nmemif.path = \"/a\"".to_owned(),
            "a b",
        ),
        (port("pcap.read = \"x\""), "give one of"),
        (port("vlan.access = 0"), "VLAN"),
        (port("vlan = { access = 1, native = 2 }"), "access"),
        (port("mtu = 60"), "mtu"),
        (port("police.bytes = 0"), "police.bytes"),
        (port("police.bytes_burst = 9"), "police.bytes"),
        (port("storm.broadcast = 0"), "storm"),
        (port("memif.ring_size = 1000"), "ring_size"),
        (port("memif.memory_bytes_max = 0"), "memory_bytes_max"),
        (port("colour = 1"), "colour"),
        (
            "[[port]]\nname = \"a\"\ntap.interface = \"0123456789abcdef\"".to_owned(),
            "tap.interface",
        ),
        (
            "[[port]]\nname = \"a\"\nvhost_user.path = \"a\"".to_owned(),
            "vhost_user.path",
        ),
        (
            "[[port]]\nname = \"a\"\naf_xdp = { interface = \"x\", take = [\"udp\"] }".to_owned(),
            "take",
        ),
        (ring("name = \"-a\""), "ring.name"),
        (ring("name = \"a b\""), "ring.name"),
        (ring("name = \"a\", slots = 1000"), "ring.slots"),
        (ring("name = \"a\", slots = 65536"), "ring.slots"),
        (ring("name = \"a\", pool_bytes = 0"), "ring.pool_bytes"),
        (ring("name = \"a\", pool_bytes = 1"), "ring.pool_bytes"),
        (ring("name = \"a\", agent = \"a\""), "ring.agent"),
        (ring("name = \"a\", side = \"third\""), "third"),
        (tunnel("remote = \"::1\", vni = 1"), "family"),
        (tunnel("remote = \"10.0.0.2\""), "vni"),
        (tunnel("remote = \"10.0.0.2\", vni = 16777216"), "VNI"),
        (tunnel("remote = \"10.0.0.2\", vnis = { x = 1 }"), "VLAN"),
        ("[[flow]]\nname = \"f\"".to_owned(), "drop"),
        (
            "[[flow]]\nname = \"f\"\nout = [\"a\"]\ndrop = true".to_owned(),
            "drop",
        ),
        ("[[mirror]]\nname = \"m\"".to_owned(), "file"),
    ];
    for (text, field) in cases {
        let error = Config::parse(&text).unwrap_err();
        assert!(error.contains(field), "{text}: {error}");
    }
}

#[test]
fn bursts_of_policing_are_what_comes_in_ten_milliseconds() {
    let config = |text: &str| parse::<PoliceConfig>(text).unwrap().rates();
    let [packets, bytes] = config("packets = 100000\nbytes = 1000000");
    assert_eq!(packets.unwrap().burst, 1000);
    assert_eq!(bytes.unwrap().burst, millrace_port::PACKET_BYTES_MAX as u64);
    assert_eq!(config("packets = 5")[0].unwrap().burst, 32);
    assert_eq!(
        config("packets = 5\npackets_burst = 1")[0].unwrap().burst,
        1
    );
    assert_eq!(config("")[1], None);
}

#[test]
fn a_container_s_port_is_as_its_device_says() {
    let text = "[[device]]\nname = \"fast\"\nports = 2\nmemif = { id = 3 }\nvlan.access = 10";
    let config = Config::parse(text).unwrap();
    let device = &config.device[0];
    assert_eq!((device.ports, device.containers), (2, None));
    let port = device.port("cdi/x/fast/0".to_owned(), "/run/x/0.sock".into());
    let text = "[[port]]\nname = \"cdi/x/fast/0\"\nvlan.access = 10\ncontainer = true\n\
                memif = { path = \"/run/x/0.sock\", id = 3, socket_mode = 0o666 }";
    assert_eq!(port, Config::parse(text).unwrap().port[0]);
    let most = |own: &str| {
        let text = format!("[[device]]\nname = \"fast\"\nmemif = {{}}\n{own}");
        Config::parse(&text).unwrap().device[0].port("a".to_owned(), "/a".into())
    };
    assert_eq!(most("").stations_max(), 64);
    assert_eq!(most("mac_limit = 70000").stations_max(), 70_000);
    assert_eq!(most("container = false").stations_max(), u32::MAX);
}

#[test]
fn containers_bring_less_memory_than_guests() {
    let cases = [
        ("port", "memif.path = \"/a\"", Some(1 << 30)),
        ("port", "vhost_user.path = \"/a\"", None),
        (
            "port",
            "container = true\nvhost_user.path = \"/a\"",
            Some(256 << 20),
        ),
        (
            "port",
            "vhost_user = { path = \"/a\", memory_bytes_max = 5 }",
            Some(5),
        ),
        ("device", "memif = {}", Some(256 << 20)),
        ("device", "vhost_user = {}", Some(256 << 20)),
        ("device", "vhost_user.accept_unsealed = true", None),
        ("device", "memif.memory_bytes_max = 5", Some(5)),
    ];
    for (what, own, most) in cases {
        let config = Config::parse(&format!("[[{what}]]\nname = \"a\"\n{own}")).unwrap();
        let device = config.device.first();
        let port = device.map(|device| device.port("a".to_owned(), "/a".into()));
        let port = port.unwrap_or_else(|| config.port[0].clone());
        assert_eq!(port.memory_bytes_max(), most, "[[{what}]] {own}");
    }
}

#[test]
fn a_device_that_cannot_be_is_refused() {
    let device = |name: &str, text: &str| match name {
        "" => format!("[[device]]\n{text}\n"),
        name => format!("[[device]]\nname = \"{name}\"\n{text}\n"),
    };
    let cases = [
        (device("", "memif = {}"), "has a name"),
        (device("A", "memif = {}"), "small letters"),
        (device("-a", "memif = {}"), "small letters"),
        (device("a", ""), "give one of memif, vhost_user"),
        (device("a", "memif = 1"), "give one of"),
        (device("a", "tap.interface = \"t\""), "give one of"),
        (device("a", "memif.path = \"/a\""), "memif.path"),
        (
            device("a", "vhost_user.role = \"client\""),
            "vhost_user.role",
        ),
        (device("a", "memif = {}\nvhost_user = {}"), "path"),
        (device("a", "memif = {}\nports = 0"), "ports"),
        (device("a", "memif = {}\nports = 17"), "ports"),
        (device("a", "memif = {}\ncontainers = \"x\""), "containers"),
        (device("a", "memif = {}\ncolour = 1"), "colour"),
        (device("a", "memif = {}\nvlan.access = 0"), "VLAN"),
        (
            device("a", "memif = {}") + &device("a", "memif = {}"),
            "two",
        ),
    ];
    for (text, what) in cases {
        let error = Config::parse(&text).unwrap_err();
        assert!(error.contains(what), "{text}: {error}");
    }
}
