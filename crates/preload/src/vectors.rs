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
    /// Bytes that are left, which may be fewer than the buffers have.
    left: usize,
}

/// What one call moves at most (`MAX_RW_COUNT`): more is asked for as if it were so much.
pub(crate) const BYTES_MAX: usize = 0x7fff_f000;

/// More buffers than this are for the kernel to refuse.
const COUNT_MAX: usize = 1024;

/// A program's memory ends there, or before, on whatever processor (five levels of pages on x86, 52 bits on Arm): the kernel refuses what
/// is beyond before it does anything.
pub(crate) const MEMORY_END: usize = 1 << 56;

impl<'a> Vectors<'a> {
    /// A cursor at the start. None: the kernel would refuse such an array.
    pub(crate) fn new(list: &'a [iovec]) -> Option<Vectors<'a>> {
        let mut left = 0usize;
        for vector in list {
            let mut bytes = vector.iov_len;
            if bytes > isize::MAX.cast_unsigned() {
                return None;
            }
            if list.len() == 1 {
                // Of a single one the kernel looks at no more than it takes (Linux 6.4).
                bytes = bytes.min(BYTES_MAX);
            }
            if is_beyond_memory(vector.iov_base as usize, bytes) {
                return None;
            }
            left = left.saturating_add(bytes);
        }
        (list.len() <= COUNT_MAX).then_some(Vectors {
            rest: list,
            offset: 0,
            left: left.min(BYTES_MAX),
        })
    }

    /// Bytes left.
    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.left
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
                    (first.iov_len - self.offset).min(self.left),
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
        self.left -= bytes;
    }
}

/// Whether the kernel refuses such a buffer before it does anything.
pub(crate) fn is_beyond_memory(base: usize, bytes: usize) -> bool {
    // On Arm the upper byte is the program's own (a tag), at which the kernel does not look where the program has said so.
    const TAG: usize = if cfg!(target_arch = "aarch64") {
        0xff << 56
    } else {
        0
    };
    (base & !TAG).saturating_add(bytes) > MEMORY_END
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIBIBYTE: usize = 1 << 30;

    fn buffer(bytes: usize) -> iovec {
        iovec {
            iov_base: std::ptr::without_provenance_mut(0x10000),
            iov_len: bytes,
        }
    }

    #[test]
    fn a_call_asks_for_no_more_than_the_kernel_moves() {
        let list = [buffer(GIBIBYTE), buffer(0), buffer(2 * GIBIBYTE), buffer(5)];
        let mut vectors = Vectors::new(&list).unwrap();
        assert_eq!(vectors.remaining(), BYTES_MAX);
        let lengths = |list: List| list.iter().map(|part| part.iov_len).collect::<Vec<_>>();
        assert_eq!(lengths(vectors.list()), [GIBIBYTE, BYTES_MAX - GIBIBYTE]);
        assert_eq!(lengths(vectors.part(10, 20)), [20]);
        vectors.skip(BYTES_MAX - 1);
        assert_eq!(lengths(vectors.list()), [1]);
        vectors.skip(usize::MAX);
        assert_eq!((vectors.remaining(), vectors.chunk().1), (0, 0));
    }

    #[test]
    fn of_a_single_buffer_no_more_is_looked_at_than_is_taken() {
        let longest = isize::MAX.cast_unsigned();
        let bytes = |list: &[iovec]| Vectors::new(list).map(|vectors| vectors.remaining());
        assert_eq!(bytes(&[buffer(longest)]), Some(BYTES_MAX));
        assert_eq!(bytes(&[buffer(longest), buffer(1)]), None);
        assert_eq!(bytes(&[buffer(longest + 1)]), None);
    }
}
