//! What files may say.

use super::*;

const PORT: &str = r#"
    [[port]]
    name = "n3"
    side = "radio"
    memif = { path = "/run/n3.sock" }
    addresses = ["192.0.2.1/24", "2001:db8::1/64"]
    routes = [{ to = "0.0.0.0/0", via = "192.0.2.254" }]
"#;

#[test]
fn a_port_is_what_the_file_says() {
    let config = Config::parse(PORT).unwrap();
    let interface = config.port[0].interface();
    assert_eq!(
        (interface.side, interface.mtu, interface.vlan),
        (Side::Radio, 1500, None)
    );
    assert_eq!(interface.mac, Mac::of_name("n3"));
    assert_eq!((config.workers(), config.port[0].kind()), (1, "memif"));
    assert!(config.port[0].opened().memif.is_some());
}

#[test]
fn processors_are_named_or_chosen() {
    let chosen = |text: &str| {
        let mut config: Config = toml::from_str(text).unwrap();
        let found = config.choose_processors(|workers| (3..5).take(workers).collect());
        found.map(|()| config.processors)
    };
    assert_eq!(chosen("processors = [7]"), Ok(vec![7]));
    assert_eq!(chosen("workers = 2"), Ok(vec![3, 4]));
    for (text, why) in [
        ("workers = 3", "there are 2 processors"),
        ("workers = 0", "from 1 to 16"),
        ("workers = 17", "from 1 to 16"),
        ("workers = 1\nprocessors = [0]", "one of both"),
    ] {
        assert!(chosen(text).unwrap_err().contains(why), "{text}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    for (old, new, why) in [
        ("192.0.2.254", "192.0.3.254", "of none of its networks"),
        ("\"0.0.0.0/0\"", "\"::/0\"", "two families"),
        ("192.0.2.1/24", "192.0.2.1/33", "no network"),
        ("radio", "left", "unknown variant"),
        (
            "side = \"radio\"",
            "side = \"radio\"\nmtu = 100",
            "mtu is from",
        ),
        (
            "side = \"radio\"",
            "side = \"radio\"\nvlan = 4095",
            "vlan is from",
        ),
        (
            "side = \"radio\"",
            "side = \"radio\"\nworker = 1",
            "worker is from",
        ),
        (
            "side = \"radio\"",
            "side = \"radio\"\nmac = \"03:00:00:00:00:01\"",
            "group's",
        ),
        ("[[port]]", "http = \"0.0.0.0:80\"\n[[port]]", "loopback"),
        ("[[port]]", "processors = [1, 1]\n[[port]]", "twice"),
        (
            "[[port]]",
            "[reassembly]\npackets = 65537\n[[port]]",
            "packets is at most",
        ),
        (
            "[[port]]",
            "[reassembly]\nbytes = 65535\n[[port]]",
            "bytes is from",
        ),
        (
            "[[port]]",
            "[reassembly]\nseconds = 0\n[[port]]",
            "seconds is from",
        ),
        (
            "[[port]]",
            "[reassembly]\nages = 1\n[[port]]",
            "unknown field",
        ),
    ] {
        let error = Config::parse(&PORT.replacen(old, new, 1)).unwrap_err();
        assert!(error.contains(why), "{new}: {error}");
    }
    assert!(Config::parse("").unwrap_err().contains("0 ports"));
    let twice = Config::parse(&format!("{PORT}{PORT}")).unwrap_err();
    assert!(twice.contains("two of that name"), "{twice}");
}

#[test]
fn the_documented_file_is_right() {
    let text = include_str!("../../ppf.toml");
    let config = Config::parse(text).unwrap();
    assert!(config.port.len() >= 2);
    assert_eq!(config.reassembly, ReassemblyConfig::default());
    assert_eq!(
        config.reassembly.limits(),
        crate::ReassemblyLimits::default()
    );
}
