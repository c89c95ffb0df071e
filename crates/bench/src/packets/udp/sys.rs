//! Calls that take and send many datagrams at once.
#![allow(
    unsafe_code,
    reason = "calls of the C library, on memory of this file's own"
)]

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr;

/// Datagrams of a call, at most: as many as an echo of packets takes together.
const TOGETHER: usize = 64;
/// Bytes of one: those of a jumbo frame.
const BYTES: usize = 9_216;

/// Room for the datagrams of a call, and where they came from.
pub(super) struct Datagrams {
    bytes: Vec<[u8; BYTES]>,
    lengths: Vec<usize>,
    names: Vec<libc::sockaddr_storage>,
    name_lengths: Vec<libc::socklen_t>,
    places: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Datagrams {
    pub(super) fn new() -> Datagrams {
        // SAFETY: an address is bytes only: zeroes are valid.
        let nobody: libc::sockaddr_storage = unsafe { mem::zeroed() };
        Datagrams {
            bytes: vec![[0; BYTES]; TOGETHER],
            lengths: vec![BYTES; TOGETHER],
            names: vec![nobody; TOGETHER],
            name_lengths: vec![0; TOGETHER],
            places: Vec::with_capacity(TOGETHER),
            headers: Vec::with_capacity(TOGETHER),
        }
    }

    /// Headers that tell of the first `count` places, as long as nothing here moves or is looked at.
    fn point(&mut self, count: usize) {
        self.places.clear();
        let bytes = self.bytes.iter_mut().zip(&self.lengths);
        let places = bytes.take(count).map(|(bytes, length)| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: *length,
        });
        self.places.extend(places);
        self.headers.clear();
        let names = self.names.iter_mut().zip(&self.name_lengths);
        for (place, (name, name_length)) in self.places.iter_mut().zip(names) {
            // SAFETY: a header is numbers and pointers: zeroes are valid, and say that nothing is there.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = *name_length;
            header.msg_hdr.msg_iov = place;
            header.msg_hdr.msg_iovlen = 1;
            self.headers.push(header);
        }
    }

    /// Takes those that are there, and waits for the first one; how many.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.lengths.fill(BYTES);
        self.name_lengths
            .fill(size_of::<libc::sockaddr_storage>() as libc::socklen_t);
        self.point(TOGETHER);
        // SAFETY: there are as many headers as is said, and what they point to is ours, as long as they say, and not looked at meanwhile.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                TOGETHER as libc::c_uint,
                libc::MSG_WAITFORONE as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (number, header) in self.headers[..count].iter().enumerate() {
            self.lengths[number] = header.msg_len as usize;
            self.name_lengths[number] = header.msg_hdr.msg_namelen;
        }
        Ok(count)
    }

    /// Sends the first `count` back to where they came from; how many left. What the kernel does not take is lost, as on any way of UDP.
    pub(super) fn send(&mut self, socket: &UdpSocket, count: usize) -> usize {
        let count = count.min(TOGETHER);
        self.point(count);
        let mut sent = 0;
        while sent < count {
            // SAFETY: there are as many headers as is said, and what they point to is ours, as long as they say, and not written meanwhile.
            let more = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    self.headers[sent..].as_mut_ptr(),
                    (count - sent) as libc::c_uint,
                    0,
                )
            };
            match usize::try_from(more) {
                Ok(more) if more > 0 => sent += more,
                _ => break,
            }
        }
        sent
    }
}
