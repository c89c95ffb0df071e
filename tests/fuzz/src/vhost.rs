//! What a hostile peer says by vhost-user: a front end to a back end, and a back end to a front end.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use millrace_port::vhost_user::{self, VhostUser};
use millrace_port::virtio_user::{self, VirtioUser};
use millrace_port::{Port, vhost_user::Role};
use millrace_wire::vhost_user::{
    Answer, F_PROTOCOL_FEATURES, Inflight, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_INFLIGHT_SHMFD,
    PROTOCOL_MQ, PROTOCOL_REPLY_ACK, Region, Request, Table, VringAddress, VringFd, VringState,
};
use millrace_wire::virtio::{NET_MRG_RXBUF, RING_INDIRECT_DESC, RING_PACKED, VERSION_1};

use crate::Choices;
use crate::peer::{Hand, Line, MEMORY_BYTES, Place, Watched, hear, leaves_nothing, next_line, say};

pub(crate) const SIZE: u16 = 16;
/// Where a hostile driver's memory is for it, and for the front end.
pub(crate) const GUEST: u64 = 0x10_0000;
pub(crate) const USER: u64 = 0x7000_0000;
/// Where the parts of a ring are, from its beginning on; rings are one behind the other.
pub(crate) const RING_BYTES: u64 = 0x1000;
pub(crate) const DRIVER: u64 = 0x400;
pub(crate) const DEVICE: u64 = 0x800;

const FEATURES: u64 = VERSION_1 | F_PROTOCOL_FEATURES | NET_MRG_RXBUF | RING_INDIRECT_DESC;
const PROTOCOL: u64 =
    PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_INFLIGHT_SHMFD | PROTOCOL_CONFIGURE_MEM_SLOTS;

pub(crate) fn region() -> Region {
    Region {
        guest: GUEST,
        bytes: MEMORY_BYTES as u64,
        user: USER,
        offset: 0,
    }
}

pub(crate) fn inflight() -> Inflight {
    Inflight {
        bytes: 4096,
        offset: 0,
        queues: 2,
        size: SIZE,
    }
}

fn line(request: &Request, needs_reply: bool, fds: &[usize]) -> Line {
    Line::new(request.emit(needs_reply).bytes(), fds)
}

/// What is said of a ring until it runs. Its bells are number 1 of a hand.
pub(crate) fn ring_lines(index: u32, base: u32) -> Vec<Line> {
    let state = |number| VringState { index, number };
    let at = USER + u64::from(index) * RING_BYTES;
    let address = VringAddress {
        index,
        flags: 0,
        descriptors: at,
        used: at + DEVICE,
        available: at + DRIVER,
        log: 0,
    };
    let fd = VringFd {
        index: index as u8,
        has_fd: true,
    };
    vec![
        line(&Request::SetVringCall(fd), false, &[1]),
        line(&Request::SetVringNum(state(SIZE.into())), false, &[]),
        line(&Request::SetVringBase(state(base)), false, &[]),
        line(&Request::SetVringAddr(address), false, &[]),
        line(&Request::SetVringKick(fd), false, &[1]),
        line(&Request::SetVringEnable(state(1)), false, &[]),
    ]
}

/// What is said before rings.
pub(crate) fn first_lines(packed: bool, has_inflight: bool) -> Vec<Line> {
    let ring = if packed { RING_PACKED } else { 0 };
    let table = Request::SetMemTable(Table::new(&[region()]).unwrap_or_default());
    let mut lines = vec![
        line(&Request::SetOwner, false, &[]),
        line(&Request::SetFeatures(FEATURES | ring), false, &[]),
        line(&Request::SetProtocolFeatures(PROTOCOL), false, &[]),
    ];
    if has_inflight {
        lines.push(line(&Request::SetInflightFd(inflight()), false, &[2]));
    }
    lines.push(line(&table, false, &[0]));
    lines
}

/// Everything that a front end says, in an order that makes sense.
fn front_says(packed: bool) -> Vec<Line> {
    let state = |index, number| VringState { index, number };
    let base = if packed { 0x8000_8000 } else { 0 };
    let mut other = region();
    other.guest += 1 << 32;
    other.user += 1 << 32;
    let mut lines = vec![
        line(&Request::GetFeatures, false, &[]),
        line(&Request::GetProtocolFeatures, false, &[]),
        line(&Request::GetQueueNum, false, &[]),
        line(&Request::GetMaxMemSlots, false, &[]),
    ];
    lines.extend(first_lines(packed, true));
    lines.extend(ring_lines(0, base));
    lines.extend(ring_lines(1, base));
    lines.extend([
        line(&Request::AddMemReg(other), true, &[6]),
        line(&Request::RemMemReg(other), true, &[]),
        line(&Request::GetInflightFd(inflight()), false, &[]),
        line(&Request::SetVringEnable(state(0, 0)), true, &[]),
        line(&Request::GetVringBase(state(1, 0)), false, &[]),
        line(&Request::ResetOwner, false, &[]),
    ]);
    lines
}

/// Everything that a back end answers, as our front end asks.
fn back_says() -> Vec<Line> {
    let answer =
        |answer: Answer, request, fds: &[usize]| Line::new(answer.emit(request).bytes(), fds);
    let number = |number, request| answer(Answer::Number(number), request, &[]);
    vec![
        number(FEATURES | RING_PACKED, 1),
        number(PROTOCOL, 15),
        answer(Answer::Inflight(inflight()), 31, &[2]),
        number(0, 5),
        number(0, 18),
        number(1, 17),
    ]
}

pub(crate) fn say_line(peer: &UnixStream, line: &Line, hand: &Hand) {
    let fds: Vec<_> = line.fds.iter().map(|number| hand.get(*number)).collect();
    say(peer, &line.bytes, &fds);
}

/// Says what `bytes` say, as the side that they say.
pub fn control(bytes: &[u8]) {
    leaves_nothing(|| {
        let mut choices = Choices(bytes);
        let place = Place::new();
        let how = choices.byte();
        if how.is_multiple_of(2) {
            against_back(&mut choices, place.path(), how & 2 != 0);
        } else {
            against_front(&mut choices, place.path(), how & 2 != 0);
        }
    });
}

fn dialogue<P: Port>(
    choices: &mut Choices<'_>,
    port: &mut Watched<P>,
    script: &[Line],
    hand: &Hand,
    renew: impl Fn() -> Option<UnixStream>,
) {
    let mut peer = renew();
    let mut next = 0;
    let mut buffer = [0; 512];
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
            // Who does not is given up after a while.
            5 | 6 => {
                while peer
                    .as_ref()
                    .and_then(|peer| hear(peer, &mut buffer))
                    .is_some()
                {}
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

/// A back end that listens.
pub(crate) fn back_end(path: &Path) -> VhostUser {
    let mut config = vhost_user::Config::new(Role::Server, path);
    config.offloads = true;
    VhostUser::new(config).expect("a port")
}

/// An honest front end, up to where packets may pass.
pub(crate) fn connect_to(
    port: &mut Watched<VhostUser>,
    path: &Path,
    hand: &Hand,
    (packed, has_inflight): (bool, bool),
) -> UnixStream {
    let peer = UnixStream::connect(path).expect("connected");
    port.poll();
    let base = if packed { 0x8000_8000 } else { 0 };
    let rings = (0..2).flat_map(|index| ring_lines(index, base));
    for line in first_lines(packed, has_inflight).into_iter().chain(rings) {
        say_line(&peer, &line, hand);
    }
    port.until_connected(|| {});
    peer
}

fn against_back(choices: &mut Choices<'_>, path: &Path, packed: bool) {
    let hand = Hand::new();
    let mut port = Watched::new(back_end(path));
    dialogue(choices, &mut port, &front_says(packed), &hand, || {
        UnixStream::connect(path).ok()
    });
    // Nobody else is harmed.
    port.poll();
    drop(hand);
    let hand = Hand::new();
    let peer = connect_to(&mut port, path, &hand, (packed, false));
    drop(peer);
    port.poll();
    drop(port.end());
}

/// A front end that looks for its back end.
pub(crate) fn front_end(path: &Path, packed: bool) -> VirtioUser {
    let mut config = virtio_user::Config::new(Role::Client, path);
    config.ring_size = SIZE;
    config.buffer_bytes = 256;
    config.packed = packed;
    config.offloads = true;
    VirtioUser::new(config).expect("a port")
}

fn against_front(choices: &mut Choices<'_>, path: &Path, packed: bool) {
    let hand = Hand::new();
    let listening = UnixListener::bind(path).expect("listens");
    listening.set_nonblocking(true).expect("does not wait");
    let mut port = Watched::new(front_end(path, packed));
    port.wait(Duration::from_secs(1));
    dialogue(choices, &mut port, &back_says(), &hand, || {
        let accepted = listening.accept().ok();
        accepted.map(|(peer, _)| peer)
    });
    let mut peer = None;
    // Each connection that it has made since, up to the one that stays.
    port.until_connected(|| {
        while let Ok((next, _)) = listening.accept() {
            // That is all which is asked of a back end that knows of no protocol features.
            let features = Answer::Number(VERSION_1 | NET_MRG_RXBUF).emit(1);
            say(&next, features.bytes(), &[]);
            peer = Some(next);
        }
    });
    drop(peer);
    port.poll();
    drop(port.end());
}
