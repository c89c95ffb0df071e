//! A segment as somebody sees it who may read the memory of one of its ends: `millrace dump`.
//!
//! He maps nothing, holds nothing, and neither end can tell. What he reads may change while he reads it: the words are
//! fetched before the bytes and again after them, and the caller compares.

use std::io;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use crate::Mapping;
use crate::segment::{
    DIRECTIONS_OFFSET, DirectionWords, HEADER_BYTES, Segment, is_ring_size, is_window, ring_offset,
};

/// Reads so many bytes of a segment from an offset on.
pub type Fetch<'a> = dyn FnMut(usize, &mut [u8]) -> io::Result<()> + 'a;

/// A private copy of a segment's words, and the knowledge of where its bytes lie.
#[derive(Debug)]
pub struct Onlooker {
    copy: Segment,
}

impl Onlooker {
    /// For a segment with large rings of `ring_bytes` each.
    ///
    /// # Errors
    /// `InvalidInput` for a size that no ring has; else what the kernel says.
    pub fn new(ring_bytes: u32) -> io::Result<Onlooker> {
        if !is_ring_size(ring_bytes) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(Onlooker {
            copy: Segment {
                header: Mapping::private(HEADER_BYTES)?,
                whole: AtomicPtr::new(null_mut()),
                ring_bytes,
            },
        })
    }

    /// Bytes of each large ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.copy.ring_bytes
    }

    /// Takes a new copy of the words.
    ///
    /// # Errors
    /// What `fetch` says.
    pub fn fetch_words(&mut self, fetch: &mut Fetch<'_>) -> io::Result<()> {
        let mut bytes = [0; DIRECTIONS_OFFSET + 2 * size_of::<DirectionWords>()];
        fetch(0, &mut bytes)?;
        let target = self.copy.header.base();
        // SAFETY: the header page has more bytes than that, and the memory is private to `self`, which is borrowed mutably.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The words of `direction` (0 or 1), as they were fetched last.
    #[must_use]
    pub fn words(&self, direction: usize) -> &DirectionWords {
        self.copy.words(direction)
    }

    /// The connection that the segment is of, as it was fetched last.
    #[must_use]
    pub fn connection_id(&self) -> u64 {
        self.copy.connection_id()
    }

    /// `bytes` bytes of a ring from `cursor` on, as they are now. `window` is one that the ring can have, and `bytes` not more.
    ///
    /// # Errors
    /// What `fetch` says.
    pub fn fetch_ring(
        &self,
        direction: usize,
        cursor: u32,
        bytes: u32,
        window: u32,
        fetch: &mut Fetch<'_>,
    ) -> io::Result<Vec<u8>> {
        let mut data = vec![0; bytes as usize];
        let [first, second] = self.places(direction, cursor, bytes, window);
        let (front, back) = data.split_at_mut(first.len());
        fetch(first.start, front)?;
        if !back.is_empty() {
            fetch(second.start, back)?;
        }
        Ok(data)
    }

    fn places(&self, direction: usize, cursor: u32, bytes: u32, window: u32) -> [Range<usize>; 2] {
        assert!(is_window(window, self.copy.ring_bytes) && bytes <= window);
        let ring = ring_offset(direction, window, self.copy.ring_bytes);
        let start = cursor & (window - 1);
        let first = bytes.min(window - start);
        let front = ring + start as usize;
        [
            front..front + first as usize,
            ring..ring + (bytes - first) as usize,
        ]
    }
}

impl Segment {
    /// Sender: copies a slice to the ring at `tail`, as [`Segment::write`] does. [`Segment::reach`] comes first.
    pub fn write_slice(&self, direction: usize, tail: u32, window: u32, source: &[u8]) {
        // SAFETY: the slice has as many bytes as it says; `write` keeps inside the ring.
        unsafe {
            self.write(
                direction,
                tail,
                window,
                source.as_ptr(),
                source.len() as u32,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{SMALL_RING_BYTES, create};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    #[cfg_attr(miri, ignore = "asks /proc")]
    fn an_onlooker_sees_what_the_ends_see() {
        let fd = create(4096).unwrap();
        let end = Segment::attach(fd.as_fd(), 4096).unwrap();
        let file = std::fs::File::from(fd);
        let mut fetch = |at: usize, bytes: &mut [u8]| file.read_exact_at(bytes, at as u64);
        end.set_connection_id(77);
        let message = b"around the end of the ring";
        let mut onlooker = Onlooker::new(4096).unwrap();
        for (window, tail) in [(SMALL_RING_BYTES, 1018), (4096, 4090)] {
            assert!(end.reach(window));
            end.write_slice(1, tail, window, message);
            onlooker.fetch_words(&mut fetch).unwrap();
            assert_eq!(onlooker.connection_id(), 77);
            let seen = onlooker
                .fetch_ring(1, tail, 26, window, &mut fetch)
                .unwrap();
            assert_eq!(seen, message);
        }
        let gate = end.words(1).gate.load();
        let gate = end.words(1).gate.open(gate, 12).unwrap();
        end.words(1).gate.publish(gate, 4116).unwrap();
        onlooker.fetch_words(&mut fetch).unwrap();
        assert_eq!(onlooker.words(1).gate.load().tail, 4116);
        assert!(Onlooker::new(5000).is_err());
    }
}
