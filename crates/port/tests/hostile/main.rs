//! Peers that say and write what they must not: the connection ends with a reason, and the port goes on with the next peer.

use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_port::memif::{Config, Memif, Role};
use millrace_port::{Burst, Cause, Port, State};
use millrace_shm::sys::create_sealed;
use millrace_wire::memif::{FLAG_NEXT, MESSAGE_BYTES, Message, RING_HEAD, RING_TAIL, Text};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

mod bounds;
mod handed;
mod raw;

use raw::{BUFFERS, LOG2_SIZE, REGION_BYTES, Raw, SIZE, init, say};

fn until(port: &mut Memif, holds: impl Fn(&Memif) -> bool) {
    let begin = Instant::now();
    while !holds(port) {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{:?}",
            port.state()
        );
        port.poll(Instant::now());
    }
}

fn server(path: &Path) -> Memif {
    Memif::new(Config::new(Role::Server, path)).unwrap()
}

fn why(port: &Memif) -> String {
    match port.state() {
        State::Connecting(Some(why)) => why.to_string(),
        other => format!("{other:?}"),
    }
}

/// Plays something that a hostile client does, and compares what the port says of it, and says to it.
fn play(attack: impl Fn(&Raw, &mut Memif), wanted: &str) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let raw = Raw::new(&mut port, &path);
    attack(&raw, &mut port);
    port.poll(Instant::now());
    assert_eq!(why(&port), wanted);
    assert_eq!(raw.reason(), wanted);
    drop(raw);
    // Nobody else is harmed.
    let raw = Raw::new(&mut port, &path);
    raw.describe(0, 0, 0, 0, BUFFERS, 64);
    raw.set(0, RING_HEAD, 1);
    let before = port.counters().received.packets;
    assert_eq!(port.receive(0, &mut Burst::new(4)), 1);
    assert_eq!(port.counters().received.packets, before + 1);
}

fn receive(port: &mut Memif, wanted: usize) {
    assert_eq!(port.receive(0, &mut Burst::new(64)), wanted);
    assert_eq!(
        port.receive(0, &mut Burst::new(64)),
        0,
        "nothing passes any more"
    );
}

#[test]
fn cursors_that_cannot_be_end_the_connection() {
    let attack = |raw: &Raw, port: &mut Memif| {
        raw.set(0, RING_HEAD, SIZE + 1);
        receive(port, 0);
    };
    play(
        attack,
        "the peer's cursor 17 is too far from ours, 0, in a ring of 16",
    );
    let attack = |raw: &Raw, port: &mut Memif| {
        raw.set(1, RING_HEAD, u16::MAX);
        let mut burst = Burst::new(1);
        assert!(burst.push(&[0; 64]));
        assert_eq!(port.transmit(0, &burst, 0), 0);
        assert_eq!(port.transmit(0, &burst, 0), 0);
    };
    play(
        attack,
        "the peer's cursor 65535 is too far from ours, 0, in a ring of 16",
    );
}

#[test]
fn descriptors_that_cannot_be_end_the_connection_after_those_before() {
    let places = [
        (1, 0, 64),
        (0, REGION_BYTES as u32 - 63, 64),
        (0, u32::MAX, u32::MAX),
        (u16::MAX, u32::MAX, 1),
    ];
    for (region, offset, length) in places {
        let wanted =
            format!("a descriptor's {length} bytes at {offset} are not inside region {region}");
        let attack = |raw: &Raw, port: &mut Memif| {
            raw.describe(0, 0, 0, 0, BUFFERS, 64);
            raw.describe(0, 1, 0, region, offset, length);
            raw.set(0, RING_HEAD, 2);
            receive(port, 1);
            let received = port.counters().received;
            assert_eq!(
                (received.packets, received.dropped(Cause::Malformed)),
                (1, 1)
            );
        };
        play(attack, &wanted);
        let attack = |raw: &Raw, port: &mut Memif| {
            raw.describe(1, 0, 0, region, offset, length);
            raw.set(1, RING_HEAD, 1);
            let mut burst = Burst::new(1);
            assert!(burst.push(&[0; 64]));
            assert_eq!(port.transmit(0, &burst, 0), 0);
        };
        play(attack, &wanted);
    }
}

#[test]
fn a_packet_without_an_end_ends_the_connection() {
    let attack = |raw: &Raw, port: &mut Memif| {
        for slot in 0..usize::from(SIZE) {
            raw.describe(0, slot, FLAG_NEXT, 0, BUFFERS, 64);
        }
        raw.set(0, RING_HEAD, SIZE - 1);
        // It could still end.
        assert_eq!(port.receive(0, &mut Burst::new(4)), 0);
        assert!(matches!(port.poll(Instant::now()), State::Connected));
        raw.set(0, RING_HEAD, SIZE);
        receive(port, 0);
    };
    play(attack, "a packet does not end within its ring of 16");
}

#[test]
fn a_message_out_of_turn_ends_the_connection() {
    play(
        |raw, _| raw.say(&Message::Ack.emit(), None),
        "unexpected message ACK",
    );
    play(
        |raw, _| raw.say(&[9; MESSAGE_BYTES], None),
        "a message of unknown kind 2313",
    );
    play(
        |raw, _| raw.say(&[1], None),
        "a message of 1 bytes, not 128",
    );
    play(
        |raw, _| raw.say(&[1; MESSAGE_BYTES * 2], None),
        "a message of 129 bytes, not 128",
    );
}

#[test]
fn descriptors_that_are_too_many_are_closed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    for count in [2, 5, 253] {
        let (end, other) = UnixStream::pair().unwrap();
        let socket = Raw::connect(&path);
        let numbers = vec![other.as_raw_fd(); count];
        let rights = [ControlMessage::ScmRights(&numbers)];
        let parts = [IoSlice::new(&[0xff; MESSAGE_BYTES])];
        sendmsg::<()>(socket.as_raw_fd(), &parts, &rights, MsgFlags::empty(), None).unwrap();
        drop(other);
        port.poll(Instant::now());
        port.poll(Instant::now());
        assert!(!matches!(port.state(), State::Connected));
        // Nobody has the other end any more, as soon as the thread that closes it has run.
        end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!((&end).read(&mut [0]).unwrap(), 0, "{count}");
    }
}

#[test]
fn a_second_client_is_told_that_there_is_one() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let first = Raw::new(&mut port, &path);
    let second = Raw {
        socket: Raw::connect(&path),
        memory: create_sealed(c"second", 4096, 0).unwrap(),
        bell: EventFd::new().unwrap(),
        log2_size: LOG2_SIZE,
    };
    second.say(&init(0).emit(), None);
    for _ in 0..2 {
        assert!(matches!(port.poll(Instant::now()), State::Connected));
    }
    assert_eq!(second.reason(), "already connected");
    drop(first);
}

#[test]
fn a_bell_that_is_full_and_would_wait_holds_nobody_up() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let raw = Raw::new(&mut port, &path);
    fcntl(&raw.bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    raw.bell.write(u64::MAX - 1).unwrap();
    raw.describe(1, 0, 0, 0, BUFFERS, 64);
    raw.set(1, RING_HEAD, 1);
    let mut burst = Burst::new(1);
    assert!(burst.push(&[0; 64]));
    assert_eq!(port.transmit(0, &burst, 0), 1);
    assert_eq!(port.counters().wakes, 1);
}

#[test]
fn a_client_that_goes_silent_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let silent = Raw::connect(&path);
    let now = Instant::now();
    port.poll(now);
    let until = port.poll_at().unwrap();
    assert!(until > now);
    port.poll(until);
    assert_eq!(why(&port), "the peer began to connect and went silent");
    drop(silent);
    Raw::new(&mut port, &path);
}

#[test]
fn of_many_who_say_nothing_the_last_is_served_at_once() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let silent: Vec<_> = (0..40)
        .map(|_| {
            let socket = Raw::connect(&path);
            port.poll(Instant::now());
            socket
        })
        .collect();
    Raw::new(&mut port, &path);
    drop(silent);
}

#[test]
fn who_is_refused_at_a_socket_of_two_ports_harms_neither() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let mut config = Config::new(Role::Server, &path);
    config.id = 1;
    let mut other = Memif::new(config).unwrap();
    // In the middle of connecting.
    let making = Raw::connect(&path);
    say(&making, &init(1).emit(), None);
    other.poll(Instant::now());
    other.poll(Instant::now());
    let stranger = Raw::connect(&path);
    say(&stranger, &init(7).emit(), None);
    port.poll(Instant::now());
    port.poll(Instant::now());
    assert_eq!(why(&port), "no interface has id 7 here");
    other.poll(Instant::now());
    assert_eq!(why(&other), "Connecting(None)");
    let _first = Raw::new(&mut port, &path);
    // What is said out of turn there is said to the other port.
    say(&making, &Message::Ack.emit(), None);
    other.poll(Instant::now());
    assert_eq!(why(&other), "unexpected message ACK");
    assert!(matches!(port.poll(Instant::now()), State::Connected));
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// One thing that a client could do, mostly near what is right.
fn scribble(raw: &Raw, random: &mut Random, heads: &mut [u16; 2]) {
    let ring = random.below(2) as usize;
    match random.below(12) {
        0..6 => {
            let given = heads[ring].wrapping_sub(raw.tail(ring));
            let most = if random.below(400) == 0 {
                u16::MAX
            } else {
                SIZE - given.min(SIZE)
            };
            heads[ring] = heads[ring].wrapping_add(most.min(random.below(4) as u16));
            raw.set(ring, RING_HEAD, heads[ring]);
        }
        6..10 => {
            let slot = random.below(u64::from(SIZE)) as usize;
            let region = u16::from(random.below(400) == 0);
            let offset = BUFFERS + random.below(48_800) as u32;
            let (flags, length) = (u16::from(random.below(4) == 0), random.below(300) as u32);
            raw.describe(ring, slot, flags, region, offset, length);
        }
        10 if random.below(40) == 0 => raw.set(0, RING_TAIL, random.next() as u16),
        _ if random.below(20) > 0 => {}
        _ => {
            let offset = random.below(REGION_BYTES as u64 - 8) as usize;
            raw.write(offset, &random.next().to_le_bytes());
        }
    }
}

#[test]
fn whatever_a_client_scribbles_the_port_goes_on_and_counts_right() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let mut handed_out = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let raw = Raw::new(&mut port, &path);
        for slot in 0..usize::from(SIZE) {
            raw.describe(0, slot, 0, 0, BUFFERS, 100);
            raw.describe(1, slot, 0, 0, BUFFERS, 200);
        }
        let mut heads = [0; 2];
        let mut burst = Burst::new(8);
        for _ in 0..200 {
            scribble(&raw, &mut random, &mut heads);
            handed_out += port.receive(0, &mut burst) as u64;
            let bytes: usize = burst.iter().map(|packet| packet.to_vec().len()).sum();
            assert_eq!(
                bytes,
                burst.iter().map(|packet| packet.len()).sum::<usize>()
            );
            port.transmit(0, &burst, 0);
        }
        assert_eq!(port.counters().received.packets, handed_out, "seed {seed}");
        drop(raw);
        until(&mut port, |port| {
            matches!(port.state(), State::Connecting(Some(_)))
        });
    }
    assert!(handed_out > 10_000, "{handed_out}");
}

#[test]
fn whatever_a_client_says_the_port_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    for seed in 0..300 {
        let mut random = Random(seed);
        let socket = Raw::connect(&path);
        let memory = create_sealed(c"hostile", 4096, 0).unwrap();
        let bell = EventFd::new().unwrap();
        for _ in 0..8 {
            let mut bytes = [0; MESSAGE_BYTES];
            bytes.fill_with(|| (random.below(3) as u8).wrapping_mul(random.next() as u8));
            bytes[..2].copy_from_slice(&(random.below(10) as u16).to_le_bytes());
            if random.below(2) == 0 {
                bytes[2..7].copy_from_slice(&[0, 2, 0, 0, 0]);
                bytes[7..9].fill(0);
            }
            let fd = [None, Some(memory.as_fd()), Some(bell.as_fd())][random.below(3) as usize];
            say(
                &socket,
                &bytes[..MESSAGE_BYTES - usize::from(random.below(20) == 0)],
                fd,
            );
            port.poll(Instant::now());
        }
    }
    until(&mut port, |port| !matches!(port.state(), State::Connected));
    Raw::new(&mut port, &path);
}
