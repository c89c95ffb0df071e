//! A client's session with the agent.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use millrace_shm::board::Board;
use millrace_wire::{
    End, Family, Hello, MAX_BYTES, Mode, Offer, SEGMENT_VERSION, ToAgent, ToClient, VERSION_MAX,
    VERSION_MIN,
};

use crate::sys;

/// How long the agent may take for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the head of this file.
pub(crate) struct Session {
    socket: OwnedFd,
}

/// A hello as an honest client says it.
pub(crate) const HELLO: ToAgent = ToAgent::Hello(Hello {
    version_min: VERSION_MIN,
    version_max: VERSION_MAX,
    segment_version: SEGMENT_VERSION,
    mode: Mode::Eager,
});

impl Session {
    pub(crate) fn open() -> Option<Session> {
        let path = std::env::var("MILLRACE_AGENT").ok()?;
        Some(Session {
            socket: sys::connect(&path).ok()?,
        })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn say(&self, message: &ToAgent) -> bool {
        let mut buffer = [0; MAX_BYTES];
        let bytes = message.encode(VERSION_MAX, &mut buffer);
        sys::transmit(&self.socket, &buffer[..bytes], &[]).is_ok()
    }

    /// One message, if one waits or comes in that time.
    pub(crate) fn hear(&self, patience: Duration) -> Option<(ToClient, Option<OwnedFd>)> {
        let mut buffer = [0; MAX_BYTES];
        if !sys::wait_readable(&self.socket, patience) {
            return None;
        }
        let (bytes, fd) = sys::receive(&self.socket, &mut buffer).ok()?;
        Some((ToClient::parse(&buffer[..bytes]).ok()?, fd))
    }

    /// Says hello, and waits for the board and its descriptor.
    pub(crate) fn be_welcomed(&self) -> Option<(Board, OwnedFd)> {
        self.say(&HELLO);
        match self.hear(PATIENCE)? {
            (ToClient::Welcome(welcome), Some(fd)) => {
                Some((Board::attach_rows(fd.as_fd(), welcome.rows).ok()?, fd))
            }
            _ => None,
        }
    }
}

/// A true offer of the end that connected.
pub(crate) fn offer(stream: &TcpStream, offer_id: u64, row: u32) -> Option<Offer> {
    Some(Offer {
        offer_id,
        fd: stream.as_raw_fd(),
        row,
        family: Family::V4,
        end: End::Active,
        local: stream.local_addr().ok()?.into(),
        remote: stream.peer_addr().ok()?.into(),
        cookie: sys::cookie(stream.as_fd(), libc::SO_COOKIE),
        netns_cookie: sys::cookie(stream.as_fd(), libc::SO_NETNS_COOKIE),
    })
}
