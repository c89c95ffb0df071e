//! What the kernel says about one TCP connection: a `NETLINK_SOCK_DIAG` request for exactly one socket (`sock_diag(7)`,
//! `inet_diag_req_v2` and `inet_diag_msg` of `<linux/inet_diag.h>`), in this process's network namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use millrace_wire::Address;
use nix::libc;
use nix::sys::socket::SockProtocol;

use crate::netlink::{Netlink, word};

const QUESTION_BYTES: usize = 56;
/// `inet_diag_msg`; attributes may follow.
const ANSWER_BYTES: usize = 72;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
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

/// Asks for sockets.
#[derive(Debug)]
pub(crate) struct SockDiag(Netlink);

impl SockDiag {
    pub(crate) fn open() -> io::Result<SockDiag> {
        Netlink::open(SockProtocol::NetlinkSockDiag).map(SockDiag)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The TCP socket with these addresses and this `SO_COOKIE`; `None` when there is none.
    pub(crate) fn lookup(
        &self,
        local: &Address,
        remote: &Address,
        cookie: u64,
    ) -> io::Result<Option<SocketFacts>> {
        let question = encode_question(local, remote, cookie);
        let answer = self
            .0
            .ask(SOCK_DIAG_BY_FAMILY, SOCK_DIAG_BY_FAMILY, &question);
        match answer {
            Ok(answer) => parse_answer(&answer, local, remote, cookie)
                .ok_or_else(|| io::ErrorKind::InvalidData.into()),
            // ESTALE: there is one, with another cookie.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Four bytes of an IPv4 address, or sixteen: a v4-mapped connection is looked up as IPv4, whatever its sockets' family.
fn socket_id(local: &Address, remote: &Address) -> (u8, [u8; 36]) {
    let mut id = [0; 36];
    id[..2].copy_from_slice(&local.port.to_be_bytes());
    id[2..4].copy_from_slice(&remote.port.to_be_bytes());
    if local.is_v4() && remote.is_v4() {
        id[4..8].copy_from_slice(&local.ip[12..]);
        id[20..24].copy_from_slice(&remote.ip[12..]);
        (libc::AF_INET as u8, id)
    } else {
        id[4..20].copy_from_slice(&local.ip);
        id[20..36].copy_from_slice(&remote.ip);
        (libc::AF_INET6 as u8, id)
    }
}

fn encode_question(local: &Address, remote: &Address, cookie: u64) -> [u8; QUESTION_BYTES] {
    let mut question = [0; QUESTION_BYTES];
    let (family, id) = socket_id(local, remote);
    question[0] = family;
    question[1] = IPPROTO_TCP;
    question[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    question[8..44].copy_from_slice(&id);
    // Any interface; then the cookie, its lower word first.
    question[48..52].copy_from_slice(&(cookie as u32).to_ne_bytes());
    question[52..56].copy_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
    question
}

/// `None`: it is malformed. `Some(None)`: it is of another socket.
fn parse_answer(
    bytes: &[u8],
    local: &Address,
    remote: &Address,
    cookie: u64,
) -> Option<Option<SocketFacts>> {
    let bytes = bytes.get(..ANSWER_BYTES)?;
    let (_, id) = socket_id(local, remote);
    let (low, high, inode) = (word(bytes, 44)?, word(bytes, 48)?, word(bytes, 68)?);
    // The lookup falls back to listeners, and an IPv6 socket says a v4-mapped address as it is: compare what identifies.
    let same_ports = bytes[4..8] == id[..4];
    let same_cookie = u64::from(high) << 32 | u64::from(low) == cookie;
    let facts = SocketFacts {
        established: bytes[1] == ESTABLISHED,
        inode: inode.into(),
    };
    Some((same_ports && same_cookie).then_some(facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd};

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
        let bytes = [0; ANSWER_BYTES];
        for length in 0..ANSWER_BYTES {
            assert_eq!(parse_answer(&bytes[..length], &address, &address, 0), None);
        }
    }
}
