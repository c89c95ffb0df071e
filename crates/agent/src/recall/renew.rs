//! A connection whose other end has gone is made again, on the same socket, with other bytes in its queue: it is dissolved, and built up in
//! the way in which checkpoint and restore does (TCP_REPAIR, `net/ipv4/tcp.c`), and then it ends as it had ended, by a FIN or a reset that
//! the agent sends in the name of the other end. The numbers are chosen so that behind the bytes both directions are where they were: a
//! socket that the other end has left behind goes on to answer what this end sends.
//!
//! What is over altogether needs no such partner: it is made again as a connection with port 0, which nobody has.
//!
//! Limits:
//! - CAP_NET_ADMIN and CAP_NET_RAW over the connection's network namespace, which must be the agent's;
//! - the kernel counts bytes from zero again (TCP_INFO), and leaves the port to the socket until it is closed;
//! - of errors ECONNRESET and EPIPE can be told again: any other is told as the first.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use millrace_wire::Address;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    getpeername, getsockname, getsockopt, sendto, socket, sockopt,
};

use super::patience::pause;
use super::put_back::{RECEIVE_QUEUE, Repair};
use super::reorder::ARRIVAL;
use crate::sys;

/// `TCP_NO_QUEUE` and `TCP_SEND_QUEUE` (`include/uapi/linux/tcp.h`).
const NO_QUEUE: i32 = 0;
const SEND_QUEUE: i32 = 2;
const WINDOW: u32 = 0xffff;
/// Bits of a segment (RFC 9293, 3.1).
const FIN: u8 = 1;
const RST: u8 = 4;
const ACK: u8 = 16;
/// A segment's header without options.
const HEADER_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;

/// How a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// By the other end's FIN; this end may go on to send.
    Fin,
    /// It is over, and the kernel has yet to tell of this error.
    Over(Option<Errno>),
}

/// A connection that is to be made again.
#[derive(Debug)]
pub(super) struct Renewal<'a> {
    socket: BorrowedFd<'a>,
    /// Sends segments in the name of the other end.
    wire: OwnedFd,
    local: SockaddrStorage,
    remote: SockaddrStorage,
    end: End,
}

impl<'a> Renewal<'a> {
    /// Nothing is touched but the error that the kernel has yet to tell, if it is over; `kept` is one that somebody else has to tell.
    pub(super) fn new(socket: BorrowedFd<'a>, kept: Option<Errno>) -> io::Result<Renewal<'a>> {
        let local: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        let is_over = sys::is_over(socket);
        let remote = if is_over {
            storage(SocketAddr::new(address(&local)?.ip(), 0))
        } else {
            getpeername(socket.as_raw_fd())?
        };
        let wire = open_wire(socket, address(&remote)?.ip())?;
        let end = if is_over {
            // Nothing fails from here on: the error is ours alone now.
            let error = take_error(socket)?.or(kept);
            End::Over(error.map(|error| match error {
                Errno::EPIPE => Errno::EPIPE,
                _ => Errno::ECONNRESET,
            }))
        } else {
            End::Fin
        };
        Ok(Renewal {
            socket,
            wire,
            local,
            remote,
            end,
        })
    }

    /// Of a socket that has no connection any more, or half of one: it is to tell of a reset. `local`: the address that it had.
    pub(super) fn of_reset(socket: BorrowedFd<'a>, local: &Address) -> io::Result<Renewal<'a>> {
        let named: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        let ip = IpAddr::from(local.ip);
        let is_v4 = named.as_sockaddr_in().is_some();
        let ip = if is_v4 { ip.to_canonical() } else { ip };
        Ok(Renewal {
            socket,
            wire: open_wire(socket, ip)?,
            local: storage(SocketAddr::new(ip, local.port)),
            remote: storage(SocketAddr::new(ip, 0)),
            end: End::Over(Some(Errno::ECONNRESET)),
        })
    }

    /// Makes it again, so that `fill` can put `bytes` bytes into its queue; then it ends.
    pub(super) fn make(
        &self,
        bytes: usize,
        fill: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        // Now: a FIN that is not acknowledged is sent once more, and meanwhile there may be no socket here, so that it would be answered by
        // a reset.
        let _ = sys::set_tcp_option(self.socket, libc::TCP_QUICKACK, 1);
        let [received, sent] = {
            let _repair = Repair::begin(self.socket)?;
            let numbers = self.begin(bytes as u32)?;
            fill()?;
            self.set_windows(numbers[0])?;
            numbers
        };
        match self.end {
            End::Fin => self.send(received, sent, FIN)?,
            End::Over(error) => {
                let mut number = received;
                if error == Some(Errno::EPIPE) {
                    self.send(number, sent, FIN)?;
                    number = number.wrapping_add(1);
                }
                self.send(number, sent, RST)?;
            }
        }
        self.await_end()?;
        if self.end == End::Over(None) {
            take_error(self.socket)?;
        }
        Ok(())
    }

    /// Dissolves the connection, and makes it again. Returns the numbers of what is received next, behind `bytes` bytes, and sent next.
    fn begin(&self, bytes: u32) -> io::Result<[u32; 2]> {
        let fd = self.socket.as_raw_fd();
        let sent = self.number_of(SEND_QUEUE)?;
        // The FIN counts as one.
        let received = self.number_of(RECEIVE_QUEUE)?.wrapping_sub(1);
        sys::dissolve(self.socket)?;
        take_error(self.socket)?;
        self.set_number(SEND_QUEUE, sent)?;
        self.set_number(RECEIVE_QUEUE, received.wrapping_sub(bytes))?;
        match bind(fd, &self.local) {
            // The program chose its port, and it is bound still.
            Ok(()) | Err(Errno::EINVAL) => connect(fd, &self.remote)?,
            Err(error) => return Err(error.into()),
        }
        if getsockname::<SockaddrStorage>(fd)? != self.local {
            return Err(Errno::EADDRNOTAVAIL.into());
        }
        sys::set_tcp_option(self.socket, libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)?;
        Ok([received, sent])
    }

    fn number_of(&self, queue: i32) -> io::Result<u32> {
        sys::set_tcp_option(self.socket, libc::TCP_REPAIR_QUEUE, queue)?;
        sys::tcp_option(self.socket, libc::TCP_QUEUE_SEQ)
    }

    fn set_number(&self, queue: i32, number: u32) -> io::Result<()> {
        sys::set_tcp_option(self.socket, libc::TCP_REPAIR_QUEUE, queue)?;
        sys::set_tcp_option(self.socket, libc::TCP_QUEUE_SEQ, number.cast_signed())
    }

    /// What has been received is the last that was, and there is room for more, at either end.
    fn set_windows(&self, received: u32) -> io::Result<()> {
        sys::set_tcp_option(self.socket, libc::TCP_REPAIR_QUEUE, NO_QUEUE)?;
        sys::set_repair_window(self.socket, [received, WINDOW, WINDOW, WINDOW, received])
    }

    /// Sends a segment without bytes in the name of the other end.
    fn send(&self, number: u32, acknowledged: u32, bits: u8) -> io::Result<()> {
        let [from, to] = [address(&self.remote)?, address(&self.local)?];
        let segment = segment([from, to], [number, acknowledged], bits | ACK);
        let target = storage(SocketAddr::new(to.ip().to_canonical(), 0));
        sendto(
            self.wire.as_raw_fd(),
            &segment,
            &target,
            MsgFlags::MSG_DONTWAIT,
        )?;
        Ok(())
    }

    fn await_end(&self) -> io::Result<()> {
        let has_ended = || match self.end {
            End::Fin => sys::is_closed_by_peer_alone(self.socket),
            End::Over(_) => sys::is_over(self.socket),
        };
        let began = Instant::now();
        while !has_ended() {
            if began.elapsed() > ARRIVAL {
                return Err(Errno::ETIMEDOUT.into());
            }
            pause(began);
        }
        Ok(())
    }
}

/// Takes the error that the kernel has yet to tell.
fn take_error(socket: BorrowedFd<'_>) -> io::Result<Option<Errno>> {
    let error = getsockopt(&socket, sockopt::SocketError)?;
    Ok((error != 0).then(|| Errno::from_raw(error)))
}

/// A socket that sends segments from this address to `target`, which has to be in our network namespace.
fn open_wire(target: BorrowedFd<'_>, from: IpAddr) -> io::Result<OwnedFd> {
    let from = from.to_canonical();
    let family = match from {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let wire = socket(
        family,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Tcp,
    )?;
    if sys::netns_cookie(target)? != sys::netns_cookie(wire.as_fd())? {
        return Err(Errno::ENONET.into());
    }
    bind(wire.as_raw_fd(), &storage(SocketAddr::new(from, 0)))?;
    Ok(wire)
}

fn storage(address: SocketAddr) -> SockaddrStorage {
    SockaddrStorage::from(address)
}

fn address(storage: &SockaddrStorage) -> io::Result<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|it| SocketAddr::from(*it));
    let v6 = || storage.as_sockaddr_in6().map(|it| SocketAddr::from(*it));
    v4.or_else(v6).ok_or_else(|| Errno::EAFNOSUPPORT.into())
}

/// A segment without options and bytes (RFC 9293, 3.1).
fn segment([from, to]: [SocketAddr; 2], numbers: [u32; 2], bits: u8) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&from.port().to_be_bytes());
    header[2..4].copy_from_slice(&to.port().to_be_bytes());
    header[4..8].copy_from_slice(&numbers[0].to_be_bytes());
    header[8..12].copy_from_slice(&numbers[1].to_be_bytes());
    header[12] = (HEADER_BYTES as u8 / 4) << 4;
    header[13] = bits;
    header[14..16].copy_from_slice(&(WINDOW as u16).to_be_bytes());
    let checksum = checksum([from, to].map(|end| end.ip().to_canonical()), &header);
    header[16..18].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// Of a segment and what it shows of the packet around it (RFC 9293, 3.1; RFC 8200, 8.1).
fn checksum(addresses: [IpAddr; 2], segment: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        let pairs = bytes.chunks_exact(2);
        pairs
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum()
    };
    let address_words = addresses.map(|address| match address {
        IpAddr::V4(address) => words(&address.octets()),
        IpAddr::V6(address) => words(&address.octets()),
    });
    let around =
        address_words[0] + address_words[1] + u32::from(PROTOCOL_TCP) + segment.len() as u32;
    let mut sum = around + words(segment);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_s_checksum_makes_its_sum_whole() {
        for ends in [
            ["127.0.0.1:80", "127.0.0.9:65535"],
            ["[::1]:80", "[fe80::1]:1"],
        ] {
            let ends = ends.map(|end| end.parse::<SocketAddr>().unwrap());
            let segment = segment(ends, [u32::MAX, 7], RST | ACK);
            assert_eq!(checksum(ends.map(|end| end.ip()), &segment), 0);
        }
    }
}
