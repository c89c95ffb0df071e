//! How a port is to be.

use std::io;
use std::path::PathBuf;

pub use millrace_wire::memif::Mode;

use super::control::buffers_at;
use crate::memory::stride;

/// The largest rings: as DPDK has.
pub(super) const LOG2_SIZE_MAX: u8 = 14;
/// Queues each way.
const QUEUES_MAX: u16 = 256;

/// Who made the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Listens; in older texts the master.
    Server,
    /// Connects, and makes the memory; the slave.
    Client,
}

/// How a port is to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Server or client.
    pub role: Role,
    /// The server's socket.
    pub path: PathBuf,
    /// The interface's number, which both must have.
    pub id: u32,
    /// What passes.
    pub mode: Mode,
    /// What a server asks for, and a client says; at most 23 bytes count.
    pub secret: Option<String>,
    /// The interface's name, for the peer's messages.
    pub name: String,
    /// Queues that packets come from, at most. A client makes fewer when the server has fewer.
    pub receive_queues: u16,
    /// Queues that packets go to, at most.
    pub transmit_queues: u16,
    /// Client: the binary logarithm of descriptors in a ring.
    pub log2_ring_size: u8,
    /// Client: bytes of each buffer. Longer packets take several.
    pub buffer_bytes: u32,
    /// Server: the permissions of the socket's path.
    pub socket_mode: u32,
    /// Server: bytes of a client's memory, at most. What this process touches and the client did not is charged to this process.
    pub memory_bytes_max: u64,
    /// Server: take memory that the client could shrink, which ends this process when it does. For clients that are trusted: DPDK's with
    /// `zero-copy=yes` has no other memory.
    pub accept_unsealed: bool,
}

impl Config {
    /// One queue each way, as DPDK has it by default: rings of 1024, buffers of 2048 bytes.
    #[must_use]
    pub fn new(role: Role, path: impl Into<PathBuf>) -> Config {
        Config {
            role,
            path: path.into(),
            id: 0,
            mode: Mode::Ethernet,
            secret: None,
            name: "millrace".to_owned(),
            receive_queues: 1,
            transmit_queues: 1,
            log2_ring_size: 10,
            buffer_bytes: 2048,
            socket_mode: 0o600,
            memory_bytes_max: 8 << 30,
            accept_unsealed: false,
        }
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let queues = 1..=QUEUES_MAX;
        if !queues.contains(&self.receive_queues) || !queues.contains(&self.transmit_queues) {
            return wrong("a memif port has 1 to 256 queues each way");
        }
        if self.mode == Mode::PuntInject {
            return wrong("the mode punt/inject is VPP's own");
        }
        if !(1..=LOG2_SIZE_MAX).contains(&self.log2_ring_size) {
            return wrong("a ring has 2^1 to 2^14 descriptors");
        }
        if !(64..=65_536).contains(&self.buffer_bytes) || !self.buffer_bytes.is_multiple_of(64) {
            return wrong("a buffer has 64 to 65536 bytes, a multiple of 64");
        }
        let rings = usize::from(self.receive_queues) + usize::from(self.transmit_queues);
        let buffers = (rings << self.log2_ring_size) as u64 * u64::from(stride(self.buffer_bytes));
        let bytes = buffers_at(rings, self.log2_ring_size) as u64 + buffers;
        if bytes > u64::from(u32::MAX) {
            return wrong("queues, rings and buffers together are larger than 4 GiB");
        }
        Ok(())
    }

    /// Bytes of the shortest packet that has a header of this mode: a MAC header, or IPv4's.
    pub(super) fn shortest(&self) -> u32 {
        match self.mode {
            Mode::Ethernet => 14,
            Mode::Ip | Mode::PuntInject => 20,
        }
    }
}
