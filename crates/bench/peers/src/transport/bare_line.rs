//! One cache line, whose fourth word says which message it has: nothing that carries 64 bytes from one processor to another is faster. The
//! rest of a longer message would stand behind it, and nobody touches it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::bare_ring::only;
use super::{Sink, Source, Transport};
use crate::head::{HEAD_BYTES, Head};
use crate::sys::{self, Mapping};
use crate::trial::Lane;

/// See the module.
pub(crate) struct BareLine;

/// The line, and how many messages went through it.
pub(crate) struct End {
    mapping: Mapping,
    count: u64,
}

/// The word that tells: a message's number and one.
const MARK: usize = 3;

impl End {
    fn open(lane: &Lane<'_>, parts: Vec<OwnedFd>) -> Result<End> {
        lane.ensure_a_pair()?;
        Ok(End {
            mapping: Mapping::of(&only(parts)?, 0, rustix::param::page_size())?,
            count: 0,
        })
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        self.mapping.word(8 * index)
    }
}

impl Transport for BareLine {
    type Source = End;
    type Sink = End;

    fn make(_: &Lane<'_>) -> Result<Vec<OwnedFd>> {
        Ok(vec![sys::memory(rustix::param::page_size())?])
    }

    fn source(lane: &Lane<'_>, parts: Vec<OwnedFd>, _: usize) -> Result<End> {
        End::open(lane, parts)
    }

    fn sink(lane: &Lane<'_>, parts: Vec<OwnedFd>, _: usize) -> Result<End> {
        End::open(lane, parts)
    }
}

impl Source for End {
    /// The answer to the last one says that the line is free.
    #[inline]
    fn push(&mut self, head: &Head) -> Result<bool> {
        self.count += 1;
        for (index, word) in head.words().iter().enumerate() {
            if index != MARK {
                self.word(index).store(*word, Ordering::Relaxed);
            }
        }
        // Release: pairs with the Acquire in `pop`; the other words are visible after it.
        self.word(MARK).store(self.count, Ordering::Release);
        Ok(true)
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, stop: &Head) -> Result<()> {
        self.push(stop).map(|_| ())
    }
}

impl Sink for End {
    #[inline]
    fn pop(&mut self, _: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>> {
        // Acquire: pairs with the Release in `push`.
        if self.word(MARK).load(Ordering::Acquire) != self.count + 1 {
            return Ok(Some(0));
        }
        self.count += 1;
        let mut words = [0; HEAD_BYTES / 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(index).load(Ordering::Relaxed);
        }
        take(&Head::of_words(words));
        Ok(Some(1))
    }
}
