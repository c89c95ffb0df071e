//! AF_XDP sockets, their rings, and BPF programs.
#![allow(
    unsafe_code,
    reason = "options of sockets, atomics in mappings of the kernel's, and bpf(2)"
)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::errno::Errno;

const AF_XDP: c_int = 44;
const FLAG_BYTES: usize = size_of::<u32>();

/// `union bpf_attr`, as far as it is used.
pub(super) struct Attributes([u8; 128]);

impl Attributes {
    pub(super) fn new() -> Attributes {
        Attributes([0; 128])
    }

    pub(super) fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    pub(super) fn set_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    pub(super) fn set_text(&mut self, at: usize, text: &[u8]) {
        self.0[at..at + text.len()].copy_from_slice(text);
    }

    /// A command. What the attributes point to lives in the caller.
    pub(super) fn run(&self, command: c_int) -> io::Result<RawFd> {
        let (bytes, count) = (self.0.as_ptr(), self.0.len());
        // SAFETY: the kernel reads the attributes and copies what they point to; what is not there is its EFAULT.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, bytes, count) };
        // A descriptor, or zero.
        Ok(Errno::result(result)? as RawFd)
    }

    /// The same, of a command that makes a descriptor, closed on exec.
    pub(super) fn make(&self, command: c_int) -> io::Result<OwnedFd> {
        let made = self.run(command)?;
        // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(made) })
    }
}

/// A socket that is bound to nothing yet.
pub(super) fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let made = Errno::result(unsafe { libc::socket(AF_XDP, kind, 0) })?;
    // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn set<T>(fd: BorrowedFd<'_>, option: c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    let (fd, place) = (fd.as_raw_fd(), (&raw const *value).cast());
    // SAFETY: the kernel reads so many bytes there.
    Errno::result(unsafe { libc::setsockopt(fd, libc::SOL_XDP, option, place, bytes) })?;
    Ok(())
}

/// Fills in an option that is of numbers only.
fn get<const N: usize>(fd: BorrowedFd<'_>, option: c_int) -> io::Result<[u64; N]> {
    let mut value = [0; N];
    let mut bytes = size_of_val(&value) as libc::socklen_t;
    let (fd, place) = (fd.as_raw_fd(), value.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most so many bytes there.
    Errno::result(unsafe { libc::getsockopt(fd, libc::SOL_XDP, option, place, &raw mut bytes) })?;
    Ok(value)
}

/// Gives a socket its memory: so many bytes, in frames.
pub(super) fn register(
    fd: BorrowedFd<'_>,
    start: NonNull<u8>,
    bytes: usize,
    frame_bytes: u32,
) -> io::Result<()> {
    // `struct xdp_umem_reg`.
    let request: [u64; 4] = [
        start.as_ptr() as u64,
        bytes as u64,
        u64::from_ne_bytes({
            let mut pair = [0; 8];
            pair[..4].copy_from_slice(&frame_bytes.to_ne_bytes());
            pair
        }),
        0,
    ];
    set(fd, libc::XDP_UMEM_REG, &request)
}

/// Binds a socket to a queue of an interface.
pub(super) fn bind(fd: BorrowedFd<'_>, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
    // `struct sockaddr_xdp`.
    let [family, flags] = [(AF_XDP as u16).to_ne_bytes(), flags.to_ne_bytes()];
    let first = [family[0], family[1], flags[0], flags[1]];
    let address: [u32; 4] = [u32::from_ne_bytes(first), ifindex, queue, 0];
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads so many bytes there.
    Errno::result(unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), bytes) })?;
    Ok(())
}

/// Whether the driver and we share frames.
pub(super) fn is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut flags = 0u32;
    let mut bytes = FLAG_BYTES as libc::socklen_t;
    let (fd, place) = (fd.as_raw_fd(), (&raw mut flags).cast());
    let option = libc::XDP_OPTIONS;
    // SAFETY: the kernel writes at most so many bytes there.
    Errno::result(unsafe { libc::getsockopt(fd, libc::SOL_XDP, option, place, &raw mut bytes) })?;
    Ok(flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Packets that were for the socket and did not reach its ring, since it was bound: for want of room, and since they were too long.
/// Drivers that share frames count an empty fill ring also where nothing is dropped for it: then all are for want of room.
pub(super) fn dropped(fd: BorrowedFd<'_>, is_zero_copy: bool) -> io::Result<(u64, u64)> {
    // `struct xdp_statistics`: dropped, two of bad descriptors, the ring was full, there was nothing to receive into.
    let [dropped, _, _, full, empty, _] = get::<6>(fd, libc::XDP_STATISTICS)?;
    // What found nothing to be received into is counted in both; all else that is dropped was longer than a buffer.
    let without = if is_zero_copy {
        dropped
    } else {
        empty.min(dropped)
    };
    Ok((full + without, dropped - without))
}

/// Has the kernel send what is in the ring, or fill what is in the other one.
pub(super) fn kick_sender(fd: BorrowedFd<'_>) -> nix::Result<()> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: there are no bytes and no address.
    let sent = unsafe { libc::sendto(fd.as_raw_fd(), null(), 0, flags, null(), 0) };
    Errno::result(sent).map(drop)
}

/// Has the kernel take up what was given to it to receive into.
pub(super) fn kick_receiver(fd: BorrowedFd<'_>) {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: there are no bytes and no address. Whether it worked is seen by what comes.
    unsafe { libc::recvfrom(fd, null_mut(), 0, flags, null_mut(), null_mut()) };
}

/// Which of a socket's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Receive,
    Transmit,
    Fill,
    Completion,
}

impl Which {
    /// The option that makes it, where it is mapped from, which of the offsets are its own, and bytes of an entry.
    fn facts(self) -> (c_int, u64, usize, usize) {
        match self {
            Which::Receive => (libc::XDP_RX_RING, 0, 0, 16),
            Which::Transmit => (libc::XDP_TX_RING, 0x8000_0000, 1, 16),
            Which::Fill => (libc::XDP_UMEM_FILL_RING, 0x1_0000_0000, 2, 8),
            Which::Completion => (libc::XDP_UMEM_COMPLETION_RING, 0x1_8000_0000, 3, 8),
        }
    }
}

/// A part of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) length: u32,
    /// The packet has another part.
    pub(super) goes_on: bool,
}

/// One of the rings that a socket and the kernel share: one of them produces, the other consumes.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    bytes: usize,
    producer: usize,
    consumer: usize,
    entries: usize,
    flags: usize,
    size: u32,
}

// SAFETY: the mapping is the ring's own, and is accessed by atomics only, wherever that is.
unsafe impl Send for Ring {}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `make`, and nobody has a part of it beyond the ring's life.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Ring {
    /// Makes a ring of so many entries, a power of two, and maps it.
    pub(super) fn make(fd: BorrowedFd<'_>, which: Which, size: u32) -> io::Result<Ring> {
        let (option, from, number, entry_bytes) = which.facts();
        set(fd, option, &size)?;
        let offsets = get::<16>(fd, libc::XDP_MMAP_OFFSETS)?;
        let own = &offsets[number * 4..number * 4 + 4];
        let [producer, consumer, entries, flags] = [own[0], own[1], own[2], own[3]];
        let bytes = entries as usize + size as usize * entry_bytes;
        let is_sound = [producer, consumer, flags]
            .iter()
            .all(|at| at.is_multiple_of(4) && *at as usize + FLAG_BYTES <= bytes);
        assert!(is_sound && entries.is_multiple_of(8), "{offsets:?}");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flag = libc::MAP_SHARED | libc::MAP_POPULATE;
        let from = from as libc::off_t;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let base = unsafe { libc::mmap(null_mut(), bytes, protection, flag, fd.as_raw_fd(), from) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Ring {
            base,
            bytes,
            producer: producer as usize,
            consumer: consumer as usize,
            entries: entries as usize,
            flags: flags as usize,
            size,
        })
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `make`: the word is inside the mapping.
        let word = unsafe { self.base.add(at) };
        // SAFETY: inside, aligned, and an atomic, which the kernel may write.
        unsafe { word.cast::<AtomicU32>().as_ref() }
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= self.bytes);
        // SAFETY: callers have an index below `size`, for whose entries `make` has mapped memory.
        let word = unsafe { self.base.add(at) };
        // SAFETY: as in `word`.
        unsafe { word.cast::<AtomicU64>().as_ref() }
    }

    /// What was produced so far.
    #[inline]
    pub(super) fn produced(&self) -> u32 {
        // Acquire: pairs with the kernel's release of the same word; entries, and bytes that they tell of, are visible after it.
        self.word(self.producer).load(Ordering::Acquire)
    }

    /// What was consumed so far.
    #[inline]
    pub(super) fn consumed(&self) -> u32 {
        // Acquire: pairs with the kernel's release of the same word; it reads no entry before it any more.
        self.word(self.consumer).load(Ordering::Acquire)
    }

    /// Producer: everything before is there.
    #[inline]
    pub(super) fn produce(&self, cursor: u32) {
        // Release: pairs with the kernel's acquire of the same word.
        self.word(self.producer).store(cursor, Ordering::Release);
    }

    /// Consumer: everything before is done with.
    #[inline]
    pub(super) fn consume(&self, cursor: u32) {
        // Release: pairs with the kernel's acquire of the same word.
        self.word(self.consumer).store(cursor, Ordering::Release);
    }

    /// Whether the kernel waits to be called.
    #[inline]
    pub(super) fn needs_kick(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// An entry of a ring of addresses.
    #[inline]
    pub(super) fn address(&self, cursor: u32) -> u64 {
        let index = (cursor & (self.size - 1)) as usize;
        // Relaxed: ordered by the cursor that was read before.
        self.long(self.entries + index * 8).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_address(&self, cursor: u32, address: u64) {
        let index = (cursor & (self.size - 1)) as usize;
        // Relaxed: ordered by the cursor that is written after.
        self.long(self.entries + index * 8)
            .store(address, Ordering::Relaxed);
    }

    /// An entry of a ring of descriptors (`struct xdp_desc`).
    #[inline]
    pub(super) fn descriptor(&self, cursor: u32) -> Descriptor {
        let index = (cursor & (self.size - 1)) as usize;
        let at = self.entries + index * 16;
        // Relaxed: as in `address`.
        let [address, rest] = [at, at + 8].map(|at| self.long(at).load(Ordering::Relaxed));
        let [a, b, c, d, e, f, g, h] = rest.to_ne_bytes();
        Descriptor {
            address,
            length: u32::from_ne_bytes([a, b, c, d]),
            goes_on: u32::from_ne_bytes([e, f, g, h]) & libc::XDP_PKT_CONTD != 0,
        }
    }

    #[inline]
    pub(super) fn set_descriptor(&self, cursor: u32, descriptor: Descriptor) {
        let index = (cursor & (self.size - 1)) as usize;
        let at = self.entries + index * 16;
        let mut rest = [0; 8];
        rest[..4].copy_from_slice(&descriptor.length.to_ne_bytes());
        let options = if descriptor.goes_on {
            libc::XDP_PKT_CONTD
        } else {
            0
        };
        rest[4..].copy_from_slice(&options.to_ne_bytes());
        // Relaxed: as in `set_address`.
        self.long(at).store(descriptor.address, Ordering::Relaxed);
        let rest = u64::from_ne_bytes(rest);
        self.long(at + 8).store(rest, Ordering::Relaxed);
    }
}
