//! Rings in shared memory, and what is sent to a peer.
#![allow(
    unsafe_code,
    reason = "atomics in a mapping at places that were checked"
)]

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use millrace_wire::memif::{
    COOKIE, DESCRIPTOR_BYTES, Descriptor, MASK_INTERRUPT, MESSAGE_BYTES, RING_COOKIE,
    RING_DESCRIPTORS, RING_FLAGS, RING_HEAD, RING_TAIL, ring_bytes,
};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::memory::{Memory, Place};

/// A ring, of which every word may be written by the peer at any time.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Arc<Memory>,
    base: NonNull<u8>,
    log2_size: u8,
}

// SAFETY: the memory is mapped as long as the ring has its share of it, wherever it is used, and is accessed by atomics only.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring at a place. None: it is not inside the memory, or not aligned for its words.
    pub(super) fn new(
        memory: &Arc<Memory>,
        region: u16,
        offset: u32,
        log2_size: u8,
    ) -> Option<Ring> {
        let place = Place {
            region,
            offset,
            length: u32::try_from(ring_bytes(log2_size)).ok()?,
        };
        if !memory.contains(place) || !offset.is_multiple_of(align_of::<AtomicU64>() as u32) {
            return None;
        }
        Some(Ring {
            base: memory.start(place),
            memory: memory.clone(),
            log2_size,
        })
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Descriptors, at most 2^14, so that the cursors' distance says full from empty.
    #[inline]
    pub(super) fn size(&self) -> u16 {
        1 << self.log2_size
    }

    #[inline]
    fn half(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset < RING_DESCRIPTORS);
        // SAFETY: `new`: all of the ring is mapped while `self.memory` lives, and aligned.
        let word = unsafe { self.base.add(offset) };
        // SAFETY: mapped and aligned; an atomic may be written by anybody.
        unsafe { word.cast::<AtomicU16>().as_ref() }
    }

    fn cookie(&self) -> &AtomicU32 {
        // SAFETY: as in `half`.
        let word = unsafe { self.base.add(RING_COOKIE) };
        // SAFETY: as in `half`.
        unsafe { word.cast::<AtomicU32>().as_ref() }
    }

    #[inline]
    fn words(&self, cursor: u16) -> [&AtomicU64; 2] {
        let slot = usize::from(cursor & (self.size() - 1));
        let offset = RING_DESCRIPTORS + slot * DESCRIPTOR_BYTES;
        // SAFETY: as in `half`: the slot is one of the ring's.
        let first = unsafe { self.base.add(offset) };
        // SAFETY: as above.
        let second = unsafe { first.add(size_of::<u64>()) };
        // SAFETY: as in `half`.
        let first = unsafe { first.cast::<AtomicU64>().as_ref() };
        // SAFETY: as in `half`.
        [first, unsafe { second.cast::<AtomicU64>().as_ref() }]
    }

    /// Whether it begins as a ring does.
    pub(super) fn has_cookie(&self) -> bool {
        // Relaxed: the message that told of the ring came by the kernel.
        self.cookie().load(Ordering::Relaxed) == COOKIE
    }

    /// Client: makes it an empty one.
    pub(super) fn init(&self) {
        // Relaxed: the peer hears of it by the kernel.
        self.half(RING_FLAGS).store(0, Ordering::Relaxed);
        self.half(RING_HEAD).store(0, Ordering::Relaxed);
        self.half(RING_TAIL).store(0, Ordering::Relaxed);
        self.cookie().store(COOKIE, Ordering::Relaxed);
    }

    /// What the client has given so far.
    #[inline]
    pub(super) fn head(&self) -> u16 {
        // Acquire: pairs with the client's release of the same word; descriptors, and bytes in a ring from it, are visible after it.
        self.half(RING_HEAD).load(Ordering::Acquire)
    }

    /// Client: says that everything before is given.
    #[inline]
    pub(super) fn set_head(&self, head: u16) {
        // Release: pairs with the server's load of the same word (`Ring::head`).
        self.half(RING_HEAD).store(head, Ordering::Release);
    }

    /// What the server has done with so far.
    #[inline]
    pub(super) fn tail(&self) -> u16 {
        // Acquire: pairs with the server's release of the same word; it reads no more before it, or has filled everything before it.
        self.half(RING_TAIL).load(Ordering::Acquire)
    }

    /// Server: says that everything before is done with.
    #[inline]
    pub(super) fn set_tail(&self, tail: u16) {
        // Release: pairs with the client's load of the same word (`Ring::tail`).
        self.half(RING_TAIL).store(tail, Ordering::Release);
    }

    /// A copy of a descriptor. Its words may be of different times when the peer does what it must not.
    #[inline]
    pub(super) fn descriptor(&self, cursor: u16) -> Descriptor {
        // Relaxed: ordered by the cursor that was read before.
        Descriptor::parse(self.words(cursor).map(|word| word.load(Ordering::Relaxed)))
    }

    #[inline]
    pub(super) fn set_descriptor(&self, cursor: u16, descriptor: Descriptor) {
        let [first, second] = descriptor.emit();
        let words = self.words(cursor);
        // Relaxed: ordered by the cursor that is written after.
        words[0].store(first, Ordering::Relaxed);
        words[1].store(second, Ordering::Relaxed);
    }

    /// Reader: whether it wants an interrupt for what comes from now on. It looks at the ring once more after that.
    pub(super) fn want_interrupt(&self, wanted: bool) {
        let flags = if wanted { 0 } else { MASK_INTERRUPT };
        self.half(RING_FLAGS).store(flags, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `interrupt_is_wanted`: either the writer sees the flag, or we see what it wrote.
        fence(Ordering::SeqCst);
    }

    /// Writer: whether the reader wants an interrupt for what was just published.
    #[inline]
    pub(super) fn interrupt_is_wanted(&self) -> bool {
        // SeqCst: pairs with the fence in `want_interrupt`.
        fence(Ordering::SeqCst);
        self.half(RING_FLAGS).load(Ordering::Relaxed) & MASK_INTERRUPT == 0
    }
}

/// Sends a control message, and a descriptor with it.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8; MESSAGE_BYTES],
    fd: Option<RawFd>,
) -> io::Result<()> {
    let list = fd.map(|fd| [fd]);
    let rights = list.as_ref().map(|list| ControlMessage::ScmRights(list));
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let parts = [IoSlice::new(message)];
    sendmsg::<()>(socket.as_raw_fd(), &parts, rights.as_slice(), flags, None)?;
    Ok(())
}
