//! Questions to the kernel by netlink (`netlink(7)`): one request, for one thing, and one answer.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    socket,
};

/// `struct nlmsghdr`: its size, and where its fields are.
const HEADER_BYTES: usize = 16;
const KIND: usize = 4;
const SEQUENCE: usize = 8;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// An interface with all its attributes has about two thousand.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// A socket to ask one part of the kernel with, in this process's network namespace.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: Cell<u32>,
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Netlink {
    pub(crate) fn open(protocol: SockProtocol) -> io::Result<Netlink> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // To the kernel, port 0: no other process can answer in its place.
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Netlink {
            socket,
            sequence: Cell::new(0),
        })
    }

    /// Asks, and returns what stands behind the answer's header.
    ///
    /// # Errors
    /// What the kernel answers (`ENOENT`…), or says when it is asked; `InvalidData` for an answer of another kind than `answer_kind`.
    pub(crate) fn ask(&self, kind: u16, answer_kind: u16, question: &[u8]) -> io::Result<Vec<u8>> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        send(
            self.socket.as_raw_fd(),
            &encode(kind, sequence, question),
            MsgFlags::empty(),
        )?;
        let mut buffer = [0; ANSWER_BYTES_MAX];
        loop {
            // The kernel answers within `send`: an answer that is not there will not come.
            let length = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
            match parse(&buffer[..length], sequence, answer_kind) {
                Answer::Stale => {}
                Answer::Found(body) => return Ok(body.to_vec()),
                Answer::Error(errno) => return Err(errno.into()),
                Answer::Malformed => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer<'a> {
    Stale,
    Found(&'a [u8]),
    Error(Errno),
    Malformed,
}

fn encode(kind: u16, sequence: u32, question: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + question.len()) as u32;
    [
        &length.to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &NLM_F_REQUEST.to_ne_bytes(),
        &sequence.to_ne_bytes(),
        &[0; 4],
        question,
    ]
    .concat()
}

fn parse(bytes: &[u8], sequence: u32, answer_kind: u16) -> Answer<'_> {
    let (Some(kind), Some(seen)) = (half(bytes, KIND), word(bytes, SEQUENCE)) else {
        return Answer::Malformed;
    };
    let Some(body) = bytes.get(HEADER_BYTES..) else {
        return Answer::Malformed;
    };
    if seen != sequence {
        Answer::Stale
    } else if kind == NLMSG_ERROR {
        word(body, 0).map_or(Answer::Malformed, |error| {
            Answer::Error(Errno::from_raw(error.cast_signed().wrapping_neg()))
        })
    } else if kind == answer_kind {
        Answer::Found(body)
    } else {
        Answer::Malformed
    }
}

/// Four bytes of an answer.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    bytes.try_into().ok().map(u16::from_ne_bytes)
}

/// In an attribute's kind: it consists of attributes, or its number is in network order.
const FLAGS: u16 = 0xc000;
const NESTED: u16 = 0x8000;
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// An attribute (`struct nlattr`) of these bytes.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (ATTRIBUTE_HEADER_BYTES + value.len()) as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute of attributes.
pub(crate) fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &attributes.concat())
}

/// The value of the first attribute of that kind among these.
pub(crate) fn find_attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(half(bytes, 0)?);
        let kind = half(bytes, 2)? & !FLAGS;
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND_HERE: u16 = 20;

    #[test]
    fn answers_that_are_cut_short_are_malformed() {
        let answer = encode(KIND_HERE, 1, &[]);
        for length in 0..answer.len() {
            assert_eq!(parse(&answer[..length], 1, KIND_HERE), Answer::Malformed);
        }
        assert_eq!(parse(&answer, 1, KIND_HERE), Answer::Found(&[]));
        assert_eq!(parse(&answer, 2, KIND_HERE), Answer::Stale);
        assert_eq!(parse(&answer, 1, KIND_HERE + 1), Answer::Malformed);
        let error = encode(NLMSG_ERROR, 1, &(-libc::ENOENT).to_ne_bytes());
        assert_eq!(parse(&error, 1, KIND_HERE), Answer::Error(Errno::ENOENT));
        let length = error.len() - 1;
        assert_eq!(parse(&error[..length], 1, KIND_HERE), Answer::Malformed);
    }

    #[test]
    fn attributes_are_found_and_nonsense_ends_the_search() {
        let inner = [attribute(1, b"odd"), attribute(2, b"even")];
        let all = [nested(7, &inner), attribute(8, b"")].concat();
        let seventh = find_attribute(&all, 7).unwrap();
        assert_eq!(find_attribute(seventh, 2), Some(&b"even"[..]));
        assert_eq!(find_attribute(&all, 8), Some(&b""[..]));
        assert_eq!(find_attribute(&all, 9), None);
        for wrong in [&[0; 8][..], &[3, 0, 1, 0], &[255, 255, 1, 0, 0], &[4]] {
            assert_eq!(find_attribute(wrong, 1), None);
        }
    }
}
