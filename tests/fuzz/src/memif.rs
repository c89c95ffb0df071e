//! memif with a hostile peer, in both roles: what it says, and what it writes while packets pass.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use millrace_port::memif::{Config, Memif, Role};
use millrace_shm::Mapping;
use millrace_wire::memif::{
    AddRegion, AddRing, COOKIE, Descriptor, Disconnect, Hello, Init, MESSAGE_BYTES, Message, Mode,
    RING_C2S, RING_DESCRIPTORS, RING_HEAD, RING_TAIL, Text, VERSION, ring_bytes,
};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};

use crate::peer::{Hand, Line, MEMORY_BYTES, Place, Watched, hear, leaves_nothing, next_line, say};
use crate::{Choices, sys};

/// Of a hostile client's rings.
const LOG2_SIZE: u8 = 4;
const SIZE: u16 = 1 << LOG2_SIZE;
/// Where its buffers are.
const BUFFERS: u32 = 16 * 1024;

fn config(role: Role, path: &Path) -> Config {
    let mut config = Config::new(role, path);
    config.log2_ring_size = LOG2_SIZE;
    config.buffer_bytes = 256;
    config
}

fn listener(path: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    bind(made.as_raw_fd(), &UnixAddr::new(path).expect("a path")).expect("bound");
    listen(&made, Backlog::new(4).expect("few")).expect("listens");
    made
}

/// What a client says until packets pass.
fn client_says() -> Vec<Line> {
    let init = Init {
        version: VERSION,
        id: 0,
        mode: Mode::default(),
        secret: Text::default(),
        name: Text::new("hostile"),
    };
    let region = AddRegion {
        index: 0,
        bytes: MEMORY_BYTES as u64,
    };
    let ring = |flags, number: usize| {
        Message::AddRing(AddRing {
            flags,
            index: 0,
            region: 0,
            offset: (number * ring_bytes(LOG2_SIZE)) as u32,
            log2_size: LOG2_SIZE,
            private_header_bytes: 0,
        })
    };
    vec![
        Line::new(&Message::Init(init).emit(), &[]),
        Line::new(&Message::AddRegion(region).emit(), &[0]),
        Line::new(&ring(RING_C2S, 0).emit(), &[1]),
        Line::new(&ring(0, 1).emit(), &[1]),
        Line::new(&Message::Connect(Text::new("hostile")).emit(), &[]),
        Line::new(&disconnect(), &[]),
    ]
}

fn disconnect() -> [u8; MESSAGE_BYTES] {
    let disconnect = Disconnect {
        code: 1,
        reason: Text::new("enough"),
    };
    Message::Disconnect(disconnect).emit()
}

/// What a server says until packets pass.
fn server_says() -> Vec<Line> {
    let hello = Hello {
        name: Text::new("hostile"),
        version_min: VERSION,
        version_max: VERSION,
        region_max: 255,
        s2c_ring_max: 0,
        c2s_ring_max: 0,
        log2_size_max: 14,
    };
    let mut lines = vec![Line::new(&Message::Hello(hello).emit(), &[])];
    // For INIT, the region, and two rings.
    lines.extend((0..4).map(|_| Line::new(&Message::Ack.emit(), &[])));
    lines.push(Line::new(
        &Message::Connected(Text::new("hostile")).emit(),
        &[],
    ));
    lines.push(Line::new(&disconnect(), &[]));
    lines
}

/// A script up to where packets pass.
fn honest(script: &[Line]) -> &[Line] {
    &script[..script.len() - 1]
}

fn say_line(peer: &OwnedFd, line: &Line, hand: &Hand) {
    let fds: Vec<_> = line.fds.iter().map(|number| hand.get(*number)).collect();
    say(peer, &line.bytes, &fds);
}

/// Has rings at the beginning of the memory.
fn prepare(memory: &Mapping) {
    let ring = ring_bytes(LOG2_SIZE);
    sys::copy_in(memory, 0, &vec![0; 2 * ring]);
    for number in 0..2 {
        sys::copy_in(memory, number * ring, &COOKIE.to_le_bytes());
    }
}

/// Says what `bytes` say, in the role that they say.
pub fn control(bytes: &[u8]) {
    leaves_nothing(|| {
        let mut choices = Choices(bytes);
        let place = Place::new();
        if choices.byte().is_multiple_of(2) {
            against_server(&mut choices, place.path());
        } else {
            against_client(&mut choices, place.path());
        }
    });
}

/// Says things, and lets the port work in between. A peer whose connection has ended connects again, by `renew`.
fn dialogue(
    choices: &mut Choices<'_>,
    port: &mut Watched<Memif>,
    script: &[Line],
    hand: &Hand,
    renew: impl Fn() -> Option<OwnedFd>,
) {
    let mut peer = renew();
    let mut next = 0;
    port.poll();
    while !choices.is_empty() {
        match choices.byte() % 16 {
            0..=2 => port.work(choices),
            3 => port.wait(Duration::from_secs(choices.below(3) as u64)),
            4 => {
                if let Some(again) = renew() {
                    peer = Some(again);
                    next = 0;
                }
            }
            _ => {
                let line = next_line(choices, script, &mut next);
                if let Some(peer) = &peer {
                    say_line(peer, &line, hand);
                }
            }
        }
        port.poll();
    }
    drop(peer);
    port.poll();
}

fn against_server(choices: &mut Choices<'_>, path: &Path) {
    let hand = Hand::new();
    let memory = hand.map();
    prepare(&memory);
    let script = client_says();
    let port = Memif::new(config(Role::Server, path)).expect("a port");
    let mut port = Watched::new(port);
    dialogue(choices, &mut port, &script, &hand, || {
        sys::connect(path).ok()
    });
    // Nobody else is harmed.
    port.poll();
    prepare(&memory);
    let peer = sys::connect(path).expect("connected");
    port.poll();
    for line in honest(&script) {
        say_line(&peer, line, &hand);
    }
    port.until_connected(|| {});
    drop(peer);
    port.poll();
    drop(port.end());
}

fn against_client(choices: &mut Choices<'_>, path: &Path) {
    let hand = Hand::new();
    let script = server_says();
    let listening = listener(path);
    let port = Memif::new(config(Role::Client, path)).expect("a port");
    let mut port = Watched::new(port);
    port.wait(Duration::from_secs(1));
    dialogue(choices, &mut port, &script, &hand, || {
        sys::accept(&listening).ok()
    });
    // It may have connected again already, and again; the last one is the one.
    port.wait(Duration::from_secs(2));
    let mut peer = None;
    while let Ok(next) = sys::accept(&listening) {
        peer = Some(next);
    }
    port.until_connected(|| {
        if let Ok(next) = sys::accept(&listening) {
            peer = Some(next);
        }
        if let Some(peer) = &peer {
            answer_client(peer);
        }
    });
    drop(peer);
    port.poll();
    drop(port.end());
}

/// Says to a client what is due: HELLO once, and then what each of its messages asks for.
fn answer_client(peer: &OwnedFd) {
    let script = server_says();
    let mut buffer = [0; MESSAGE_BYTES];
    let mut heard = false;
    while let Some((bytes, _)) = hear(peer, &mut buffer) {
        heard = true;
        let answer = match Message::parse(&buffer[..bytes]) {
            Ok(Message::Connect(_)) => Message::Connected(Text::new("honest")).emit(),
            Ok(Message::Disconnect(_)) | Err(_) => return,
            Ok(_) => Message::Ack.emit(),
        };
        say(peer, &answer, &[]);
    }
    if !heard {
        // It waits for this, or has had it, and ends: then there is another one.
        say(peer, &script[0].bytes, &[]);
    }
}

/// A peer that has memory in common with a port.
struct Rings {
    _socket: OwnedFd,
    memory: Mapping,
    size: u16,
    log2_size: u8,
    /// Cursors as an honest one would have them.
    cursors: [u16; 2],
}

impl Rings {
    fn ring(&self, number: usize) -> usize {
        number * ring_bytes(self.log2_size)
    }

    fn set_half(&self, at: usize, value: u16) {
        sys::copy_in(&self.memory, at, &value.to_le_bytes());
    }

    /// Writes something: mostly near what is right.
    fn scribble(&mut self, choices: &mut Choices<'_>) {
        let number = choices.below(2);
        let ring = self.ring(number);
        match choices.byte() % 8 {
            0..=2 => {
                let by = u16::from(choices.byte()) % (self.size + 1);
                self.cursors[number] = self.cursors[number].wrapping_add(by);
                let field = if choices.byte().is_multiple_of(4) {
                    RING_TAIL
                } else {
                    RING_HEAD
                };
                self.set_half(ring + field, self.cursors[number]);
            }
            3..=5 => {
                let slot = choices.below(usize::from(self.size));
                let descriptor = Descriptor {
                    flags: u16::from(choices.byte().is_multiple_of(4)),
                    region: u16::from(choices.byte() == 0),
                    length: choices.size() as u32 * 8 % 70_000,
                    offset: (BUFFERS + choices.size() as u32 * 2) % MEMORY_BYTES as u32,
                    metadata: 0,
                };
                let bytes = descriptor.emit().map(u64::to_le_bytes).concat();
                let at = ring + RING_DESCRIPTORS + slot * 16;
                sys::copy_in(&self.memory, at, &bytes);
            }
            6 => self.set_half(ring + RING_HEAD, choices.word() as u16),
            _ => {
                // Both rings, but not the end of the mapping, which may be beyond the memory.
                let bytes = 2 * ring_bytes(self.log2_size);
                let at = choices.word() as usize % (bytes / 4) * 4;
                sys::word(&self.memory, at)
                    .store(choices.word() as u32, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
}

/// Writes what `bytes` say, while packets pass, in the role that they say.
pub fn rings(bytes: &[u8]) {
    leaves_nothing(|| {
        let mut choices = Choices(bytes);
        let place = Place::new();
        let is_client = choices.byte().is_multiple_of(2);
        let role = if is_client {
            Role::Server
        } else {
            Role::Client
        };
        let listening = (!is_client).then(|| listener(place.path()));
        let port = Memif::new(config(role, place.path())).expect("a port");
        let mut port = Watched::new(port);
        // Each death is followed by the next one.
        for _ in 0..4 {
            let mut peer = match &listening {
                None => hostile_client(&mut port, place.path()),
                Some(listening) => hostile_server(&mut port, listening),
            };
            while !choices.is_empty() {
                match choices.byte() % 16 {
                    0..=6 => peer.scribble(&mut choices),
                    7 if choices.byte().is_multiple_of(8) => break,
                    _ => port.work(&mut choices),
                }
            }
            drop(peer);
            port.poll();
            port.wait(Duration::from_secs(2));
            if choices.is_empty() {
                break;
            }
        }
        drop(port.end());
    });
}

fn hostile_client(port: &mut Watched<Memif>, path: &Path) -> Rings {
    let hand = Hand::new();
    let memory = hand.map();
    prepare(&memory);
    let socket = sys::connect(path).expect("connected");
    port.poll();
    for line in honest(&client_says()) {
        say_line(&socket, line, &hand);
    }
    port.until_connected(|| {});
    Rings {
        _socket: socket,
        memory,
        size: SIZE,
        log2_size: LOG2_SIZE,
        cursors: [0; 2],
    }
}

fn hostile_server(port: &mut Watched<Memif>, listening: &OwnedFd) -> Rings {
    let mut buffer = [0; MESSAGE_BYTES];
    let mut memory = None;
    let mut socket: Option<OwnedFd> = None;
    port.until_connected(|| {
        if let Ok(next) = sys::accept(listening) {
            say(&next, &server_says()[0].bytes, &[]);
            socket = Some(next);
        }
        let Some(socket) = &socket else {
            return;
        };
        while let Some((bytes, fds)) = hear(socket, &mut buffer) {
            let answer = match Message::parse(&buffer[..bytes]) {
                Ok(Message::Connect(_)) => Message::Connected(Text::new("hostile")).emit(),
                Ok(Message::AddRegion(region)) => {
                    memory = fds
                        .first()
                        .and_then(|fd| Mapping::new(fd.as_fd(), region.bytes as usize).ok());
                    Message::Ack.emit()
                }
                _ => Message::Ack.emit(),
            };
            say(socket, &answer, &[]);
        }
    });
    Rings {
        _socket: socket.expect("it is connected"),
        memory: memory.expect("a region came"),
        size: SIZE,
        log2_size: LOG2_SIZE,
        cursors: [0; 2],
    }
}
