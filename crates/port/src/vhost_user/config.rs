//! How a port is to be.

use std::io;
use std::path::PathBuf;

use millrace_wire::vhost_user::F_PROTOCOL_FEATURES;
use millrace_wire::virtio::{
    ANY_LAYOUT, IN_ORDER, NET_MQ, NET_MRG_RXBUF, RING_EVENT_IDX, RING_INDIRECT_DESC, RING_PACKED,
    VERSION_1,
};

use crate::virtio::header::{GUEST_OFFLOADS, HOST_OFFLOADS};

/// Pairs of queues: a ring's number has 8 bits.
pub(crate) const PAIRS_MAX: u16 = 128;

/// Who listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This port.
    Server,
    /// The peer.
    Client,
}

/// How a port is to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who listens.
    pub role: Role,
    /// The socket.
    pub path: PathBuf,
    /// Queues each way, at most.
    pub queue_pairs: u16,
    /// Whether packets that leave a checksum, or segments to cut, may come from the peer, and go to it, where it agrees. What comes so must
    /// be dealt with by whoever receives it.
    pub offloads: bool,
    /// Whether packets to the peer may take several of its buffers, where it agrees.
    pub mergeable: bool,
    /// Whether rings may be packed ones, where the peer agrees.
    pub packed: bool,
    /// Server: the permissions of the socket's path.
    pub socket_mode: u32,
    /// Bytes of the peer's memory, at most. What this process touches and the peer did not is charged to this process.
    pub memory_bytes_max: u64,
    /// Take memory that the peer could shrink, which ends this process when it does. For peers that are trusted: DPDK's memory is never
    /// sealed, and QEMU's is with `memory-backend-memfd` of ordinary pages.
    pub accept_unsealed: bool,
}

impl Config {
    /// One queue each way, and everything but offloads as the peer likes it.
    #[must_use]
    pub fn new(role: Role, path: impl Into<PathBuf>) -> Config {
        Config {
            role,
            path: path.into(),
            queue_pairs: 1,
            offloads: false,
            mergeable: true,
            packed: true,
            socket_mode: 0o600,
            memory_bytes_max: 1 << 40,
            accept_unsealed: false,
        }
    }

    pub(super) fn check(&self) -> io::Result<()> {
        if !(1..=PAIRS_MAX).contains(&self.queue_pairs) {
            let what = "a vhost-user port has 1 to 128 queues each way";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(())
    }

    /// What is offered to a front end.
    pub(super) fn features(&self) -> u64 {
        let when = |wanted, features| if wanted { features } else { 0 };
        F_PROTOCOL_FEATURES
            | VERSION_1
            | ANY_LAYOUT
            | IN_ORDER
            | RING_INDIRECT_DESC
            | RING_EVENT_IDX
            | when(self.queue_pairs > 1, NET_MQ)
            | when(self.mergeable, NET_MRG_RXBUF)
            | when(self.packed, RING_PACKED)
            | when(self.offloads, HOST_OFFLOADS | GUEST_OFFLOADS)
    }
}
