//! Memory that packets lie in, and that a peer can write at any time.

mod sys;

pub use sys::Memory;

/// Of caches.
pub(crate) const LINE_BYTES: u32 = 64;

/// How far buffers of so many bytes are apart: an odd number of lines. Where that is a power of two, the first lines of all buffers fall
/// into a few sets of a cache, which has room for a few dozen of them then.
#[inline]
pub(crate) const fn stride(buffer_bytes: u32) -> u32 {
    (buffer_bytes.div_ceil(LINE_BYTES) | 1) * LINE_BYTES
}

/// Some bytes of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: u16,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl Place {
    /// Without its first bytes.
    #[inline]
    pub(crate) fn after(self, bytes: u32) -> Place {
        Place {
            region: self.region,
            offset: self.offset + bytes,
            length: self.length - bytes,
        }
    }
}
