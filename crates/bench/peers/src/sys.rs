//! What nobody else offers safely: shared memory, packets by the batch, processes, the processor's counter.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use iceoryx2::prelude::ipc;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::sample_mut_uninit::SampleMutUninit;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::head::{HEAD_BYTES, Head};

/// Memory that can be handed to others.
pub(crate) fn memory(bytes: usize) -> Result<OwnedFd> {
    let memory = memfd_create("millrace-peers", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, bytes as u64)?;
    Ok(memory)
}

/// Shared memory, present from the first moment.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// A part of it, that begins with a page.
    pub(crate) fn of(memory: &OwnedFd, at: usize, bytes: usize) -> Result<Mapping> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a place that nothing else has.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                flags,
                memory,
                at as u64,
            )
        };
        let start = NonNull::new(start.context("the memory cannot be mapped")?.cast::<u8>());
        Ok(Mapping {
            start: start.context("the memory is nowhere")?,
            bytes,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The word at a place, which both ends access.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.bytes && at.is_multiple_of(8));
        // SAFETY: it is within the mapping, which has whole pages.
        let place = unsafe { self.start.add(at) };
        // SAFETY: it is aligned, as the mapping begins with a page; the memory lives as long as `self`; others access it atomically.
        unsafe { place.cast::<AtomicU64>().as_ref() }
    }

    /// The cache line of a head at a place.
    #[inline]
    fn head(&self, at: usize) -> NonNull<Head> {
        assert!(at < self.bytes && at.is_multiple_of(HEAD_BYTES));
        // SAFETY: it is within the mapping, which has whole pages.
        unsafe { self.start.add(at) }.cast()
    }

    /// Writes a head at a place that nobody reads before a cursor says so.
    #[inline]
    pub(crate) fn write_head(&self, at: usize, head: &Head) {
        // SAFETY: the place is within the mapping and aligned. The other end is a program of ours, and reads it later.
        unsafe { self.head(at).write(*head) };
    }

    /// Reads a head from a place that nobody writes before a cursor says so.
    #[inline]
    pub(crate) fn read_head(&self, at: usize) -> Head {
        // SAFETY: the place is within the mapping, aligned, and has numbers, of which all values are good.
        unsafe { self.head(at).read() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is ours, was mapped with this length, and whoever has places in it has the mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A buffer for packets of the same length, and what the kernel has to know of them.
pub(crate) struct Packets {
    buffer: Vec<u8>,
    each: usize,
    headers: Vec<libc::mmsghdr>,
    /// What `headers` points to.
    _places: Vec<libc::iovec>,
}

impl Packets {
    pub(crate) fn new(each: usize, count: usize) -> Packets {
        let mut buffer = vec![0u8; each * count];
        let place = |bytes: &mut [u8]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // A vector's memory stays where it is when the vector is moved, and neither of them grows.
        let mut places: Vec<libc::iovec> = buffer.chunks_exact_mut(each).map(place).collect();
        let header = |place: &mut libc::iovec| {
            // SAFETY: all of it is numbers and pointers, for which zero is a value.
            let mut header = unsafe { std::mem::zeroed::<libc::mmsghdr>() };
            header.msg_hdr.msg_iov = place;
            header.msg_hdr.msg_iovlen = 1;
            header
        };
        let headers = places.iter_mut().map(header).collect();
        Packets {
            buffer,
            each,
            headers,
            _places: places,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

fn count(result: libc::c_int) -> io::Result<Option<usize>> {
    match usize::try_from(result) {
        Ok(count) => Ok(Some(count)),
        Err(_) => {
            let error = io::Error::last_os_error();
            let is_full = error.kind() == io::ErrorKind::WouldBlock;
            if is_full { Ok(None) } else { Err(error) }
        }
    }
}

/// Sends these packets, or the first of them.
pub(crate) fn send_packets(
    socket: &OwnedFd,
    packets: &mut Packets,
    which: Range<usize>,
    spins: bool,
) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | if spins { libc::MSG_DONTWAIT } else { 0 };
    let headers = &mut packets.headers[which];
    // SAFETY: the headers point to places in the buffer, all of which `packets` has.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            flags,
        )
    };
    Ok(count(sent)?.unwrap_or(0))
}

/// Receives into these places, at least one packet unless it spins. None: the other end is gone.
pub(crate) fn receive_packets(
    socket: &OwnedFd,
    packets: &mut Packets,
    which: Range<usize>,
    spins: bool,
) -> Result<Option<usize>> {
    let flags = if spins {
        libc::MSG_DONTWAIT
    } else {
        libc::MSG_WAITFORONE
    };
    let headers = &mut packets.headers[which];
    let length = headers.len() as libc::c_uint;
    // SAFETY: the headers point to places in the buffer, all of which `packets` has.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            length,
            flags,
            std::ptr::null_mut(),
        )
    };
    let Some(received) = count(received)? else {
        return Ok(Some(0));
    };
    // Of the end of a stream, every place of the batch has nothing.
    let whole = headers[..received]
        .iter()
        .take_while(|header| header.msg_len > 0)
        .count();
    if whole == 0 {
        return Ok(None);
    }
    let is_right = |header: &libc::mmsghdr| header.msg_len as usize == packets.each;
    ensure!(
        headers[..whole].iter().all(is_right),
        "a packet has another length"
    );
    Ok(Some(whole))
}

/// A process of its own, in which `work` is done, and which ends with ours. Returns its number.
///
/// # Panics
/// Another thread is running: what it holds would be held in the new process for ever.
pub(crate) fn fork(work: impl FnOnce() -> u8) -> io::Result<i32> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    assert_eq!(threads, 1, "only a process with one thread can be doubled");
    let parent = std::process::id();
    // SAFETY: this process has one thread, so that nothing is held.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: it has a number and changes nothing in memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // It may have gone before.
        if std::os::unix::process::parent_id() == parent {
            std::process::exit(i32::from(work()));
        }
        std::process::exit(1);
    }
    if pid < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(pid)
    }
}

/// Waits for a process of ours, and says whether all went well with it.
pub(crate) fn wait(pid: i32) -> io::Result<bool> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a number of ours.
        let ended = unsafe { libc::waitpid(pid, &mut status, 0) };
        if ended == pid {
            return Ok(status == 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Ends this process when so many seconds are over: it waits for somebody who is gone.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: it has a number and changes nothing in memory.
    unsafe { libc::alarm(seconds) };
}

/// A message of iceoryx2 whose bytes are what its shared memory has, as in iceoryx2's own benchmark.
#[inline]
pub(crate) fn as_it_is(
    buffer: SampleMutUninit<ipc::Service, [MaybeUninit<u8>], ()>,
) -> SampleMut<ipc::Service, [u8], ()> {
    // SAFETY: the kernel initialises shared memory, so that each of its bytes has a value, and all values of bytes are good.
    unsafe { buffer.assume_init() }
}

/// The processor's counter, when everything before it is done.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_lfence() };
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { _rdtsc() }
}

/// Where there is no such counter that programs can read, the kernel's clock.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn ticks() -> u64 {
    crate::clock::monotonic_ns()
}
