//! A vhost-user front end that is a socket and a file, and does as it is told.
use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_port::vhost_user::{Config, Role, VhostUser};
use millrace_port::{Port, State};
use millrace_shm::sys::create_sealed;
use millrace_wire::vhost_user::{
    F_PROTOCOL_FEATURES, Region, Request, Table, VringAddress, VringFd, VringState,
};
use millrace_wire::virtio::{
    DESC_AVAIL, DESC_USED, Descriptor, NET_MRG_RXBUF, RING_INDIRECT_DESC, RING_PACKED, VERSION_1,
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::uio::{pread, pwrite};

pub(crate) const SIZE: u16 = 16;
pub(crate) const MEMORY_BYTES: usize = 64 * 1024;
/// Where the memory is for the driver, and for the front end.
pub(crate) const GUEST: u64 = 0x10_0000;
pub(crate) const USER: u64 = 0x7000_0000;
/// Where buffers may be.
pub(crate) const BUFFERS: u64 = 0x4000;
pub(crate) const RX: u32 = 0;
pub(crate) const TX: u32 = 1;
const DRIVER: u64 = 0x400;
const DEVICE: u64 = 0x800;

pub(crate) struct Raw {
    pub(crate) socket: UnixStream,
    pub(crate) memory: OwnedFd,
    pub(crate) packed: bool,
    pub(crate) bell: EventFd,
}

/// One that nobody waits at.
pub(crate) fn bell() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()
}

pub(crate) fn server(path: &Path) -> VhostUser {
    VhostUser::new(Config::new(Role::Server, path)).unwrap()
}

pub(crate) fn why(port: &VhostUser) -> String {
    match port.state() {
        State::Connecting(Some(why)) => why.to_string(),
        other => format!("{other:?}"),
    }
}

pub(crate) fn until(port: &mut VhostUser, holds: impl Fn(&VhostUser) -> bool) {
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

impl Raw {
    /// Connected, and nothing said.
    pub(crate) fn silent(path: &Path, packed: bool) -> Raw {
        Raw {
            socket: UnixStream::connect(path).unwrap(),
            memory: create_sealed(c"hostile", MEMORY_BYTES, 0).unwrap(),
            packed,
            bell: bell(),
        }
    }

    /// With a ring each way, up to where packets may pass.
    pub(crate) fn new(port: &mut VhostUser, path: &Path, packed: bool) -> Raw {
        let raw = Raw::silent(path, packed);
        raw.say_features(0);
        raw.say_memory();
        raw.say_ring(RX);
        raw.say_ring(TX);
        until(port, |port| {
            port.receive_queues() == 1 && port.transmit_queues() == 1
        });
        raw
    }

    pub(crate) fn say_features(&self, more: u64) {
        let ring = if self.packed { RING_PACKED } else { 0 };
        let some = VERSION_1 | F_PROTOCOL_FEATURES | NET_MRG_RXBUF | RING_INDIRECT_DESC;
        self.say(&Request::SetOwner, &[]);
        self.say(&Request::SetFeatures(some | ring | more), &[]);
    }

    pub(crate) fn region() -> Region {
        Region {
            guest: GUEST,
            bytes: MEMORY_BYTES as u64,
            user: USER,
            offset: 0,
        }
    }

    pub(crate) fn say_memory(&self) {
        let table = Table::new(&[Raw::region()]).unwrap();
        self.say(&Request::SetMemTable(table), &[self.memory.as_fd()]);
    }

    pub(crate) fn address(index: u32) -> VringAddress {
        let base = USER + u64::from(index) * 0x1000;
        VringAddress {
            index,
            flags: 0,
            descriptors: base,
            used: base + DEVICE,
            available: base + DRIVER,
            log: 0,
        }
    }

    pub(crate) fn fd(index: u32) -> VringFd {
        VringFd {
            index: index as u8,
            has_fd: true,
        }
    }

    pub(crate) fn say_ring(&self, index: u32) {
        let base = if self.packed { 0x8000 } else { 0 };
        let state = |number| VringState { index, number };
        let bell = [self.bell.as_fd()];
        self.say(&Request::SetVringCall(Raw::fd(index)), &bell);
        self.say(&Request::SetVringNum(state(u32::from(SIZE))), &[]);
        self.say(&Request::SetVringBase(state(base)), &[]);
        self.say(&Request::SetVringAddr(Raw::address(index)), &[]);
        self.say(&Request::SetVringKick(Raw::fd(index)), &bell);
        self.say_ring_enabled(index, true);
    }

    pub(crate) fn say_ring_enabled(&self, index: u32, is_enabled: bool) {
        let number = u32::from(is_enabled);
        self.say(&Request::SetVringEnable(VringState { index, number }), &[]);
    }

    pub(crate) fn say(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        self.say_bytes(request.emit(false).bytes(), fds);
    }

    pub(crate) fn say_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let rights = if numbers.is_empty() { &[] } else { &rights[..] };
        // The other end may have closed already.
        let _ = sendmsg::<()>(
            self.socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
    }

    /// Whether the port has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 256];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    }

    /// Writes to the memory.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.memory, bytes, offset as i64), Ok(bytes.len()));
    }

    pub(crate) fn half(&self, offset: u64) -> u16 {
        let mut bytes = [0; 2];
        assert_eq!(pread(&self.memory, &mut bytes, offset as i64), Ok(2));
        u16::from_le_bytes(bytes)
    }

    fn ring(index: u32) -> u64 {
        u64::from(index) * 0x1000
    }

    /// A descriptor; its address is that in the memory, unless it is large.
    pub(crate) fn describe(&self, ring: u32, slot: u16, buffer: u64, length: u32, flags: u16) {
        self.describe_linked(ring, slot, buffer, length, flags, slot + 1);
    }

    pub(crate) fn describe_linked(
        &self,
        ring: u32,
        slot: u16,
        buffer: u64,
        length: u32,
        flags: u16,
        link: u16,
    ) {
        self.describe_at(
            Raw::ring(ring) + u64::from(slot) * 16,
            buffer,
            length,
            flags,
            link,
        );
    }

    pub(crate) fn describe_at(&self, at: u64, buffer: u64, length: u32, flags: u16, link: u16) {
        let address = if buffer < 1 << 32 {
            GUEST + buffer
        } else {
            buffer
        };
        let descriptor = Descriptor {
            address,
            length,
            flags,
            link,
        };
        let words = if self.packed {
            descriptor.emit_packed()
        } else {
            descriptor.emit_split()
        };
        self.write(at, &words.map(u64::to_le_bytes).concat());
    }

    /// Makes the chains from descriptor 0 on available, which begin at these.
    pub(crate) fn offer(&self, ring: u32, heads: &[u16]) {
        if self.packed {
            // All descriptors of the first turn, the first one last.
            for slot in (0..SIZE).rev() {
                let at = Raw::ring(ring) + u64::from(slot) * 16 + 14;
                let flags = self.half(at);
                let is_one = flags != 0 || heads.contains(&slot);
                if is_one {
                    let flags = flags & !DESC_USED | DESC_AVAIL;
                    self.write(at, &flags.to_le_bytes());
                }
            }
            return;
        }
        let area = Raw::ring(ring) + DRIVER;
        let index = self.half(area + 2);
        for (at, head) in (index..).zip(heads) {
            let entry = area + 4 + 2 * u64::from(at % SIZE);
            self.write(entry, &head.to_le_bytes());
        }
        self.set_index(ring, index.wrapping_add(heads.len() as u16));
    }

    /// Split: what is said to be available.
    pub(crate) fn set_index(&self, ring: u32, index: u16) {
        self.write(Raw::ring(ring) + DRIVER + 2, &index.to_le_bytes());
    }

    /// Split: how many chains were given back.
    pub(crate) fn used(&self, ring: u32) -> u16 {
        self.half(Raw::ring(ring) + DEVICE + 2)
    }
}
