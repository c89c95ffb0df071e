//! Queues of interfaces: what the program takes and what it leaves, and what becomes of the interface.

mod ends;
mod handed;

use std::fs;
use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_port::af_xdp::{AfXdp, Config, Mode, Take, open};
use millrace_port::{Burst, Cause, Port, State};
use nix::sched::{CloneFlags, unshare};

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// A pair of interfaces, in a network namespace for this thread. False, and a line that says so, where there is none to be had.
fn is_apart() -> bool {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        eprintln!("skipped: no network namespace here: {error}");
        return false;
    }
    fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip(
        "link add from numtxqueues 2 numrxqueues 2 type veth peer name to numtxqueues 2 numrxqueues 2",
    );
    ip("link set from up");
    ip("link set to up");
    true
}

fn config(interface: &str, take: &[Take]) -> Config {
    let mut config = Config::new(interface);
    config.take = take.to_vec();
    config
}

/// A port. One before it leaves its queue a little later than it is closed.
fn opened(config: &Config) -> AfXdp {
    let begin = Instant::now();
    loop {
        match AfXdp::open(config) {
            Ok(port) => return port,
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
            Err(error) => panic!("{error}"),
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn send(port: &mut AfXdp, frame: &[u8]) {
    let mut burst = Burst::new(1);
    assert!(burst.push(frame));
    assert_eq!(port.transmit(0, &burst, 0), 1);
}

/// What has come by then: a frame is there when the call that sent it returns, or very soon.
fn received(port: &mut AfXdp, wanted: usize) -> Vec<Vec<u8>> {
    let mut burst = Burst::new(64);
    let mut arrived = Vec::new();
    let begin = Instant::now();
    while arrived.len() < wanted && begin.elapsed() < Duration::from_secs(20) {
        for queue in 0..port.receive_queues() {
            port.receive(queue, &mut burst);
            arrived.extend(burst.iter().map(|packet| packet.to_vec()));
            port.release(queue);
        }
        port.poll(Instant::now());
    }
    arrived
}

fn tagged(tags: &[(u16, u16)], ether_type: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for (kind, tag) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(rest);
    frame
}

fn ipv4(options: usize, protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 20 + options];
    header[0] = 0x40 | (5 + options / 4) as u8;
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header[9] = protocol;
    header.extend(rest);
    tagged(&[], 0x0800, &header)
}

fn ipv6(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 40];
    (header[0], header[6]) = (0x60, protocol);
    header.extend(rest);
    tagged(&[], 0x86dd, &header)
}

fn ports(to: u16, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0, 1, 0, 0, 0, 0, 0, 0];
    header[2..4].copy_from_slice(&to.to_be_bytes());
    header.extend(rest);
    header
}

fn vxlan(flags: u8, vni: u32) -> Vec<u8> {
    let mut header = vec![flags, 0, 0, 0];
    header.extend((vni << 8).to_be_bytes());
    header
}

type Frames = Vec<Vec<u8>>;

/// Each rule, frames that it takes, and frames that it leaves.
fn rules() -> Vec<(Take, Frames, Frames)> {
    let udp = |port| ports(port, &[]);
    let vni = 0x00ab_cdef;
    vec![
        (Take::All, vec![vec![7; 14], vec![9; 60]], vec![]),
        (
            Take::EtherType(0x88b5),
            vec![
                tagged(&[], 0x88b5, &[1; 40]),
                tagged(&[(0x8100, 5)], 0x88b5, &[1; 40]),
                tagged(&[(0x88a8, 5), (0x8100, 6)], 0x88b5, &[]),
            ],
            vec![tagged(&[], 0x88b6, &[1; 40]), ipv4(0, 17, 0, &udp(1))],
        ),
        (
            Take::Protocol(47),
            vec![ipv4(0, 47, 0, &[]), ipv4(8, 47, 0, &[]), ipv6(47, &[])],
            vec![ipv4(0, 46, 0, &[0; 30]), ipv6(17, &[0; 30])],
        ),
        (
            Take::UdpPort(2152),
            vec![
                ipv4(0, 17, 0, &udp(2152)),
                ipv4(40, 17, 0, &udp(2152)),
                ipv4(0, 17, 0x4000, &udp(2152)),
                ipv6(17, &udp(2152)),
            ],
            vec![
                ipv4(0, 17, 0, &udp(2153)),
                ipv4(0, 6, 0, &udp(2152)),
                ipv4(0, 17, 0x2000, &udp(2152)),
                ipv4(0, 17, 1, &udp(2152)),
                ipv4(0, 17, 0, &udp(2152)[..7]),
                ipv6(6, &udp(2152)),
            ],
        ),
        (
            Take::TcpPort(80),
            vec![ipv4(0, 6, 0, &udp(80)), ipv6(6, &udp(80))],
            vec![ipv4(0, 17, 0, &udp(80)), ipv4(0, 6, 0, &udp(81))],
        ),
        (
            Take::Vni(vni),
            vec![
                ipv4(0, 17, 0, &ports(4789, &vxlan(8, vni))),
                ipv6(17, &ports(4789, &vxlan(8, vni))),
            ],
            vec![
                ipv4(0, 17, 0, &ports(4789, &vxlan(8, vni + 1))),
                ipv4(0, 17, 0, &ports(4789, &vxlan(0, vni))),
                ipv4(0, 17, 0, &ports(4790, &vxlan(8, vni))),
                ipv4(0, 6, 0, &ports(4789, &vxlan(8, vni))),
                ipv4(0, 17, 0, &ports(4789, &vxlan(8, vni)[..7])),
            ],
        ),
    ]
}

#[test]
fn what_is_asked_for_is_taken_and_nothing_else() {
    if !is_apart() {
        return;
    }
    let mut sender = AfXdp::open(&config("from", &[])).unwrap();
    for (rule, taken, left) in rules() {
        let mut receiver = opened(&config("to", &[rule]));
        for frame in left.iter().chain(&taken) {
            send(&mut sender, frame);
        }
        assert!(received(&mut receiver, taken.len()) == taken, "{rule:?}");
        let counters = receiver.counters().received;
        assert_eq!(
            (counters.packets, counters.drops()),
            (taken.len() as u64, 0)
        );
    }
    // All rules at once, but the one that takes everything: each takes what it takes alone.
    let all: Vec<_> = rules().split_off(1);
    let together: Vec<Take> = all.iter().map(|(rule, ..)| *rule).collect();
    let mut receiver = opened(&config("to", &together));
    let frames: Vec<_> = all.into_iter().flat_map(|(_, taken, _)| taken).collect();
    frames.iter().for_each(|frame| send(&mut sender, frame));
    assert!(received(&mut receiver, frames.len()) == frames);
}

#[test]
fn an_interface_has_one_program_and_loses_it_with_its_port() {
    if !is_apart() {
        return;
    }
    let port = AfXdp::open(&config("to", &[Take::All])).unwrap();
    let refused = AfXdp::open(&config("to", &[Take::All])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
    drop(port);
    drop(opened(&config("to", &[Take::All])));
}

#[test]
fn a_port_is_made_of_what_was_opened_before() {
    if !is_apart() {
        return;
    }
    let mut config = config("to", &[Take::UdpPort(9)]);
    config.queues = 2;
    let opened = open(&config).unwrap();
    // Nobody has bound the sockets: what is taken is lost, and nothing else.
    let mut sender = AfXdp::open(&Config::new("from")).unwrap();
    send(&mut sender, &ipv4(0, 17, 0, &ports(9, &[])));
    let mut port = AfXdp::from_opened(opened, &config).unwrap();
    assert_eq!((port.receive_queues(), port.transmit_queues()), (2, 2));
    send(&mut sender, &ipv4(0, 17, 0, &ports(9, &[5])));
    assert_eq!(received(&mut port, 1), [ipv4(0, 17, 0, &ports(9, &[5]))]);
    let mut burst = Burst::new(1);
    assert!(burst.push(&[1; 60]));
    assert_eq!(port.transmit(2, &burst, 0), 0);
    port.give_up(2, &burst, 0);
    assert_eq!(port.counters().transmitted.dropped(Cause::NoQueue), 1);
}

#[test]
fn queues_are_parted_among_threads_and_have_their_program_as_long_as_one_is_there() {
    if !is_apart() {
        return;
    }
    let mut both = config("to", &[Take::All]);
    both.queues = 2;
    let parts = AfXdp::open(&both).unwrap().split(8).unwrap();
    assert_eq!(parts.len(), 2);
    let mut sender = Config::new("from");
    sender.queues = 2;
    // What goes by one queue comes by the other end's queue of that number.
    let mut sender = AfXdp::open(&sender).unwrap();
    let mut burst = Burst::new(1);
    let mut go = |queue: usize, byte: u8| {
        burst.clear();
        assert!(burst.push(&[byte; 60]));
        assert_eq!(sender.transmit(queue, &burst, 0), 1);
    };
    (0..2).for_each(|queue| go(queue, queue as u8));
    let threads = parts.into_iter().zip(0..).map(|(mut port, byte)| {
        std::thread::spawn(move || {
            assert_eq!(received(&mut port, 1), [vec![byte; 60]]);
            port
        })
    });
    let threads: Vec<_> = threads.collect();
    let parts = threads.into_iter().map(|thread| thread.join().unwrap());
    let mut parts: Vec<AfXdp> = parts.collect();
    drop(parts.remove(0));
    go(1, 7);
    assert_eq!(received(&mut parts[0], 1), [vec![7; 60]]);
    assert_eq!(parts[0].counters().received.packets, 2);
    drop(parts);
    drop(opened(&both));
}

#[test]
fn more_than_there_is_room_for_is_dropped_and_counted() {
    if !is_apart() {
        return;
    }
    let mut config = config("to", &[Take::All]);
    config.ring_size = 64;
    let mut receiver = AfXdp::open(&config).unwrap();
    let mut sender = AfXdp::open(&Config::new("from")).unwrap();
    let mut burst = Burst::new(100);
    (0..100u8).for_each(|number| assert!(burst.push(&[number; 60])));
    assert_eq!(sender.transmit(0, &burst, 0), 100);
    let arrived = received(&mut receiver, 64);
    assert_eq!(arrived.len(), 64);
    let begin = Instant::now();
    while receiver.counters().received.offered() < 100 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        sender.poll(Instant::now());
    }
    assert_eq!(receiver.counters().received.dropped(Cause::Full), 36);
    // The frames were given back, and go round many times.
    for _ in 0..50 {
        let mut burst = Burst::new(40);
        (0..40u8).for_each(|number| assert!(burst.push(&[number; 700])));
        assert_eq!(sender.transmit(0, &burst, 0), 40);
        assert_eq!(received(&mut receiver, 40).len(), 40);
    }
    let too_long = vec![0; 1793];
    send(&mut sender, &too_long);
    assert_eq!(sender.counters().transmitted.dropped(Cause::TooLong), 1);
}

#[test]
fn an_interface_that_is_deleted_closes_its_port() {
    if !is_apart() {
        return;
    }
    let mut port = AfXdp::open(&config("to", &[Take::All])).unwrap();
    port.poll(Instant::now());
    assert!(port.arm());
    ip("link del to");
    let at = port.poll_at().unwrap();
    assert!(matches!(port.poll(at), State::Closed(_)));
    assert_eq!(port.poll_at(), None);
    let mut burst = Burst::new(1);
    assert!(burst.push(&[1; 60]));
    assert_eq!(port.transmit(0, &burst, 0), 0);
    assert_eq!(port.receive(0, &mut burst), 0);
}

#[test]
fn what_cannot_be_is_refused() {
    if !is_apart() {
        return;
    }
    let refused = |change: fn(&mut Config), kind: ErrorKind| {
        let mut config = config("to", &[Take::All]);
        change(&mut config);
        let error = AfXdp::open(&config).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    };
    refused(|config| config.ring_size = 100, ErrorKind::InvalidInput);
    refused(|config| config.frame_bytes = 1500, ErrorKind::InvalidInput);
    refused(|config| config.queues = 0, ErrorKind::InvalidInput);
    assert!(AfXdp::open(&Config::new("nowhere")).is_err());
    let mut zero_copy = config("to", &[Take::All]);
    zero_copy.mode = Mode::ZeroCopy;
    // A veth's driver cannot.
    let refused = AfXdp::open(&zero_copy).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(!opened(&config("to", &[Take::All])).is_zero_copy());
}
