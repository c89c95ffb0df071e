//! Bursts of datagrams, and what the kernel knows of each.
#![allow(
    unsafe_code,
    reason = "recvmmsg and sendmmsg with a traffic class of each datagram, and socket options that nix does not have"
)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

/// Datagrams of one call.
pub(super) const BATCH: usize = 32;
/// Bytes of the longest one: a frame of 9 KiB, and headers.
pub(super) const BUFFER_BYTES: usize = 9 * 1024 + 64;

/// One message of control, of at most eight bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    value: [u8; 8],
}

/// A datagram's place.
#[derive(Clone)]
struct Slot {
    bytes: Box<[u8]>,
    length: usize,
    name: libc::sockaddr_storage,
    name_bytes: libc::socklen_t,
    control: Control,
    is_whole: bool,
}

/// Places for the datagrams of a call.
#[derive(Clone)]
pub(super) struct Batch {
    slots: Vec<Slot>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} datagrams", self.slots.len())
    }
}

/// A datagram that came.
pub(super) struct Datagram<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) from: IpAddr,
    /// Type of service, or traffic class.
    pub(super) class: u8,
    /// Nothing was cut off.
    pub(super) is_whole: bool,
}

impl Batch {
    pub(super) fn new() -> Batch {
        let slot = Slot {
            bytes: vec![0; BUFFER_BYTES].into_boxed_slice(),
            length: 0,
            // SAFETY: integers, for which zero is a value.
            name: unsafe { zeroed() },
            name_bytes: 0,
            // SAFETY: the same.
            control: unsafe { zeroed() },
            is_whole: true,
        };
        Batch {
            slots: vec![slot; BATCH],
        }
    }

    /// A datagram that [`receive`] has put here.
    pub(super) fn get_mut(&mut self, number: usize) -> Datagram<'_> {
        let slot = &mut self.slots[number];
        Datagram {
            from: address(&slot.name),
            class: class(&slot.control),
            is_whole: slot.is_whole,
            bytes: &mut slot.bytes[..slot.length],
        }
    }

    /// All of a place's bytes, to be filled.
    pub(super) fn buffer(&mut self, number: usize) -> &mut [u8] {
        &mut self.slots[number].bytes
    }

    /// Bytes of the frame in a datagram.
    pub(super) fn frame_bytes(&self, number: usize) -> usize {
        self.slots[number].length - super::header::BYTES
    }

    /// Says where a datagram of so many bytes goes, and with which traffic class.
    pub(super) fn address(&mut self, number: usize, to: SocketAddr, class: u8, length: usize) {
        let slot = &mut self.slots[number];
        slot.length = length;
        slot.name_bytes = write_name(&mut slot.name, to);
        let (level, kind) = match to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        // SAFETY: `CMSG_LEN` only computes.
        slot.control.header.cmsg_len = unsafe { libc::CMSG_LEN(4) } as _;
        slot.control.header.cmsg_level = level;
        slot.control.header.cmsg_type = kind;
        slot.control.value[..4].copy_from_slice(&i32::from(class).to_ne_bytes());
    }
}

fn write_name(name: &mut libc::sockaddr_storage, to: SocketAddr) -> libc::socklen_t {
    match to {
        SocketAddr::V4(to) => {
            // SAFETY: integers, for which zero is a value.
            let mut address: libc::sockaddr_in = unsafe { zeroed() };
            address.sin_family = libc::AF_INET as libc::sa_family_t;
            address.sin_port = to.port().to_be();
            address.sin_addr.s_addr = u32::from_ne_bytes(to.ip().octets());
            let place = (&raw mut *name).cast::<libc::sockaddr_in>();
            // SAFETY: storage has room for any address, and is aligned for it.
            unsafe { place.write(address) };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(to) => {
            // SAFETY: integers, for which zero is a value.
            let mut address: libc::sockaddr_in6 = unsafe { zeroed() };
            address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            address.sin6_port = to.port().to_be();
            address.sin6_addr.s6_addr = to.ip().octets();
            let place = (&raw mut *name).cast::<libc::sockaddr_in6>();
            // SAFETY: storage has room for any address, and is aligned for it.
            unsafe { place.write(address) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

/// From whom a datagram is; the kernel wrote it.
fn address(name: &libc::sockaddr_storage) -> IpAddr {
    if i32::from(name.ss_family) == libc::AF_INET6 {
        let place = (&raw const *name).cast::<libc::sockaddr_in6>();
        // SAFETY: storage has room for any address, and is aligned for it; any bytes are a value.
        let address = unsafe { place.read() };
        Ipv6Addr::from(address.sin6_addr.s6_addr).into()
    } else {
        let place = (&raw const *name).cast::<libc::sockaddr_in>();
        // SAFETY: the same.
        let address = unsafe { place.read() };
        Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into()
    }
}

/// The traffic class that a message of control says.
fn class(control: &Control) -> u8 {
    let header = &control.header;
    match (header.cmsg_level, header.cmsg_type) {
        (libc::IPPROTO_IP, libc::IP_TOS) => control.value[0],
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            let [a, b, c, d, ..] = control.value;
            // A class has eight bits.
            i32::from_ne_bytes([a, b, c, d]) as u8
        }
        _ => 0,
    }
}

/// Takes datagrams that are there; returns how many.
pub(super) fn receive(socket: BorrowedFd<'_>, batch: &mut Batch) -> io::Result<usize> {
    let nothing = libc::iovec {
        iov_base: null_mut(),
        iov_len: 0,
    };
    let mut parts = [nothing; BATCH];
    for (part, slot) in parts.iter_mut().zip(&mut batch.slots) {
        part.iov_base = slot.bytes.as_mut_ptr().cast();
        part.iov_len = slot.bytes.len();
        slot.control.header.cmsg_len = 0;
        slot.control.header.cmsg_type = -1;
    }
    let first = parts.as_mut_ptr();
    // SAFETY: integers and pointers, for which zero is a value.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for (number, (message, slot)) in messages.iter_mut().zip(&mut batch.slots).enumerate() {
        let header = &mut message.msg_hdr;
        header.msg_name = (&raw mut slot.name).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = first.wrapping_add(number);
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut slot.control).cast();
        header.msg_controllen = size_of::<Control>() as _;
    }
    // SAFETY: each message's name, part and control are places of `batch` and `parts`, with their sizes; both outlive the call, which
    // keeps none of them.
    let count = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            BATCH as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            null_mut(),
        )
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    for (message, slot) in messages.iter().zip(&mut batch.slots).take(count) {
        slot.length = (message.msg_len as usize).min(slot.bytes.len());
        slot.is_whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
    }
    Ok(count)
}

/// Sends datagrams, in this order; returns how many were sent. An error is of the first.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    batch: &mut Batch,
    wanted: impl Iterator<Item = usize>,
) -> io::Result<usize> {
    let nothing = libc::iovec {
        iov_base: null_mut(),
        iov_len: 0,
    };
    let mut parts = [nothing; BATCH];
    let first = parts.as_mut_ptr();
    // SAFETY: integers and pointers, for which zero is a value.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    let mut count = 0;
    for (number, (message, place)) in messages.iter_mut().zip(wanted).enumerate() {
        let slot = &mut batch.slots[place];
        let part = libc::iovec {
            iov_base: slot.bytes.as_mut_ptr().cast(),
            iov_len: slot.length,
        };
        // SAFETY: there are as many parts as messages.
        unsafe { first.add(number).write(part) };
        let header = &mut message.msg_hdr;
        header.msg_name = (&raw mut slot.name).cast();
        header.msg_namelen = slot.name_bytes;
        header.msg_iov = first.wrapping_add(number);
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut slot.control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        count += 1;
    }
    // SAFETY: each message's name, part and control are places of `batch` and `parts`, filled by `address`; both outlive the call, which
    // keeps none of them, and writes to none but the lengths of messages.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            count,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn set(socket: &UdpSocket, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads one int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Datagrams that came to a socket, and that the kernel dropped, since there was no room for them: modulo 2^32.
pub(super) fn overflown(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // `SK_MEMINFO_VARS` of Linux are nine, of which `SK_MEMINFO_DROPS` is the last.
    let mut values = [0u32; 9];
    let mut length = size_of::<[u32; 9]>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes no more than `length` bytes, and the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut values).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(values[8]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the traffic class come with each datagram.
pub(super) fn want_class(socket: &UdpSocket, is_ipv4: bool) -> io::Result<()> {
    match is_ipv4 {
        true => set(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        false => set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
    }
}

/// Has datagrams sent whole or not at all and, in IPv4, without a checksum.
pub(super) fn never_fragment(socket: &UdpSocket, is_ipv4: bool) -> io::Result<()> {
    if !is_ipv4 {
        let discover = libc::IPV6_PMTUDISC_DO;
        set(
            socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            discover,
        )?;
        return set(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1);
    }
    set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
    let discover = libc::IP_PMTUDISC_DO;
    set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover)
}

/// Bytes of the longest packet on the way to whom a socket is connected with.
pub(super) fn path_mtu(socket: &UdpSocket, is_ipv4: bool) -> io::Result<usize> {
    let (level, option) = match is_ipv4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes one int, and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match usize::try_from(value) {
        Ok(bytes) if result == 0 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}
