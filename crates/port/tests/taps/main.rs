//! TAP interfaces, with the kernel's own stack at the other end, in a network namespace of each test's own.

mod sys;

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_port::tap::{Config, Tap, descriptors};
use millrace_port::{Burst, Cause, Checksum, Closed, Counters, Offload, Offloads, Port, State};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};

const ALL: Offloads = Offloads {
    checksum: true,
    tso4: true,
    tso6: true,
    ecn: true,
    uso: false,
};
/// Of an Ethernet, an IPv4 and a UDP header.
const UDP_AT: usize = 34;

/// A network namespace for this thread, in which nobody speaks unasked. False, and a line that says so, where there is none to be had.
fn is_apart() -> bool {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        eprintln!("skipped: no network namespace here: {error}");
        return false;
    }
    fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    true
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// A port, and a socket behind it that knows a neighbour.
fn with_socket(accepts: Offloads) -> (Tap, UdpSocket) {
    let mut config = Config::new("t0");
    config.accepts = accepts;
    let port = Tap::open(&config).unwrap();
    ip("addr add 10.9.0.1/24 dev t0");
    ip("link set t0 address 02:00:00:00:00:01 up");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev t0");
    let socket = UdpSocket::bind("10.9.0.1:1000").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    socket.connect("10.9.0.2:2000").unwrap();
    (port, socket)
}

/// Waits for a packet.
fn receive(port: &mut Tap) -> (Vec<u8>, Offload) {
    let mut burst = Burst::new(1);
    let begin = Instant::now();
    while port.receive(0, &mut burst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert!(matches!(port.poll(Instant::now()), State::Connected));
        if port.arm() {
            let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::from(1000u16)).unwrap();
        }
    }
    let packet = burst.get(0).unwrap();
    (packet.to_vec(), packet.offload())
}

/// The packet, from where it went to where it came from.
fn returned(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let (to, from) = packet.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
    let (source, destination) = packet[26..34].split_at_mut(4);
    source.swap_with_slice(destination);
    packet[UDP_AT..UDP_AT + 4].rotate_left(2);
    packet
}

fn send(port: &mut Tap, packet: &[u8], offload: Offload) -> usize {
    let mut burst = Burst::new(1);
    assert!(burst.push(packet));
    burst.set_offload(0, offload);
    port.transmit(0, &burst, 0)
}

#[test]
fn the_kernel_s_packets_come_and_ours_reach_its_sockets() {
    if !is_apart() {
        return;
    }
    let (mut port, socket) = with_socket(Offloads::default());
    for length in [1, 100, 1000, 1472] {
        socket.send(&vec![length as u8; length]).unwrap();
        let (packet, offload) = receive(&mut port);
        assert_eq!((packet.len(), offload), (42 + length, Offload::NONE));
        assert_eq!(send(&mut port, &returned(&packet), offload), 1);
        let mut buffer = [0; 2000];
        assert_eq!(socket.recv(&mut buffer).unwrap(), length);
        assert_eq!(buffer[..length], vec![length as u8; length]);
    }
    let counters = port.counters();
    let bytes = 4 * 42 + 1 + 100 + 1000 + 1472;
    for tally in [counters.received, counters.transmitted] {
        assert_eq!((tally.packets, tally.bytes, tally.drops()), (4, bytes, 0));
    }
}

#[test]
fn a_checksum_is_left_to_us_if_we_say_so_and_to_the_kernel_always() {
    if !is_apart() {
        return;
    }
    let (mut port, socket) = with_socket(ALL);
    socket.send(b"work").unwrap();
    let (packet, offload) = receive(&mut port);
    let partial = Checksum::Partial {
        start: UDP_AT as u16,
        offset: 6,
    };
    assert_eq!(offload.checksum, partial);
    // The sum of the pseudo-header is the same in the other direction.
    assert_eq!(send(&mut port, &returned(&packet), offload), 1);
    let mut buffer = [0; 100];
    assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
    // Without saying so it is a wrong checksum, and the kernel drops it.
    assert_eq!(send(&mut port, &returned(&packet), Offload::NONE), 1);
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert!(socket.recv(&mut buffer).is_err());
    assert!(port.offloads().checksum && port.offloads().tso4);
}

#[test]
fn a_packet_in_many_parts_goes_as_one() {
    if !is_apart() {
        return;
    }
    let (mut port, socket) = with_socket(ALL);
    ip("link set t0 mtu 60000");
    // Longer than the private first bytes, and so in two parts.
    let data: Vec<u8> = (0..50_000u32).map(|at| at as u8).collect();
    socket.send(&data).unwrap();
    let (packet, offload) = receive(&mut port);
    assert_eq!(packet.len(), 42 + data.len());
    assert_eq!(send(&mut port, &returned(&packet), offload), 1);
    let mut buffer = vec![0; 60_000];
    assert_eq!(socket.recv(&mut buffer).unwrap(), data.len());
    assert!(buffer[..data.len()] == data);
}

#[test]
fn each_queue_is_a_descriptor_that_another_could_have_opened() {
    if !is_apart() {
        return;
    }
    let mut config = Config::new("many%d");
    config.queues = 3;
    let queues = descriptors(&config).unwrap();
    let mut port = Tap::from_descriptors(queues, Offloads::default()).unwrap();
    assert_eq!((port.name(), port.receive_queues()), ("many0", 3));
    ip("addr add 10.9.0.1/24 dev many0");
    ip("link set many0 up");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev many0");
    let mut burst = Burst::new(64);
    let mut seen = [0; 3];
    for _ in 0..60 {
        // Another port each, and so another flow.
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.send_to(b"flow", "10.9.0.2:2000").unwrap();
        for (queue, seen) in seen.iter_mut().enumerate() {
            *seen += port.receive(queue, &mut burst);
        }
    }
    assert_eq!(seen.iter().sum::<usize>(), 60);
    assert!(
        seen.iter().filter(|count| **count > 0).count() > 1,
        "{seen:?}"
    );
    burst.clear();
    assert!(burst.push(&[0; 60]));
    assert_eq!(port.transmit(3, &burst, 0), 0);
    port.give_up(3, &burst, 0);
    assert_eq!(port.counters().transmitted.dropped(Cause::NoQueue), 1);
}

#[test]
fn queues_are_parted_among_threads_and_each_end_sees_what_becomes_of_the_interface() {
    if !is_apart() {
        return;
    }
    let mut config = Config::new("t0");
    config.queues = 3;
    let parts = Tap::open(&config).unwrap().split(2).unwrap();
    let queues: Vec<usize> = parts.iter().map(Port::receive_queues).collect();
    assert_eq!(queues, [2, 1]);
    ip("addr add 10.9.0.1/24 dev t0");
    ip("link set t0 up");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev t0");
    for _ in 0..60 {
        // Another port each, and so another flow.
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.send_to(b"flow", "10.9.0.2:2000").unwrap();
    }
    let threads = parts.into_iter().map(|mut port| {
        std::thread::spawn(move || {
            let mut burst = Burst::new(64);
            let seen = (0..port.receive_queues()).map(|queue| port.receive(queue, &mut burst));
            let seen = seen.sum::<usize>();
            assert_eq!(send(&mut port, &[2; 60], Offload::NONE), 1);
            (seen, port)
        })
    });
    let threads: Vec<_> = threads.collect();
    let parts = threads.into_iter().map(|thread| thread.join().unwrap());
    let (seen, mut parts): (Vec<usize>, Vec<Tap>) = parts.unzip();
    assert!(seen.iter().sum::<usize>() == 60 && seen[1] > 0, "{seen:?}");
    let mut all = Counters::default();
    parts.iter().for_each(|part| all.add(&part.counters()));
    assert_eq!((all.received.packets, all.transmitted.packets), (60, 2));
    assert_eq!(all.connections, 1);
    ip("link del t0");
    for part in &mut parts {
        let mut polled = [PollFd::new(part.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut polled, PollTimeout::from(10_000u16)), Ok(1));
        assert!(matches!(part.poll(Instant::now()), State::Closed(_)));
    }
}

#[test]
fn an_interface_that_is_down_takes_nothing_and_goes_on_when_it_is_up() {
    if !is_apart() {
        return;
    }
    let mut port = Tap::open(&Config::new("t0")).unwrap();
    let frame = [2; 60];
    assert_eq!(send(&mut port, &frame, Offload::NONE), 0);
    let mut burst = Burst::new(1);
    assert!(burst.push(&frame));
    port.give_up(0, &burst, 0);
    assert_eq!(port.counters().transmitted.dropped(Cause::NoPeer), 1);
    ip("link set t0 up");
    assert_eq!(send(&mut port, &frame, Offload::NONE), 1);
    assert_eq!(send(&mut port, &frame[..13], Offload::NONE), 1);
    let transmitted = port.counters().transmitted;
    assert_eq!(
        (transmitted.packets, transmitted.dropped(Cause::TooShort)),
        (1, 1)
    );
}

#[test]
fn an_interface_that_is_deleted_closes_its_port_and_wakes_it() {
    if !is_apart() {
        return;
    }
    for use_it in [false, true] {
        let mut port = Tap::open(&Config::new("t0")).unwrap();
        ip("link set t0 up");
        port.poll(Instant::now());
        assert!(port.arm());
        ip("link del t0");
        if use_it {
            assert_eq!(port.receive(0, &mut Burst::new(1)), 0);
            assert_eq!(send(&mut port, &[2; 60], Offload::NONE), 0);
        } else {
            let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut polled, PollTimeout::from(10_000u16)), Ok(1));
        }
        let state = port.poll(Instant::now());
        assert!(matches!(state, State::Closed(_)), "{state:?}");
        assert_eq!((port.receive_queues(), port.transmit_queues()), (0, 0));
        assert!(port.arm());
    }
}

/// What was received is good after the interface is gone; of what is not received and not sent everything is accounted for.
#[test]
fn an_interface_that_is_deleted_in_the_middle_of_a_burst_harms_no_packet_of_it() {
    if !is_apart() {
        return;
    }
    let (mut port, socket) = with_socket(Offloads::default());
    for length in [800, 900, 1000, 1100, 1200] {
        socket.send(&vec![length as u8; length]).unwrap();
    }
    let mut burst = Burst::new(3);
    assert_eq!(port.receive(0, &mut burst), 3);
    assert_eq!(port.transmit(0, &burst, 2), 1);
    ip("link del t0");
    let lengths: Vec<usize> = burst.iter().map(|packet| packet.to_vec().len()).collect();
    assert_eq!(lengths, [842, 942, 1042]);
    assert_eq!(burst.get(2).unwrap().to_vec()[42..], [1000u16 as u8; 1000]);
    assert_eq!(port.transmit(0, &burst, 0), 0);
    port.give_up(0, &burst, 0);
    // The kernel has thrown away what was not received.
    assert_eq!(port.receive(0, &mut burst), 0);
    assert!(matches!(
        port.poll(Instant::now()),
        State::Closed(Closed::PeerGone)
    ));
    let counters = port.counters();
    assert_eq!(
        (counters.received.packets, counters.received.drops()),
        (3, 0)
    );
    let sent = counters.transmitted;
    assert_eq!((sent.packets, sent.dropped(Cause::NoPeer)), (1, 3));
}

#[test]
fn an_interface_that_is_deleted_while_packets_are_sent_closes_its_port_and_each_has_its_cause() {
    if !is_apart() {
        return;
    }
    let mut port = Tap::open(&Config::new("t0")).unwrap();
    ip("link set t0 up");
    let mut burst = Burst::new(32);
    (0..32u8).for_each(|number| assert!(burst.push(&[number; 300])));
    // In this thread's namespace.
    let mut delete = None;
    let (begin, mut offered) = (Instant::now(), 0);
    while matches!(port.poll(Instant::now()), State::Connected) {
        assert!(begin.elapsed() < Duration::from_secs(20));
        let taken = port.transmit(0, &burst, 0);
        port.give_up(0, &burst, taken);
        offered += 32;
        if offered == 3200 {
            let mut command = Command::new("ip");
            delete = Some(command.args(["link", "del", "t0"]).spawn().unwrap());
        }
    }
    assert!(delete.unwrap().wait().unwrap().success());
    assert_eq!(port.transmit(0, &burst, 0), 0);
    port.give_up(0, &burst, 0);
    let sent = port.counters().transmitted;
    assert_eq!(sent.offered(), offered + 32);
    let gone = sent.dropped(Cause::NoPeer);
    assert_eq!(sent.drops(), gone);
    assert!(sent.packets >= 3200 && gone >= 32, "{sent:?}");
}

/// The kernel has no more of our packets in its hands than it is told to: where they do not go on, it takes no more of them.
#[test]
fn what_the_kernel_does_not_take_stays_with_the_sender() {
    if !is_apart() {
        return;
    }
    let queues = descriptors(&Config::new("t0")).unwrap();
    sys::limit_sent(queues[0].as_fd(), 20_000);
    let mut port = Tap::from_descriptors(queues, Offloads::default()).unwrap();
    ip("link add slow type veth peer name far");
    ip("link set slow up");
    ip("link set far up");
    ip("link set t0 up");
    let all = "tc qdisc add dev slow root tbf rate 8kbit burst 2000 limit 1000000
        tc qdisc add dev t0 clsact
        tc filter add dev t0 ingress protocol all u32 match u32 0 0 action mirred egress redirect dev slow";
    for line in all.lines() {
        let mut words = line.split_whitespace();
        let status = Command::new(words.next().unwrap()).args(words).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("skipped: {line}");
            return;
        }
    }
    let mut burst = Burst::new(64);
    (0..64u8).for_each(|number| assert!(burst.push(&[number; 1000])));
    let taken = port.transmit(0, &burst, 0);
    assert!(0 < taken && taken < 64, "{taken}");
    assert_eq!(port.transmit(0, &burst, taken), 0);
    port.give_up(0, &burst, taken);
    assert!(matches!(port.poll(Instant::now()), State::Connected));
    let sent = port.counters().transmitted;
    assert_eq!(
        (sent.packets, sent.dropped(Cause::Full), sent.offered()),
        (taken as u64, 64 - taken as u64, 64)
    );
    // What is stuck is thrown away, and there is room again.
    let words = ["qdisc", "del", "dev", "slow", "root"];
    let status = Command::new("tc").args(words).status();
    assert!(status.unwrap().success());
    let begin = Instant::now();
    while port.transmit(0, &burst, 60) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}

/// Who does not receive has what the interface's queue has room for, in order. The rest is the kernel's to drop.
#[test]
fn what_the_interface_s_queue_has_no_room_for_is_not_received() {
    if !is_apart() {
        return;
    }
    let (mut port, socket) = with_socket(Offloads::default());
    ip("link set t0 txqueuelen 64");
    for number in 0..100u8 {
        socket.send(&[number; 300]).unwrap();
    }
    let mut burst = Burst::new(256);
    let mut numbers = Vec::new();
    while port.receive(0, &mut burst) > 0 {
        numbers.extend(burst.iter().map(|packet| packet.to_vec()[42]));
    }
    assert!(numbers.len() >= 64, "{numbers:?}");
    assert!(numbers[..64].iter().copied().eq(0..64), "{numbers:?}");
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    socket.send(&[200; 300]).unwrap();
    assert_eq!(receive(&mut port).0[42], 200);
    let received = port.counters().received;
    let count = numbers.len() as u64 + 1;
    assert_eq!((received.packets, received.drops()), (count, 0));
}

#[test]
fn an_interface_is_gone_with_its_port() {
    if !is_apart() {
        return;
    }
    drop(Tap::open(&Config::new("t0")).unwrap());
    assert!(Tap::open(&Config::new("t0")).is_ok());
}

#[test]
fn what_is_no_tap_interface_is_refused() {
    if !is_apart() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(Tap::from_descriptors(vec![listener.into()], ALL).is_err());
    let file = fs::File::open("/dev/null").unwrap();
    assert!(Tap::from_descriptors(vec![file.into()], ALL).is_err());
    assert!(Tap::from_descriptors(Vec::new(), ALL).is_err());
    let mut mixed = descriptors(&Config::new("t0")).unwrap();
    mixed.extend(descriptors(&Config::new("t1")).unwrap());
    let refused = Tap::from_descriptors(mixed, ALL).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    for name in ["", "a-name-of-16-chr"] {
        let refused = Tap::open(&Config::new(name)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{name}");
    }
    for queues in [0, 257] {
        let mut config = Config::new("t2");
        config.queues = queues;
        assert_eq!(
            Tap::open(&config).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}
