//! The pool: memory of a publisher's messages. The publisher alone can write it; subscribers map it for reading.
//!
//! Which parts are in use is the publisher's private knowledge (`places`), so that a subscriber can neither damage that nor keep anything
//! longer than the publisher counts it. The agent makes the memory, and seals it against further writable mappings once the publisher has
//! its own ([`seal`]): whatever a subscriber does with the descriptor, it cannot write.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::link::{Descriptor, LINE_BYTES, MESSAGE_BYTES_MAX};
use crate::withheld::{Withheld, between_forks};
use crate::{Mapping, sys};

mod places;

use places::{Place, Places};

/// A pool's size is a multiple of this many bytes.
pub const POOL_STEP_BYTES: u64 = 65_536;
/// The largest pool.
pub const POOL_BYTES_MAX: u64 = 1 << 32;

/// Whether a pool can have so many bytes.
#[must_use]
pub fn is_pool_size(bytes: u64) -> bool {
    bytes != 0 && bytes <= POOL_BYTES_MAX && bytes.is_multiple_of(POOL_STEP_BYTES)
}

/// Agent: makes a pool of fixed size that nobody can reopen by another name, all of it allocated; of huge pages where the machine has some
/// and the size fits. True: it is of huge pages.
///
/// # Errors
/// `InvalidInput` for a size that [`is_pool_size`] refuses; else what the kernel says.
pub fn create(bytes: u64) -> io::Result<(OwnedFd, bool)> {
    let size = usize::try_from(bytes).unwrap_or(0);
    if !is_pool_size(bytes) || size == 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    if let Ok(fd) = sys::create_of_huge_pages(c"millrace-pool", size)
        && sys::seal_holds_on_huge_pages()
    {
        return Ok((fd, true));
    }
    Ok((sys::create_unsealed(c"millrace-pool", size)?, false))
}

/// Agent: from now on nobody can map the pool for writing who has not done so.
///
/// # Errors
/// What the kernel says.
pub fn seal(fd: BorrowedFd<'_>) -> io::Result<()> {
    sys::add_seals(fd.as_raw_fd(), sys::SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
}

/// Whether `fd` is such memory, of exactly `bytes` bytes, and sealed.
#[must_use]
pub fn is_sealed(fd: BorrowedFd<'_>, bytes: u64) -> bool {
    let wanted = sys::SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    let size = usize::try_from(bytes).unwrap_or(0);
    is_pool_size(bytes)
        && sys::is_sealed_with_size(fd.as_raw_fd(), size)
        && sys::has_seals(fd.as_raw_fd(), wanted)
}

/// A part of a pool, for one message, that nobody else uses. Two words, which functions hand on in registers.
#[derive(Debug)]
pub struct Buffer {
    place: Place,
    /// The message's length in bytes, and above that the number of the pool.
    what: u64,
}

impl Buffer {
    /// Where it begins, in units of [`LINE_BYTES`].
    #[must_use]
    #[inline]
    pub fn line(&self) -> u32 {
        self.place.line()
    }

    /// The message's length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.what as u32
    }

    /// Whose it is.
    #[inline]
    fn pool(&self) -> u32 {
        (self.what >> 32) as u32
    }

    /// Bytes of memory that it takes.
    #[must_use]
    #[inline]
    pub fn memory_bytes(&self) -> u64 {
        self.place.memory_bytes()
    }

    /// Makes the message shorter. A longer one is left as it is.
    pub fn truncate(&mut self, bytes: u32) {
        self.what -= u64::from(self.bytes().saturating_sub(bytes));
    }
}

/// The publisher's mapping of its pool.
#[derive(Debug)]
pub struct PoolMemory {
    mapping: Withheld<Mapping>,
    number: u32,
}

impl PoolMemory {
    /// Bytes of the message.
    ///
    /// # Panics
    /// When the buffer is of another pool.
    #[inline]
    pub fn bytes_mut<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        let (place, bytes) = self.place(buffer);
        // SAFETY: inside the mapping, which lives as long as `self`. Buffers are made by `Pool::take` only, of parts that no other buffer
        // has, and this one is borrowed meanwhile; no other process can write here (a subscriber has a mapping for reading only, and a
        // child of ours zeros of its own); and a buffer that subscribers may read is out of everybody's hands until they gave
        // it back.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), bytes) }
    }

    /// Bytes of the message, for reading.
    ///
    /// # Panics
    /// When the buffer is of another pool.
    #[must_use]
    #[inline]
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        let (place, bytes) = self.place(buffer);
        // SAFETY: as in `bytes_mut`, and nobody writes while the buffer is borrowed.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) }
    }

    /// Whether a buffer is of this pool.
    #[must_use]
    #[inline]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.pool() == self.number
    }

    /// Where the pool begins, and how many bytes it has: for code that copies from and to it by address. It is mapped as long as `self`
    /// lives; subscribers read there at the same time, and a forked child has zeros.
    #[must_use]
    pub fn range(&self) -> (NonNull<u8>, usize) {
        (self.mapping.base(), self.mapping.bytes())
    }

    #[inline]
    fn place(&self, buffer: &Buffer) -> (NonNull<u8>, usize) {
        assert_eq!(buffer.pool(), self.number);
        let start = buffer.line() as usize * LINE_BYTES;
        let bytes = buffer.bytes() as usize;
        assert!(start + bytes <= self.mapping.bytes());
        // SAFETY: just asserted.
        let place = unsafe { self.mapping.base().add(start) };
        (place, bytes)
    }
}

/// A pool, and who has which part of it.
#[derive(Debug)]
pub struct Pool {
    memory: Arc<PoolMemory>,
    places: Places,
}

impl Pool {
    /// Maps a pool that the agent made, for writing. Children have zeros in its place.
    ///
    /// # Errors
    /// `InvalidData` when the descriptor's size does not fit or could still change; else what the kernel says.
    pub fn attach(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<Pool> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let size = checked_size(fd, bytes)?;
        let memory = PoolMemory {
            mapping: between_forks(|| Mapping::new(fd, size).map(Withheld::new))?,
            // Relaxed: only that no two are equal.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        Ok(Pool {
            memory: Arc::new(memory),
            places: Places::new(bytes),
        })
    }

    /// The memory, for whoever writes messages.
    #[must_use]
    pub fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.mapping.bytes() as u64
    }

    /// The longest message that an empty pool has room for, in bytes.
    #[must_use]
    pub fn longest_bytes(&self) -> usize {
        self.places.longest_bytes()
    }

    /// Memory for a message of `bytes` bytes. None: there is none now, or the message is too long.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Option<Buffer> {
        if bytes > MESSAGE_BYTES_MAX {
            return None;
        }
        let place = self.places.take(bytes)?;
        if let Some(line) = self.places.soon(&place) {
            // Its subscriber has read there last.
            let start = self.memory.mapping.base().as_ptr();
            sys::will_write(start.wrapping_add(line as usize * LINE_BYTES));
        }
        let what = u64::from(self.memory.number) << 32 | bytes as u64;
        Some(Buffer { place, what })
    }

    /// Whether a buffer is of this pool.
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        self.memory.owns(buffer)
    }

    /// Gives a buffer back.
    ///
    /// # Panics
    /// When it is of another pool.
    #[inline]
    pub fn give_back(&mut self, buffer: Buffer) {
        assert_eq!(buffer.pool(), self.memory.number);
        self.places.give_back(buffer.place);
    }

    /// Bytes of memory in buffers.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.places.used_bytes()
    }
}

fn checked_size(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<usize> {
    let size = usize::try_from(bytes).unwrap_or(0);
    if !is_pool_size(bytes) || !sys::is_sealed_with_size(fd.as_raw_fd(), size) {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    Ok(size)
}

/// A subscriber's mapping of a publisher's pool, for reading.
#[derive(Debug)]
pub struct PoolView(Withheld<Mapping>);

impl PoolView {
    /// Maps a pool for reading. Children have zeros in its place.
    ///
    /// # Errors
    /// `InvalidData` when the descriptor's size does not fit or could still change; else what the kernel says.
    pub fn attach(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<PoolView> {
        let size = checked_size(fd, bytes)?;
        let mapping = between_forks(|| Mapping::read_only(fd, size).map(Withheld::new))?;
        Ok(PoolView(mapping))
    }

    /// Where the pool begins, and how many bytes it has: for code that reads by address. It is mapped as long as `self` lives; its
    /// publisher writes there at the same time, and a forked child has zeros.
    #[must_use]
    pub fn range(&self) -> (NonNull<u8>, usize) {
        (self.0.base(), self.0.bytes())
    }

    /// Asks for the first bytes of a message that will be read soon.
    #[inline]
    pub fn will_read(&self, descriptor: &Descriptor) {
        if let Some(message) = self.message(descriptor) {
            sys::will_read(message.as_ptr());
        }
    }

    /// The message of a descriptor. None: it does not lie in the pool.
    #[inline]
    pub fn message(&self, descriptor: &Descriptor) -> Option<Bytes<'_>> {
        let (start, bytes) = descriptor.place(self.0.bytes())?;
        // SAFETY: `place` keeps inside the pool's size, which is the mapping's.
        let start = unsafe { self.0.base().add(start) };
        Some(Bytes {
            start,
            bytes,
            pool: std::marker::PhantomData,
        })
    }
}

/// A message where it lies. Its publisher could change it at any time, so it is not a slice: what must stay as it was checked is copied
/// out first.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a> {
    start: NonNull<u8>,
    bytes: usize,
    pool: std::marker::PhantomData<&'a PoolView>,
}

impl<'a> Bytes<'a> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it begins, for code that reads memory by its address.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Copies bytes from `offset` on, until `target` is full or the message ends; returns how many.
    #[inline(always)]
    pub fn copy_at(&self, offset: usize, target: &mut [u8]) -> usize {
        let left = self.bytes.saturating_sub(offset);
        if left < target.len() {
            self.copy(offset, left, target);
            return left;
        }
        // Where the caller knows this length as it is compiled, the copy is a few moves, not a call.
        self.copy(offset, target.len(), target);
        target.len()
    }

    #[inline(always)]
    fn copy(&self, offset: usize, count: usize, target: &mut [u8]) {
        if count != 0 {
            // SAFETY: `offset` is less than the message's length, or nothing is left.
            let from = unsafe { self.start.add(offset) };
            // SAFETY: `count` bytes are left of the message, which is mapped as long as 'a, and so is the target, which no pool overlaps.
            // When the publisher writes at the same time, the copy has bytes of either time. `memmove` as in `Segment::write`.
            unsafe { std::ptr::copy(from.as_ptr(), target.as_mut_ptr(), count) };
        }
    }

    /// Copies the whole message.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bytes];
        self.copy_at(0, &mut copy);
        copy
    }

    /// The eight bytes at `offset`, as a little-endian number. None: the message ends before.
    #[must_use]
    #[inline]
    pub fn u64_at(&self, offset: usize) -> Option<u64> {
        let mut copy = [0; 8];
        (self.copy_at(offset, &mut copy) == 8).then(|| u64::from_le_bytes(copy))
    }

    /// The message as a slice.
    ///
    /// # Safety
    /// The publisher is trusted not to write to a message that it has published: a slice must not change.
    #[must_use]
    #[inline]
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: inside the mapping (see `PoolView::message`); the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

#[cfg(test)]
mod tests;
