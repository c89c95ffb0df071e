//! Bytes that a program has looked at without taking them.
//!
//! TCP gives the same bytes again. A ring's bytes are the peer's to change until they are copied, and a program that looks at a length
//! first, and makes room for so much, believes it. So what was looked at is kept, and is what the program gets.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use millrace_stream::ReceiveHalf;

use super::{Call, Progress};
use crate::guarded::{Guard, Guarded};
use crate::socket::{Locked, Socket};
use crate::{fault, user};

/// Of one connection.
#[derive(Debug, Default)]
pub(crate) struct Peeked {
    is_any: AtomicBool,
    kept: Guarded<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The ring's cursor of the first byte.
    head: u32,
    bytes: Vec<u8>,
}

impl Kept {
    /// Those that begin at `head`.
    fn from(&self, head: u32) -> &[u8] {
        let taken = head.wrapping_sub(self.head) as usize;
        self.bytes.get(taken..).unwrap_or_default()
    }
}

impl Peeked {
    /// For a new connection.
    pub(crate) fn reset(&self) {
        if self.is_any.load(Relaxed)
            && self.is_any.swap(false, Relaxed)
            && let Some(mut kept) = self.kept.lock()
        {
            *kept = Kept::default();
        }
    }

    /// In a forked child, see [`Guarded::begin_child`].
    pub(crate) fn begin_child(&self, forker: u32) {
        self.kept.begin_child(forker);
    }

    /// Up to `head` all has been taken.
    #[inline]
    pub(super) fn forget_taken(&self, head: u32) {
        if self.is_any.load(Relaxed) && self.count(head) == 0 {
            self.reset();
        }
    }

    /// How many bytes have been looked at from `head` on.
    #[inline]
    pub(super) fn count(&self, head: u32) -> usize {
        self.kept().map_or(0, |kept| kept.from(head).len())
    }

    #[inline]
    fn kept(&self) -> Option<Guard<'_, Kept>> {
        if self.is_any.load(Relaxed) {
            self.kept.lock()
        } else {
            None
        }
    }

    /// Keeps `bytes` bytes of the ring from `head` on, but for those that are kept already.
    pub(super) fn keep(
        &self,
        locked: &Locked<ReceiveHalf<'_>>,
        (head, window): (u32, u32),
        bytes: usize,
    ) {
        let Some(mut kept) = self.kept.lock() else {
            return;
        };
        let mut all = kept.from(head).to_vec();
        let known = all.len();
        if known >= bytes {
            return;
        }
        all.resize(bytes, 0);
        let new = &mut all[known..];
        let from = head.wrapping_add(known as u32);
        let copy = || {
            let (target, count) = (new.as_mut_ptr(), new.len() as u32);
            // SAFETY: memory of ours, of that size.
            unsafe { (locked.segment()).read(locked.direction, from, window, target, count) }
        };
        if fault::guarded(copy) {
            *kept = Kept { head, bytes: all };
            self.is_any.store(true, Relaxed);
        }
    }
}

/// Copies `bytes` bytes of the ring from `head` on to the call's memory, `skipped` bytes on. None: some of the memory is not there; as
/// in the kernel, nothing is taken then.
#[inline]
pub(super) fn copy_from_ring(
    (socket, call): (&Socket, &Call<'_>),
    locked: &Locked<ReceiveHalf<'_>>,
    progress: &Progress<'_>,
    (skipped, bytes): (usize, usize),
    (head, window): (u32, u32),
) -> Option<usize> {
    if call.has(libc::MSG_TRUNC) {
        return Some(bytes);
    }
    let kept = socket.peeked.kept();
    let kept = kept.as_ref().map_or(&[][..], |kept| kept.from(head));
    let mut cursor = progress.vectors.clone();
    cursor.skip(skipped);
    let mut copied = 0;
    while copied < bytes {
        let (target, length) = cursor.chunk();
        let mut part = (bytes - copied).min(length);
        let known = kept.get(copied..).unwrap_or_default();
        if !known.is_empty() {
            part = part.min(known.len());
        }
        let from = head.wrapping_add(copied as u32);
        let read = || {
            if known.is_empty() {
                let segment = locked.segment();
                // SAFETY: the memory is the program's buffer; a part that is not there ends the copy.
                unsafe { segment.read(locked.direction, from, window, target, part as u32) }
            } else {
                // SAFETY: as above; so many are known.
                unsafe { std::ptr::copy(known.as_ptr(), target, part) }
            }
        };
        if !user::may_write(target, part) || !fault::guarded(read) {
            user::forget();
            return None;
        }
        cursor.advance(part);
        copied += part;
    }
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_known_until_it_is_taken() {
        let peeked = Peeked::default();
        assert_eq!(peeked.count(0), 0);
        let head = u32::MAX - 1;
        *peeked.kept.lock().unwrap() = Kept {
            head,
            bytes: vec![1, 2, 3, 4, 5],
        };
        peeked.is_any.store(true, Relaxed);
        assert_eq!(peeked.count(head), 5);
        assert_eq!(peeked.kept().unwrap().from(1), [4, 5]);
        assert_eq!(peeked.count(head - 1), 0, "before it");
        peeked.forget_taken(1);
        assert_eq!(peeked.count(1), 2);
        peeked.forget_taken(3);
        assert!(!peeked.is_any.load(Relaxed));
    }
}
