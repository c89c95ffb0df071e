//! Recalls over a real agent: bytes that lie in a ring come by the sender's kernel socket.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use millrace_agent::Config;
use millrace_shm::board::{Row, flags, state};
use millrace_shm::lock::Held;
use millrace_shm::segment::Segment;
use millrace_shm::sys::thread_id;
use millrace_stream::{ReceiveHalf, SendHalf, SendPlan};
use millrace_wire::{End, Recall, Recalled, ToAgent, ToClient, Withdraw};
use nix::sys::socket::{setsockopt, sockopt};

use crate::client::{Client, Running, write_ring};
use crate::pair;

/// One end: a program, its socket, its segment. The connecting end first; offer ids are 10 and 11.
struct EndOf {
    program: Client,
    socket: TcpStream,
    segment: Segment,
}

impl EndOf {
    fn row(&self) -> &Row {
        self.program.board.row(0).unwrap()
    }

    fn recall(&self, offer_id: u64) -> bool {
        answer(&self.program, leaving(offer_id))
    }
}

/// The recall of a reader.
fn leaving(offer_id: u64) -> Recall {
    Recall {
        offer_id,
        connection_id: 0,
        fd: -1,
        sends: false,
    }
}

fn answer(program: &Client, recall: Recall) -> bool {
    program.say(ToAgent::Recall(recall));
    match program.hear() {
        ToClient::Recalled(Recalled { offer_id, ok }) if offer_id == recall.offer_id => ok,
        other => panic!("not an answer: {other:?}"),
    }
}

#[test]
fn a_program_that_has_the_end_from_another_asks_for_it_too() {
    let agent = Running::start(Config::default());
    let [mut sender, mut receiver] = introduced(&agent);
    send_both_ways(&mut sender, &receiver, 0, b"by the ring");
    let child = agent.client();
    let recall = |socket: &TcpStream, connection_id| Recall {
        offer_id: 7,
        connection_id,
        fd: socket.as_raw_fd(),
        sends: false,
    };
    let id = receiver.row().identity.connection_id.load(Relaxed);
    let (other, _peer) = pair();
    assert!(!answer(&child, recall(&other, id)), "it has no end");
    assert!(!answer(&child, recall(&receiver.socket, id + 1)));
    assert!(answer(&child, recall(&receiver.socket, id)));
    drop(sender);
    let mut text = String::new();
    receiver.socket.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by the kernel, by the ring");
}

#[test]
fn who_asks_while_the_program_that_offered_the_end_goes_is_answered() {
    let agent = Running::start(Config::default());
    let [mut sender, receiver] = introduced(&agent);
    send_both_ways(&mut sender, &receiver, 0, b"by the ring");
    let identity = &receiver.row().identity;
    let connection_id = identity.connection_id.load(Relaxed);
    // Another process has the end; it holds the lock before it asks, and until it has the answer.
    identity.processes[0].store(nix::unistd::getppid().as_raw().cast_unsigned(), Relaxed);
    let held = receiver.row().receive.lock.try_lock(thread_id());
    assert_eq!(held, Some(Held::Owned));
    let EndOf {
        program,
        mut socket,
        ..
    } = receiver;
    drop(program);
    let recall = Recall {
        offer_id: 7,
        connection_id,
        fd: socket.as_raw_fd(),
        sends: false,
    };
    assert!(answer(&agent.client(), recall));
    agent.wait_for(|status| status.clients == 1);
    drop(sender);
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by the kernel, by the ring");
}

fn introduced(agent: &Running) -> [EndOf; 2] {
    let (near, far) = pair();
    let programs = [agent.client(), agent.client()];
    programs[0].offer(&near, 10, End::Active);
    programs[1].offer(&far, 11, End::Passive);
    assert_eq!(programs.each_ref().map(Client::take), [10, 11]);
    let [active, passive] = programs;
    [(active, near), (passive, far)].map(|(program, socket)| {
        let (paired, fd) = program.paired();
        let row = program.board.row(0).unwrap();
        row.identity.state.store(state::ATTACHED, Relaxed);
        let number = socket.as_raw_fd().cast_unsigned();
        row.identity.fd.store(number, Relaxed);
        row.identity
            .connection_id
            .store(paired.connection_id, Relaxed);
        EndOf {
            program,
            socket,
            segment: Segment::attach(fd.as_fd(), paired.ring_bytes).unwrap(),
        }
    })
}

/// Sends "by the kernel, " and then this by the ring, which its reader leaves unread behind a gate that it shuts.
fn send_both_ways(sender: &mut EndOf, receiver: &EndOf, direction: usize, bytes: &[u8]) {
    sender.socket.write_all(b"by the kernel, ").unwrap();
    send_by_ring(sender, receiver, direction, 15, bytes);
}

/// Sends by the ring, behind `position` bytes that went by the kernel.
fn send_by_ring(sender: &EndOf, receiver: &EndOf, direction: usize, position: u64, bytes: &[u8]) {
    let reader = ReceiveHalf::new(receiver.row(), &receiver.segment, direction);
    assert!(reader.try_open());
    let half = SendHalf::new(sender.row(), &sender.segment, direction);
    let Ok(SendPlan::Ring { gate, window, .. }) = half.plan(bytes.len()) else {
        panic!("no ring")
    };
    write_ring(&sender.segment, direction, gate.tail, window, bytes);
    half.begin_epoch(gate, position);
    assert!(half.commit(gate, bytes.len() as u32));
    reader.leave();
}

#[test]
fn what_a_reader_leaves_in_the_ring_comes_by_the_kernel() {
    let agent = Running::start(Config::default());
    for direction in [0, 1] {
        let mut ends = introduced(&agent);
        if direction == 1 {
            ends.reverse();
        }
        let [mut sender, mut receiver] = ends;
        send_both_ways(&mut sender, &receiver, direction, b"by the ring, ");
        assert!(receiver.recall(if direction == 0 { 11 } else { 10 }));
        let half = SendHalf::new(sender.row(), &sender.segment, direction);
        assert_eq!((half.unread(), half.kernel_position()), (0, 28));
        sender.socket.write_all(b"and by the kernel").unwrap();
        drop(sender);
        let mut text = String::new();
        receiver.socket.read_to_string(&mut text).unwrap();
        assert_eq!(text, "by the kernel, by the ring, and by the kernel");
    }
}

/// Sends until the kernel has no room any more, also a moment later; returns how many bytes.
fn fill(socket: &mut TcpStream, reader: &TcpStream) -> usize {
    // The kernel does not make them larger then.
    setsockopt(&*socket, sockopt::SndBuf, &65536).unwrap();
    setsockopt(reader, sockopt::RcvBuf, &65536).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        let before = sent;
        while let Ok(bytes) = socket.write(&[b'k'; 1000]) {
            sent += bytes;
        }
        if sent == before {
            return sent;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_a_sender_leaves_that_goes_is_carried_over_for_a_reader_that_asked_in_vain() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not tested: raising what a socket takes is root's");
        return;
    }
    let agent = Running::start(Config::default());
    let [mut sender, mut receiver] = introduced(&agent);
    let full = fill(&mut sender.socket, &receiver.socket);
    send_by_ring(&sender, &receiver, 0, full as u64, &[b'r'; 1000]);
    let leave = Recall {
        offer_id: 10,
        connection_id: 0,
        fd: -1,
        sends: true,
    };
    assert!(!answer(&sender.program, leave), "its reader may read there");
    sender.row().send.raw.store(1, Relaxed);
    assert!(!receiver.recall(11), "a call is under way");
    sender.row().send.raw.store(0, Relaxed);
    assert!(answer(&sender.program, leave));
    drop(sender);
    let mut stream = Vec::new();
    receiver.socket.read_to_end(&mut stream).unwrap();
    let expected = [vec![b'k'; full], vec![b'r'; 1000]].concat();
    assert!(stream == expected);
}

#[test]
fn a_reader_that_cannot_go_on_to_read_its_ring_is_not_refused_for_a_rest_of_the_agent() {
    let agent = Running::start(Config::default());
    let [mut sender, receiver] = introduced(&agent);
    let full = fill(&mut sender.socket, &receiver.socket);
    send_by_ring(&sender, &receiver, 0, full as u64, &[b'r'; 1000]);
    let raw = &sender.row().send.raw;
    raw.store(1, Relaxed);
    assert!(!receiver.recall(11), "a call is under way");
    let word = &receiver.row().identity.flags;
    word.fetch_or(flags::LEAVES, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Longer than the agent waits for it while it rests.
            std::thread::sleep(Duration::from_millis(15));
            raw.store(0, Relaxed);
        });
        assert!(receiver.recall(11), "it was asked for too early");
    });
}

#[test]
fn recalls_of_one_program_let_others_have_their_turn() {
    const RECALLS: usize = 30;
    let agent = Running::start(Config::default());
    let [mut sender, receiver] = introduced(&agent);
    send_both_ways(&mut sender, &receiver, 0, b"by the ring");
    // Each is waited for: a call is under way.
    sender.row().send.raw.store(1, Relaxed);
    for _ in 0..RECALLS {
        receiver.program.say(ToAgent::Recall(leaving(11)));
    }
    agent.wait_for(|_| true);
    let answers = receiver.program.hear_waiting();
    assert!(
        answers < RECALLS,
        "all were answered before another's question"
    );
}

#[test]
fn what_one_that_is_gone_has_sent_comes_by_the_kernel_if_others_have_its_end() {
    let agent = Running::start(Config::default());
    let [mut sender, mut receiver] = introduced(&agent);
    send_both_ways(&mut sender, &receiver, 0, b"by the ring, ");
    let mut other = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    sender.row().identity.join(other.id());
    // Its reader is at work on it for a moment.
    let lock = &receiver.row().receive.lock;
    let held = lock.lock(1);
    let EndOf {
        program,
        mut socket,
        segment,
    } = sender;
    drop(program);
    std::thread::sleep(Duration::from_millis(10));
    lock.unlock(held);
    agent.wait_for(|status| status.clients == 1);
    other.kill().unwrap();
    other.wait().unwrap();
    socket.write_all(b"and by the kernel").unwrap();
    drop((socket, segment));
    let mut text = String::new();
    receiver.socket.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by the kernel, by the ring, and by the kernel");
}

#[test]
fn an_end_has_nothing_recalled_without_its_peer() {
    let agent = Running::start(Config::default());
    let [mut sender, receiver] = introduced(&agent);
    assert!(receiver.recall(11), "nothing is there");
    assert!(!receiver.recall(10), "another program's offer");
    assert!(!receiver.recall(99), "no offer");
    send_both_ways(&mut sender, &receiver, 0, b"kept");

    // The number of the sender's descriptor comes to mean another socket: nothing is sent there.
    let kept = sender.socket.try_clone().unwrap();
    let (other, mut peer) = pair();
    let mut number = OwnedFd::from(sender.socket);
    nix::unistd::dup2(&other, &mut number).unwrap();
    assert!(!receiver.recall(11));
    peer.set_nonblocking(true).unwrap();
    let nothing = peer.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);

    nix::unistd::dup2(&kept, &mut number).unwrap();
    assert!(receiver.recall(11));
}

#[test]
fn a_pairing_ends_when_an_end_is_withdrawn_or_gone() {
    let agent = Running::start(Config::default());
    let [mut sender, receiver] = introduced(&agent);
    send_both_ways(&mut sender, &receiver, 0, b"lost");
    let withdraw = ToAgent::Withdraw(Withdraw { offer_id: 10 });
    sender.program.say(withdraw);
    agent.wait_for(|_| true);
    assert!(!receiver.recall(11));
    drop((sender, receiver));
    agent.wait_for(|status| status.segment_bytes == 0);

    let [mut sender, mut receiver] = introduced(&agent);
    send_both_ways(&mut sender, &receiver, 0, b"left");
    drop(sender);
    agent.wait_for(|status| status.clients == 1);
    assert!(!receiver.recall(11), "it can read the ring");
    let word = &receiver.row().identity.flags;
    word.fetch_or(flags::LEAVES, Relaxed);
    // It takes CAP_NET_ADMIN to put anything where the reader finds it.
    if receiver.recall(11) {
        let mut text = String::new();
        receiver.socket.read_to_string(&mut text).unwrap();
        assert_eq!(text, "by the kernel, left");
    } else {
        eprintln!("not tested: putting bytes back takes CAP_NET_ADMIN");
    }
    drop(receiver.segment);
    agent.wait_for(|status| status.segment_bytes == 0);
}
