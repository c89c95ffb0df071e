//! The generator against somebody who returns its packets, or does what he should not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use millrace_port::memif::{Config, Memif, Role};
use millrace_port::{Burst, Port};

use super::*;

/// What becomes of packet `number` of those that come: these are sent instead.
type Deed = fn(number: u64, packet: Vec<u8>, kept: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>>;

struct Returner {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Returner {
    fn new(deed: Deed) -> Returner {
        let directory = tempfile::tempdir().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let mut port =
            Memif::new(Config::new(Role::Server, directory.path().join("port"))).unwrap();
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (mut received, mut sent) = (Burst::new(32), Burst::new(1));
            let (mut number, mut kept) = (0, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                port.poll(Instant::now());
                if port.receive(0, &mut received) == 0 {
                    std::thread::yield_now();
                }
                for packet in received.iter() {
                    for packet in deed(number, packet.to_vec(), &mut kept) {
                        sent.clear();
                        assert!(sent.push(&packet));
                        while port.transmit(0, &sent, 0) == 0 && !stop.load(Ordering::Relaxed) {
                            std::thread::yield_now();
                        }
                    }
                    number += 1;
                }
                received.clear();
            }
        });
        Returner {
            over,
            thread: Some(thread),
            directory,
        }
    }

    fn ask(&self, sizes: Sizes, flows: usize, rate: Option<f64>, whole: bool) -> Outcome {
        let path = self.directory.path().join("port");
        let place: Place = format!("memif-client:{}", path.display()).parse().unwrap();
        let stop = AtomicBool::new(false);
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let pattern = Pattern { sizes, flows, macs };
        let mut generator = Generator::open(&place, None, pattern, &stop).unwrap();
        let checks = Checks {
            skips_macs: false,
            whole,
        };
        let options = Options {
            rate,
            seconds: 0.2,
            checks,
            latency: true,
        };
        generator.run(&options, &stop).unwrap()
    }
}

impl Drop for Returner {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// So few that nobody is short of room.
const SLOWLY: Option<f64> = Some(20_000.0);

#[test]
fn what_comes_back_as_it_was_is_received_once() {
    let returner = Returner::new(|_, packet, _| vec![packet]);
    for (sizes, flows) in [("64", 1), ("imix", 7), ("1518", 100), ("9018", 3)] {
        let outcome = returner.ask(sizes.parse().unwrap(), flows, SLOWLY, true);
        assert!(outcome.is_sound() && outcome.sent > 0, "{outcome}");
        assert_eq!(outcome.received + outcome.lost, outcome.sent, "{outcome}");
        assert_eq!(outcome.latency.count, outcome.received);
    }
    let most = returner.ask(Sizes::Fixed(64), 33, None, false);
    assert!(most.is_sound() && most.received > 0, "{most}");
}

#[test]
fn what_was_lost_is_counted() {
    let returner = Returner::new(|number, packet, _| {
        if number % 10 == 3 {
            Vec::new()
        } else {
            vec![packet]
        }
    });
    let outcome = returner.ask(Sizes::Fixed(64), 1, SLOWLY, false);
    assert!(outcome.is_sound(), "{outcome}");
    // Others than those would be lost where the machine has no time for it.
    assert!(outcome.lost >= outcome.sent / 10, "{outcome}");
}

#[test]
fn what_comes_twice_or_late_or_changed_is_told() {
    let twice = Returner::new(|number, packet, _| {
        let copies = if number % 10 == 0 { 2 } else { 1 };
        vec![packet; copies]
    });
    let faults = twice.ask(Sizes::Fixed(64), 5, SLOWLY, false).faults;
    assert!(faults.doubled > 0, "{faults:?}");
    assert_eq!(
        (faults.overtaken, faults.changed, faults.strange),
        (0, 0, 0)
    );
    let late = Returner::new(|number, packet, kept| match number % 10 {
        4 => {
            kept.push(packet);
            Vec::new()
        }
        5 => [vec![packet], std::mem::take(kept)].concat(),
        _ => vec![packet],
    });
    let faults = late.ask(Sizes::Fixed(64), 1, SLOWLY, false).faults;
    assert!(faults.overtaken > 0, "{faults:?}");
    assert_eq!((faults.doubled, faults.changed, faults.strange), (0, 0, 0));
    assert_eq!(
        late.ask(Sizes::Fixed(64), 32, SLOWLY, false).faults,
        Faults::default(),
        "flows may overtake each other"
    );
}

#[test]
fn changed_bytes_are_found_wherever_they_are() {
    let returner = Returner::new(|number, mut packet, _| {
        // MAC addresses, headers, the stamp's number, the head's end, the last byte.
        let places = [0, 30, 50, 127, packet.len() - 1];
        packet[places[number as usize % 5]] ^= 0x40;
        vec![packet]
    });
    let outcome = returner.ask(Sizes::Fixed(1000), 3, SLOWLY, true);
    let faults = outcome.faults;
    assert_eq!(outcome.received, 0, "{outcome}");
    assert!(faults.changed > 0, "{outcome}");
    let partly = returner.ask(Sizes::Fixed(1000), 3, SLOWLY, false);
    assert!(
        partly.received > 0,
        "the last byte is not looked at: {partly}"
    );
}

#[test]
fn ports_and_lengths_that_cannot_be_are_told() {
    for wrong in [
        "",
        "memif-server",
        "memif-server:",
        "tap:x",
        "memif-client:/x,ring=1000",
        "memif-client:/x,ring",
        "memif-client:/x,colour=1",
    ] {
        assert!(wrong.parse::<Place>().is_err(), "{wrong:?}");
    }
    for wrong in ["", "61", "9019", "x"] {
        assert!(wrong.parse::<Sizes>().is_err(), "{wrong:?}");
    }
    let place: Place = "memif-client:/x,id=3,ring=64,buffer=4096".parse().unwrap();
    assert_eq!(
        place.to_string(),
        "memif-client:/x,id=3,ring=64,buffer=4096"
    );
}
