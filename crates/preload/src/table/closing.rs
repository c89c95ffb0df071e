//! Connections that are being closed: from when the table has them no more until the kernel has their number no more.
//!
//! In between the kernel would let a call of another thread have what is left of the connection, of which it knows nothing of the ring: no
//! bytes where there are some, or only those behind the ring's. Such a call comes after the close, and waits for it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::c_int;
use millrace_shm::sys;

use super::{Entry, HIGH_WATER, TAG_CLOSING, TAG_MASK, slot};
use crate::spin::{self, cycles};
use crate::{kernel, thread};

/// Nanoseconds after which a thread that left a close in the middle, by a jump out of a signal handler, is not waited for any more.
const WAIT_NS: u64 = 1_000_000_000;
/// Times the processor is given away before we ask whether there is something to wait for.
const YIELDS_BEFORE_QUESTION: u32 = 16;

/// While it exists, this thread is closing what the descriptor was.
#[derive(Debug)]
pub(crate) struct Closing {
    fd: c_int,
    word: usize,
}

impl Closing {
    /// Takes out what `fd` is; returns that, too.
    pub(crate) fn begin(fd: c_int) -> (Entry, Closing) {
        let word = (thread::id() as usize) << 3 | TAG_CLOSING;
        let was = slot(fd).map_or(Entry::Unknown, |slot| {
            Entry::unpack(slot.swap(word, AcqRel))
        });
        (was, Closing { fd, word })
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        end(self.fd, self.word);
    }
}

/// The number is nobody's, unless it is another's already.
fn end(fd: c_int, word: usize) {
    if let Some(slot) = slot(fd) {
        let _ = slot.compare_exchange(word, 0, AcqRel, Relaxed);
    }
}

/// Whether a thread is closing `fd`.
#[inline]
pub(crate) fn is_under_way(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| slot.load(Acquire) & TAG_MASK == TAG_CLOSING)
}

/// A call on `fd` begins: waits for another thread that is closing it.
#[inline]
pub(crate) fn settle(fd: c_int) {
    if is_under_way(fd) {
        wait(fd);
    }
}

#[cold]
fn wait(fd: c_int) {
    let Some(slot) = slot(fd) else { return };
    let word = slot.load(Acquire);
    let closer = (word >> 3) as u32;
    if word & TAG_MASK != TAG_CLOSING || closer == thread::id() {
        // It waits below us on the stack.
        return;
    }
    let since = spin::clock();
    let mut yields = 0u32;
    while slot.load(Acquire) == word {
        yields += 1;
        sys::give_way(yields);
        if !yields.is_multiple_of(YIELDS_BEFORE_QUESTION) {
            continue;
        }
        if kernel::tcp_family(fd).is_none() {
            // The number is free before the kernel has ended the connection, which may take as long as SO_LINGER says.
            return;
        }
        if !sys::thread_exists(closer) || spin::clock().wrapping_sub(since) > cycles(WAIT_NS) {
            return end(fd, word);
        }
    }
}

/// In a forked child: who was closing something is not here.
pub(crate) fn begin_child() {
    for fd in 0..HIGH_WATER.load(Relaxed) as c_int {
        if let Some(slot) = slot(fd).filter(|_| is_under_way(fd)) {
            slot.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::create_once;
    use super::super::{replace, socket};
    use super::*;
    use crate::socket::Socket;

    #[test]
    fn a_call_waits_for_the_close_of_another_thread_and_not_for_its_own() {
        const FD: c_int = 700_000;
        create_once();
        replace(FD, Entry::Socket(Socket::allocate()));
        let (was, closing) = Closing::begin(FD);
        assert!(matches!(was, Entry::Socket(_)) && socket(FD).is_none());
        settle(FD);
        assert!(is_under_way(FD));
        let waits = std::thread::spawn(|| settle(FD));
        replace(FD, Entry::Unconnected(libc::AF_INET));
        drop(closing);
        waits.join().unwrap();
        assert!(matches!(
            replace(FD, Entry::Unknown),
            Entry::Unconnected(libc::AF_INET)
        ));
    }
}
