//! Whether anybody has the other end of a connection still, as the kernel says of the sockets of our network namespace
//! (`sock_diag(7)`, `inet_diag_req_v2` and `inet_diag_msg` of `<linux/inet_diag.h>`).

use libc::c_int;
use millrace_wire::Address;

use super::{addresses, monotonic_ns, option};

/// `<asm-generic/socket.h>`, Linux 5.14.
const SO_NETNS_COOKIE: c_int = 71;
const NETLINK_SOCK_DIAG: c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// The attribute that has both shutdowns as bits.
const INET_DIAG_SHUTDOWN: u16 = 8;
const SHUT_BOTH: u8 = 3;

/// So long a close may take between its FIN and the end of the socket, in nanoseconds.
const NS_OF_CLOSE: u64 = 10_000_000;

const HEADER_BYTES: usize = 16;
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
/// Of the fixed part of an answer; attributes follow.
const ANSWER_BYTES: usize = HEADER_BYTES + 72;

/// What is known of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherEnd {
    /// Nobody has it: it was closed.
    Gone,
    /// Somebody has it, and may receive.
    Lives,
    /// It may be in another network namespace, or the kernel does not say.
    Unknown,
}

/// Who has the other end, of a connection of which a FIN has come. Waits a moment where it may be about to close (`patient`).
#[cold]
pub(crate) fn other_end(fd: c_int, patient: bool) -> OtherEnd {
    let namespace = option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE);
    addresses(fd).map_or(OtherEnd::Unknown, |(local, remote)| {
        end_of(&local, &remote, namespace, patient)
    })
}

/// The same of the connection from `local` to `remote` in this network namespace; None: the kernel is too old to number them.
fn end_of(local: &Address, remote: &Address, namespace: Option<u64>, patient: bool) -> OtherEnd {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let netlink = kernel!(libc::SYS_socket, libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG);
    let Ok(netlink @ 0..) = c_int::try_from(netlink) else {
        return OtherEnd::Unknown;
    };
    let until_ns = monotonic_ns() + if patient { NS_OF_CLOSE } else { 0 };
    let mut turns = 0;
    let known = loop {
        // This thread may have gone to another one (setns(2)).
        if option(netlink, libc::SOL_SOCKET, SO_NETNS_COOKIE) != namespace {
            break OtherEnd::Unknown;
        }
        match ask(netlink, &question(remote, local)) {
            Some(Found::Nobodys) => break OtherEnd::Gone,
            // A close sends the FIN before nobody has the socket.
            Some(Found::ShutBothWays) if monotonic_ns() < until_ns => {
                turns += 1;
                millrace_shm::sys::give_way(turns);
            }
            Some(_) => break OtherEnd::Lives,
            None => break OtherEnd::Unknown,
        }
    };
    kernel!(libc::SYS_close, netlink);
    known
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nobodys,
    ShutBothWays,
    Somebodys,
}

fn ask(netlink: c_int, question: &[u8; QUESTION_BYTES]) -> Option<Found> {
    let length = question.len();
    let sent = kernel!(
        libc::SYS_sendto,
        netlink,
        question.as_ptr(),
        length,
        0usize,
        0usize,
        0usize
    );
    if sent < 0 {
        return None;
    }
    // The kernel has answered when the question is sent.
    let mut answer = [0u8; 1024];
    let room = answer.len();
    let bytes = super::receive_now(netlink, answer.as_mut_ptr(), room, 0);
    read(answer.get(..usize::try_from(bytes).ok()?)?, question)
}

/// For the one socket whose own address is `local`. A v4-mapped one is looked up as IPv4.
fn question(local: &Address, remote: &Address) -> [u8; QUESTION_BYTES] {
    let is_v4 = local.is_v4() && remote.is_v4();
    let (family, from) = match is_v4 {
        true => (libc::AF_INET, 12),
        false => (libc::AF_INET6, 0),
    };
    let mut bytes = [0; QUESTION_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &(QUESTION_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(16, &[family as u8, libc::IPPROTO_TCP as u8]);
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &local.port.to_be_bytes());
    put(26, &remote.port.to_be_bytes());
    put(28, &local.ip[from..]);
    put(44, &remote.ip[from..]);
    // Any cookie.
    put(64, &u64::MAX.to_ne_bytes());
    bytes
}

/// What an answer says of the socket that was asked for; None: nothing. Where that is not there, the kernel answers with a listener.
fn read(answer: &[u8], question: &[u8; QUESTION_BYTES]) -> Option<Found> {
    let fixed = answer.get(..ANSWER_BYTES)?;
    let is_its =
        fixed[4..6] == SOCK_DIAG_BY_FAMILY.to_ne_bytes() && fixed[20..24] == question[24..28];
    if !is_its {
        return None;
    }
    if fixed[84..88] == [0; 4] {
        return Some(Found::Nobodys);
    }
    let mut rest = &answer[ANSWER_BYTES..];
    while let Some((&[low, high, kind_low, kind_high], values)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let is_shutdown = u16::from_ne_bytes([kind_low, kind_high]) == INET_DIAG_SHUTDOWN;
        if is_shutdown && values.first() == Some(&SHUT_BOTH) {
            return Some(Found::ShutBothWays);
        }
        rest = rest.get(length.next_multiple_of(4).max(4)..)?;
    }
    Some(Found::Somebodys)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn pair(ip: &str) -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind(ip).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (listener, near, far)
    }

    #[test]
    fn an_end_that_somebody_has_is_told_from_one_that_was_closed() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let (_listener, near, far) = pair(ip);
            assert_eq!(other_end(far.as_raw_fd(), true), OtherEnd::Lives, "{ip}");
            near.shutdown(Shutdown::Write).unwrap();
            assert_eq!(other_end(far.as_raw_fd(), true), OtherEnd::Lives, "{ip}");
            near.shutdown(Shutdown::Both).unwrap();
            assert_eq!(other_end(far.as_raw_fd(), true), OtherEnd::Lives, "{ip}");
            let copy = near.try_clone().unwrap();
            drop(near);
            assert_eq!(other_end(far.as_raw_fd(), true), OtherEnd::Lives, "{ip}");
            drop(copy);
            assert_eq!(other_end(far.as_raw_fd(), true), OtherEnd::Gone, "{ip}");
        }
    }

    #[test]
    fn a_listener_in_its_place_says_nothing() {
        let (_listener, near, mut far) = pair("127.0.0.1:0");
        let (local, remote) = addresses(far.as_raw_fd()).unwrap();
        let namespace = option(far.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE);
        drop(near);
        // The reset takes away what was left of the other end.
        far.write_all(b"x").unwrap();
        assert_eq!(end_of(&local, &remote, namespace, true), OtherEnd::Unknown);
    }

    #[test]
    fn answers_that_are_cut_short_say_nothing() {
        let address = Address {
            ip: [0; 16],
            port: 1,
        };
        let question = question(&address, &address);
        let mut answer = [0; ANSWER_BYTES];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[20..24].copy_from_slice(&question[24..28]);
        assert_eq!(read(&answer, &question), Some(Found::Nobodys));
        for length in 0..ANSWER_BYTES {
            assert_eq!(read(&answer[..length], &question), None);
        }
    }
}
