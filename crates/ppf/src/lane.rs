//! What goes from one worker to another: packets that are the other's to deal with, or that leave by a port of its. What there is no room
//! for is dropped, and counted.

use millrace_port::Burst;
use millrace_switch::{Carries, Room};

use crate::node::OUT_BURST;

/// What may be under way from one worker to another.
pub(crate) const ROOM: Room = Room {
    bursts: 256,
    packets: OUT_BURST,
    news: 0,
};

/// What one worker hands to another.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Frames that came by a port, to be dealt with.
    Work(u16, Burst),
    /// Frames that leave by a port.
    Frames(u16, Burst),
}

impl Carries for Mail {
    fn into_burst(self) -> Option<Burst> {
        let (Mail::Work(_, burst) | Mail::Frames(_, burst)) = self;
        Some(burst)
    }
}
