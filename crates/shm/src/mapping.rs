//! One shared mapping of a file descriptor's memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::sys;

/// A readable and writable mapping, shared but where said; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range; every access to it goes through atomics or raw copies that
// expect other processes to write at the same time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of `fd`, shared.
    ///
    /// # Errors
    /// What `mmap` says: `ENOMEM`, `EACCES`, `EINVAL`…
    pub fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        let base = sys::map_shared(fd.as_raw_fd(), bytes)?;
        Ok(Mapping { base, bytes })
    }

    /// Maps the first `bytes` bytes of `fd`, shared, for reading only: its users write nothing.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    #[cfg(not(loom))]
    pub(crate) fn read_only(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        let base = sys::map_read_only(fd.as_raw_fd(), bytes)?;
        Ok(Mapping { base, bytes })
    }

    /// Private memory of `bytes` bytes, zero, that costs nothing until it is touched.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn private(bytes: usize) -> io::Result<Mapping> {
        let base = sys::map_private(bytes)?;
        Ok(Mapping { base, bytes })
    }

    /// The first byte. The range is valid until the mapping is dropped.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts the first bytes of `fd`, or fresh memory, in place of what is mapped. For mappings of atomics, whose users expect any value.
    ///
    /// # Errors
    /// What `mmap` says; then nothing has changed.
    pub(crate) fn replace(&self, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fd = fd.map(|fd| fd.as_raw_fd());
        // SAFETY: the range is ours, and stays mapped; see above for its users.
        unsafe { sys::replace_mapping(self.base, self.bytes, fd) }
    }

    /// Keeps the memory mapped for the rest of the process.
    #[must_use]
    pub fn leak(self) -> NonNull<u8> {
        let base = self.base;
        std::mem::forget(self);
        base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `map_shared`, and nobody keeps pointers beyond the mapping's life.
        unsafe { sys::unmap(self.base, self.bytes) };
    }
}
