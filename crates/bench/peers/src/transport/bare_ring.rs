//! The bare ring: a minimal ring of one producer and one consumer. What a transport adds to it is what its semantics cost.
//!
//! Of several sources each has a ring of its own, at which the sink looks in turn; of several sinks each has one, and the source fills them
//! in turn.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};

use super::{Sink, Source, Transport, pause};
use crate::head::Head;
use crate::ring::{Consumer, Producer, ring_bytes};
use crate::sys::{self, Mapping};
use crate::trial::Lane;

/// See the module.
pub(crate) struct BareRing;

/// The rings that a source fills.
pub(crate) struct RingSource {
    rings: Vec<Producer>,
    turn: usize,
    is_crowded: bool,
}

/// The rings that a sink empties.
pub(crate) struct RingSink {
    rings: Vec<Consumer>,
    turn: usize,
}

/// One piece of memory for all rings of a lane.
pub(super) fn make_rings(lane: &Lane<'_>) -> Result<OwnedFd> {
    let rings = lane.sources * lane.sinks;
    sys::memory(rings * ring_bytes(lane.trial.bytes, lane.trial.depth))
}

/// Ring `index` of a lane.
fn map_ring(lane: &Lane<'_>, memory: &OwnedFd, index: usize) -> Result<Mapping> {
    let bytes = ring_bytes(lane.trial.bytes, lane.trial.depth);
    Mapping::of(memory, index * bytes, bytes)
}

/// All rings of one source.
pub(super) fn open_source(lane: &Lane<'_>, memory: &OwnedFd, index: usize) -> Result<RingSource> {
    let producer = |ring: usize| {
        Producer::attach(
            map_ring(lane, memory, ring)?,
            lane.trial.bytes,
            lane.trial.depth,
        )
    };
    let rings = (0..lane.sinks).map(|sink| producer(index * lane.sinks + sink));
    Ok(RingSource {
        rings: rings.collect::<Result<_>>()?,
        turn: 0,
        is_crowded: lane.is_crowded(),
    })
}

/// All rings of one sink.
pub(super) fn open_sink(lane: &Lane<'_>, memory: &OwnedFd, index: usize) -> Result<RingSink> {
    let consumer = |ring: usize| {
        Consumer::attach(
            map_ring(lane, memory, ring)?,
            lane.trial.bytes,
            lane.trial.depth,
        )
    };
    let rings = (0..lane.sources).map(|source| consumer(source * lane.sinks + index));
    Ok(RingSink {
        rings: rings.collect::<Result<_>>()?,
        turn: 0,
    })
}

/// The only part of a lane.
pub(super) fn only(parts: Vec<OwnedFd>) -> Result<OwnedFd> {
    ensure!(parts.len() == 1, "a ring has one piece of memory");
    parts
        .into_iter()
        .next()
        .context("a ring has one piece of memory")
}

impl Transport for BareRing {
    type Source = RingSource;
    type Sink = RingSink;

    fn make(lane: &Lane<'_>) -> Result<Vec<OwnedFd>> {
        Ok(vec![make_rings(lane)?])
    }

    fn source(lane: &Lane<'_>, parts: Vec<OwnedFd>, index: usize) -> Result<RingSource> {
        open_source(lane, &only(parts)?, index)
    }

    fn sink(lane: &Lane<'_>, parts: Vec<OwnedFd>, index: usize) -> Result<RingSink> {
        open_sink(lane, &only(parts)?, index)
    }
}

impl Source for RingSource {
    #[inline]
    fn push(&mut self, head: &Head) -> Result<bool> {
        for _ in 0..self.rings.len() {
            if self.rings[self.turn].push(head) {
                return Ok(true);
            }
            self.next_ring();
        }
        Ok(false)
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        // A batch may have gone on in another ring when one was full.
        if self.rings.len() > 1 {
            self.rings.iter_mut().for_each(Producer::publish);
            self.next_ring();
        } else {
            self.rings[0].publish();
        }
        Ok(())
    }

    fn finish(&mut self, stop: &Head) -> Result<()> {
        for ring in &mut self.rings {
            while !ring.push(stop) {
                ring.publish();
                pause(self.is_crowded);
            }
            ring.publish();
        }
        Ok(())
    }
}

impl RingSource {
    fn next_ring(&mut self) {
        self.turn = if self.turn + 1 == self.rings.len() {
            0
        } else {
            self.turn + 1
        };
    }
}

impl Sink for RingSink {
    #[inline]
    fn pop(&mut self, most: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>> {
        for _ in 0..self.rings.len() {
            let ring = self.turn;
            self.turn = if ring + 1 == self.rings.len() {
                0
            } else {
                ring + 1
            };
            let taken = self.rings[ring].pop(most, take);
            if taken > 0 {
                return Ok(Some(taken));
            }
        }
        Ok(Some(0))
    }
}
