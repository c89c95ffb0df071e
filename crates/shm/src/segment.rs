//! The segment: what the two ends of one connection share.
//!
//! Layout (`docs/shm-abi.md`): a header page with a small ring per direction, then a large ring per direction. Direction 0 flows from
//! the connecting end to the accepting one, direction 1 back. The agent makes the segment; both ends map its header page.
//!
//! A connection begins with the small rings, and most need no more. Where one does, the agent allocates a part of a large ring and grants
//! it to both ends; an end that comes to use it maps the rest of the segment.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicPtr;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::gate::GateWord;
use crate::link::LINE_BYTES;
use crate::{Mapping, sys};

#[cfg(not(loom))]
mod onlooker;
mod stamps;

#[cfg(not(loom))]
pub use onlooker::{Fetch, Onlooker};
pub use stamps::{Publishes, Stamps};

/// Layout version, negotiated through the control protocol.
pub const SEGMENT_VERSION: u16 = 1;
/// Bytes before the first large ring.
pub const HEADER_BYTES: usize = 4096;
/// Size of each direction's small ring, in the header page.
pub const SMALL_RING_BYTES: u32 = 1024;
/// Smallest and largest size of a large ring, per direction, in bytes. Powers of two between them are allowed.
pub const RING_BYTES_MIN: u32 = 4096;
/// See [`RING_BYTES_MIN`].
pub const RING_BYTES_MAX: u32 = 1 << 24;

const DIRECTIONS_OFFSET: usize = 256;
const SMALL_RINGS_OFFSET: usize = 2048;

/// The words of one direction that both ends touch.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct DirectionWords {
    /// Tail, epoch and openness; see [`crate::gate`].
    pub gate: GateWord,
    /// Sender: bytes sent through the kernel, since the connection began, when this epoch's first ring byte came.
    pub switch_position: AtomicU64,
    /// Sender, a hint: bytes sent, or about to be sent, through the kernel since the connection began.
    pub kernel_hint: AtomicU64,
    /// Sender, a hint: processor that published last, plus one.
    pub sender_cpu: AtomicU32,
    /// Sender: [`ENDED`] once it has shut its direction down on purpose.
    pub sender_flags: AtomicU32,
    /// Sender, a hint: when it last sent.
    pub stamps: Stamps,
    padding: [u64; 8],
    /// Receiver: free-running count of bytes taken from the ring, modulo 2^32.
    pub head: AtomicU32,
    /// Receiver, a hint: processor that read last, plus one.
    pub receiver_cpu: AtomicU32,
    /// Receiver, a hint: bytes that it has taken from the kernel since the connection began.
    pub kernel_taken: AtomicU64,
    padding_end: [u64; 14],
}

/// In [`DirectionWords::sender_flags`]: the sender called `shutdown` for writing.
pub const ENDED: u32 = 1;

// Loom's words are of other sizes, and lie elsewhere.
const _: () = assert!(cfg!(loom) || std::mem::size_of::<DirectionWords>() == 256);
const _: () = assert!(cfg!(loom) || std::mem::offset_of!(DirectionWords, head) == 128);
const _: () = assert!(
    cfg!(loom)
        || DIRECTIONS_OFFSET + 2 * std::mem::size_of::<DirectionWords>() <= SMALL_RINGS_OFFSET
);
const _: () = assert!(SMALL_RINGS_OFFSET + 2 * SMALL_RING_BYTES as usize <= HEADER_BYTES);

impl DirectionWords {
    /// Receiver: asks for the cache line of its head, at which the sender may have looked.
    #[inline]
    pub fn will_move_head(&self) {
        sys::will_write((&raw const self.head).cast());
    }

    /// Sender: asks for its cache line, which the reader has: one transfer is less than two.
    #[inline]
    pub fn will_write(&self) {
        sys::will_write((&raw const self.gate).cast());
    }
}

/// Size of a whole segment with large rings of `ring_bytes` each.
#[must_use]
pub fn segment_bytes(ring_bytes: u32) -> usize {
    HEADER_BYTES + 2 * ring_bytes as usize
}

/// Whether `ring_bytes` is a size that a segment can have.
#[must_use]
pub fn is_ring_size(ring_bytes: u32) -> bool {
    ring_bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
}

/// Agent: makes an anonymous segment of fixed size that nobody can reopen by another name.
///
/// The header page is allocated here, and parts of the large rings by [`Segment::allocate`], so that they are the agent's and an end that
/// touches them never meets its own memory limit.
///
/// # Errors
/// `InvalidInput` for a size that [`is_ring_size`] refuses; else what the kernel says (`EMFILE`, `ENOMEM`…).
pub fn create(ring_bytes: u32) -> io::Result<OwnedFd> {
    if !is_ring_size(ring_bytes) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    sys::create_sealed(c"millrace-segment", segment_bytes(ring_bytes), HEADER_BYTES)
}

/// Whether a segment with such large rings has a ring, or a part of one, of `window` bytes.
#[must_use]
pub fn is_window(window: u32, ring_bytes: u32) -> bool {
    window == SMALL_RING_BYTES
        || window.is_power_of_two() && (RING_BYTES_MIN..=ring_bytes).contains(&window)
}

/// The ring in use where `granted_log2` is what the agent has granted: the small one until then.
#[must_use]
#[inline]
pub fn window_log2(granted_log2: u32) -> u32 {
    granted_log2.max(SMALL_RING_BYTES.ilog2())
}

/// Where the ring of `direction` that a window of that size is in begins, in bytes from the segment's start.
fn ring_offset(direction: usize, window: u32, ring_bytes: u32) -> usize {
    if window == SMALL_RING_BYTES {
        SMALL_RINGS_OFFSET + (direction & 1) * SMALL_RING_BYTES as usize
    } else {
        HEADER_BYTES + (direction & 1) * ring_bytes as usize
    }
}

/// An end's mapping of a segment.
#[derive(Debug)]
pub struct Segment {
    /// The header page.
    header: Mapping,
    /// The whole segment, once its large rings are used.
    whole: AtomicPtr<u8>,
    ring_bytes: u32,
    #[cfg(loom)]
    words: [DirectionWords; 2],
}

impl Segment {
    /// Maps a segment that the agent handed out.
    ///
    /// # Errors
    /// `InvalidData` when the descriptor's size does not fit `ring_bytes` or could still change; else what the kernel says.
    pub fn attach(fd: BorrowedFd<'_>, ring_bytes: u32) -> io::Result<Segment> {
        let bytes = segment_bytes(ring_bytes);
        if !is_ring_size(ring_bytes) || !sys::is_sealed_with_size(fd.as_raw_fd(), bytes) {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(Segment {
            header: Mapping::new(fd, HEADER_BYTES)?,
            whole: AtomicPtr::new(null_mut()),
            ring_bytes,
            #[cfg(loom)]
            words: Default::default(),
        })
    }

    /// Bytes of each large ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// Agent: says which connection the segment is of, for onlookers.
    #[cfg(not(loom))]
    pub fn set_connection_id(&self, connection_id: u64) {
        self.identity().store(connection_id, Ordering::Relaxed);
    }

    /// The connection that the segment is of, as the memory says.
    #[must_use]
    #[cfg(not(loom))]
    pub fn connection_id(&self) -> u64 {
        self.identity().load(Ordering::Relaxed)
    }

    #[cfg(not(loom))]
    fn identity(&self) -> &AtomicU64 {
        // SAFETY: the header page begins with this word; an atomic, mapped as long as `self`.
        unsafe { self.header.base().cast::<AtomicU64>().as_ref() }
    }

    /// The shared words of `direction` (0 or 1), of models that share the whole object.
    #[must_use]
    #[cfg(loom)]
    pub fn words(&self, direction: usize) -> &DirectionWords {
        &self.words[direction & 1]
    }

    /// The shared words of `direction` (0 or 1).
    #[must_use]
    #[inline]
    #[cfg(not(loom))]
    pub fn words(&self, direction: usize) -> &DirectionWords {
        let offset = DIRECTIONS_OFFSET + (direction & 1) * size_of::<DirectionWords>();
        // SAFETY: the offset is inside the header page (asserted above) and 128-aligned, as the page is.
        let place = unsafe { self.header.base().add(offset) };
        // SAFETY: the type has atomics and padding only, so that a peer's writes are races that atomics allow;
        // the mapping lives as long as `self`.
        unsafe { place.cast::<DirectionWords>().as_ref() }
    }

    /// Whether this process has, or now gets, the ring of that window mapped. False: the kernel has no room for it.
    #[inline]
    pub fn reach(&self, window: u32) -> bool {
        window == SMALL_RING_BYTES
            || !self.whole.load(Ordering::Acquire).is_null()
            || self.map_whole()
    }

    #[cold]
    fn map_whole(&self) -> bool {
        let Ok(base) = sys::map_again(self.header.base(), segment_bytes(self.ring_bytes)) else {
            return false;
        };
        // AcqRel: whoever finds the pointer finds the mapping.
        let placed = self.whole.compare_exchange(
            null_mut(),
            base.as_ptr(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if placed.is_err() {
            // SAFETY: just mapped, and nobody else knows of it.
            unsafe { sys::unmap(base, segment_bytes(self.ring_bytes)) };
        }
        true
    }

    /// Agent: allocates the first `bytes` bytes of a direction's large ring.
    ///
    /// # Errors
    /// What the kernel says (`ENOMEM`…); `InvalidInput` for more than the ring has.
    pub fn allocate(&self, direction: usize, bytes: u32) -> io::Result<()> {
        if bytes > self.ring_bytes {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let whole_bytes = segment_bytes(self.ring_bytes);
        let whole = sys::map_again(self.header.base(), whole_bytes)?;
        let offset = HEADER_BYTES + (direction & 1) * self.ring_bytes as usize;
        // SAFETY: inside the new mapping.
        let ring = unsafe { whole.add(offset) };
        // SAFETY: the range is inside the new mapping, which nobody else knows of.
        let done = unsafe { sys::populate(ring, bytes as usize) };
        // SAFETY: as above.
        unsafe { sys::unmap(whole, whole_bytes) };
        done
    }

    /// The ring of `direction` that a window of that size is in.
    ///
    /// # Panics
    /// When [`Segment::reach`] would say no.
    fn ring(&self, direction: usize, window: u32) -> NonNull<u8> {
        let offset = ring_offset(direction, window, self.ring_bytes);
        if window == SMALL_RING_BYTES {
            // SAFETY: inside the header page (asserted above).
            return unsafe { self.header.base().add(offset) };
        }
        let whole = self
            .reach(window)
            .then(|| self.whole.load(Ordering::Acquire));
        let whole = whole
            .and_then(NonNull::new)
            .expect("the large rings can be mapped");
        // SAFETY: both large rings lie inside the whole segment, whose size `attach` has checked.
        unsafe { whole.add(offset) }
    }

    /// Splits `bytes` at free-running `cursor` of a window into at most two runs of memory.
    fn runs(
        &self,
        direction: usize,
        cursor: u32,
        bytes: u32,
        window: u32,
    ) -> [(NonNull<u8>, usize); 2] {
        assert!(is_window(window, self.ring_bytes) && bytes <= window);
        let start = cursor & (window - 1);
        let first = bytes.min(window - start);
        let ring = self.ring(direction, window);
        // SAFETY: start < window, which is at most the ring's size (asserted), so the place is inside the ring.
        let place = unsafe { ring.add(start as usize) };
        [(place, first as usize), (ring, (bytes - first) as usize)]
    }

    /// Sender: where the next `bytes` bytes at `tail` go; two runs, the second often empty.
    #[must_use]
    pub fn write_runs(
        &self,
        direction: usize,
        tail: u32,
        bytes: u32,
        window: u32,
    ) -> [(NonNull<u8>, usize); 2] {
        self.runs(direction, tail, bytes, window)
    }

    /// Sender: copies `bytes` bytes from `source` to the ring at `tail`.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes.
    #[inline]
    pub unsafe fn write(
        &self,
        direction: usize,
        tail: u32,
        window: u32,
        source: *const u8,
        bytes: u32,
    ) {
        let [(first, first_bytes), (second, second_bytes)] =
            self.runs(direction, tail, bytes, window);
        // They cannot overlap, since a program has no pointer into the segment. But under the name `memcpy` a library without versions
        // gets glibc's oldest one, which does not choose by the processor; `memmove` does, and is the same code.
        // SAFETY: `runs` keeps inside the ring; the caller vouches for the source.
        unsafe { std::ptr::copy(source, first.as_ptr(), first_bytes) };
        if second_bytes != 0 {
            // SAFETY: as above; `first_bytes` are within the source's `bytes`.
            unsafe { std::ptr::copy(source.add(first_bytes), second.as_ptr(), second_bytes) };
        }
    }

    /// Sender: asks for the cache lines of `bytes` bytes at `tail`, but perhaps the last one, which the reader has and we will soon write.
    #[inline]
    pub fn will_write(&self, direction: usize, tail: u32, window: u32, bytes: u32) {
        for (place, length) in self.runs(direction, tail, bytes, window) {
            for offset in (0..length).step_by(LINE_BYTES) {
                sys::will_write(place.as_ptr().wrapping_add(offset));
            }
        }
    }

    /// Receiver: copies `bytes` bytes at `head` of the ring to `target`.
    ///
    /// # Safety
    /// `target` is writable for `bytes` bytes.
    #[inline]
    pub unsafe fn read(
        &self,
        direction: usize,
        head: u32,
        window: u32,
        target: *mut u8,
        bytes: u32,
    ) {
        let [(first, first_bytes), (second, second_bytes)] =
            self.runs(direction, head, bytes, window);
        // SAFETY: `runs` keeps inside the ring; the caller vouches for the target. `memmove` as in `write`.
        unsafe { std::ptr::copy(first.as_ptr(), target, first_bytes) };
        if second_bytes != 0 {
            // SAFETY: as above.
            unsafe { std::ptr::copy(second.as_ptr(), target.add(first_bytes), second_bytes) };
        }
    }

    /// Receiver: publishes how far it has read.
    #[inline]
    pub fn release(&self, direction: usize, head: u32) {
        // Release: pairs with the Acquire in `read_head`; the copies out of the ring come before the room they make.
        self.words(direction).head.store(head, Ordering::Release);
    }

    /// Sender: how far the receiver says that it has read. Not to be believed before it is checked.
    #[must_use]
    #[inline]
    pub fn read_head(&self, direction: usize) -> u32 {
        // Acquire: pairs with the Release in `release`.
        self.words(direction).head.load(Ordering::Acquire)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(whole) = NonNull::new(*self.whole.get_mut()) {
            // SAFETY: mapped by `map_whole`, and nobody keeps pointers beyond the segment's life.
            unsafe { sys::unmap(whole, segment_bytes(self.ring_bytes)) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn both_ends_see_the_same_bytes_across_the_wrap() {
        let fd = create(4096).unwrap();
        let sender = Segment::attach(fd.as_fd(), 4096).unwrap();
        let receiver = Segment::attach(fd.as_fd(), 4096).unwrap();
        let message: Vec<u8> = (0..200).collect();
        let start = u32::MAX - 99;
        for window in [SMALL_RING_BYTES, 4096] {
            assert!(sender.reach(window) && receiver.reach(window));
            // SAFETY: the message has 200 bytes.
            unsafe { sender.write(1, start, window, message.as_ptr(), 200) };
            let mut out = vec![0; 200];
            // SAFETY: `out` has 200 bytes.
            unsafe { receiver.read(1, start, window, out.as_mut_ptr(), 200) };
            assert_eq!(out, message);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "memory is the kernel's")]
    fn memory_is_allocated_when_it_is_granted() {
        let fd = create(65_536).unwrap();
        let segment = Segment::attach(fd.as_fd(), 65_536).unwrap();
        let file = std::fs::File::from(fd);
        let allocated = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
        assert_eq!(allocated(), HEADER_BYTES as u64);
        segment.allocate(1, 16_384).unwrap();
        assert_eq!(allocated(), HEADER_BYTES as u64 + 16_384);
        assert!(segment.allocate(0, 131_072).is_err());
    }

    #[test]
    fn a_segment_of_another_size_is_refused() {
        let fd = create(4096).unwrap();
        assert!(Segment::attach(fd.as_fd(), 8192).is_err());
        assert!(create(5000).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "seals are the kernel's")]
    fn a_segment_cannot_be_reopened_or_resized() {
        let fd = create(4096).unwrap();
        assert!(
            std::fs::File::from(fd.try_clone().unwrap())
                .set_len(0)
                .is_err()
        );
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::File::from(fd).metadata().unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0);
    }

    /// What is copied before a publish is there after it, and room is not used again before its bytes have been copied.
    #[test]
    fn two_threads_carry_a_stream() {
        const BYTES: u32 = 5 * SMALL_RING_BYTES;
        let fd = create(RING_BYTES_MIN).unwrap();
        let [sender, receiver] =
            [(); 2].map(|()| Segment::attach(fd.as_fd(), RING_BYTES_MIN).unwrap());
        let gate = &receiver.words(0).gate;
        gate.open(gate.load(), SMALL_RING_BYTES.ilog2()).unwrap();
        let sends = std::thread::spawn(move || {
            let words = sender.words(0);
            while words.gate.load().tail < BYTES {
                let gate = words.gate.load();
                // Acquire: as in `SendHalf::look_at_head`.
                let used = gate.tail - words.head.load(Ordering::Acquire);
                let part = (SMALL_RING_BYTES - used).min(100).min(BYTES - gate.tail);
                let message: Vec<u8> = (gate.tail..gate.tail + part).map(|at| at as u8).collect();
                // SAFETY: the message has so many bytes.
                unsafe { sender.write(0, gate.tail, SMALL_RING_BYTES, message.as_ptr(), part) };
                words.gate.publish(gate, part).unwrap();
                std::thread::yield_now();
            }
        });
        let mut head = 0;
        while head < BYTES {
            let part = receiver.words(0).gate.load().tail - head;
            let mut got = vec![0; part as usize];
            // SAFETY: the vector has so many bytes.
            unsafe { receiver.read(0, head, SMALL_RING_BYTES, got.as_mut_ptr(), part) };
            assert!(got.iter().zip(head..).all(|(byte, at)| *byte == at as u8));
            head += part;
            // Release: as in `ReceiveHalf::commit`.
            receiver.words(0).head.store(head, Ordering::Release);
            std::thread::yield_now();
        }
        sends.join().unwrap();
    }
}
