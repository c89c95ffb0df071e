//! Where packets leave to: ports, and whoever else deals with them.

use millrace_port::{Burst, Packet};

use super::{BURST, OUT_BURST};
use crate::link::LinkCause;

/// Where packets leave to.
#[derive(Debug)]
pub struct Outs {
    /// By port: frames that leave by it. They are empty before a port's burst is handled: what lies in a memory here lies in that port's.
    pub ports: Vec<Burst>,
    /// Frames that came by the port whose burst was handled, and that are to be handed over.
    pub works: Burst,
    /// Whose each of them is.
    pub whose: Vec<Whose>,
    /// Of which shards of bearers packets were dealt with, where there are several workers.
    pub done: Vec<u32>,
}

/// Whose a frame is to deal with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The worker's that has this shard of bearers; behind those that wait there, if it is this one.
    Shard(u32),
    /// A certain worker's.
    Worker(usize),
    /// All the other workers'.
    Others,
}

impl Outs {
    /// For so many.
    #[must_use]
    pub fn new(ports: usize) -> Outs {
        Outs {
            ports: (0..ports).map(|_| Burst::new(OUT_BURST)).collect(),
            works: Burst::new(BURST),
            whose: Vec::with_capacity(BURST),
            done: Vec::with_capacity(BURST),
        }
    }

    /// Hands a copy of a packet over.
    pub(crate) fn hand_over(&mut self, whose: Whose, packet: Packet<'_>) -> Result<(), LinkCause> {
        match self.works.append_copy(packet) {
            true => self.whose.push(whose),
            false => return Err(LinkCause::NoRoom),
        }
        Ok(())
    }

    /// Forgets what was handed over.
    pub(crate) fn clear_works(&mut self) {
        self.works.clear();
        self.whose.clear();
    }
}
