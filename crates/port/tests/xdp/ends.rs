//! What becomes of packets when the interface goes, is down, or has no room.

use super::*;

/// Frames of a burst lie in memory of the port's own.
#[test]
fn an_interface_that_is_deleted_in_the_middle_of_a_burst_harms_no_packet_of_it() {
    if !is_apart() {
        return;
    }
    let mut receiver = AfXdp::open(&config("to", &[Take::All])).unwrap();
    let mut sender = AfXdp::open(&Config::new("from")).unwrap();
    let mut burst = Burst::new(5);
    (1..=5u8).for_each(|number| assert!(burst.push(&[number; 700])));
    assert_eq!(sender.transmit(0, &burst, 0), 5);
    let mut came = Burst::new(3);
    let begin = Instant::now();
    while receiver.receive(0, &mut came) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    let count = came.len();
    receiver.poll(begin);
    // Both ends of the pair.
    ip("link del to");
    let numbers = |burst: &Burst| -> Vec<u8> {
        let all = burst.iter().map(|packet| packet.to_vec());
        all.map(|packet| {
            assert_eq!(packet, [packet[0]; 700]);
            packet[0]
        })
        .collect()
    };
    let mut had = numbers(&came);
    // What had come is there until the port knows.
    while receiver.receive(0, &mut came) > 0 {
        had.extend(numbers(&came));
    }
    assert!(
        count <= had.len() && had.iter().copied().eq(1..=had.len() as u8),
        "{had:?}"
    );
    let mut port = [receiver, sender];
    for port in &mut port {
        let at = port.poll_at().unwrap_or_else(Instant::now);
        assert!(
            matches!(port.poll(at), State::Closed(_)),
            "{:?}",
            port.state()
        );
        assert_eq!((port.receive_queues(), port.transmit_queues()), (0, 0));
        assert_eq!(port.transmit(0, &burst, 0), 0);
        port.give_up(0, &burst, 0);
        assert_eq!(port.counters().transmitted.dropped(Cause::NoPeer), 5);
    }
    let received = port[0].counters().received;
    assert_eq!((received.packets, received.drops()), (had.len() as u64, 0));
    let sent = port[1].counters().transmitted;
    assert_eq!((sent.packets, sent.offered()), (5, 10));
}

#[test]
fn an_interface_that_is_deleted_while_packets_are_sent_closes_its_port_and_each_has_its_cause() {
    if !is_apart() {
        return;
    }
    let mut receiver = AfXdp::open(&config("to", &[Take::All])).unwrap();
    let mut sender = AfXdp::open(&Config::new("from")).unwrap();
    let mut burst = Burst::new(32);
    (0..32u8).for_each(|number| assert!(burst.push(&[number; 300])));
    let mut came = Burst::new(64);
    let mut delete = None;
    let (begin, mut offered, mut received) = (Instant::now(), 0, 0);
    while matches!(sender.poll(Instant::now()), State::Connected) {
        assert!(begin.elapsed() < Duration::from_secs(20));
        let taken = sender.transmit(0, &burst, 0);
        sender.give_up(0, &burst, taken);
        received += receiver.receive(0, &mut came) as u64;
        offered += 32;
        if offered == 3200 {
            let mut command = Command::new("ip");
            delete = Some(command.args(["link", "del", "from"]).spawn().unwrap());
        }
    }
    assert!(delete.unwrap().wait().unwrap().success());
    while !matches!(receiver.poll(Instant::now()), State::Closed(_)) {
        assert!(begin.elapsed() < Duration::from_secs(20));
        received += receiver.receive(0, &mut came) as u64;
    }
    let sent = sender.counters().transmitted;
    assert_eq!(sent.offered(), offered);
    let (full, gone) = (sent.dropped(Cause::Full), sent.dropped(Cause::NoPeer));
    assert_eq!(sent.drops(), full + gone);
    // What was in the ring when it ended nobody has.
    let tally = receiver.counters().received;
    assert_eq!(tally.packets, received);
    assert!(tally.offered() <= sent.packets && received > 0, "{tally:?}");
}

/// What is taken while the interface is down goes when it is up, and what there is no room for stays with the sender.
#[test]
fn an_interface_that_is_down_fills_its_ring_and_goes_on_when_it_is_up() {
    if !is_apart() {
        return;
    }
    let mut receiver = AfXdp::open(&config("to", &[Take::All])).unwrap();
    let mut config = Config::new("from");
    config.ring_size = 64;
    let mut sender = AfXdp::open(&config).unwrap();
    let mut burst = Burst::new(100);
    (0..100u8).for_each(|number| assert!(burst.push(&[number; 60])));
    for _ in 0..3 {
        let before = sender.counters().transmitted;
        ip("link set from down");
        assert_eq!(sender.transmit(0, &burst, 0), 64);
        assert_eq!(sender.transmit(0, &burst, 64), 0);
        sender.give_up(0, &burst, 64);
        let sent = sender.counters().transmitted;
        assert_eq!(sent.dropped(Cause::Full) - before.dropped(Cause::Full), 36);
        assert_eq!(sent.offered() - before.offered(), 100);
        assert!(matches!(sender.poll(Instant::now()), State::Connected));
        ip("link set from up");
        carrier();
        let mut arrived = Vec::new();
        let begin = Instant::now();
        while arrived.len() < 64 && begin.elapsed() < Duration::from_secs(20) {
            // It has the kernel send what is in the ring.
            sender.poll(Instant::now());
            let mut some = Burst::new(64);
            receiver.receive(0, &mut some);
            arrived.extend(some.iter().map(|packet| packet.to_vec()));
        }
        let wanted: Vec<Vec<u8>> = (0..64u8).map(|number| vec![number; 60]).collect();
        assert!(arrived == wanted, "{}", arrived.len());
    }
    // The other end's is down: what goes there is lost, and nothing else.
    ip("link set to down");
    let taken = sender.transmit(0, &burst, 60);
    assert_eq!(taken, 40);
    ip("link set to up");
    carrier();
    let begin = Instant::now();
    let mut came = Burst::new(64);
    while came.iter().all(|packet| packet.to_vec() != [99; 60]) {
        assert!(begin.elapsed() < Duration::from_secs(20));
        sender.poll(Instant::now());
        sender.transmit(0, &burst, 99);
        receiver.receive(0, &mut came);
    }
    for port in [&mut sender, &mut receiver] {
        assert!(matches!(port.poll(Instant::now()), State::Connected));
    }
}

/// Waits until the first of the pair may send.
fn carrier() {
    let begin = Instant::now();
    loop {
        let words = ["-o", "link", "show", "from"];
        let shown = Command::new("ip").args(words).output();
        let shown = shown.unwrap().stdout;
        if String::from_utf8_lossy(&shown).contains("LOWER_UP") {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}

/// Frames that are longer than the receiver's are dropped by the kernel, which says only how many were dropped.
#[test]
fn what_is_longer_than_a_frame_is_counted_as_too_long_and_not_as_too_much() {
    if !is_apart() {
        return;
    }
    // As long as a program at a pair's interface lets it be, which knows no packets of several buffers.
    ip("link set from mtu 3000");
    ip("link set to mtu 3000");
    let mut small = config("to", &[Take::All]);
    small.ring_size = 64;
    let mut receiver = AfXdp::open(&small).unwrap();
    let mut large = Config::new("from");
    large.frame_bytes = 4096;
    let mut sender = AfXdp::open(&large).unwrap();
    let mut longs = 0;
    for length in [1792, 1793, 700, 2048, 2500, 1792] {
        send(&mut sender, &vec![7; length]);
        longs += u64::from(length > 1792);
    }
    let arrived = received(&mut receiver, 3);
    let lengths: Vec<usize> = arrived.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1792, 700, 1792]);
    let begin = Instant::now();
    while receiver.counters().received.offered() < 6 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        sender.poll(Instant::now());
    }
    // And where there is nothing to receive into, too: 64 lie there, 36 are too many, and 5 too long as well.
    let mut burst = Burst::new(100);
    (0..100u8).for_each(|number| assert!(burst.push(&[number; 60])));
    assert_eq!(sender.transmit(0, &burst, 0), 100);
    for _ in 0..5 {
        send(&mut sender, &vec![7; 2000]);
        longs += 1;
    }
    let begin = Instant::now();
    while receiver.counters().received.drops() < 36 + longs {
        assert!(begin.elapsed() < Duration::from_secs(20));
        sender.poll(Instant::now());
    }
    let tally = receiver.counters().received;
    let causes = (tally.dropped(Cause::TooLong), tally.dropped(Cause::Full));
    assert_eq!((causes, tally.drops()), ((longs, 36), 36 + longs));
}
