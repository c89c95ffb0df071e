//! Two ports that are joined, of each kind.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::{Duration, Instant};

use agent::Running;
use further::Way;
use millrace_port::memif::{Config, Memif, Mode, Role};
use millrace_port::pcap::{Format, Link, Pace, Pcap};
use millrace_port::{Burst, Closed, Offload, Port, State};
use tempfile::TempDir;
use virtio::Virtio;

mod agent;
mod further;
mod virtio;

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of port, in one of its ways.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    sender: Role,
    mode: Mode,
    log2_ring_size: u8,
    pub(crate) buffer_bytes: u32,
    pub(crate) queues: u16,
    /// A file between the two, which is read when it has been written.
    file: Option<Format>,
    virtio: Option<Virtio>,
}

impl Kind {
    /// Whether one end sees what becomes of the other.
    pub(crate) fn is_live(&self) -> bool {
        self.file.is_none() && !self.is_apart()
    }

    pub(crate) fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether this machine has it; says where it has not.
    pub(crate) fn is_possible(&self) -> bool {
        !self.is_apart() || further::is_apart(self)
    }

    /// Whether it is through the kernel.
    fn is_apart(&self) -> bool {
        further::way_of(self).is_some_and(Way::is_apart)
    }

    /// Bytes of the longest packet that there is room for.
    pub(crate) fn longest(&self) -> usize {
        let buffer = self.buffer_bytes as usize;
        if further::way_of(self) == Some(Way::AfXdp) {
            // In 16 frames, of which the kernel has the rest.
            return 16 * (buffer - 256);
        }
        match &self.virtio {
            None => buffer << self.log2_ring_size,
            Some(virtio) => virtio.longest(buffer, self.log2_ring_size),
        }
    }

    /// Whether what has come is still there for a receiver whose sender has gone: the memory is its own.
    pub(crate) fn keeps_what_came(&self) -> bool {
        self.virtio.as_ref().is_some_and(|virtio| virtio.back_sends)
    }

    /// Whether what is received lies in the peer's memory, and not in copies of the port's own.
    pub(crate) fn has_places(&self) -> bool {
        further::way_of(self) != Some(Way::Faulty)
    }
}

/// All of them.
pub(crate) fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().chain(virtio::KINDS).chain(further::kinds())
}

static KINDS: &[Kind] = &[
    Kind {
        name: "memif, client to server",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 10,
        buffer_bytes: 2048,
        queues: 1,
        file: None,
        virtio: None,
    },
    Kind {
        name: "memif, server to client",
        sender: Role::Server,
        mode: Mode::Ethernet,
        log2_ring_size: 10,
        buffer_bytes: 2048,
        queues: 1,
        file: None,
        virtio: None,
    },
    Kind {
        name: "memif, client to server, IP, four queues",
        sender: Role::Client,
        mode: Mode::Ip,
        log2_ring_size: 8,
        buffer_bytes: 2048,
        queues: 4,
        file: None,
        virtio: None,
    },
    Kind {
        name: "memif, server to client, IP, four queues",
        sender: Role::Server,
        mode: Mode::Ip,
        log2_ring_size: 8,
        buffer_bytes: 2048,
        queues: 4,
        file: None,
        virtio: None,
    },
    Kind {
        name: "memif, client to server, small buffers",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 6,
        buffer_bytes: 64,
        queues: 2,
        file: None,
        virtio: None,
    },
    Kind {
        name: "memif, server to client, small buffers",
        sender: Role::Server,
        mode: Mode::Ethernet,
        log2_ring_size: 6,
        buffer_bytes: 64,
        queues: 2,
        file: None,
        virtio: None,
    },
    Kind {
        name: "pcap",
        sender: Role::Server,
        mode: Mode::Ethernet,
        log2_ring_size: 20,
        buffer_bytes: 2048,
        queues: 1,
        file: Some(Format::Pcap),
        virtio: None,
    },
    Kind {
        name: "pcapng",
        sender: Role::Server,
        mode: Mode::Ethernet,
        log2_ring_size: 20,
        buffer_bytes: 2048,
        queues: 1,
        file: Some(Format::Pcapng),
        virtio: None,
    },
];

/// Two ports.
pub(crate) struct Rig {
    pub(crate) kind: &'static Kind,
    place: TempDir,
    _agent: Option<Running>,
    pub(crate) sender: Box<dyn Port + Send>,
    pub(crate) receiver: Box<dyn Port + Send>,
}

impl Rig {
    /// Joined ones.
    pub(crate) fn new(kind: &'static Kind) -> Rig {
        let place = tempfile::tempdir().unwrap();
        let is_ring = further::way_of(kind) == Some(Way::Ring);
        let agent = is_ring.then(|| Running::start(&place.path().join("agent.sock")));
        let mut rig = Rig {
            kind,
            place,
            _agent: agent,
            sender: Box::new(Nowhere),
            receiver: Box::new(Nowhere),
        };
        if !kind.is_file() {
            rig.remake_sender();
            rig.remake_receiver();
            rig.settle();
        }
        rig
    }

    /// How many packets fit between them, if each takes one buffer.
    pub(crate) fn slots(&self) -> usize {
        1 << self.kind.log2_ring_size
    }

    /// Polls both until something holds.
    pub(crate) fn until(&mut self, holds: impl Fn(&Rig) -> bool) {
        let begin = Instant::now();
        loop {
            self.sender.poll(Instant::now());
            self.receiver.poll(Instant::now());
            if holds(self) {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{:?} {:?}",
                self.sender.state(),
                self.receiver.state()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until they are joined.
    pub(crate) fn settle(&mut self) {
        self.until(|rig| is_connected(&*rig.sender) && is_connected(&*rig.receiver));
    }

    pub(crate) fn remake_sender(&mut self) {
        // The old one first: a server's path is its own.
        self.sender = Box::new(Nowhere);
        self.sender = make(self.kind, &self.place, true);
    }

    pub(crate) fn remake_receiver(&mut self) {
        self.receiver = Box::new(Nowhere);
        self.receiver = make(self.kind, &self.place, false);
    }

    /// The sender goes, and the receiver does not know yet.
    pub(crate) fn lose_sender_unseen(&mut self) {
        self.sender = Box::new(Nowhere);
    }

    pub(crate) fn lose_sender(&mut self) {
        self.lose_sender_unseen();
        self.until(|rig| !is_connected(&*rig.receiver));
    }

    /// Sends packets in bursts of a size, and returns what arrived.
    pub(crate) fn pass(&mut self, packets: &[Vec<u8>], size: usize) -> Vec<Vec<u8>> {
        self.pass_some(packets, size, packets.len())
    }

    /// The same where only so many arrive.
    pub(crate) fn pass_some(
        &mut self,
        packets: &[Vec<u8>],
        size: usize,
        wanted: usize,
    ) -> Vec<Vec<u8>> {
        if let Some(format) = self.kind.file {
            return self.pass_by_file(format, packets, size);
        }
        let (mut sent, mut arrived) = (0, Vec::new());
        let begin = Instant::now();
        while sent < packets.len() || arrived.len() < wanted {
            sent += send_all(&mut *self.sender, &packets[sent..], size);
            arrived.extend(receive_some(&mut *self.receiver, size));
            assert!(
                begin.elapsed() < PATIENCE,
                "{sent} sent, {} arrived",
                arrived.len()
            );
        }
        arrived
    }

    fn pass_by_file(&mut self, format: Format, packets: &[Vec<u8>], size: usize) -> Vec<Vec<u8>> {
        let path = self.place.path().join("capture");
        self.sender = Box::new(Pcap::write(&path, format, Link::Ethernet).unwrap());
        assert_eq!(send_all(&mut *self.sender, packets, size), packets.len());
        self.sender.poll(Instant::now());
        self.receiver = Box::new(Pcap::read(&path, Pace::Full).unwrap());
        let mut arrived = Vec::new();
        while is_connected(&*self.receiver) {
            arrived.extend(receive_some(&mut *self.receiver, size));
        }
        let state = self.receiver.state();
        assert!(
            matches!(state, State::Closed(Closed::EndOfFile)),
            "{state:?}"
        );
        arrived
    }
}

fn other(role: Role) -> Role {
    match role {
        Role::Server => Role::Client,
        Role::Client => Role::Server,
    }
}

fn make(kind: &Kind, place: &TempDir, sends: bool) -> Box<dyn Port + Send> {
    match &kind.virtio {
        None => further::make(kind, place, sends),
        Some(virtio) if virtio.back_sends == sends => virtio.make_back(kind, place),
        Some(virtio) => virtio.make_front(kind, place),
    }
}

fn make_memif(kind: &Kind, place: &TempDir, sends: bool) -> Memif {
    let role = if sends {
        kind.sender
    } else {
        other(kind.sender)
    };
    let mut config = Config::new(role, place.path().join("memif.sock"));
    config.mode = kind.mode;
    config.log2_ring_size = kind.log2_ring_size;
    config.buffer_bytes = kind.buffer_bytes;
    config.receive_queues = kind.queues;
    config.transmit_queues = kind.queues;
    Memif::new(config).unwrap()
}

/// Whether packets pass, as far as a port knows.
pub(crate) fn is_connected(port: &(dyn Port + Send)) -> bool {
    matches!(port.state(), State::Connected)
}

/// Bytes that a number and a length determine.
pub(crate) fn packet(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ length as u64;
    let mut bytes: Vec<u8> = (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    if let Some(front) = bytes.first_chunk_mut() {
        *front = number.to_be_bytes();
    }
    bytes
}

/// Sends packets in bursts of a size until there is no room; returns how many were taken.
pub(crate) fn send_all(port: &mut (dyn Port + Send), packets: &[Vec<u8>], size: usize) -> usize {
    let mut burst = Burst::new(size);
    let mut sent = 0;
    for some in packets.chunks(size) {
        burst.clear();
        for packet in some {
            assert!(burst.push(packet));
        }
        let taken = port.transmit(0, &burst, 0);
        sent += taken;
        if taken < some.len() {
            break;
        }
    }
    sent
}

/// One burst.
pub(crate) fn receive_some(port: &mut (dyn Port + Send), size: usize) -> Vec<Vec<u8>> {
    let mut burst = Burst::new(size);
    port.receive(0, &mut burst);
    let copies = burst.iter().map(|packet| packet.to_vec()).collect();
    port.release(0);
    copies
}

/// All of so many that are there.
pub(crate) fn receive_all(port: &mut (dyn Port + Send), count: usize) -> Vec<Vec<u8>> {
    let begin = Instant::now();
    let mut arrived = Vec::new();
    while arrived.len() < count {
        arrived.extend(receive_some(port, 32));
        assert!(
            begin.elapsed() < PATIENCE,
            "{} of {count} arrived",
            arrived.len()
        );
    }
    arrived
}

/// All of so many that are there, with what they leave to others to do.
pub(crate) fn receive_offloads(
    port: &mut (dyn Port + Send),
    count: usize,
) -> Vec<(Vec<u8>, Offload)> {
    let begin = Instant::now();
    let mut arrived = Vec::new();
    let mut burst = Burst::new(32);
    while arrived.len() < count {
        port.receive(0, &mut burst);
        arrived.extend(
            burst
                .iter()
                .map(|packet| (packet.to_vec(), packet.offload())),
        );
        port.release(0);
        assert!(
            begin.elapsed() < PATIENCE,
            "{} of {count} arrived",
            arrived.len()
        );
    }
    arrived
}

/// In the place of a port that has gone.
struct Nowhere;

impl Port for Nowhere {
    fn poll(&mut self, _: Instant) -> &State {
        self.state()
    }
    fn poll_at(&self) -> Option<Instant> {
        None
    }
    fn state(&self) -> &State {
        &State::Connecting(None)
    }
    fn receive_queues(&self) -> usize {
        0
    }
    fn transmit_queues(&self) -> usize {
        0
    }
    fn receive(&mut self, _: usize, _: &mut Burst) -> usize {
        0
    }
    fn release(&mut self, _: usize) {}
    fn transmit(&mut self, _: usize, _: &Burst, _: usize) -> usize {
        0
    }
    fn give_up(&mut self, _: usize, _: &Burst, _: usize) {}
    fn arm(&mut self) -> bool {
        true
    }
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        unreachable!("nobody waits for what has gone")
    }
    fn counters(&self) -> millrace_port::Counters {
        millrace_port::Counters::default()
    }
}
