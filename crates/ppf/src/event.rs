//! What others should know, and what the function has to send by itself.

use std::collections::VecDeque;
use std::net::IpAddr;

use millrace_wire::gtpu::path::TunnelStatus;

use crate::bearer::{BearerId, Side, Usage};

/// Events that wait for somebody who wants them, at most.
const EVENTS_MAX: usize = 4096;

/// Something that whoever controls the function should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer answers, after it did not, or for the first time.
    PathUp(Side, IpAddr),
    /// A peer does not answer.
    PathDown(Side, IpAddr),
    /// A peer's list of extension headers that it understands, after it was sent one that it must and does not.
    Extensions(Side, IpAddr, Box<[u8]>),
    /// A peer on this side has the bearer's tunnel no more (TS 29.281, 7.3.1). It is told of once, until the bearer is said anew.
    Lost(BearerId, Side),
    /// The last message of a tunnel came by this side.
    EndMarker(BearerId, Side),
    /// What a peer on this side says of a tunnel.
    TunnelStatus(BearerId, Side, TunnelStatus),
    /// A packet is held for this side, where none was: whoever is to receive it may have to be woken.
    FirstHeld(BearerId, Side),
    /// A threshold was reached.
    Usage(Report),
}

impl Event {
    /// The bearer that it is of.
    pub(crate) fn bearer(&self) -> Option<BearerId> {
        match self {
            Event::PathUp(..) | Event::PathDown(..) | Event::Extensions(..) => None,
            Event::Lost(id, _)
            | Event::EndMarker(id, _)
            | Event::TunnelStatus(id, ..)
            | Event::FirstHeld(id, _) => Some(*id),
            Event::Usage(report) => Some(report.bearer),
        }
    }
}

/// What passed since the last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Of which bearer.
    pub bearer: BearerId,
    /// Towards either side.
    pub usage: [Usage; 2],
    /// Seconds in which any packet passed.
    pub active_s: u32,
    /// Why it is due.
    pub due: Due,
}

/// Which threshold was reached; the first of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Of bytes.
    Bytes,
    /// Of packets.
    Packets,
    /// Of time.
    Seconds,
}

/// Something that the function sends by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sending {
    /// A UDP datagram, from [`millrace_wire::gtpu::PORT`] to [`millrace_wire::gtpu::PORT`].
    Datagram {
        /// By which side's interface.
        side: Side,
        /// From which address; none: whichever is ours there.
        from: Option<IpAddr>,
        /// To whom.
        to: IpAddr,
        /// The outer header's traffic class.
        class: u8,
        /// The message.
        bytes: Vec<u8>,
    },
    /// A packet of the Internet's as it is.
    Plain {
        /// By which side's interface.
        side: Side,
        /// All of it.
        bytes: Vec<u8>,
    },
}

/// Events in their order.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: VecDeque<Event>,
    pub(crate) lost: u64,
}

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        if self.waiting.len() < EVENTS_MAX {
            self.waiting.push_back(event);
        } else {
            self.lost += 1;
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out those of a shard's bearers, in their order.
    pub(crate) fn take_shard(&mut self, shard: u32) -> VecDeque<Event> {
        let is_of = |event: &Event| event.bearer().is_some_and(|id| id.shard() == shard);
        if !self.waiting.iter().any(is_of) {
            return VecDeque::new();
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (taken, left) = waiting.into_iter().partition(is_of);
        self.waiting = left;
        taken
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.waiting.pop_front()
    }
}

/// So many in a second, and no more.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    second: u64,
    count: u32,
}

impl Rate {
    pub(crate) fn allows(&mut self, per_second: u32, now_ns: u64) -> bool {
        let second = now_ns / 1_000_000_000;
        if self.second != second {
            *self = Rate { second, count: 0 };
        }
        if self.count >= per_second {
            return false;
        }
        self.count += 1;
        true
    }
}
