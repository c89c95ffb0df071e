//! virtio rings with a hostile peer: a driver before our back end, and a device before our front end, while packets pass.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use millrace_port::virtio_user::VirtioUser;
use millrace_shm::Mapping;
use millrace_wire::vhost_user::{
    Answer, F_PROTOCOL_FEATURES, HEADER_BYTES, Header, PROTOCOL_INFLIGHT_SHMFD, Request, Table,
    VringState,
};
use millrace_wire::virtio::{
    DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_USED, DESC_WRITE, DESCRIPTOR_BYTES, Descriptor,
    NET_MRG_RXBUF, RING_ENTRIES, RING_INDEX, RING_PACKED, VERSION_1,
};

use crate::peer::{Hand, Line, Place, Watched, hear, leaves_nothing, say};
use crate::vhost::{
    DRIVER, GUEST, RING_BYTES, SIZE, back_end, connect_to, front_end, inflight, region, ring_lines,
    say_line,
};
use crate::{Choices, sys};

/// Where a hostile driver's buffers are, and its tables.
const BUFFERS: usize = 0x4000;
const TABLES: usize = 0x3000;

/// Writes what `bytes` say, while packets pass, before the side that they say.
pub fn rings(bytes: &[u8]) {
    leaves_nothing(|| {
        let mut choices = Choices(bytes);
        let place = Place::new();
        let how = choices.byte();
        if how.is_multiple_of(2) {
            driver(&mut choices, place.path(), how & 2 != 0, how & 4 != 0);
        } else {
            device(&mut choices, place.path(), how & 2 != 0, how & 4 != 0);
        }
    });
}

/// A driver: its memory, and its in-flight memory, as it is mapped here.
struct Driver {
    memory: Mapping,
    inflight: Mapping,
    packed: bool,
    /// Of each ring: what is available next, by index, or by slot.
    given: [u16; 2],
    /// Packed: the wrap counter.
    wraps: [bool; 2],
}

impl Driver {
    fn ring(&self, ring: usize) -> usize {
        ring * RING_BYTES as usize
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        sys::copy_in(&self.memory, at, bytes);
    }

    fn describe(&self, at: usize, descriptor: Descriptor) {
        let words = if self.packed {
            descriptor.emit_packed()
        } else {
            descriptor.emit_split()
        };
        self.put(at, &words.map(u64::to_le_bytes).concat());
    }

    /// A descriptor, mostly one that could be.
    fn descriptor(&self, choices: &mut Choices<'_>, ring: usize) -> Descriptor {
        let right = if ring == 0 { DESC_WRITE } else { 0 };
        let what = choices.byte();
        let more = match what % 8 {
            0 => DESC_NEXT,
            1 => DESC_INDIRECT,
            2 if what > 250 => choices.word() as u16,
            _ => 0,
        };
        let wrong = if what == 255 { choices.word() } else { 0 };
        let is_table = more & DESC_INDIRECT != 0;
        let (begin, length) = if is_table {
            (TABLES, choices.below(20) * DESCRIPTOR_BYTES)
        } else {
            (BUFFERS + choices.size() * 2, choices.size())
        };
        Descriptor {
            address: (GUEST + begin as u64).wrapping_add(wrong),
            length: length as u32,
            flags: right | more,
            link: choices.below(usize::from(SIZE) + usize::from(what == 254)) as u16,
        }
    }

    /// Makes the next chain available.
    fn give(&mut self, choices: &mut Choices<'_>, ring: usize) {
        let mut descriptor = self.descriptor(choices, ring);
        let slot = self.given[ring] % SIZE;
        let at = self.ring(ring) + usize::from(slot) * DESCRIPTOR_BYTES;
        if self.packed {
            let turn = if self.wraps[ring] {
                DESC_AVAIL
            } else {
                DESC_USED
            };
            descriptor.flags = descriptor.flags & !(DESC_AVAIL | DESC_USED) | turn;
            self.describe(at, descriptor);
            self.given[ring] = (slot + 1) % SIZE;
            self.wraps[ring] ^= slot + 1 == SIZE;
            return;
        }
        self.describe(at, descriptor);
        let area = self.ring(ring) + DRIVER as usize;
        let entry = area + RING_ENTRIES + 2 * usize::from(slot);
        self.put(entry, &slot.to_le_bytes());
        self.given[ring] = self.given[ring].wrapping_add(1);
        self.put(area + RING_INDEX, &self.given[ring].to_le_bytes());
    }

    fn scribble(&mut self, choices: &mut Choices<'_>) {
        let ring = choices.below(2);
        match choices.byte() % 16 {
            0..=7 => {
                for _ in 0..=choices.below(4) {
                    self.give(choices, ring);
                }
            }
            8..=10 => {
                let at = TABLES + choices.below(32) * DESCRIPTOR_BYTES;
                let entry = self.descriptor(choices, ring);
                self.describe(at, entry);
            }
            11 => {
                let at = self.ring(ring) + choices.below(SIZE.into()) * DESCRIPTOR_BYTES;
                let any = self.descriptor(choices, ring);
                self.describe(at, any);
            }
            12 => {
                let at = self.ring(ring) + DRIVER as usize + RING_INDEX;
                self.put(at, &(choices.word() as u16).to_le_bytes());
            }
            13 => {
                let at = choices.word() as usize % 1200 / 4 * 4;
                sys::word(&self.inflight, at).store(choices.word() as u32, Relaxed);
            }
            14 => {
                // A header, or the beginning of a frame.
                let at = BUFFERS + choices.size() * 2;
                self.put(at, &choices.word().to_le_bytes());
            }
            _ => {
                let at = choices.word() as usize % (2 * RING_BYTES as usize / 4) * 4;
                sys::word(&self.memory, at).store(choices.word() as u32, Relaxed);
            }
        }
    }
}

fn driver(choices: &mut Choices<'_>, path: &Path, packed: bool, has_inflight: bool) {
    let hand = Hand::new();
    let mut driver = Driver {
        memory: hand.map(),
        inflight: Mapping::new(hand.get(2), 4096).expect("mapped"),
        packed,
        given: [0; 2],
        wraps: [true; 2],
    };
    let mut port = Watched::new(back_end(path));
    let mut peer = connect_to(&mut port, path, &hand, (packed, has_inflight));
    while !choices.is_empty() {
        match choices.byte() % 32 {
            0..=13 => driver.scribble(choices),
            14 => {
                let table = Table::new(&[region()]).unwrap_or_default();
                let table = Request::SetMemTable(table);
                say_line(&peer, &Line::new(table.emit(false).bytes(), &[0]), &hand);
                port.poll();
            }
            15 => {
                // A ring that stops, and starts where it was, or somewhere else.
                let index = choices.below(2) as u32;
                let state = |number| VringState { index, number };
                let stop = Request::GetVringBase(state(0)).emit(false);
                say(&peer, stop.bytes(), &[]);
                let base = u32::from(choices.byte()) << 8 & 0x8000;
                for line in ring_lines(index, base | base << 16) {
                    say_line(&peer, &line, &hand);
                }
                port.poll();
            }
            16 if choices.byte().is_multiple_of(4) => {
                drop(peer);
                port.poll();
                if choices.byte().is_multiple_of(2) {
                    drop(port);
                    port = Watched::new(back_end(path));
                }
                // What it has scribbled may keep the next one out as well.
                prepare(&driver);
                driver.given = [0; 2];
                driver.wraps = [true; 2];
                peer = connect_to(&mut port, path, &hand, (packed, has_inflight));
            }
            _ => port.work(choices),
        }
    }
    drop(peer);
    port.poll();
    drop(port.end());
}

/// Rings that nobody has used yet.
fn prepare(driver: &Driver) {
    driver.put(0, &vec![0; 2 * RING_BYTES as usize]);
    sys::copy_in(&driver.inflight, 0, &[0; 4096]);
}

/// A hostile device: a front end's memory, and where its rings are in it.
struct Device {
    _peer: UnixStream,
    memory: Mapping,
    /// Descriptors, the driver's area and the device's, by rings.
    rings: Vec<[usize; 3]>,
    packed: bool,
    /// What is given back next, by index, or by slot.
    used: [u16; 2],
    wraps: [bool; 2],
}

impl Device {
    /// Gives a chain back, mostly one that is here.
    fn give_back(&mut self, choices: &mut Choices<'_>) {
        let ring = choices.below(2);
        let is_wrong = choices.byte();
        let number = choices.below(usize::from(SIZE) + usize::from(is_wrong == 255));
        let length = choices.size() as u32 % 257 + u32::from(is_wrong == 254);
        let [descriptors, _, device] = self.rings[ring];
        let slot = self.used[ring] % SIZE;
        if self.packed {
            let turn = if self.wraps[ring] {
                DESC_AVAIL | DESC_USED
            } else {
                0
            };
            let descriptor = Descriptor {
                address: 0,
                length,
                flags: turn,
                link: number as u16,
            };
            let at = descriptors + usize::from(slot) * DESCRIPTOR_BYTES + 8;
            let word = descriptor.emit_packed()[1];
            sys::copy_in(&self.memory, at, &word.to_le_bytes());
            self.used[ring] = (slot + 1) % SIZE;
            self.wraps[ring] ^= slot + 1 == SIZE;
            return;
        }
        let at = device + RING_ENTRIES + 8 * usize::from(slot);
        let entry = [(number as u32).to_le_bytes(), length.to_le_bytes()].concat();
        sys::copy_in(&self.memory, at, &entry);
        self.used[ring] = self.used[ring].wrapping_add(1);
        let index = self.used[ring].to_le_bytes();
        sys::copy_in(&self.memory, device + RING_INDEX, &index);
    }

    fn scribble(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0..=4 => self.give_back(choices),
            5 => {
                // The header in a buffer: what is left to do, and in how many buffers the packet is.
                let slot = choices.below(SIZE.into());
                let at = self.memory.bytes() - 2 * 256 * usize::from(SIZE) + slot * 256;
                let mut header = [0; 12];
                header[..8].copy_from_slice(&choices.word().to_le_bytes());
                header[10] = choices.byte() % 4;
                sys::copy_in(&self.memory, at, &header);
            }
            _ => {
                let at = choices.word() as usize % (self.memory.bytes() / 4) * 4;
                sys::word(&self.memory, at).store(choices.word() as u32, Relaxed);
            }
        }
    }
}

/// Takes part until packets may pass.
fn be_device(
    port: &mut Watched<VirtioUser>,
    listening: &UnixListener,
    hand: &Hand,
    (packed, has_inflight): (bool, bool),
) -> Device {
    let (mut peer, mut memory, mut rings) = (None, None, Vec::new());
    let mut hear_all = |peer: &UnixStream, rings: &mut Vec<[usize; 3]>| {
        while let Some((request, fds)) = hear_request(peer) {
            answer(peer, &request, hand, (packed, has_inflight));
            match request {
                Request::SetMemTable(table) => {
                    let bytes = table.regions().first().map_or(0, |region| region.bytes);
                    let map = |fd: &OwnedFd| Mapping::new(fd.as_fd(), bytes as usize).ok();
                    memory = fds.first().and_then(map);
                }
                Request::SetVringAddr(address) => {
                    let places = [address.descriptors, address.available, address.used];
                    // The front end's memory begins at 2^32 for the device.
                    rings.push(places.map(|place| (place & 0xffff_ffff) as usize));
                }
                _ => {}
            }
        }
    };
    port.until_connected(|| {
        if let Ok((next, _)) = listening.accept() {
            rings.clear();
            peer = Some(next);
        }
        if let Some(peer) = &peer {
            hear_all(peer, &mut rings);
        }
    });
    let peer: UnixStream = peer.expect("it is connected");
    // Where nobody answers for success it is connected before all was heard.
    hear_all(&peer, &mut rings);
    assert_eq!(rings.len(), 2);
    Device {
        _peer: peer,
        memory: memory.expect("a region came"),
        rings,
        packed,
        used: [0; 2],
        wraps: [true; 2],
    }
}

fn hear_request(peer: &UnixStream) -> Option<(Request, Vec<OwnedFd>)> {
    let mut bytes = [0; HEADER_BYTES];
    let (_, fds) = hear(peer, &mut bytes)?;
    let header = Header::parse(bytes).ok()?;
    let mut payload = vec![0; header.bytes as usize];
    if !payload.is_empty() {
        hear(peer, &mut payload)?;
    }
    Some((Request::parse(header, &payload).ok()?, fds))
}

fn answer(peer: &UnixStream, request: &Request, hand: &Hand, how: (bool, bool)) {
    let (packed, has_inflight) = how;
    let more =
        if packed { RING_PACKED } else { 0 } | if has_inflight { F_PROTOCOL_FEATURES } else { 0 };
    let number = |number, request| say(peer, Answer::Number(number).emit(request).bytes(), &[]);
    match request {
        Request::GetFeatures => number(VERSION_1 | NET_MRG_RXBUF | more, 1),
        Request::GetProtocolFeatures => number(PROTOCOL_INFLIGHT_SHMFD, 15),
        Request::GetInflightFd(_) => {
            let bytes = Answer::Inflight(inflight()).emit(31);
            say(peer, bytes.bytes(), &[hand.get(2)]);
        }
        _ => {}
    }
}

fn device(choices: &mut Choices<'_>, path: &Path, packed: bool, has_inflight: bool) {
    let hand = Hand::new();
    let listening = UnixListener::bind(path).expect("listens");
    listening.set_nonblocking(true).expect("does not wait");
    let mut port = Watched::new(front_end(path, packed));
    port.wait(Duration::from_secs(1));
    // Each death is followed by the next one.
    for _ in 0..4 {
        let mut device = be_device(&mut port, &listening, &hand, (packed, has_inflight));
        while !choices.is_empty() {
            match choices.byte() % 16 {
                0..=7 => device.scribble(choices),
                8 if choices.byte().is_multiple_of(8) => break,
                _ => port.work(choices),
            }
        }
        drop(device);
        port.poll();
        port.wait(Duration::from_secs(2));
        if choices.is_empty() {
            break;
        }
    }
    drop(port.end());
}
