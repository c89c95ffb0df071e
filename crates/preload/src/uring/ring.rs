//! What the kernel and liburing say of a ring, and where the program has it in memory.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, Ordering::Acquire};

use libc::{c_int, c_void};

use crate::kernel::kernel;
use crate::user;

/// How the kernel calls an io_uring's memory, and its descriptors.
const MARK: &[u8] = b"anon_inode:[io_uring]";
/// More than stands before that in a line of `/proc/self/maps`.
const LINE_MAX: usize = 256;
/// IORING_OFF_SQES: where the requests begin in what can be mapped.
const OFFSET_OF_REQUESTS: u64 = 0x1000_0000;

const SETUP_SQE128: u32 = 1 << 10;
/// What does not change who reads which requests, and when: all but IORING_SETUP_SQPOLL (the kernel reads unasked), SQ_AFF, NO_MMAP and
/// REGISTERED_FD_ONLY, and what came after Linux 6.18.
const SETUP_KNOWN: u32 = 0x3_3ff9;
/// IORING_FEAT_EXT_ARG: liburing submits nothing for a time-out. IORING_FEAT_CQE_SKIP came with Linux 5.17, when each ring had an inode.
const FEATURES_NEEDED: u32 = 1 << 8 | 1 << 11;

/// Where the parts of a submission queue lie in its memory (`struct io_sqring_offsets` of `linux/io_uring.h`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    _entries: u32,
    _flags: u32,
    _dropped: u32,
    array: u32,
    _reserved: u32,
    _address: u64,
}

/// `struct io_uring_params`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Parameters {
    _entries: [u32; 2],
    flags: u32,
    _thread: [u32; 2],
    features: u32,
    _reserved: [u32; 4],
    submission: Offsets,
    _completion: [u64; 5],
}

const _: () = assert!(size_of::<Parameters>() == 120 && offset_of!(Parameters, submission) == 40);

/// `struct io_uring` of liburing 2, as far as we read it. Before, the second half had other places; `fd` is tried.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Liburing {
    head: usize,
    tail: usize,
    mask: usize,
    _entries: [usize; 3],
    array: usize,
    requests: usize,
    _local_head: u32,
    /// Up to where there are requests, shown to the kernel or not.
    pub(super) tail_here: u32,
    _size: usize,
    _start: usize,
    _rest: [u32; 4],
    _completion: [usize; 11],
    flags: u32,
    pub(super) fd: c_int,
    features: u32,
}

const _: () = assert!(offset_of!(Liburing, tail_here) == 68 && offset_of!(Liburing, flags) == 192);

impl Liburing {
    pub(super) fn read(ring: *const c_void) -> Option<Liburing> {
        let ring = ring.cast::<Liburing>();
        // SAFETY: found readable just before; integers, of which every pattern is a value.
        user::can_read(ring.cast(), size_of::<Liburing>()).then(|| unsafe { ring.read_unaligned() })
    }
}

/// A submission queue in the program's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    head: usize,
    tail: usize,
    mask: usize,
    /// Which request each place is; zero: the one of the same number.
    array: usize,
    requests: usize,
    request_bytes: usize,
}

fn word(address: usize) -> Option<u32> {
    let place = address as *const AtomicU32;
    let is_there = address.is_multiple_of(4) && user::can_read(place.cast(), 4);
    // SAFETY: found readable just before, and aligned. Acquire: pairs with the kernel's and the program's releases of heads and tails.
    is_there.then(|| unsafe { (*place).load(Acquire) })
}

impl Queue {
    /// Up to where the kernel has read.
    pub(super) fn head(&self) -> Option<u32> {
        word(self.head)
    }

    /// Up to where the program has shown requests to the kernel.
    pub(super) fn tail(&self) -> Option<u32> {
        word(self.tail)
    }

    /// How many there can be, a power of two.
    pub(super) fn capacity(&self) -> Option<u32> {
        word(self.mask)?.checked_add(1)
    }

    /// Where the requests are that the kernel may find at a position: by the array, and as liburing is about to write that.
    pub(super) fn requests_at(&self, position: u32) -> Option<[*const u8; 2]> {
        let mask = word(self.mask)?;
        let plain = position & mask;
        let by_array = match self.array {
            0 => plain,
            array => word(array + plain as usize * size_of::<u32>())?,
        };
        // The kernel drops what is beyond.
        let by_array = if by_array > mask { plain } else { by_array };
        let at = |index: u32| (self.requests + index as usize * self.request_bytes) as *const u8;
        Some([at(by_array), at(plain)])
    }
}

/// A ring whose submissions are seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(super) fd: c_int,
    pub(super) inode: u64,
    pub(super) offsets: (Offsets, usize),
    pub(super) queue: Option<Queue>,
    /// The kernel's position when the last submission had been made.
    pub(super) head: u32,
    /// A submission is under way.
    pub(super) is_busy: bool,
    /// Requests may wait for earlier ones (IOSQE_IO_DRAIN).
    pub(super) drains: bool,
}

impl Ring {
    fn new(fd: c_int, flags: u32, features: u32) -> Option<Ring> {
        let is_known = flags & !SETUP_KNOWN == 0 && features & FEATURES_NEEDED == FEATURES_NEEDED;
        let request_bytes = if flags & SETUP_SQE128 != 0 { 128 } else { 64 };
        Some(Ring {
            fd,
            inode: inode_of(fd).filter(|_| is_known)?,
            offsets: (Offsets::default(), request_bytes),
            queue: None,
            head: 0,
            is_busy: false,
            drains: false,
        })
    }

    /// One that the kernel has just made.
    pub(crate) fn by_number(fd: c_int, parameters: *const Parameters) -> Option<Ring> {
        if !user::can_read(parameters.cast(), size_of::<Parameters>()) {
            return None;
        }
        // SAFETY: found readable; integers.
        let parameters = unsafe { parameters.read_unaligned() };
        let ring = Ring::new(fd, parameters.flags, parameters.features)?;
        let offsets = (parameters.submission, ring.offsets.1);
        Some(Ring { offsets, ..ring })
    }

    /// One that liburing has just made.
    pub(crate) fn by_liburing(ring: *const c_void) -> Option<Ring> {
        let layout = Liburing::read(ring)?;
        let ring = Ring::new(layout.fd, layout.flags, layout.features)?;
        let queue = Queue {
            head: layout.head,
            tail: layout.tail,
            mask: layout.mask,
            array: layout.array,
            requests: layout.requests,
            request_bytes: ring.offsets.1,
        };
        let is_new = queue.head() == Some(0) && queue.tail() == Some(0);
        is_new.then_some(Ring {
            queue: Some(queue),
            ..ring
        })
    }

    /// Whether the kernel has read what was seen, and nothing else.
    pub(super) fn is_as_left(&self) -> bool {
        self.is_busy
            || self
                .queue
                .is_none_or(|queue| queue.head() == Some(self.head))
    }
}

/// The inode of an io_uring. None: `fd` is none.
fn inode_of(fd: c_int) -> Option<u64> {
    let path = format!("/proc/self/fd/{fd}\0");
    let mut link = [0u8; MARK.len() + 1];
    let place = path.as_ptr();
    let read = kernel!(
        libc::SYS_readlinkat,
        libc::AT_FDCWD,
        place,
        link.as_mut_ptr(),
        link.len()
    );
    if usize::try_from(read) != Ok(MARK.len()) || !link.starts_with(MARK) {
        return None;
    }
    // SAFETY: integers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let answer = kernel!(libc::SYS_fstat, fd, &raw mut status);
    (answer == 0).then_some(status.st_ino)
}

/// A line of `/proc/self/maps` that is an io_uring's: its address, its place in the ring, and the inode.
struct Mapping {
    address: usize,
    offset: u64,
    inode: u64,
}

impl Mapping {
    fn parse(line: &[u8]) -> Option<Mapping> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (range, _, offset) = (words.next()?, words.next()?, words.next()?);
        let inode = words.nth(1)?.parse().ok()?;
        let address = usize::from_str_radix(range.split('-').next()?, 16).ok()?;
        let offset = u64::from_str_radix(offset, 16).ok()?;
        Some(Mapping {
            address,
            offset,
            inode,
        })
    }
}

/// Gives every mapping of an io_uring to `each`, or None for one that cannot be read, until that has found what it looks for.
fn for_each_mapping(each: &mut dyn FnMut(Option<Mapping>) -> bool) {
    let path = c"/proc/self/maps";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let maps = kernel!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
    if maps < 0 {
        return;
    }
    let mut text = vec![0u8; 4096];
    let mut kept = 0;
    'all: loop {
        let room = text.len() - kept;
        let read = kernel!(libc::SYS_read, maps, text[kept..].as_mut_ptr(), room);
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else {
            break;
        };
        let length = kept + read;
        let lines = text[..length].iter().rposition(|byte| *byte == b'\n');
        let end = lines.map_or(0, |last| last + 1);
        let is_ring = |line: &&[u8]| line.ends_with(MARK);
        for line in text[..end].split(|byte| *byte == b'\n').filter(is_ring) {
            if each(Mapping::parse(line)) {
                break 'all;
            }
        }
        // The line goes on in the next part; if it is longer than any of a ring, without its beginning.
        let rest = if length - end == text.len() {
            length - LINE_MAX
        } else {
            end
        };
        kept = length - rest;
        text.copy_within(rest..length, 0);
    }
    kernel!(libc::SYS_close, maps);
}

/// Whether the process has the memory of an io_uring that is none of these.
pub(super) fn is_mapped(known: &[u64]) -> bool {
    let mut found = false;
    for_each_mapping(&mut |mapping| {
        found = mapping.is_none_or(|mapping| !known.contains(&mapping.inode));
        found
    });
    found
}

/// Where the program has mapped a ring that it set up by number.
pub(super) fn find_queue(inode: u64, (offsets, request_bytes): (Offsets, usize)) -> Option<Queue> {
    let (mut queue, mut requests) = (None, None);
    for_each_mapping(&mut |mapping| {
        match mapping.filter(|mapping| mapping.inode == inode) {
            Some(mapping) if mapping.offset == 0 => queue = Some(mapping.address),
            Some(mapping) if mapping.offset == OFFSET_OF_REQUESTS => {
                requests = Some(mapping.address);
            }
            _ => {}
        }
        queue.is_some() && requests.is_some()
    });
    let (queue, requests) = (queue?, requests?);
    Some(Queue {
        head: queue + offsets.head as usize,
        tail: queue + offsets.tail as usize,
        mask: queue + offsets.mask as usize,
        array: match offsets.array {
            0 => 0,
            array => queue + array as usize,
        },
        requests,
        request_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_of_a_ring_is_read_from_its_line() {
        let line = b"7f74754ae000-7f74754af000 rw-s 10000000 00:10 298258                     anon_inode:[io_uring]";
        let mapping = Mapping::parse(line).expect("a mapping");
        assert_eq!(mapping.address, 0x7f74_754a_e000);
        assert_eq!(
            (mapping.offset, mapping.inode),
            (OFFSET_OF_REQUESTS, 298_258)
        );
        assert!(Mapping::parse(b"the end of a long path/anon_inode:[io_uring]").is_none());
    }

    #[test]
    fn only_known_set_ups_are_followed() {
        let flags = |bits: &[u32]| bits.iter().fold(0, |flags, bit| flags | 1 << bit);
        assert_eq!(
            SETUP_KNOWN,
            flags(&[0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17])
        );
    }
}
