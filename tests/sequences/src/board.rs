//! What all processes of one played sequence share: which descriptor each slot is in each process, and how
//! many bytes of each direction were sent and received. It lies in a memory file that survives `fork` and `exec`.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Limits of a plan; a board has room for exactly this much.
pub(crate) const PROCESSES: usize = 8;
/// Slots of one plan; slots are numbered across processes.
pub(crate) const SLOTS: usize = 96;
/// Connections of one plan.
pub(crate) const CONNECTIONS: usize = 6;
/// Listeners of one plan.
pub(crate) const LISTENERS: usize = 4;
/// Helper threads of one plan.
pub(crate) const THREADS: usize = 64;

/// The side of a connection that connected, or that accepted.
pub(crate) type Side = usize;

/// What a slot is: an end of a connection, or something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The connection's number.
    pub(crate) conn: u8,
    /// 0 for the connecting, 1 for the accepting side.
    pub(crate) side: u8,
}

/// The shared memory of one played sequence. Every field is an atomic, zero at the start.
#[repr(C)]
pub(crate) struct Board {
    /// Process ids.
    pub(crate) pids: [AtomicI32; PROCESSES],
    /// Thread ids of the helper threads.
    pub(crate) tids: [AtomicI32; THREADS],
    /// Descriptor plus one, by process and slot; 0 where there is none.
    descriptors: [[AtomicI32; SLOTS]; PROCESSES],
    /// 1 + connection * 2 + side, by process and slot; 0 for what is no connection.
    identities: [[AtomicU32; SLOTS]; PROCESSES],
    /// Ports of the listeners.
    pub(crate) listener_ports: [AtomicU32; LISTENERS],
    /// Ports of the connecting sides.
    pub(crate) connector_ports: [AtomicU32; CONNECTIONS],
    /// 1 + the listener that each connection was made to.
    pub(crate) listener_of: [AtomicU32; CONNECTIONS],
    sent: [[AtomicU64; 2]; CONNECTIONS],
    received: [[AtomicU64; 2]; CONNECTIONS],
}

// All accesses are SeqCst: the steps of a sequence are ordered by pipes anyhow, and only threads that are blocked
// in a call run beside them; speed does not matter here.
impl Board {
    /// The descriptor that `slot` is in process `process`; -1 where it is closed.
    pub(crate) fn descriptor(&self, process: u8, slot: u8) -> i32 {
        self.descriptors[usize::from(process)][usize::from(slot)].load(SeqCst) - 1
    }

    /// Notes that `slot` is now `fd` in process `process`; -1 for closed.
    pub(crate) fn set_descriptor(&self, process: u8, slot: u8, fd: i32) {
        self.descriptors[usize::from(process)][usize::from(slot)].store(fd + 1, SeqCst);
    }

    /// All slots that are open in `process`, with their descriptors.
    pub(crate) fn open(&self, process: u8) -> Vec<(u8, i32)> {
        (0..SLOTS as u8)
            .map(|slot| (slot, self.descriptor(process, slot)))
            .filter(|(_, fd)| *fd >= 0)
            .collect()
    }

    /// Gives process `child` the descriptors of process `parent`, as `fork` does.
    pub(crate) fn inherit(&self, parent: u8, child: u8) {
        for (slot, fd) in self.open(parent) {
            self.set_descriptor(child, slot, fd);
            self.identify(child, slot, self.identity(parent, slot));
        }
    }

    /// The end of a connection that `slot` is in process `process`, if it is one.
    pub(crate) fn identity(&self, process: u8, slot: u8) -> Option<Identity> {
        let row = &self.identities[usize::from(process)];
        let packed = row[usize::from(slot)].load(SeqCst).checked_sub(1)?;
        Some(Identity {
            conn: (packed / 2) as u8,
            side: (packed % 2) as u8,
        })
    }

    /// Notes which end of a connection `slot` is.
    pub(crate) fn identify(&self, process: u8, slot: u8, identity: Option<Identity>) {
        let packed = identity.map_or(0, |end| 1 + u32::from(end.conn) * 2 + u32::from(end.side));
        self.identities[usize::from(process)][usize::from(slot)].store(packed, SeqCst);
    }

    /// How many bytes `end` has sent.
    pub(crate) fn sent(&self, end: Identity) -> u64 {
        self.sent[usize::from(end.conn)][Side::from(end.side)].load(SeqCst)
    }

    /// Notes that `end` has sent `bytes` more.
    pub(crate) fn add_sent(&self, end: Identity, bytes: usize) {
        self.sent[usize::from(end.conn)][Side::from(end.side)].fetch_add(bytes as u64, SeqCst);
    }

    /// How many bytes `end` has received.
    pub(crate) fn received(&self, end: Identity) -> u64 {
        self.received[usize::from(end.conn)][Side::from(end.side)].load(SeqCst)
    }

    /// Notes that `end` has received `bytes` more.
    pub(crate) fn add_received(&self, end: Identity, bytes: usize) {
        self.received[usize::from(end.conn)][Side::from(end.side)].fetch_add(bytes as u64, SeqCst);
    }

    /// How many bytes were sent to `end` that it has not received.
    pub(crate) fn outstanding(&self, end: Identity) -> u64 {
        self.sent(end.peer()).saturating_sub(self.received(end))
    }
}

impl Identity {
    /// The other end of the same connection.
    pub(crate) fn peer(self) -> Identity {
        Identity {
            conn: self.conn,
            side: 1 - self.side,
        }
    }

    /// The byte that the stream which this end sends has at `position`; never 0, so that text calls can send it.
    pub(crate) fn byte(self, position: u64) -> u8 {
        let key =
            (position + 1) * 0x9e37_79b1 + u64::from(self.conn) * 97 + u64::from(self.side) * 31;
        ((key >> 11) as u8).max(1)
    }
}
