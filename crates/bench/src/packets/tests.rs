//! The generator against somebody who returns its packets, or does what he should not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use millrace_port::memif::{Config, Memif, Role};
use millrace_port::{Burst, Port};

use super::*;

/// What becomes of packet `number` of those that come: these are sent instead.
pub(super) type Deed = fn(number: u64, packet: Vec<u8>, kept: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>>;

pub(super) struct Returner {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Returner {
    pub(super) fn new(deed: Deed) -> Returner {
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
        let options = Options {
            rate,
            seconds: 0.2,
            checks: Checks {
                whole,
                ..Checks::default()
            },
            latency: Latencies::All,
        };
        self.run(sizes, flows, &options)
    }

    fn run(&self, sizes: Sizes, flows: usize, options: &Options) -> Outcome {
        let pattern = Pattern {
            flows,
            ..plain_of(sizes)
        };
        self.send(pattern, options)
    }

    pub(super) fn send(&self, pattern: Pattern, options: &Options) -> Outcome {
        let path = self.directory.path().join("port");
        let place: Place = format!("memif-client:{}", path.display()).parse().unwrap();
        let stop = AtomicBool::new(false);
        let mut generator = Generator::open(&place, None, pattern, &stop).unwrap();
        some(&mut generator, options)
    }
}

/// A run in which something came: on a machine that has no time for the other side a short one has nothing.
fn some(generator: &mut Generator, options: &Options) -> Outcome {
    let stop = AtomicBool::new(false);
    let mut runs = (0..50).map(|_| generator.run(options, &stop).unwrap());
    let is_some = |run: &Outcome| run.received > 0 || run.faults != Faults::default();
    runs.find(is_some).expect("nothing came in fifty runs")
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
pub(super) const SLOWLY: Option<f64> = Some(20_000.0);

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
fn latencies_of_slices_are_of_so_much_time_and_not_of_their_beginnings() {
    let returner = Returner::new(|_, packet, _| vec![packet]);
    let options = Options {
        rate: SLOWLY,
        seconds: 0.05,
        checks: Checks::default(),
        latency: Latencies::Undisturbed,
    };
    let outcome = returner.run(Sizes::Fixed(64), 3, &options);
    assert!(outcome.is_sound() && outcome.received > 0, "{outcome}");
    assert_eq!(outcome.received + outcome.lost, outcome.sent, "{outcome}");
    // Five slices of 10 ms at least, and a millisecond before each.
    assert!(outcome.seconds >= 0.055, "{outcome}");
    let count = outcome.latency.count;
    assert!(count > 0 && count < outcome.received, "{outcome}");
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
    let overtaken: Deed = |number, packet, kept| match number % 10 {
        4 => {
            kept.push(packet);
            Vec::new()
        }
        5 => [vec![packet], std::mem::take(kept)].concat(),
        _ => vec![packet],
    };
    // One each: what it keeps at the end is a stranger to the next generator.
    let late = Returner::new(overtaken);
    let faults = late.ask(Sizes::Fixed(64), 1, SLOWLY, false).faults;
    assert!(faults.overtaken > 0, "{faults:?}");
    assert_eq!((faults.doubled, faults.changed, faults.strange), (0, 0, 0));
    let late = Returner::new(overtaken);
    assert_eq!(
        late.ask(Sizes::Fixed(64), 32, SLOWLY, false).faults,
        Faults::default(),
        "flows may overtake each other"
    );
}

#[test]
fn what_comes_in_a_later_run_was_lost_before_and_is_no_stranger() {
    let returner = Returner::new(|number, packet, kept| {
        let run = |packet: &[u8]| packet[pattern::STAMP_AT..][..4].to_vec();
        if number == 0 {
            kept.push(packet);
            return Vec::new();
        }
        let is_new = kept.first().is_some_and(|old| run(old) != run(&packet));
        if !is_new {
            return vec![packet];
        }
        // It comes twice: only one of them was lost.
        [vec![packet], kept.clone(), std::mem::take(kept)].concat()
    });
    let path = returner.directory.path().join("port");
    let place: Place = format!("memif-client:{}", path.display()).parse().unwrap();
    let pattern = Pattern {
        sizes: Sizes::Fixed(64),
        flows: 1,
        macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        content: Content::Udp,
    };
    let stop = AtomicBool::new(false);
    let mut generator = Generator::open(&place, None, pattern, &stop).unwrap();
    let options = Options {
        rate: SLOWLY,
        seconds: 0.2,
        checks: Checks::default(),
        latency: Latencies::None,
    };
    let first = generator.run(&options, &stop).unwrap();
    assert!(first.is_sound() && first.lost > 0, "{first}");
    let second = generator.run(&options, &stop).unwrap();
    let owed = first.lost - first.refused;
    // Others come late, too, where the machine has no time for them.
    let came = second.late + second.faults.strange;
    assert!(came >= 2, "{second}");
    assert_eq!(second.late, came.min(owed), "{second}");
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
fn the_generator_sends_to_itself_by_a_port_of_the_same_kind() {
    let stop = AtomicBool::new(false);
    let directory = tempfile::tempdir().unwrap();
    let port = directory.path().join("port").display().to_string();
    for (kind, options) in [
        ("memif-client", ",ring=256"),
        ("memif-server", ""),
        ("virtio-user-server", ",ring=256,packed=1"),
        ("vhost-user-client", ""),
    ] {
        let place: Place = format!("{kind}:{port}{options}").parse().unwrap();
        let pattern = Pattern {
            sizes: Sizes::Imix,
            flows: 3,
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            content: Content::Udp,
        };
        let generator = Generator::of_itself(&place, pattern, &stop).unwrap();
        let mut generator = generator.unwrap();
        generator.announce();
        generator
            .wait_until_it_passes(Checks::default(), &stop)
            .unwrap();
        let options = Options {
            rate: None,
            seconds: 0.05,
            checks: Checks::default(),
            latency: Latencies::None,
        };
        let outcome = some(&mut generator, &options);
        assert!(outcome.is_sound() && outcome.received > 0, "{outcome}");
    }
    let left = directory.path().read_dir().unwrap().count();
    assert_eq!(left, 0, "sockets are left");
    let interface: Place = "af-xdp:none".parse().unwrap();
    assert!(interface.with_itself().is_none());
}

/// The ends of a memif that are called `name`, the server first.
fn ends(directory: &tempfile::TempDir, name: &str) -> [Place; 2] {
    let path = directory.path().join(name);
    ["server", "client"].map(|role| format!("memif-{role}:{}", path.display()).parse().unwrap())
}

fn plain(bytes: usize) -> Pattern {
    plain_of(Sizes::Fixed(bytes))
}

pub(super) fn plain_of(sizes: Sizes) -> Pattern {
    Pattern {
        sizes,
        flows: 3,
        macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        content: Content::Udp,
    }
}

#[test]
fn one_side_counts_what_the_other_sends_and_each_can_be_ended() {
    let directory = tempfile::tempdir().unwrap();
    let [to, from] = ends(&directory, "half");
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let sender = std::thread::spawn(move || send(&from, &plain(100), &stop).unwrap());
    let received = receive(&to, 0.5, &AtomicBool::new(false)).unwrap();
    over.store(true, Ordering::Relaxed);
    let sent = sender.join().unwrap();
    assert!(received.packets > 0 && received.drops == 0, "{received}");
    assert_eq!(received.bytes, 100 * received.packets);
    let [rate] = received.rates[..] else {
        panic!("{received:?}");
    };
    assert!((rate / received.rate() - 1.0).abs() < 1e-6, "{received:?}");
    assert!(sent.packets >= received.packets && !sent.in_place, "{sent}");
    let ended = receive(&to, 0.1, &AtomicBool::new(true)).unwrap_err();
    assert!(ended.to_string().contains("ended before"), "{ended}");
}

#[test]
fn an_echo_is_recognised_by_its_headers_and_idles_when_nothing_comes() {
    let directory = tempfile::tempdir().unwrap();
    let [to, from] = ends(&directory, "echo");
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let other = std::thread::spawn(move || echo(&to, &stop).unwrap());
    let stop = AtomicBool::new(false);
    let mut generator = Generator::open(&from, None, plain(200), &stop).unwrap();
    let options = |is_turned| Options {
        rate: SLOWLY,
        seconds: 0.05,
        checks: Checks {
            whole: true,
            is_turned,
            ..Checks::default()
        },
        latency: Latencies::None,
    };
    let turned = some(&mut generator, &options(true));
    assert!(turned.is_sound() && turned.received > 0, "{turned}");
    let not = some(&mut generator, &options(false));
    assert_eq!(not.received, 0, "{not}");
    assert!(not.faults.changed > 0, "{not}");
    over.store(true, Ordering::Relaxed);
    let echoed = other.join().unwrap();
    assert!(echoed.received >= turned.received, "{echoed}");
    let returner = Returner::new(|_, packet, _| vec![packet]);
    let path = returner.directory.path().join("port");
    let place: Place = format!("memif-client:{}", path.display()).parse().unwrap();
    let mut generator = Generator::open(&place, None, plain(64), &stop).unwrap();
    let quiet = idle(
        &mut generator,
        std::process::id(),
        0.05,
        Checks::default(),
        &stop,
    )
    .unwrap();
    assert!(quiet.seconds >= 0.05 && quiet.share() > 0.0, "{quiet}");
    let nobody = idle(&mut generator, u32::MAX, 0.05, Checks::default(), &stop).unwrap_err();
    assert!(nobody.to_string().contains("no process"), "{nobody}");
}

/// What a learning switch has to hear: the address of the destination, from where the destination is.
#[test]
fn where_the_destination_is_is_announced_before_each_run() {
    let directory = tempfile::tempdir().unwrap();
    let places = ["from", "to"].map(|name| directory.path().join(name));
    let [mut from, mut to] = places
        .clone()
        .map(|path| Memif::new(Config::new(Role::Server, path)).unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let switch = std::thread::spawn(move || {
        let (mut received, mut answers) = (Burst::new(32), Vec::new());
        while !stop.load(Ordering::Relaxed) {
            for port in [&mut from, &mut to] {
                port.poll(Instant::now());
            }
            if from.receive(0, &mut received) > 0 {
                to.transmit(0, &received, 0);
            }
            to.receive(0, &mut received);
            answers.extend(received.iter().map(|packet| packet.head().to_vec()));
            std::thread::yield_now();
        }
        answers
    });
    let [from, to] =
        places.map(|path| -> Place { format!("memif-client:{}", path.display()).parse().unwrap() });
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    let pattern = Pattern {
        sizes: Sizes::Fixed(64),
        flows: 1,
        macs,
        content: Content::Udp,
    };
    let stop = AtomicBool::new(false);
    let mut generator = Generator::open(&from, Some(&to), pattern, &stop).unwrap();
    generator.announce();
    let options = Options {
        rate: SLOWLY,
        seconds: 0.05,
        checks: Checks::default(),
        latency: Latencies::None,
    };
    for _ in 0..2 {
        assert!(generator.run(&options, &stop).unwrap().is_sound());
    }
    over.store(true, Ordering::Relaxed);
    let answers = switch.join().unwrap();
    assert_eq!(answers.len(), 2);
    for answer in answers {
        assert_eq!(answer[..12], [macs[0], macs[1]].concat());
    }
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
        "memif-client:/x,packed=1",
        "virtio-user-server",
        "virtio-user-server:/x,ring=65536",
        "virtio-user-client:/x,id=1",
        "vhost-user-server:/x,ring=64",
        "ring-third:a",
        "ring-first:",
        "ring-first:a,ring=63",
        "af-xdp:eth0,id=1",
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
