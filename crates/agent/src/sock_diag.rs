//! What the kernel says about one TCP connection: a `NETLINK_SOCK_DIAG` request for exactly one socket (`sock_diag(7)`,
//! `inet_diag_req_v2` and `inet_diag_msg` of `<linux/inet_diag.h>`), in this process's network namespace.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use millrace_wire::Address;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    socket,
};

const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// `nlmsghdr`, then `inet_diag_msg`; attributes may follow.
const ANSWER_BYTES: usize = HEADER_BYTES + 72;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const IPPROTO_TCP: u8 = 6;
/// `TCP_ESTABLISHED`, and the states after it in which one direction may still carry bytes.
const ESTABLISHED: u8 = 1;

/// What the kernel says about a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketFacts {
    /// Both directions are open.
    pub(crate) established: bool,
    /// The number in `socket:[…]`; 0 when no process holds the socket any more.
    pub(crate) inode: u64,
}

/// A netlink socket to ask with.
#[derive(Debug)]
pub(crate) struct SockDiag {
    socket: OwnedFd,
    sequence: Cell<u32>,
}

impl SockDiag {
    pub(crate) fn open() -> io::Result<SockDiag> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            flags,
            SockProtocol::NetlinkSockDiag,
        )?;
        // To the kernel, port 0: no other process can answer in its place.
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(SockDiag {
            socket,
            sequence: Cell::new(0),
        })
    }

    /// The TCP socket with these addresses and this `SO_COOKIE`; `None` when there is none.
    pub(crate) fn lookup(
        &self,
        local: &Address,
        remote: &Address,
        cookie: u64,
    ) -> io::Result<Option<SocketFacts>> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let request = encode_request(sequence, local, remote, cookie);
        send(self.socket.as_raw_fd(), &request, MsgFlags::empty())?;
        let mut buffer = [0; 1024];
        loop {
            // The kernel answers within `send`: an answer that is not there will not come.
            let length = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
            match parse_answer(&buffer[..length], sequence, local, remote, cookie) {
                Answer::Stale => {}
                Answer::Found(facts) => return Ok(Some(facts)),
                // ENOENT: no such socket. ESTALE: there is one, with another cookie.
                Answer::Error(Errno::ENOENT | Errno::ESTALE) | Answer::Different => {
                    return Ok(None);
                }
                Answer::Error(errno) => return Err(errno.into()),
                Answer::Malformed => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Stale,
    Found(SocketFacts),
    Different,
    Error(Errno),
    Malformed,
}

/// Four bytes of an IPv4 address, or sixteen: a v4-mapped connection is looked up as IPv4, whatever its sockets' family.
fn socket_id(local: &Address, remote: &Address) -> (u8, [u8; 36]) {
    let mut id = [0; 36];
    id[..2].copy_from_slice(&local.port.to_be_bytes());
    id[2..4].copy_from_slice(&remote.port.to_be_bytes());
    if local.is_v4() && remote.is_v4() {
        id[4..8].copy_from_slice(&local.ip[12..]);
        id[20..24].copy_from_slice(&remote.ip[12..]);
        (nix::libc::AF_INET as u8, id)
    } else {
        id[4..20].copy_from_slice(&local.ip);
        id[20..36].copy_from_slice(&remote.ip);
        (nix::libc::AF_INET6 as u8, id)
    }
}

fn encode_request(
    sequence: u32,
    local: &Address,
    remote: &Address,
    cookie: u64,
) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[8..12].copy_from_slice(&sequence.to_ne_bytes());
    let (family, id) = socket_id(local, remote);
    request[16] = family;
    request[17] = IPPROTO_TCP;
    request[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    request[24..60].copy_from_slice(&id);
    // Any interface; then the cookie, its lower word first.
    request[64..68].copy_from_slice(&(cookie as u32).to_ne_bytes());
    request[68..72].copy_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
    request
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)?
        .try_into()
        .ok()
        .map(u32::from_ne_bytes)
}

fn parse_answer(
    bytes: &[u8],
    sequence: u32,
    local: &Address,
    remote: &Address,
    cookie: u64,
) -> Answer {
    let (Some(kind), Some(seen)) = (bytes.get(4..6), word(bytes, 8)) else {
        return Answer::Malformed;
    };
    if seen != sequence {
        return Answer::Stale;
    }
    if kind == NLMSG_ERROR.to_ne_bytes() {
        return match word(bytes, HEADER_BYTES) {
            Some(error) => Answer::Error(Errno::from_raw((error as i32).wrapping_neg())),
            None => Answer::Malformed,
        };
    }
    if kind != SOCK_DIAG_BY_FAMILY.to_ne_bytes() || bytes.len() < ANSWER_BYTES {
        return Answer::Malformed;
    }
    let (_, id) = socket_id(local, remote);
    let (Some(low), Some(high), Some(inode)) = (word(bytes, 60), word(bytes, 64), word(bytes, 84))
    else {
        return Answer::Malformed;
    };
    // The lookup falls back to listeners, and an IPv6 socket says a v4-mapped address as it is: compare what identifies.
    let same_ports = bytes[20..24] == id[..4];
    let same_cookie = u64::from(high) << 32 | u64::from(low) == cookie;
    if !same_ports || !same_cookie {
        return Answer::Different;
    }
    Answer::Found(SocketFacts {
        established: bytes[17] == ESTABLISHED,
        inode: inode.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn cookie(stream: &TcpStream) -> u64 {
        crate::sys::socket_cookie(stream.as_fd()).unwrap()
    }

    #[test]
    fn finds_the_socket_that_is_meant_and_no_other() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(ip).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (local, remote) = (
                client.local_addr().unwrap().into(),
                client.peer_addr().unwrap().into(),
            );
            let diag = SockDiag::open().unwrap();
            let facts = diag
                .lookup(&local, &remote, cookie(&client))
                .unwrap()
                .unwrap();
            assert!(facts.established);
            let link = std::fs::read_link(format!("/proc/self/fd/{}", client.as_raw_fd())).unwrap();
            assert_eq!(link.to_str().unwrap(), format!("socket:[{}]", facts.inode));

            assert_eq!(
                diag.lookup(&local, &remote, cookie(&server)).unwrap(),
                None,
                "the other end's cookie"
            );
            let other = Address {
                port: local.port ^ 1,
                ..local
            };
            assert_eq!(
                diag.lookup(&other, &remote, cookie(&client)).unwrap(),
                None,
                "another port"
            );

            let client_cookie = cookie(&client);
            drop(server);
            let facts = diag
                .lookup(&local, &remote, client_cookie)
                .unwrap()
                .unwrap();
            assert!(!facts.established, "the peer has closed");
        }
    }

    #[test]
    fn answers_that_are_cut_short_are_malformed() {
        let address = Address {
            ip: [0; 16],
            port: 1,
        };
        let mut bytes = [0; ANSWER_BYTES];
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes[8] = 1;
        for length in 0..ANSWER_BYTES {
            assert_eq!(
                parse_answer(
                    &bytes[..length],
                    u32::from_ne_bytes([1, 0, 0, 0]),
                    &address,
                    &address,
                    0
                ),
                Answer::Malformed
            );
        }
    }
}
