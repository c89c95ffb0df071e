//! Memory that packets lie in, and that a peer can write at any time.

mod sys;

pub use sys::Memory;

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
