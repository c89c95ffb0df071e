//! Back ends and front ends of vhost-user.

use millrace_port::Port;
use millrace_port::memif::{Mode, Role};
use millrace_port::vhost_user::{self, VhostUser};
use millrace_port::virtio_user::{self, VirtioUser};
use tempfile::TempDir;

use super::Kind;

/// A back end and a front end, in one of their ways.
#[derive(Debug)]
pub(super) struct Virtio {
    pub(super) back_sends: bool,
    back_listens: bool,
    packed: bool,
    mergeable: bool,
    offloads: bool,
}

pub(super) static KINDS: &[Kind] = &[
    Kind {
        name: "virtio, front to back, split",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 10,
        buffer_bytes: 2048,
        queues: 1,
        file: None,
        virtio: Some(Virtio {
            back_sends: false,
            back_listens: true,
            packed: false,
            mergeable: true,
            offloads: false,
        }),
    },
    Kind {
        name: "virtio, back to front, split",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 10,
        buffer_bytes: 2048,
        queues: 1,
        file: None,
        virtio: Some(Virtio {
            back_sends: true,
            back_listens: true,
            packed: false,
            mergeable: true,
            offloads: false,
        }),
    },
    Kind {
        name: "virtio, front to back, packed",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 10,
        buffer_bytes: 2048,
        queues: 1,
        file: None,
        virtio: Some(Virtio {
            back_sends: false,
            back_listens: true,
            packed: true,
            mergeable: true,
            offloads: false,
        }),
    },
    Kind {
        name: "virtio, back to front, packed",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 10,
        buffer_bytes: 2048,
        queues: 1,
        file: None,
        virtio: Some(Virtio {
            back_sends: true,
            back_listens: true,
            packed: true,
            mergeable: true,
            offloads: false,
        }),
    },
    Kind {
        name: "virtio, front to back, split, the front listens, small buffers, offloads",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 6,
        buffer_bytes: 128,
        queues: 2,
        file: None,
        virtio: Some(Virtio {
            back_sends: false,
            back_listens: false,
            packed: false,
            mergeable: true,
            offloads: true,
        }),
    },
    Kind {
        name: "virtio, back to front, split, the front listens, small buffers, offloads",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 6,
        buffer_bytes: 128,
        queues: 2,
        file: None,
        virtio: Some(Virtio {
            back_sends: true,
            back_listens: false,
            packed: false,
            mergeable: true,
            offloads: true,
        }),
    },
    Kind {
        name: "virtio, front to back, packed, small buffers, offloads, four queues",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 6,
        buffer_bytes: 128,
        queues: 4,
        file: None,
        virtio: Some(Virtio {
            back_sends: false,
            back_listens: true,
            packed: true,
            mergeable: true,
            offloads: true,
        }),
    },
    Kind {
        name: "virtio, back to front, packed, small buffers, offloads, four queues",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 6,
        buffer_bytes: 128,
        queues: 4,
        file: None,
        virtio: Some(Virtio {
            back_sends: true,
            back_listens: true,
            packed: true,
            mergeable: true,
            offloads: true,
        }),
    },
    Kind {
        name: "virtio, back to front, split, each packet in a buffer",
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size: 8,
        buffer_bytes: 9216,
        queues: 1,
        file: None,
        virtio: Some(Virtio {
            back_sends: true,
            back_listens: true,
            packed: false,
            mergeable: false,
            offloads: false,
        }),
    },
];

fn role(listens: bool) -> vhost_user::Role {
    if listens {
        vhost_user::Role::Server
    } else {
        vhost_user::Role::Client
    }
}

impl Virtio {
    /// Of so many buffers of a size, less the header before each packet.
    pub(super) fn longest(&self, buffer: usize, log2_ring_size: u8) -> usize {
        if self.mergeable || !self.back_sends {
            (buffer << log2_ring_size) - 12
        } else {
            buffer - 12
        }
    }

    pub(super) fn make_back(&self, kind: &Kind, place: &TempDir) -> Box<dyn Port + Send> {
        let path = place.path().join("virtio.sock");
        let mut config = vhost_user::Config::new(role(self.back_listens), path);
        config.queue_pairs = kind.queues;
        config.offloads = self.offloads;
        Box::new(VhostUser::new(config).unwrap())
    }

    pub(super) fn make_front(&self, kind: &Kind, place: &TempDir) -> Box<dyn Port + Send> {
        let path = place.path().join("virtio.sock");
        let mut config = virtio_user::Config::new(role(!self.back_listens), path);
        config.queue_pairs = kind.queues;
        config.ring_size = 1 << kind.log2_ring_size;
        config.buffer_bytes = kind.buffer_bytes;
        config.packed = self.packed;
        config.mergeable = self.mergeable;
        config.offloads = self.offloads;
        Box::new(VirtioUser::new(config).unwrap())
    }
}
