//! Back ends that say and write what they must not: the connection ends with a reason, and the front end goes on with the next one.

use std::io::{IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_port::virtio_user::{Config, Role, VirtioUser};
use millrace_port::{Burst, Cause, Port, State};
use millrace_wire::vhost_user::{Answer, F_PROTOCOL_FEATURES, Header, PROTOCOL_REPLY_ACK, Request};
use millrace_wire::virtio::{
    DESC_AVAIL, DESC_USED, Descriptor, NET_MRG_RXBUF, RING_PACKED, VERSION_1,
};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::uio::{pread, pwrite};

use crate::{Random, sys};

const SIZE: u16 = 16;
const BUFFER_BYTES: u32 = 256;
/// Where the front end has its memory for the device.
const ADDRESS: u64 = 1 << 32;

/// A back end that is a socket, and a front end's memory.
struct Back {
    listener: UnixListener,
    stream: UnixStream,
    memory: Option<OwnedFd>,
    /// Descriptors, the driver's area and the device's, by rings.
    rings: Vec<[u64; 3]>,
    packed: bool,
}

impl Back {
    fn new(listener: UnixListener, port: &mut VirtioUser, packed: bool) -> Back {
        listener.set_nonblocking(true).unwrap();
        let stream = loop {
            port.poll(Instant::now());
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let mut back = Back {
            listener,
            stream,
            memory: None,
            rings: Vec::new(),
            packed,
        };
        back.stream.set_nonblocking(false).unwrap();
        back.be_device(port);
        back
    }

    /// Takes part until packets may pass.
    fn be_device(&mut self, port: &mut VirtioUser) {
        let begin = Instant::now();
        while !matches!(port.state(), State::Connected) {
            port.poll(Instant::now());
            self.hear();
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        self.hear();
        assert_eq!(self.rings.len(), 2);
    }

    fn hear(&mut self) {
        while let Some((request, fds)) = receive(&self.stream) {
            match request {
                Request::GetFeatures => {
                    let ring = if self.packed { RING_PACKED } else { 0 };
                    self.answer(Answer::Number(VERSION_1 | NET_MRG_RXBUF | ring), 1);
                }
                Request::SetMemTable(_) => self.memory = fds.into_iter().next(),
                Request::SetVringAddr(address) => {
                    let places = [address.descriptors, address.available, address.used];
                    self.rings.push(places.map(|place| place - ADDRESS));
                }
                _ => {}
            }
        }
    }

    fn answer(&mut self, answer: Answer, request: u32) {
        self.stream.write_all(answer.emit(request).bytes()).unwrap();
    }

    fn memory(&self) -> &OwnedFd {
        self.memory.as_ref().unwrap()
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(pwrite(self.memory(), bytes, offset as i64), Ok(bytes.len()));
    }

    fn descriptor(&self, ring: usize, number: u16) -> Descriptor {
        let mut bytes = [0; 16];
        let at = self.rings[ring][0] + u64::from(number) * 16;
        assert_eq!(pread(self.memory(), &mut bytes, at as i64), Ok(16));
        let word = |half: &[u8]| u64::from_le_bytes(half.try_into().unwrap());
        let words = [word(&bytes[..8]), word(&bytes[8..])];
        if self.packed {
            Descriptor::parse_packed(words)
        } else {
            Descriptor::parse_split(words)
        }
    }

    /// Gives chains back: their numbers, and how many bytes are said to be in each.
    fn give(&self, ring: usize, chains: &[(u32, u32)]) {
        if self.packed {
            for (slot, (number, length)) in (0..).zip(chains) {
                let descriptor = Descriptor {
                    address: 0,
                    length: *length,
                    flags: DESC_AVAIL | DESC_USED,
                    link: *number as u16,
                };
                let at = self.rings[ring][0] + slot * 16 + 8;
                self.write(at, &descriptor.emit_packed()[1].to_le_bytes());
            }
            return;
        }
        for (index, (number, length)) in (0..).zip(chains) {
            let at = self.rings[ring][2] + 4 + 8 * index;
            self.write(at, &[number.to_le_bytes(), length.to_le_bytes()].concat());
        }
        self.set_index(ring, chains.len() as u16);
    }

    fn set_index(&self, ring: usize, index: u16) {
        self.write(self.rings[ring][2] + 2, &index.to_le_bytes());
    }

    /// Writes the count of buffers into a header.
    fn set_buffers(&self, number: u16, count: u16) {
        let at = self.descriptor(0, number).address - ADDRESS + 10;
        self.write(at, &count.to_le_bytes());
    }
}

fn receive(stream: &UnixStream) -> Option<(Request, Vec<OwnedFd>)> {
    let mut bytes = [0; 12];
    let mut control = nix::cmsg_space!([RawFd; 8]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let got = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    let mut fds = Vec::new();
    for message in got.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(list) = message {
            fds.extend(list.into_iter().map(sys::received));
        }
    }
    if got.bytes < bytes.len() {
        return None;
    }
    let header = Header::parse(bytes).unwrap();
    let mut payload = vec![0; header.bytes as usize];
    if !payload.is_empty() {
        let mut parts = [IoSliceMut::new(&mut payload)];
        recvmsg::<()>(stream.as_raw_fd(), &mut parts, None, MsgFlags::MSG_WAITALL).unwrap();
    }
    Some((Request::parse(header, &payload).unwrap(), fds))
}

fn front(path: &Path, packed: bool) -> VirtioUser {
    front_of(path, packed, SIZE)
}

fn front_of(path: &Path, packed: bool, size: u16) -> VirtioUser {
    let mut config = Config::new(Role::Client, path);
    config.ring_size = size;
    config.buffer_bytes = BUFFER_BYTES;
    config.packed = packed;
    VirtioUser::new(config).unwrap()
}

fn why(port: &VirtioUser) -> String {
    match port.state() {
        State::Connecting(Some(why)) => why.to_string(),
        other => format!("{other:?}"),
    }
}

/// Plays something that a hostile back end does, and compares what the port says of it.
fn play(packed: bool, attack: impl Fn(&Back, &mut VirtioUser), wanted: &str) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut port = front(&path, packed);
    let back = Back::new(listener, &mut port, packed);
    attack(&back, &mut port);
    port.poll(Instant::now());
    assert_eq!(why(&port), wanted, "packed: {packed}");
    // The next one is not harmed.
    let back = Back::new(back.listener, &mut port, packed);
    back.set_buffers(0, 1);
    back.give(0, &[(0, 76)]);
    assert_eq!(port.receive(0, &mut Burst::new(4)), 1);
}

fn both(attack: impl Fn(&Back, &mut VirtioUser), wanted: &str) {
    play(false, &attack, wanted);
    play(true, &attack, wanted);
}

fn receive_none(port: &mut VirtioUser) {
    assert_eq!(port.receive(0, &mut Burst::new(64)), 0);
    assert_eq!(port.receive(0, &mut Burst::new(64)), 0);
}

#[test]
fn an_index_that_cannot_be_ends_the_connection() {
    let attack = |back: &Back, port: &mut VirtioUser| {
        back.set_index(0, SIZE + 1);
        receive_none(port);
    };
    let wanted = "the peer's index 17 is too far from ours, 0, in a ring of 16";
    play(false, attack, wanted);
    let attack = |back: &Back, port: &mut VirtioUser| {
        back.set_index(1, 1);
        let mut burst = Burst::new(17);
        while burst.push(&[0; 64]) {}
        assert_eq!(port.transmit(0, &burst, 0), 0);
    };
    let wanted = "the peer's index 1 is too far from ours, 0, in a ring of 16";
    play(false, attack, wanted);
}

#[test]
fn chains_that_are_not_with_it_end_the_connection() {
    for number in [u32::from(SIZE), 1 << 15] {
        let attack = |back: &Back, port: &mut VirtioUser| {
            back.give(0, &[(number, 76)]);
            receive_none(port);
        };
        both(
            attack,
            &format!("there is no chain {number} in a ring of 16"),
        );
    }
    let attack = |back: &Back, port: &mut VirtioUser| {
        back.set_buffers(3, 1);
        back.give(0, &[(3, 76), (3, 76)]);
        receive_none(port);
    };
    both(attack, "there is no chain 3 in a ring of 16");
}

#[test]
fn lengths_that_cannot_be_end_the_connection() {
    let attack = |back: &Back, port: &mut VirtioUser| {
        back.give(0, &[(0, BUFFER_BYTES + 1)]);
        receive_none(port);
    };
    both(attack, "a buffer of 256 bytes is said to have 257");
    let attack = |back: &Back, port: &mut VirtioUser| {
        back.give(0, &[(0, 11)]);
        receive_none(port);
    };
    both(attack, "a chain of 11 bytes has no room for the header");
    for count in [0, SIZE + 1] {
        let attack = |back: &Back, port: &mut VirtioUser| {
            back.set_buffers(0, count);
            back.give(0, &[(0, 76)]);
            receive_none(port);
        };
        both(
            attack,
            &format!("a packet is said to be in {count} buffers"),
        );
    }
}

#[test]
fn packets_that_are_dropped_are_taken_a_few_at_a_time() {
    const LARGE: u16 = 1024;
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut port = front_of(&path, packed, LARGE);
        let back = Back::new(listener, &mut port, packed);
        (0..LARGE).for_each(|number| back.set_buffers(number, 1));
        let chains: Vec<_> = (0..u32::from(LARGE)).map(|number| (number, 13)).collect();
        back.give(0, &chains);
        let mut before = 0;
        while before < u64::from(LARGE) {
            assert!(!port.arm(), "there are more");
            assert_eq!(port.receive(0, &mut Burst::new(32)), 0);
            let dropped = port.counters().received.dropped(Cause::TooShort);
            assert!((1..=256).contains(&(dropped - before)), "{dropped}");
            before = dropped;
        }
        assert!(port.arm());
    }
}

#[test]
fn answers_that_cannot_be_end_the_connection() {
    let ask = |answers: &[(Answer, u32)], wanted: &str| {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut port = front(&path, false);
        port.poll(Instant::now());
        let (mut stream, _) = listener.accept().unwrap();
        for (answer, request) in answers {
            stream.write_all(answer.emit(*request).bytes()).unwrap();
        }
        port.poll(Instant::now());
        assert_eq!(why(&port), wanted);
    };
    let protocol = VERSION_1 | F_PROTOCOL_FEATURES;
    ask(&[(Answer::Number(0), 17)], "unexpected message an answer");
    ask(
        &[(Answer::State(Default::default()), 11)],
        "unexpected message an answer",
    );
    ask(
        &[
            (Answer::Number(protocol), 1),
            (Answer::Number(PROTOCOL_REPLY_ACK), 15),
            (Answer::Number(1), 5),
        ],
        "the peer does not take SET_MEM_TABLE",
    );
    ask(
        &[
            (Answer::Number(protocol), 1),
            (Answer::Number(u64::MAX), 15),
            (Answer::Inflight(Default::default()), 31),
        ],
        "GET_INFLIGHT_FD came with another number of descriptors than it must",
    );
    ask(
        &[(Answer::Number(VERSION_1), 1), (Answer::Number(0), 5)],
        "unexpected message an answer",
    );
}

#[test]
fn the_beginning_of_a_packet_is_not_put_before_what_the_next_back_end_brings() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut port = front(&path, false);
    let back = Back::new(listener, &mut port, false);
    back.set_buffers(0, 1);
    back.set_buffers(1, 3);
    // A packet, and two buffers of one that has three.
    back.give(0, &[(0, 76), (1, 256), (2, 256)]);
    drop(back.stream);
    let begin = Instant::now();
    while matches!(port.state(), State::Connected) {
        port.poll(Instant::now());
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    let mut back = Back::new(back.listener, &mut port, false);
    assert_eq!(port.receive(0, &mut Burst::new(4)), 1);
    back.set_buffers(3, 1);
    let used = [3u32.to_le_bytes(), 100u32.to_le_bytes()].concat();
    back.write(back.rings[0][2] + 4 + 8 * 3, &used);
    back.set_index(0, 4);
    let mut burst = Burst::new(4);
    assert_eq!(port.receive(0, &mut burst), 1);
    assert_eq!(burst.iter().next().map(|packet| packet.len()), Some(88));
    // And the buffers are the back end's again.
    let mut index = [0; 2];
    back.hear();
    let available = back.rings[0][1] as i64 + 2;
    assert_eq!(pread(back.memory(), &mut index, available), Ok(2));
    assert_eq!(u16::from_le_bytes(index), SIZE + 4);
}

#[test]
fn whatever_a_back_end_scribbles_the_port_goes_on_and_counts_right() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut handed_out = 0;
    for packed in [false, true] {
        let mut listener = UnixListener::bind(&path).unwrap();
        let mut port = front(&path, packed);
        let before = handed_out;
        for seed in 0..40 {
            let mut random = Random(seed);
            let back = Back::new(listener, &mut port, packed);
            let mut burst = Burst::new(8);
            for number in 0..SIZE {
                back.set_buffers(number, 1 + u16::from(random.below(4) == 0));
            }
            for round in 0..60 {
                match random.below(6) {
                    0..4 => {
                        let count = 1 + round % u64::from(SIZE);
                        let chain = |number| {
                            let wrong = u32::from(random.below(100) == 0) * 20;
                            (number as u32 % 16 + wrong, 12 + random.below(245) as u32)
                        };
                        let chains: Vec<_> = (0..count).map(chain).collect();
                        back.give(random.below(2) as usize, &chains);
                    }
                    _ => {
                        let at = random.below(8192);
                        back.write(at, &random.next().to_le_bytes());
                    }
                }
                handed_out += port.receive(0, &mut burst) as u64;
                for packet in burst.iter() {
                    assert_eq!(packet.to_vec().len(), packet.len());
                }
                port.transmit(0, &burst, 0);
            }
            let received = port.counters().received.packets;
            assert_eq!(received, handed_out - before, "seed {seed}");
            drop(back.stream);
            listener = back.listener;
            let begin = Instant::now();
            while matches!(port.state(), State::Connected) {
                port.poll(Instant::now());
                assert!(begin.elapsed() < Duration::from_secs(60));
            }
        }
        drop(listener);
        std::fs::remove_file(&path).unwrap();
    }
    assert!(handed_out > 100, "{handed_out}");
}
