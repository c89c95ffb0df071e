//! The generator against a packet processing function that does what it should, or not quite.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use millrace_port::Port;
use millrace_port::memif::{Config, Memif, Role};

use super::super::{Checks, Content, Generator, Latencies, Options, Outcome, Place, Sizes};
use super::*;

/// What is wrong with a frame that was processed.
type Deed = fn(&mut Vec<u8>);

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ASK: [u8; 46] = [
    255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 100, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1,
    2, 0, 0, 0, 0, 2, 198, 18, 1, 1, 0, 0, 0, 0, 0, 0, 198, 18, 1, 9,
];

/// A frame as the function of these tests sends it: not as it came, and not by the generator's own code.
fn processed(way: Way, frame: &[u8]) -> Vec<u8> {
    let lead = [&frame[6..12], &frame[..6], &frame[12..18]].concat();
    if way == Way::Decapsulate {
        return [&lead[..], &frame[54..]].concat();
    }
    let (packet, teid, last, net) = match way {
        // Here a tunnel's own number is 256 times that of its far end, and 1.
        Way::Relay => (
            &frame[54..],
            [0, frame[50], frame[51], frame[52]],
            frame[53],
            1,
        ),
        _ => {
            let [.., a, b, c, d] = frame[..38] else {
                panic!("it has a user")
            };
            let place = u32::from_be_bytes([a, b, c, d]) - 0x0a00_0001;
            (&frame[18..], (place + 1).to_be_bytes(), 1, 0)
        }
    };
    assert_eq!(last, 1);
    let length = |more: usize| ((packet.len() + more) as u16).to_be_bytes();
    let mut header = [
        0x45, 0, 0, 0, 0x12, 0x34, 0, 0, 9, 17, 0, 0, 198, 18, net, 1, 198, 18, net, 9,
    ];
    header[2..4].copy_from_slice(&length(36));
    let words = header
        .chunks(2)
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = 0xffff - (words.sum::<u64>() % 0xffff) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let behind = [
        &[8, 0x68, 8, 0x68],
        &length(16)[..],
        &[0, 0, 0x30, 255],
        &length(0),
        &teid,
    ]
    .concat();
    [&lead[..], &header, &behind, packet].concat()
}

/// A function, which asks for its station first.
struct Function {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Vec<u8>>>>,
    directory: tempfile::TempDir,
}

impl Function {
    fn new(way: Option<Way>, deed: Deed) -> Function {
        let directory = tempfile::tempdir().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let path = |name| directory.path().join(name);
        let [mut from, mut to] =
            ["from", "to"].map(|name| Memif::new(Config::new(Role::Server, path(name))).unwrap());
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (mut received, mut sent, mut answers) = (Burst::new(32), Burst::new(1), Vec::new());
            let mut is_asked = false;
            while !stop.load(Ordering::Relaxed) {
                for port in [&mut from, &mut to] {
                    port.poll(Instant::now());
                }
                let mut send = |to: &mut Memif, frame: &[u8]| {
                    sent.clear();
                    assert!(sent.push(frame));
                    while to.transmit(0, &sent, 0) == 0 && !stop.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                };
                if from.receive(0, &mut received) == 0 {
                    std::thread::yield_now();
                }
                for packet in received.iter() {
                    let mut frame = packet.to_vec();
                    if let Some(way) = way {
                        frame = processed(way, &frame);
                        if !std::mem::replace(&mut is_asked, true) {
                            send(&mut to, &ASK);
                        }
                    }
                    deed(&mut frame);
                    send(&mut to, &frame);
                }
                to.receive(0, &mut received);
                answers.extend(received.iter().map(|packet| packet.to_vec()));
                received.clear();
            }
            answers
        });
        Function {
            over,
            thread: Some(thread),
            directory,
        }
    }

    fn ask(&self, sizes: &str, gtpu: Gtpu, checks: Checks) -> Outcome {
        let [from, to] = ["from", "to"].map(|name| -> Place {
            let path = self.directory.path().join(name);
            format!("memif-client:{}", path.display()).parse().unwrap()
        });
        let pattern = Pattern {
            sizes: sizes.parse::<Sizes>().unwrap(),
            flows: 1,
            macs: MACS,
            content: Content::Udp,
        };
        let stop = AtomicBool::new(false);
        let mut generator = Generator::open(&from, Some(&to), pattern, &stop).unwrap();
        generator.carry(gtpu);
        // So few that nobody is short of room.
        let options = Options {
            rate: Some(20_000.0),
            seconds: 0.05,
            checks,
            latency: Latencies::All,
        };
        // On a busy machine the function may have no processor for as long as a run is.
        let mut outcome = generator.run(&options, &stop).unwrap();
        for _ in 0..20 {
            if outcome.received > 0 || !outcome.is_sound() {
                break;
            }
            outcome = generator.run(&options, &stop).unwrap();
        }
        outcome
    }

    /// What the generator answered.
    fn end(mut self) -> Vec<Vec<u8>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Tunnels' numbers as the function has them.
fn teids(count: u32) -> Vec<u32> {
    (1..=count).map(|far| far << 8 | 1).collect()
}

const WHOLE: Checks = Checks {
    skips_macs: false,
    whole: true,
    is_turned: false,
};

#[test]
fn what_a_function_makes_of_packets_is_known_and_its_station_is_there() {
    for way in [Way::Relay, Way::Decapsulate, Way::Encapsulate] {
        let function = Function::new(Some(way), |_| ());
        for (sizes, bearers, flows) in [
            ("90", 1, 2),
            ("86", 7, 7),
            ("mix", 1000, 1000),
            ("1522", 3, 8),
        ] {
            let gtpu = Gtpu::processed(way, &teids(bearers), flows).unwrap();
            let outcome = function.ask(sizes, gtpu, WHOLE);
            assert!(
                outcome.is_sound() && outcome.received > 0,
                "{way:?} {sizes}: {outcome}"
            );
            assert_eq!(outcome.received + outcome.lost, outcome.sent, "{outcome}");
            assert_eq!(outcome.latency.count, outcome.received);
            assert_eq!(outcome.flows, flows as u64);
        }
        let answers = function.end();
        let own = MACS[0];
        let told = [
            &MACS[1],
            &own,
            &ASK[12..24],
            &[0, 2],
            &own,
            &ASK[42..],
            &MACS[1],
            &ASK[32..36],
        ];
        assert_eq!(answers, [told.concat()]);
    }
}

#[test]
fn what_a_function_should_not_have_sent_is_told() {
    let wrong: [(&str, Way, Deed); 14] = [
        ("another bearer's number", Way::Relay, |frame| {
            frame[53] ^= 3
        }),
        ("the number that it came with", Way::Encapsulate, |frame| {
            frame[52] ^= 1
        }),
        ("another far end", Way::Relay, |frame| frame[37] ^= 1),
        ("a checksum", Way::Relay, |frame| frame[28] ^= 1),
        ("a fragment's", Way::Encapsulate, |frame| {
            (frame[24], frame[28]) = (0x20, frame[28].wrapping_sub(0x20))
        }),
        ("a message's length", Way::Relay, |frame| frame[49] ^= 1),
        ("a kind of message", Way::Relay, |frame| frame[47] = 254),
        ("a user's address", Way::Decapsulate, |frame| frame[33] ^= 1),
        ("a user's checksum", Way::Relay, |frame| frame[64] ^= 1),
        ("a user's payload", Way::Decapsulate, |frame| frame[51] ^= 1),
        ("a byte more", Way::Relay, |frame| frame.push(0)),
        ("a byte less", Way::Decapsulate, |frame| frame.truncate(53)),
        ("another VLAN", Way::Encapsulate, |frame| frame[15] ^= 1),
        ("another station", Way::Relay, |frame| frame[5] ^= 2),
    ];
    for (what, way, deed) in wrong {
        let function = Function::new(Some(way), deed);
        let gtpu = Gtpu::processed(way, &teids(9), 9).unwrap();
        let outcome = function.ask("90", gtpu, WHOLE);
        assert_eq!(outcome.received, 0, "{what}: {outcome}");
        assert!(
            outcome.faults.changed > 0 && !outcome.is_sound(),
            "{what}: {outcome}"
        );
    }
    // What is far behind the headers is looked at when that is asked for.
    let function = Function::new(Some(Way::Relay), |frame| frame[1000] ^= 1);
    for whole in [true, false] {
        let gtpu = Gtpu::processed(Way::Relay, &teids(9), 9).unwrap();
        let checks = Checks { whole, ..WHOLE };
        let outcome = function.ask("1522", gtpu, checks);
        assert_eq!(outcome.received == 0, whole, "{outcome}");
    }
}

#[test]
fn who_is_no_function_brings_frames_as_they_were_or_turned() {
    let kept = |way| Gtpu::kept(way, 3, 3).unwrap();
    let turned = |frame: &mut Vec<u8>| {
        frame[..12].rotate_left(6);
        frame[30..38].rotate_left(4);
        frame[38..42].rotate_left(2);
    };
    for way in [Way::Relay, Way::Encapsulate] {
        let straight = Function::new(None, |_| ()).ask("90", kept(way), WHOLE);
        assert!(straight.is_sound() && straight.received > 0, "{straight}");
        let other_macs = Function::new(None, |frame| frame[..12].rotate_left(6));
        let checks = Checks {
            skips_macs: true,
            ..WHOLE
        };
        let outcome = other_macs.ask("90", kept(way), checks);
        assert!(outcome.is_sound() && outcome.received > 0, "{outcome}");
        let checks = Checks {
            is_turned: true,
            ..WHOLE
        };
        let function = Function::new(None, turned);
        let outcome = function.ask("90", kept(way), checks);
        assert!(outcome.is_sound() && outcome.received > 0, "{outcome}");
        let outcome = function.ask("90", kept(way), WHOLE);
        assert_eq!(outcome.received, 0, "{outcome}");
    }
}

#[test]
fn a_number_is_known_by_its_end() {
    let gtpu = Gtpu::kept(Way::Relay, 1, 2).unwrap();
    let pattern = Pattern {
        sizes: Sizes::Fixed(90),
        flows: 2,
        macs: MACS,
        content: Content::Udp,
    };
    let (users, bursts) = gtpu.make(&pattern, 1).unwrap();
    let mut head = bursts[0].get(0).unwrap().head().to_vec();
    for number in [0, 5, u64::from(u32::MAX), 1 << 32, (3 << 32) + 7] {
        users.write(0, 1, 0xabcd_1234, number, &mut head);
        for sent in [number + 1, number + 1_000_000] {
            let stamp = users.read(&head, sent).unwrap();
            assert_eq!((stamp.run, stamp.number), (0x1234, number));
            assert!(users.is_like((0, 1), &stamp, &head, 90, WHOLE));
            assert!(
                !users.is_like((0, 0), &stamp, &head, 90, WHOLE),
                "another flow's"
            );
        }
        // Of this run nobody has sent it yet, and it may be an earlier one's.
        let early = users.read(&head, number).unwrap();
        assert!(early.run == 0x1234 && early.number != number);
    }
    head[54 + 28..54 + 32].fill(0xff);
    assert_eq!(users.read(&head, 5).unwrap().number, u64::MAX);
    head[17] = 6;
    assert_eq!(users.read(&head, 5), None);
}

#[test]
fn bearers_take_turns_and_each_has_one() {
    let mut order = shuffled(1000);
    assert_ne!(order, (0..1000).collect::<Vec<u32>>());
    order.sort_unstable();
    assert_eq!(order, (0..1000).collect::<Vec<u32>>());
    for (bearers, flows) in [
        (0, 2),
        (3, 2),
        (1, 16_385),
        (BEARERS_MAX + 1, BEARERS_MAX + 1),
    ] {
        assert!(
            Gtpu::kept(Way::Relay, bearers, flows).is_err(),
            "{bearers} {flows}"
        );
    }
    let relay =
        r#"{"core":{"address":"198.18.1.9","teid":8},"radio":{"address":"198.18.0.9","teid":8}}"#;
    assert_eq!(Way::Relay.bearer(7), relay);
    let plain = r#"{"core":{"user":"10.0.0.8"},"radio":{"address":"198.18.0.9","teid":8}}"#;
    assert_eq!(Way::Decapsulate.bearer(7), plain);
    assert!("uplink".parse::<Way>().is_err());
    let short = Pattern {
        sizes: Sizes::Fixed(85),
        flows: 1,
        macs: MACS,
        content: Content::Udp,
    };
    let made = Gtpu::kept(Way::Relay, 1, 1).unwrap().make(&short, 32);
    assert!(made.is_err());
}
