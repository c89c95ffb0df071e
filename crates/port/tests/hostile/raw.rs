//! A memif client that is a socket and a file, and does as it is told.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use millrace_port::memif::Memif;
use millrace_port::{Port, State};
use millrace_shm::sys::create_sealed;
use millrace_wire::memif::{
    AddRegion, AddRing, COOKIE, Descriptor, Init, MESSAGE_BYTES, Message, RING_C2S, RING_TAIL,
    Text, VERSION, ring_bytes,
};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recvmsg,
    sendmsg, socket,
};
use nix::sys::uio::{pread, pwrite};

use crate::until;

pub(crate) const LOG2_SIZE: u8 = 4;
pub(crate) const SIZE: u16 = 1 << LOG2_SIZE;
pub(crate) const REGION_BYTES: usize = 64 * 1024;
pub(crate) const BUFFERS: u32 = 16 * 1024;

/// A client that is a socket and a file, and does as it is told.
pub(crate) struct Raw {
    pub(crate) socket: OwnedFd,
    pub(crate) memory: OwnedFd,
    pub(crate) bell: EventFd,
    pub(crate) log2_size: u8,
}

impl Raw {
    pub(crate) fn connect(path: &Path) -> OwnedFd {
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::empty(),
            None,
        )
        .unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        socket
    }

    /// A client with a ring each way, up to where packets may pass.
    pub(crate) fn new(port: &mut Memif, path: &Path) -> Raw {
        Raw::sized(port, path, LOG2_SIZE, REGION_BYTES)
    }

    /// The same with larger rings.
    pub(crate) fn sized(port: &mut Memif, path: &Path, log2_size: u8, bytes: usize) -> Raw {
        let raw = Raw {
            socket: Raw::connect(path),
            memory: create_sealed(c"hostile", bytes, 0).unwrap(),
            bell: EventFd::new().unwrap(),
            log2_size,
        };
        raw.write(0, &COOKIE.to_le_bytes());
        raw.write(ring_bytes(log2_size), &COOKIE.to_le_bytes());
        let region = AddRegion {
            index: 0,
            bytes: bytes as u64,
        };
        let ring = |flags, offset: usize| {
            Message::AddRing(AddRing {
                flags,
                index: 0,
                region: 0,
                offset: offset as u32,
                log2_size,
                private_header_bytes: 0,
            })
        };
        raw.say(&init(0).emit(), None);
        raw.say(&Message::AddRegion(region).emit(), Some(raw.memory.as_fd()));
        raw.say(&ring(RING_C2S, 0).emit(), Some(raw.bell.as_fd()));
        raw.say(
            &ring(0, ring_bytes(log2_size)).emit(),
            Some(raw.bell.as_fd()),
        );
        raw.say(&Message::Connect(Text::new("hostile")).emit(), None);
        until(port, |port| matches!(port.state(), State::Connected));
        raw
    }

    pub(crate) fn say(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) {
        say(&self.socket, bytes, fd);
    }

    /// Writes to the region.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(pwrite(&self.memory, bytes, offset as i64), Ok(bytes.len()));
    }

    pub(crate) fn set(&self, ring: usize, field: usize, cursor: u16) {
        self.write(
            ring * ring_bytes(self.log2_size) + field,
            &cursor.to_le_bytes(),
        );
    }

    pub(crate) fn tail(&self, ring: usize) -> u16 {
        let mut bytes = [0; 2];
        let offset = ring * ring_bytes(self.log2_size) + RING_TAIL;
        assert_eq!(pread(&self.memory, &mut bytes, offset as i64), Ok(2));
        u16::from_le_bytes(bytes)
    }

    pub(crate) fn describe(
        &self,
        ring: usize,
        slot: usize,
        flags: u16,
        region: u16,
        offset: u32,
        length: u32,
    ) {
        let descriptor = Descriptor {
            flags,
            region,
            length,
            offset,
            metadata: 0,
        };
        let bytes = descriptor.emit().map(u64::to_le_bytes).concat();
        self.write(ring * ring_bytes(self.log2_size) + 128 + slot * 16, &bytes);
    }

    /// What the server says last.
    pub(crate) fn reason(&self) -> String {
        let mut reason = String::new();
        loop {
            let mut bytes = [0; MESSAGE_BYTES];
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let read = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, None, MsgFlags::empty())
                .map(|got| got.bytes);
            match read {
                Ok(0) | Err(_) => return reason,
                Ok(_) => {
                    if let Ok(Message::Disconnect(disconnect)) = Message::parse(&bytes) {
                        reason = disconnect.reason.as_str().to_owned();
                    }
                }
            }
        }
    }
}

/// What a client says that wants an interface.
pub(crate) fn init(id: u32) -> Message {
    Message::Init(Init {
        version: VERSION,
        id,
        mode: Default::default(),
        secret: Text::default(),
        name: Text::new("hostile"),
    })
}

pub(crate) fn say(socket: &OwnedFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) {
    let list: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&list)];
    let rights = if list.is_empty() { &[] } else { &rights[..] };
    // The other end may have closed already.
    let _ = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    );
}
