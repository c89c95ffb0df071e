//! What a program has been told of a connection, and what a peer that can write the ring must not take back.
//!
//! TCP takes nothing back: bytes that `poll` has reported are there until they are read, and nothing comes behind the end of the stream.
//! The ring's words are the peer's to write at any time. A program that reads, and may wait, after it was told that it need not, would
//! wait for ever, and one that has let go of what belongs to a connection's bytes would get more of them. Both are broken rules.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::c_int;
use millrace_stream::{Corrupt, ReceiveHalf, ReceivePlan};

use crate::socket::Socket;
use crate::{Outcome, kernel};

/// A cursor of the ring, if there is one.
#[derive(Debug, Default)]
struct Mark(AtomicU64);

const SET: u64 = 1 << 32;

impl Mark {
    #[inline]
    fn set(&self, head: u32) {
        let word = SET | u64::from(head);
        if self.0.load(Relaxed) != word {
            self.0.store(word, Relaxed);
        }
    }

    #[inline]
    fn clear(&self) {
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }

    #[inline]
    fn is_at(&self, head: u32) -> bool {
        self.0.load(Relaxed) == SET | u64::from(head)
    }
}

/// While nothing is taken from the ring, what has been told of it holds.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Bytes behind this cursor are ready.
    ready: Mark,
    /// The stream ends at this cursor.
    end: Mark,
}

impl Told {
    /// For a new connection; and when bytes have been taken from the ring.
    #[inline]
    pub(crate) fn reset(&self) {
        self.ready.clear();
        self.end.clear();
    }

    /// Whether there are bytes to read, of which the program will be told. Needs no lock.
    #[inline]
    pub(crate) fn is_ready(&self, half: &ReceiveHalf<'_>) -> bool {
        let head = half.ready_from();
        if let Some(head) = head {
            self.ready.set(head);
        }
        head.is_some()
    }

    /// What to do next, which is `plan`, unless the peer has taken back what was told. The half is locked; `peeked` bytes in the ring have
    /// been looked at.
    #[inline]
    pub(super) fn check(
        &self,
        half: &ReceiveHalf<'_>,
        peeked: usize,
        plan: Result<ReceivePlan, Corrupt>,
    ) -> Result<ReceivePlan, Corrupt> {
        let told_otherwise = match plan {
            Ok(ReceivePlan::Ring { head, bytes, .. }) => {
                self.end.is_at(head) || (bytes as usize) < peeked
            }
            Ok(_) => self.ready.is_at(half.head()),
            Err(_) => false,
        };
        if told_otherwise { Err(Corrupt) } else { plan }
    }
}

impl Socket {
    /// A receiving call comes to this error.
    pub(super) fn fail(&self, fd: c_int, error: c_int) -> Outcome {
        if !matches!(error, libc::EAGAIN | libc::EFAULT) {
            self.note_end(fd);
        }
        Outcome::Errno(error)
    }

    /// The program is told that the stream has ended, or was reset. If that is the peer's doing, nothing comes by the ring any more.
    #[cold]
    pub(super) fn note_end(&self, fd: c_int) {
        // What comes after the program itself said that it reads no more, TCP has it read all the same.
        let is_deaf = self.is_deaf.load(Relaxed);
        if !is_deaf && (kernel::is_closed_by_peer_alone(fd) || kernel::has_hung_up(fd)) {
            self.told.end.set(self.row().receive.head.load(Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use millrace_shm::board::Row;
    use millrace_shm::segment::{self, Segment};

    use super::*;

    #[test]
    fn what_was_told_cannot_be_taken_back() {
        let row = Row::default();
        let file = segment::create(4096).unwrap();
        let segment = Segment::attach(file.as_fd(), 4096).unwrap();
        let half = ReceiveHalf::new(&row, &segment, 0);
        let words = segment.words(0);
        let told = Told::default();
        let check = |peeked| told.check(&half, peeked, half.plan());
        let plan = || check(0);
        assert!(half.try_open());
        assert!(!told.is_ready(&half));
        assert!(matches!(plan(), Ok(ReceivePlan::Empty { .. })));
        words.gate.publish(words.gate.load(), 9).unwrap();
        assert!(told.is_ready(&half));
        assert!(matches!(plan(), Ok(ReceivePlan::Ring { bytes: 9, .. })));
        assert!(check(9).is_ok());
        assert_eq!(check(10), Err(Corrupt), "fewer than were looked at");
        words.switch_position.store(1, Relaxed);
        assert_eq!(plan(), Err(Corrupt), "kernel bytes before those");
        words.switch_position.store(0, Relaxed);
        assert!(half.commit(0, 9));
        assert!(matches!(plan(), Ok(ReceivePlan::Empty { .. })));
        told.reset();
        told.end.set(9);
        words.gate.publish(words.gate.load(), 1).unwrap();
        assert_eq!(plan(), Err(Corrupt), "bytes behind the end");
        told.reset();
        assert!(plan().is_ok());
    }
}
