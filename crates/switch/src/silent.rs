//! Those who have connected to ask something, and have said nothing yet: nobody waits for them.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::control::PATIENCE;

/// One more, and the one that has been there longest goes.
const SILENT_MAX: usize = 64;

/// Each has a token of the epoll set, from the first one on.
#[derive(Debug)]
pub(crate) struct Silent {
    askers: VecDeque<(u64, UnixStream, Instant)>,
    next: u64,
}

impl Silent {
    pub(crate) fn new(first_token: u64) -> Silent {
        Silent {
            askers: VecDeque::new(),
            next: first_token,
        }
    }

    /// There is news when it says something, or goes.
    pub(crate) fn add(
        &mut self,
        asker: UnixStream,
        epoll: &Epoll,
        now: Instant,
    ) -> Result<(), Errno> {
        epoll.add(&asker, EpollEvent::new(EpollFlags::EPOLLIN, self.next))?;
        if self.askers.len() == SILENT_MAX {
            self.askers.pop_front();
        }
        self.askers.push_back((self.next, asker, now + PATIENCE));
        self.next += 1;
        Ok(())
    }

    /// The one of this token, of which there is news.
    pub(crate) fn take(&mut self, token: u64, epoll: &Epoll) -> Option<UnixStream> {
        let place = self.askers.iter().position(|asker| asker.0 == token)?;
        let (_, asker, _) = self.askers.remove(place)?;
        let _ = epoll.delete(&asker);
        Some(asker)
    }

    /// Leaves those who have been silent for too long; returns when that will be true of another one.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while self.askers.front().is_some_and(|asker| asker.2 <= now) {
            self.askers.pop_front();
        }
        self.askers.front().map(|asker| asker.2)
    }
}
