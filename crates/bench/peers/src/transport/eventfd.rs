//! The bare ring, whose sink sleeps in epoll_wait until an eventfd says that something came: the least that wakes another process, and what
//! programs with a loop of their own do.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::{read, write};

use super::bare_ring::{RingSink, RingSource, make_rings, open_sink, open_source};
use super::{Sink, Source, Transport};
use crate::head::Head;
use crate::trial::Lane;

/// See the module.
pub(crate) struct Eventfd;

/// Fills the ring, and rings the bell.
pub(crate) struct BellSource {
    ring: RingSource,
    bell: OwnedFd,
}

/// Sleeps until the bell rings.
pub(crate) struct BellSink {
    ring: RingSink,
    bell: OwnedFd,
    epoll: OwnedFd,
}

fn memory_and_bell(parts: Vec<OwnedFd>) -> Result<[OwnedFd; 2]> {
    let parts = <[OwnedFd; 2]>::try_from(parts);
    parts.ok().context("a ring with a bell has two parts")
}

impl Transport for Eventfd {
    type Source = BellSource;
    type Sink = BellSink;

    fn make(lane: &Lane<'_>) -> Result<Vec<OwnedFd>> {
        lane.ensure_a_pair()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(vec![make_rings(lane)?, bell])
    }

    fn source(lane: &Lane<'_>, parts: Vec<OwnedFd>, index: usize) -> Result<BellSource> {
        let [memory, bell] = memory_and_bell(parts)?;
        Ok(BellSource {
            ring: open_source(lane, &memory, index)?,
            bell,
        })
    }

    fn sink(lane: &Lane<'_>, parts: Vec<OwnedFd>, index: usize) -> Result<BellSink> {
        let [memory, bell] = memory_and_bell(parts)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &bell,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        Ok(BellSink {
            ring: open_sink(lane, &memory, index)?,
            bell,
            epoll,
        })
    }
}

impl Source for BellSource {
    fn push(&mut self, head: &Head) -> Result<bool> {
        self.ring.push(head)
    }

    fn publish(&mut self) -> Result<()> {
        self.ring.publish()?;
        let written = write(&self.bell, &1u64.to_ne_bytes())?;
        ensure!(written == 8, "the bell takes eight bytes");
        Ok(())
    }

    fn finish(&mut self, stop: &Head) -> Result<()> {
        self.ring.finish(stop)?;
        self.publish()
    }
}

impl Sink for BellSink {
    fn pop(&mut self, most: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>> {
        self.ring.pop(most, take)
    }

    fn wait(&mut self) -> Result<()> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        epoll::wait(&self.epoll, &mut events, None)?;
        match read(&self.bell, &mut [0; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
