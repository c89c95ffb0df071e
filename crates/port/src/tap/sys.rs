//! What is asked of `/dev/net/tun`, and reads and writes of packets that lie in several parts.
#![allow(
    unsafe_code,
    reason = "ioctl of a device, and vectors of memory that is borrowed meanwhile"
)]

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;

use millrace_wire::virtio::NET_HEADER_BYTES;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::memory::{Memory, Place};
use crate::offload::Offloads;

/// A packet in so many parts, or fewer, is written as it lies.
pub(super) const PARTS_MAX: usize = 32;
const NAME_BYTES: usize = libc::IFNAMSIZ;

/// `struct ifreq` with flags in it.
#[repr(C)]
struct Request {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    fn new() -> Request {
        Request {
            name: [0; NAME_BYTES],
            flags: 0,
            rest: [0; 22],
        }
    }
}

/// What a descriptor is of.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    /// It has virtio-net headers and nothing else before Ethernet frames.
    pub(super) is_fit: bool,
}

/// Opens a queue of an interface, which is made where there is none of that name.
pub(super) fn open(name: &str, several: bool) -> io::Result<OwnedFd> {
    let mut request = Request::new();
    // The last byte is the name's end.
    match request.name[..NAME_BYTES - 1].get_mut(..name.len()) {
        Some(place) if !name.is_empty() => place.copy_from_slice(name.as_bytes()),
        _ => return Err(super::invalid("an interface's name has 1 to 15 bytes")),
    }
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if several {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    request.flags = flags as u16;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let device = options
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: the kernel reads and writes a `struct ifreq` there, which is as long as the request.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(device.into())
}

/// What a descriptor is of.
pub(super) fn interface(fd: BorrowedFd<'_>) -> io::Result<Interface> {
    let mut request = Request::new();
    // SAFETY: the kernel writes a `struct ifreq` there, which is as long as the request; any other device refuses the number.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
    let bytes = request.name.split(|byte| *byte == 0).next();
    let wanted = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
    Ok(Interface {
        name: String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned(),
        is_fit: request.flags & wanted == wanted,
    })
}

/// Has a queue not wait, and its headers of this length, little endian.
pub(super) fn prepare(fd: BorrowedFd<'_>, header_bytes: usize) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    let length = header_bytes as c_int;
    // SAFETY: the kernel reads an int there.
    Errno::result(unsafe {
        libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const length)
    })?;
    let yes: c_int = 1;
    // SAFETY: as above.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE, &raw const yes) })?;
    Ok(())
}

fn set_offload(fd: BorrowedFd<'_>, offloads: Offloads) -> io::Result<()> {
    let wanted = [
        (offloads.checksum, libc::TUN_F_CSUM),
        (offloads.tso4, libc::TUN_F_TSO4),
        (offloads.tso6, libc::TUN_F_TSO6),
        (offloads.ecn, libc::TUN_F_TSO_ECN),
        (offloads.uso, libc::TUN_F_USO4 | libc::TUN_F_USO6),
    ];
    let wanted = wanted.into_iter().filter(|(is_wanted, _)| *is_wanted);
    let flags = wanted.fold(0, |flags, (_, flag)| flags | flag);
    let value = libc::c_ulong::from(flags);
    // SAFETY: the argument is the number itself.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, value) })?;
    Ok(())
}

/// Says which work the kernel may leave to us; returns which it takes over.
pub(super) fn set_accepted(fd: BorrowedFd<'_>, accepts: Offloads) -> io::Result<Offloads> {
    let mut all = Offloads {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso: true,
    };
    // It knows what it may leave to others, and takes over the same; datagrams to cut since Linux 6.2.
    all.uso = set_offload(fd, all).is_ok();
    set_offload(fd, accepts)?;
    Ok(all)
}

fn part((start, bytes): (NonNull<u8>, usize)) -> libc::iovec {
    libc::iovec {
        iov_base: start.as_ptr().cast(),
        iov_len: bytes,
    }
}

/// Reads a packet to a place, and its header; returns the length of both. None: there is none now.
pub(super) fn read(
    fd: BorrowedFd<'_>,
    header: &mut [u8; NET_HEADER_BYTES],
    memory: &Memory,
    place: Place,
) -> io::Result<Option<usize>> {
    let parts = [
        part((NonNull::from(header).cast(), NET_HEADER_BYTES)),
        part((memory.start(place), place.length as usize)),
    ];
    loop {
        // SAFETY: both parts are ours to write, as long as they are said to be: the header is borrowed, and `start` has checked that the
        // place is mapped. Nobody has a reference into a memory.
        let count = unsafe { libc::readv(fd.as_raw_fd(), parts.as_ptr(), 2) };
        match Errno::result(count) {
            Ok(count) => return Ok(Some(count.cast_unsigned())),
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes a packet of at most [`PARTS_MAX`] parts behind its header. The parts are mapped as long as whoever asks for this has them.
pub(super) fn write(
    fd: BorrowedFd<'_>,
    header: &[u8; NET_HEADER_BYTES],
    packet: impl Iterator<Item = (NonNull<u8>, usize)>,
) -> io::Result<()> {
    let none = part((NonNull::dangling(), 0));
    let mut parts = [none; PARTS_MAX + 1];
    parts[0] = part((NonNull::from(header).cast(), NET_HEADER_BYTES));
    let mut count = 1;
    for (to, from) in parts[1..].iter_mut().zip(packet) {
        *to = part(from);
        count += 1;
    }
    loop {
        // SAFETY: all parts are readable: the header is borrowed, and those of a packet are in its burst or in a memory that the burst has.
        // What a peer writes there meanwhile is as good as what it wrote before.
        let written = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), count) };
        match Errno::result(written) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
