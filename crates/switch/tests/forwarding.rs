//! Where frames go, exactly.

mod rig;

use std::time::Duration;

use rig::{Random, frame, port, rig};

fn three() -> String {
    ["a", "b", "c"].map(|name| port(name, "")).concat()
}

#[test]
fn who_was_heard_is_found_and_who_was_not_is_looked_for_everywhere() {
    let mut rig = rig(&three());
    assert_eq!(rig.ways("a", &frame(2, 1, None, 1)), ["b", "c"]);
    assert_eq!(rig.ways("b", &frame(1, 2, None, 2)), ["a"]);
    assert_eq!(rig.ways("a", &frame(2, 1, None, 3)), ["b"]);
    assert_eq!(rig.ways("c", &frame(255, 3, None, 4)), ["a", "b"]);
    assert_eq!(rig.ways("c", &frame(200, 3, None, 5)), ["a", "b"]);
    // Back to where it came from goes nothing.
    assert!(rig.ways("a", &frame(1, 9, None, 6)).is_empty());
    assert_eq!(rig.dropped("a", "same_port"), 1);
    let macs: Vec<_> = rig.switch.stations().unwrap();
    let places: Vec<_> = macs
        .iter()
        .map(|one| (&one.mac[15..], &one.port[..]))
        .collect();
    assert_eq!(places, [("01", "a"), ("02", "b"), ("03", "c"), ("09", "a")]);
    rig.check_sums();
}

#[test]
fn stations_move_and_are_forgotten() {
    let mut rig = rig(&three());
    rig.inject("a", &frame(255, 1, None, 1));
    rig.inject("b", &frame(255, 1, None, 2));
    rig.collect();
    assert_eq!(rig.ways("c", &frame(1, 3, None, 3)), ["b"]);
    rig.pass(Duration::from_secs(301));
    assert_eq!(rig.ways("c", &frame(1, 3, None, 4)), ["a", "b"]);
    rig.inject("b", &frame(255, 1, None, 5));
    rig.collect();
    rig.switch.forget_stations().unwrap();
    assert_eq!(rig.ways("c", &frame(1, 3, None, 6)), ["a", "b"]);
}

#[test]
fn what_is_no_frame_of_a_station_is_dropped_by_cause() {
    let mut rig = rig(&three());
    assert!(rig.ways("a", &[0; 13]).is_empty());
    assert!(rig.ways("a", &frame(2, 0, None, 1)).is_empty());
    assert!(rig.ways("a", &frame(2, 255, None, 2)).is_empty());
    for (last, from) in [(1, 1), (14, 4)] {
        let mut kept = frame(2, from, None, 3);
        kept[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, last]);
        assert!(rig.ways("a", &kept).is_empty());
    }
    // Flow control is of the link: a bridge does not hear it.
    let stations = rig.switch.stations().unwrap();
    assert!(stations.len() == 1 && stations[0].mac.ends_with("04"));
    assert_eq!(rig.dropped("a", "malformed_frame"), 1);
    assert_eq!(rig.dropped("a", "bad_source"), 2);
    assert_eq!(rig.dropped("a", "link_local"), 2);
    rig.check_sums();
}

#[test]
fn limits_of_stations_hold() {
    let mut rig = rig(&format!("{}{}", port("a", "mac_limit = 2"), port("b", "")));
    for number in 1..=5 {
        rig.inject("a", &frame(255, number, None, number.into()));
    }
    assert_eq!(rig.port("a").stations, 2);
    assert_eq!(rig.port("a").counters.unlearnt, 3);
}

#[test]
fn vlans_are_apart_and_tags_are_as_each_port_has_them() {
    let text = [
        port("access", "vlan.access = 10"),
        port("other", "vlan.access = 20"),
        port("trunk", "vlan = { trunk = [10, 20], native = 1 }"),
        port("tagged", "vlan.trunk = [10]"),
    ];
    let mut rig = rig(&text.concat());
    rig.inject("access", &frame(255, 1, None, 1));
    let tagged = frame(255, 1, Some(10), 1);
    assert_eq!(
        rig.collect(),
        [("trunk".into(), tagged.clone()), ("tagged".into(), tagged)]
    );
    // A priority stays; VLAN 0 is the port's own.
    rig.inject("access", &frame(255, 1, Some(0xe000), 2));
    let tagged = frame(255, 1, Some(0xe00a), 2);
    assert_eq!(
        rig.collect(),
        [("trunk".into(), tagged.clone()), ("tagged".into(), tagged)]
    );
    rig.inject("trunk", &frame(255, 3, Some(0xa014), 3));
    assert_eq!(rig.collect(), [("other".into(), frame(255, 3, None, 3))]);
    // The native VLAN is nobody else's.
    rig.inject("trunk", &frame(255, 3, None, 4));
    assert!(rig.collect().is_empty());
    assert_eq!(rig.dropped("trunk", "no_port"), 1);
    for (name, tag) in [("access", Some(20)), ("tagged", None), ("trunk", Some(30))] {
        rig.inject(name, &frame(255, 1, tag, 5));
        assert!(rig.collect().is_empty());
        assert_eq!(rig.dropped(name, "vlan"), 1, "{name}");
    }
    // Known in one VLAN is not known in another.
    rig.inject("trunk", &frame(1, 3, Some(10), 6));
    assert_eq!(rig.collect(), [("access".into(), frame(1, 3, None, 6))]);
    rig.inject("trunk", &frame(1, 3, Some(20), 7));
    assert_eq!(rig.collect(), [("other".into(), frame(1, 3, None, 7))]);
    rig.check_sums();
}

#[test]
fn ports_of_one_horizon_do_not_forward_to_each_other() {
    let text = [
        port("a", "horizon = 5"),
        port("b", "horizon = 5"),
        port("c", ""),
    ];
    let mut rig = rig(&text.concat());
    assert_eq!(rig.ways("a", &frame(255, 1, None, 1)), ["c"]);
    assert!(rig.ways("b", &frame(1, 2, None, 2)).is_empty());
    assert_eq!(rig.dropped("b", "same_port"), 1);
    assert_eq!(rig.ways("c", &frame(255, 3, None, 3)), ["a", "b"]);
    rig.check_sums();
}

#[test]
fn flows_go_before_what_was_learnt_and_the_highest_counts() {
    let flows = r#"
        [[flow]]
        name = "all"
        priority = 1
        in = "a"
        out = ["b"]
        [[flow]]
        name = "both"
        priority = 2
        match.vlan = 7
        out = ["b", "c"]
        [[flow]]
        name = "none"
        priority = 3
        match = { vlan = 7, eth_src = "02:00:00:00:00:09" }
        drop = true
    "#;
    let mut rig = rig(&(three() + flows));
    assert_eq!(rig.ways("a", &frame(255, 1, None, 1)), ["b"]);
    assert_eq!(rig.ways("a", &frame(255, 1, Some(7), 2)), ["b", "c"]);
    assert_eq!(rig.ways("c", &frame(255, 1, Some(0xe007), 3)), ["b", "c"]);
    assert!(rig.ways("c", &frame(255, 9, Some(7), 4)).is_empty());
    assert_eq!(rig.ways("c", &frame(255, 1, None, 5)), ["a", "b"]);
    let report = rig.report();
    let hits: Vec<_> = report
        .flows
        .iter()
        .map(|one| (&one.name[..], one.packets, one.bytes))
        .collect();
    assert_eq!(hits, [("none", 1, 64), ("both", 2, 128), ("all", 1, 60)]);
    assert_eq!(rig.dropped("c", "flow"), 1);
    rig.check_sums();
    rig.switch.remove_flow("all").unwrap();
    assert_eq!(rig.ways("a", &frame(200, 1, None, 6)), ["b", "c"]);
}

#[test]
fn policing_lets_in_what_it_says() {
    let text = port(
        "a",
        "police = { packets = 1000, packets_burst = 10, bytes = 6000, bytes_burst = 240 }",
    ) + &port("b", "");
    let mut rig = rig(&text);
    for number in 0..20 {
        rig.inject("a", &frame(255, 1, None, number));
    }
    assert_eq!(rig.collect().len(), 4, "bytes");
    rig.pass(Duration::from_millis(10));
    for number in 0..20 {
        rig.inject("a", &frame(255, 1, None, number));
    }
    assert_eq!(rig.collect().len(), 1, "60 bytes are filled in 10 ms");
    assert_eq!(rig.dropped("a", "policed"), 35);
    rig.check_sums();
}

#[test]
fn storms_are_held_back_by_kind() {
    let text = port(
        "a",
        "storm = { broadcast = 10, multicast = 20, unknown = 30 }",
    ) + &port("b", "");
    let mut rig = rig(&text);
    rig.inject("b", &frame(255, 2, None, 0));
    rig.collect();
    for number in 0..10 {
        for to in [255, 200, 9, 2] {
            rig.inject("a", &frame(to, 1, None, number));
        }
    }
    // A tenth of a second's at once, and what is known is not flooded.
    assert_eq!(rig.collect().len(), 1 + 2 + 3 + 10);
    assert_eq!(rig.dropped("a", "storm"), 24);
    rig.check_sums();
}

#[test]
fn ports_come_and_go_and_nothing_of_the_old_is_left() {
    for processors in ["", "processors = [0, 1]\n"] {
        let mut rig = rig(&format!("{processors}{}", three()));
        rig.inject("c", &frame(255, 3, None, 1));
        rig.collect();
        rig.inject_with("c", &frame(255, 4, None, 2), millrace_port::Offload::NONE);
        rig.remove("c");
        let config = millrace_switch::Config::parse(&port("d", "")).unwrap();
        rig.add(config.port[0].clone());
        assert_eq!(
            rig.ways("a", &frame(3, 1, None, 3)),
            ["b", "d"],
            "3 was behind c"
        );
        assert_eq!(rig.ways("d", &frame(1, 7, None, 4)), ["a"]);
        assert!(rig.switch.remove_port("c").is_err());
    }
}

#[test]
fn in_a_turn_a_worker_reads_some_of_what_others_have_sent() {
    let senders = (0..16).map(|number| port(&format!("p{number}"), "worker = 0"));
    let text: String = senders.collect();
    let flow = "[[flow]]\nname = \"f\"\nout = [\"to\"]\n";
    let to = port("to", "worker = 1");
    let mut rig = rig(&format!("processors = [0, 1]\n{text}{to}{flow}"));
    for number in 0..16 {
        let bytes = frame(255, 1, None, number);
        rig.inject_with(&format!("p{number}"), &bytes, millrace_port::Offload::NONE);
    }
    // The first worker sends each of its ports' bursts in one turn, and the second one has its turn when they are there.
    for turn in 1..=2 {
        assert!(rig.switch.turn(rig.now));
        assert_eq!(rig.wire("to").from_switch.len(), 8 * turn);
    }
    assert!(!rig.switch.turn(rig.now));
    // Whoever is told something reads all that was there.
    for number in 0..16 {
        let bytes = frame(255, 1, None, number);
        rig.inject_with(&format!("p{number}"), &bytes, millrace_port::Offload::NONE);
    }
    rig.switch.turn(rig.now);
    rig.switch.remove_flow("f").unwrap();
    assert_eq!(rig.wire("to").from_switch.len(), 32);
    rig.check_sums();
}

#[test]
fn what_names_a_port_keeps_it_and_what_is_wrong_changes_nothing() {
    let flow = "[[flow]]\nname = \"f\"\nin = \"a\"\nout = [\"b\"]\n";
    let mut rig = rig(&(three() + flow));
    let before = rig.report().ports.len();
    for (name, wanted) in [("a", "flow"), ("b", "flow"), ("x", "there are a, b, c")] {
        let error = rig.switch.remove_port(name).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    let parsed = |text: &str| millrace_switch::Config::parse(text).unwrap();
    let flows = [
        ("[[flow]]\nname = \"f\"\ndrop = true", "of that name"),
        (
            "[[flow]]\nname = \"g\"\nin = \"a\"\ndrop = true",
            "same frames",
        ),
        ("[[flow]]\nname = \"g\"\nout = [\"x\"]", "no port \"x\""),
        ("[[flow]]\nname = \"g\"\nout = [\"a\", \"a\"]", "twice"),
    ];
    for (text, wanted) in flows {
        let error = rig
            .switch
            .add_flow(parsed(text).flow.remove(0))
            .unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    let ports = [
        ("name = \"a\"\nmemif.path = \"/x\"", "of that name"),
        (
            "name = \"n\"\nmemif.path = \"/nonexistent/x\"",
            "/nonexistent/x",
        ),
        (
            "name = \"n\"\nmemif.path = \"/x\"\nworker = 7",
            "worker is 7",
        ),
        ("name = \"n\"\npcap.read = \"/nonexistent\"", "/nonexistent"),
    ];
    for (text, wanted) in ports {
        let mut config = parsed(&format!("[[port]]\n{text}"));
        let error = rig.switch.add_port(config.port.remove(0)).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    assert_eq!(
        (rig.report().ports.len(), rig.report().flows.len()),
        (before, 1)
    );
    assert_eq!(rig.ways("a", &frame(255, 1, None, 1)), ["b"]);
}

/// Random frames between random ports, on one worker and on two: each is sent as often as it should be, in order, and counters add up.
#[test]
fn in_any_traffic_order_is_kept_and_counters_add_up() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let processors = ["", "processors = [0, 1]\n"][seed as usize % 2];
        let text: String = (0..5)
            .map(|number| {
                let rest = [
                    "",
                    "vlan.access = 10",
                    "vlan = { trunk = [10, 20], native = 1 }",
                    "storm.broadcast = 50",
                    "police.packets = 200\nhorizon = 3",
                ];
                port(&format!("p{number}"), rest[random.below(5) as usize])
            })
            .collect();
        let mut rig = rig(&format!("{processors}{text}"));
        rig.wire("p4").room = Some(random.below(60) as usize);
        for serial in 0..600 {
            let from = random.below(5);
            let to = [1, 2, 3, 4, 5, 200, 255][random.below(7) as usize];
            let tag = [None, None, Some(10), Some(20), Some(0x6000)][random.below(5) as usize];
            let bytes = frame(to, from as u8 + 1, tag, serial);
            rig.inject_with(&format!("p{from}"), &bytes, millrace_port::Offload::NONE);
            if random.below(20) == 0 {
                rig.settle();
            }
        }
        rig.settle();
        let mut last = std::collections::BTreeMap::new();
        for (port, bytes) in rig.collect() {
            let at = if bytes[12..14] == [0x81, 0] { 18 } else { 14 };
            let serial = u32::from_be_bytes(*bytes[at..].first_chunk().unwrap());
            // From one port to another they stay in order, whatever their VLANs.
            let before = last.insert((port, bytes[6..12].to_vec()), serial);
            assert!(before.is_none_or(|before| before < serial), "seed {seed}");
        }
        rig.check_sums();
    }
}
