//! Messages on a stream socket: none is read beyond its end, so that each has its own descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use millrace_wire::vhost_user::{Emitted, HEADER_BYTES, Header, MESSAGE_BYTES_MAX, REGIONS_MAX};

use super::error::ControlError;
use super::sys;
use crate::handed::Gifts;
use crate::listener::Connection;
use crate::port::Closed;

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Connection,
    bytes: [u8; MESSAGE_BYTES_MAX],
    filled: usize,
    gifts: Gifts,
}

/// A message, whose payload is in [`Stream::payload`].
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) header: Header,
    pub(crate) gifts: Gifts,
}

impl Stream {
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn new(socket: Connection) -> Stream {
        Stream {
            gifts: socket.no_gifts(),
            socket,
            bytes: [0; MESSAGE_BYTES_MAX],
            filled: 0,
        }
    }

    /// The next message, once all of it is there.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, Closed> {
        loop {
            let mut wanted = HEADER_BYTES;
            if let Some(bytes) = self.bytes[..self.filled].first_chunk() {
                let parsed = Header::parse(*bytes);
                let header = parsed.map_err(|error| Closed::VhostUser(error.into()))?;
                // The longest message at most: the header says no more.
                wanted += header.bytes as usize;
                if self.filled == wanted {
                    self.filled = 0;
                    let gifts = self.gifts.take();
                    return Ok(Some(Received { header, gifts }));
                }
            }
            let rest = &mut self.bytes[self.filled..wanted];
            let received = self.socket.receive(rest, &mut self.gifts);
            match received.map_err(Closed::Io)? {
                None => return Ok(None),
                Some(0) => return Err(Closed::PeerGone),
                Some(_) if self.gifts.len() > REGIONS_MAX => {
                    return Err(Closed::VhostUser(ControlError::TooManyDescriptors));
                }
                Some(count) => self.filled += count,
            }
        }
    }

    /// That of the message that was received last.
    pub(crate) fn payload(&self, header: Header) -> &[u8] {
        &self.bytes[HEADER_BYTES..][..header.bytes as usize]
    }

    /// Sends a message. A peer that does not read, so that there is no room for all of it, is given up.
    pub(crate) fn send(&self, message: &Emitted, fds: &[BorrowedFd<'_>]) -> Result<(), Closed> {
        let bytes = message.bytes();
        match sys::send(self.socket.as_fd(), bytes, fds) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(Closed::VhostUser(ControlError::DoesNotRead)),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::WouldBlock => Closed::VhostUser(ControlError::DoesNotRead),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Closed::PeerGone,
                _ => Closed::Io(error),
            }),
        }
    }
}
