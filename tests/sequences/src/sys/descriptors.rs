//! Making, naming, duplicating and closing descriptors, and their options.

use super::{Answer, Area, Errno, Fd, answer, count};
use libc::{c_int, socklen_t};
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::null_mut;

/// A socket address in the kernel's layout, with its length.
struct RawAddress {
    storage: libc::sockaddr_storage,
    bytes: socklen_t,
}

impl RawAddress {
    /// An address to be filled in by the kernel.
    fn empty() -> Self {
        RawAddress {
            // SAFETY: a `sockaddr_storage` of zeros is valid.
            storage: unsafe { zeroed() },
            bytes: count(size_of::<libc::sockaddr_storage>()),
        }
    }

    fn new(address: SocketAddr) -> Self {
        let mut raw = RawAddress::empty();
        let pointer: *mut libc::sockaddr_storage = &mut raw.storage;
        match address {
            SocketAddr::V4(address) => {
                let value = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*address.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is larger than every address and aligned for each.
                unsafe { pointer.cast::<libc::sockaddr_in>().write(value) };
                raw.bytes = count(size_of::<libc::sockaddr_in>());
            }
            SocketAddr::V6(address) => {
                let value = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: 0,
                };
                // SAFETY: as above.
                unsafe { pointer.cast::<libc::sockaddr_in6>().write(value) };
                raw.bytes = count(size_of::<libc::sockaddr_in6>());
            }
        }
        raw
    }

    /// The address, or `None` where the kernel gave none of the two internet families.
    fn get(&self) -> Option<SocketAddr> {
        let pointer: *const libc::sockaddr_storage = &self.storage;
        match c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the storage is larger than every address and aligned for each.
                let value = unsafe { pointer.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(value.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(value.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let value = unsafe { pointer.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(value.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(value.sin6_port), 0, 0).into())
            }
            _ => None,
        }
    }
}

pub(crate) fn socket(ipv6: bool, nonblock: bool, cloexec: bool) -> Answer {
    let family = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_STREAM | flags(nonblock, cloexec);
    // SAFETY: takes no pointer.
    answer(unsafe { libc::socket(family, kind, 0) })
}

/// `SOCK_NONBLOCK` and `SOCK_CLOEXEC`, as wanted.
fn flags(nonblock: bool, cloexec: bool) -> c_int {
    (if nonblock { libc::SOCK_NONBLOCK } else { 0 })
        | (if cloexec { libc::SOCK_CLOEXEC } else { 0 })
}

pub(crate) fn bind(fd: Fd, address: SocketAddr) -> Answer {
    let raw = RawAddress::new(address);
    // SAFETY: the address is ours and of the stated length.
    answer(unsafe { libc::bind(fd, (&raw const raw.storage).cast(), raw.bytes) })
}

pub(crate) fn listen(fd: Fd, backlog: c_int) -> Answer {
    // SAFETY: takes no pointer.
    answer(unsafe { libc::listen(fd, backlog) })
}

pub(crate) fn connect(fd: Fd, address: SocketAddr) -> Answer {
    let raw = RawAddress::new(address);
    // SAFETY: the address is ours and of the stated length.
    answer(unsafe { libc::connect(fd, (&raw const raw.storage).cast(), raw.bytes) })
}

/// `sendto` with `MSG_FASTOPEN`, which connects.
pub(crate) fn fast_open(fd: Fd, area: &Area<'_>, address: SocketAddr) -> Answer {
    let raw = RawAddress::new(address);
    let (pointer, bytes) = (area.pointer(), area.len());
    let name = (&raw const raw.storage).cast();
    // SAFETY: the area is the caller's own memory; the address is ours and of the stated length.
    answer(unsafe { libc::sendto(fd, pointer, bytes, libc::MSG_FASTOPEN, name, raw.bytes) } as i64)
}

/// `connect` to no address (`AF_UNSPEC`), which dissolves a connection.
pub(crate) fn disconnect(fd: Fd) -> Answer {
    let raw = RawAddress::empty();
    // SAFETY: the address is ours; its family is 0, which is AF_UNSPEC.
    answer(unsafe { libc::connect(fd, (&raw const raw.storage).cast(), raw.bytes) })
}

/// Accepts; with `named`, also returns the address of the peer.
pub(crate) fn accept(fd: Fd, named: bool) -> (Answer, Option<SocketAddr>) {
    let mut raw = RawAddress::empty();
    if named {
        // SAFETY: the address is ours and has the stated room.
        let result = unsafe { libc::accept(fd, (&raw mut raw.storage).cast(), &raw mut raw.bytes) };
        (answer(result), raw.get())
    } else {
        // SAFETY: no address is asked for.
        (
            answer(unsafe { libc::accept(fd, null_mut(), null_mut()) }),
            None,
        )
    }
}

pub(crate) fn accept4(fd: Fd, nonblock: bool, cloexec: bool) -> (Answer, Option<SocketAddr>) {
    let mut raw = RawAddress::empty();
    let (address, bytes) = ((&raw mut raw.storage).cast(), &raw mut raw.bytes);
    // SAFETY: the address is ours and has the stated room.
    let result = unsafe { libc::accept4(fd, address, bytes, flags(nonblock, cloexec)) };
    (answer(result), raw.get())
}

/// `getsockname`, or with `peer` `getpeername`.
pub(crate) fn name(fd: Fd, peer: bool) -> Result<Option<SocketAddr>, Errno> {
    let mut raw = RawAddress::empty();
    let (address, bytes) = ((&raw mut raw.storage).cast(), &raw mut raw.bytes);
    let result = if peer {
        // SAFETY: the address is ours and has the stated room.
        unsafe { libc::getpeername(fd, address, bytes) }
    } else {
        // SAFETY: as above.
        unsafe { libc::getsockname(fd, address, bytes) }
    };
    answer(result)?;
    Ok(raw.get())
}

pub(crate) fn shutdown(fd: Fd, how: c_int) -> Answer {
    // SAFETY: takes no pointer.
    answer(unsafe { libc::shutdown(fd, how) })
}

pub(crate) fn close(fd: Fd) -> Answer {
    // SAFETY: the descriptor is the sequence's own: nothing in this program owns it otherwise.
    answer(unsafe { libc::close(fd) })
}

pub(crate) fn dup(fd: Fd) -> Answer {
    // SAFETY: takes no pointer.
    answer(unsafe { libc::dup(fd) })
}

pub(crate) fn dup2(fd: Fd, to: Fd) -> Answer {
    // SAFETY: takes no pointer; `to` is the sequence's own.
    answer(unsafe { libc::dup2(fd, to) })
}

pub(crate) fn dup3(fd: Fd, to: Fd, flags: c_int) -> Answer {
    // SAFETY: as for `dup2`.
    answer(unsafe { libc::dup3(fd, to, flags) })
}

/// `fcntl` with an int argument.
pub(crate) fn fcntl(fd: Fd, command: c_int, argument: c_int) -> Answer {
    // SAFETY: the commands used here take an int, or nothing.
    answer(unsafe { libc::fcntl(fd, command, argument) })
}

pub(crate) fn pipe(nonblock: bool) -> Result<[Fd; 2], Errno> {
    let mut ends = [-1; 2];
    let flags = if nonblock { libc::O_NONBLOCK } else { 0 };
    // SAFETY: the array has room for two descriptors.
    answer(unsafe { libc::pipe2(ends.as_mut_ptr(), flags) })?;
    Ok(ends)
}

/// `setsockopt` with a plain value: an int, a `linger`, a `timeval`.
pub(crate) fn set_option<T: Copy>(fd: Fd, level: c_int, name: c_int, value: &T) -> Answer {
    let bytes = count(size_of::<T>());
    // SAFETY: the value is ours and of the stated size.
    answer(unsafe { libc::setsockopt(fd, level, name, (&raw const *value).cast(), bytes) })
}

/// `getsockopt` into up to 256 bytes; returns what the kernel filled in.
pub(crate) fn get_option(fd: Fd, level: c_int, name: c_int, room: usize) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0_u8; 256];
    let mut bytes: socklen_t = count(room);
    // SAFETY: the buffer is ours and at least as large as stated.
    answer(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut bytes) })?;
    value.truncate(bytes as usize);
    Ok(value)
}

/// `getsockopt` of an int.
pub(crate) fn get_int(fd: Fd, level: c_int, name: c_int) -> Result<i32, Errno> {
    let value = get_option(fd, level, name, size_of::<c_int>())?;
    let mut bytes = [0; 4];
    let filled = value.len().min(4);
    bytes[..filled].copy_from_slice(&value[..filled]);
    Ok(i32::from_ne_bytes(bytes))
}

/// The seconds and microseconds of a time-out as the options take it.
pub(crate) fn timeval(timeout_ms: i32) -> libc::timeval {
    libc::timeval {
        tv_sec: i64::from(timeout_ms / 1000),
        tv_usec: i64::from(timeout_ms % 1000) * 1000,
    }
}

pub(crate) fn lseek(fd: Fd) -> Answer {
    // SAFETY: takes no pointer.
    answer(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) })
}

pub(crate) fn fsync(fd: Fd) -> Answer {
    // SAFETY: takes no pointer.
    answer(unsafe { libc::fsync(fd) })
}

pub(crate) fn ftruncate(fd: Fd) -> Answer {
    // SAFETY: takes no pointer.
    answer(unsafe { libc::ftruncate(fd, 0) })
}

/// The type bits of the descriptor's file.
pub(crate) fn file_type(fd: Fd) -> Answer {
    // SAFETY: a `stat` of zeros is valid.
    let mut status: libc::stat = unsafe { zeroed() };
    // SAFETY: the structure is ours.
    answer(unsafe { libc::fstat(fd, &mut status) })?;
    Ok((status.st_mode & libc::S_IFMT) as usize)
}

/// Tries to map one page of the descriptor.
pub(crate) fn try_map(fd: Fd) -> Answer {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(super::last_errno());
    }
    // SAFETY: the page was just mapped and nothing refers to it.
    answer(unsafe { libc::munmap(address, 4096) })
}
