//! A program's buffers, used up from the front.

use libc::iovec;
use smallvec::SmallVec;

/// Buffers for one call of the kernel.
pub(crate) type List = SmallVec<[iovec; 16]>;

/// A cursor over an array of buffers. The memory is the program's: nothing is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Vectors<'a> {
    rest: &'a [iovec],
    offset: usize,
}

/// More buffers than this, or more bytes in all than the kernel takes, is for the kernel to refuse.
const COUNT_MAX: usize = 1024;

/// A program's memory ends there, or before, on whatever processor (five levels of pages on x86, 52 bits on Arm): the kernel refuses what
/// is beyond before it does anything.
pub(crate) const MEMORY_END: usize = 1 << 56;

impl<'a> Vectors<'a> {
    /// A cursor at the start. None: the kernel would refuse such an array.
    pub(crate) fn new(list: &'a [iovec]) -> Option<Vectors<'a>> {
        let mut total = 0usize;
        for vector in list {
            total = total.checked_add(vector.iov_len)?;
            if (vector.iov_base as usize).saturating_add(vector.iov_len) > MEMORY_END {
                return None;
            }
        }
        (list.len() <= COUNT_MAX && isize::try_from(total).is_ok()).then_some(Vectors {
            rest: list,
            offset: 0,
        })
    }

    /// Bytes left.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.iter().map(|vector| vector.iov_len).sum::<usize>() - self.offset
    }

    /// What is left, as an array.
    pub(crate) fn list(&self) -> List {
        self.part(0, usize::MAX)
    }

    /// `bytes` bytes, or what there is, of what is left, after the first `skipped`.
    pub(crate) fn part(&self, skipped: usize, mut bytes: usize) -> List {
        let mut cursor = self.clone();
        cursor.skip(skipped);
        let mut list = List::new();
        loop {
            let (base, length) = cursor.chunk();
            let length = length.min(bytes);
            if length == 0 {
                return list;
            }
            list.push(iovec {
                iov_base: base.cast(),
                iov_len: length,
            });
            cursor.advance(length);
            bytes -= length;
        }
    }

    /// Moves on by `bytes`, or to the end.
    #[inline]
    pub(crate) fn skip(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let part = self.chunk().1.min(bytes);
            if part == 0 {
                return;
            }
            self.advance(part);
            bytes -= part;
        }
    }

    /// The next contiguous memory; its length is zero only at the end.
    #[inline]
    pub(crate) fn chunk(&mut self) -> (*mut u8, usize) {
        while let [first, others @ ..] = self.rest {
            if self.offset < first.iov_len {
                return (
                    first.iov_base.cast::<u8>().wrapping_add(self.offset),
                    first.iov_len - self.offset,
                );
            }
            (self.rest, self.offset) = (others, 0);
        }
        (std::ptr::null_mut(), 0)
    }

    /// Moves on by `bytes`, which the current chunk has.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
    }
}
