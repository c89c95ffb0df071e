//! The first cache line of a message: all of it that both ends touch.

use std::mem::MaybeUninit;

/// Its bytes.
pub(crate) const HEAD_BYTES: usize = 64;
const WORDS: usize = HEAD_BYTES / 8;
/// In the place of a source's number: it is the last message.
const STOP: u64 = u64::MAX;

/// The first cache line of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Head([u64; WORDS]);

impl Head {
    /// Message `number` of a source, from 0, made at `time_ns`. All words are written.
    #[inline]
    pub(crate) fn new(number: u64, source: u64, time_ns: u64) -> Head {
        let mark = number + 1;
        Head([number, source, time_ns, mark, mark, mark, mark, mark])
    }

    /// The last message of a lane.
    pub(crate) fn stop(number: u64) -> Head {
        Head::new(number, STOP, 0)
    }

    /// Which message of its source it is.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.0[0]
    }

    /// Whose.
    #[inline]
    pub(crate) fn source(&self) -> u64 {
        self.0[1]
    }

    /// When it was made.
    #[inline]
    pub(crate) fn time_ns(&self) -> u64 {
        self.0[2]
    }

    #[inline]
    pub(crate) fn is_stop(&self) -> bool {
        self.0[1] == STOP
    }

    /// Whether all of it has arrived; reads every word.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        let mark = self.0[0].wrapping_add(1);
        self.0[3..]
            .iter()
            .fold(0, |wrong, word| wrong | (word ^ mark))
            == 0
    }

    pub(crate) fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    pub(crate) fn of_words(words: [u64; WORDS]) -> Head {
        Head(words)
    }

    /// As bytes.
    #[inline]
    pub(crate) fn write_to(&self, bytes: &mut [u8]) {
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// The same where there may be nothing yet.
    #[inline]
    pub(crate) fn begin(&self, bytes: &mut [MaybeUninit<u8>]) {
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            for (place, byte) in place.iter_mut().zip(word.to_ne_bytes()) {
                place.write(byte);
            }
        }
    }

    /// The head of a message; None: it is too short for one.
    #[inline]
    pub(crate) fn read_from(bytes: &[u8]) -> Option<Head> {
        let bytes = bytes.first_chunk::<HEAD_BYTES>()?;
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(place.try_into().ok()?);
        }
        Some(Head(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_what_was_written_and_torn_ones_are_seen() {
        let head = Head::new(7, 3, 99);
        let mut bytes = [0; 100];
        head.write_to(&mut bytes[..HEAD_BYTES]);
        let read = Head::read_from(&bytes).unwrap();
        assert_eq!(
            (read, read.number(), read.source(), read.time_ns()),
            (head, 7, 3, 99)
        );
        assert!(read.is_whole() && !read.is_stop() && Head::stop(8).is_stop());
        for word in [0, 3, 4, 5, 6, 7] {
            let mut torn = bytes;
            torn[8 * word] ^= 1;
            assert!(!Head::read_from(&torn).unwrap().is_whole(), "word {word}");
        }
        assert_eq!(Head::read_from(&bytes[..63]), None);
    }
}
