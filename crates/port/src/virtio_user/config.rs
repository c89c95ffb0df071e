//! How a port is to be.

use std::io;
use std::path::PathBuf;

use millrace_wire::vhost_user::F_PROTOCOL_FEATURES;
use millrace_wire::virtio::{
    ANY_LAYOUT, NET_MQ, NET_MRG_RXBUF, RING_EVENT_IDX, RING_PACKED, VERSION_1,
};

use super::memory::Layout;
use crate::vhost_user::PAIRS_MAX;
pub use crate::vhost_user::Role;
use crate::virtio::header::{GUEST_OFFLOADS, HOST_OFFLOADS};

/// How a port is to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who listens.
    pub role: Role,
    /// The socket.
    pub path: PathBuf,
    /// Queues each way, at most. There are fewer when the back end has fewer.
    pub queue_pairs: u16,
    /// Descriptors in a ring, and buffers: a power of two.
    pub ring_size: u16,
    /// Bytes of each buffer. Longer packets take several, where the back end agrees.
    pub buffer_bytes: u32,
    /// Whether packets that leave a checksum, or segments to cut, may come from the back end, and go to it, where it agrees. What comes so
    /// must be dealt with by whoever receives it.
    pub offloads: bool,
    /// Whether packets from the back end may take several buffers, where it agrees.
    pub mergeable: bool,
    /// Whether rings are packed ones, where the back end agrees.
    pub packed: bool,
    /// Server: the permissions of the socket's path.
    pub socket_mode: u32,
}

impl Config {
    /// One queue each way, with split rings of 1024 and buffers of 2048 bytes.
    #[must_use]
    pub fn new(role: Role, path: impl Into<PathBuf>) -> Config {
        Config {
            role,
            path: path.into(),
            queue_pairs: 1,
            ring_size: 1024,
            buffer_bytes: 2048,
            offloads: false,
            mergeable: true,
            packed: false,
            socket_mode: 0o600,
        }
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(1..=PAIRS_MAX).contains(&self.queue_pairs) {
            return wrong("a virtio-user port has 1 to 128 queues each way");
        }
        if !self.ring_size.is_power_of_two() {
            return wrong("a ring has 1 to 32768 descriptors, a power of two");
        }
        if !(64..=65_536).contains(&self.buffer_bytes) || !self.buffer_bytes.is_multiple_of(64) {
            return wrong("a buffer has 64 to 65536 bytes, a multiple of 64");
        }
        let layout = Layout::new(self.queue_pairs, self.ring_size, self.buffer_bytes);
        if layout.bytes() > 1 << 31 {
            return wrong("queues, rings and buffers together are larger than 2 GiB");
        }
        Ok(())
    }

    /// What is taken of what a back end offers.
    pub(super) fn features(&self) -> u64 {
        let when = |wanted, features| if wanted { features } else { 0 };
        F_PROTOCOL_FEATURES
            | VERSION_1
            | ANY_LAYOUT
            | RING_EVENT_IDX
            | when(self.queue_pairs > 1, NET_MQ)
            | when(self.mergeable, NET_MRG_RXBUF)
            | when(self.packed, RING_PACKED)
            | when(self.offloads, HOST_OFFLOADS | GUEST_OFFLOADS)
    }
}
