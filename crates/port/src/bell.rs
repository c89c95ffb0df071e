//! What a port waits for: its sockets, and eventfds by which a peer wakes us.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

/// An eventfd in a set of those that are waited for. It is watched for edges and never read: it is the peer's as well, and a read could
/// wait. It leaves the set when it is dropped: the peer has it still, so that closing it would not take it out.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    epoll: Arc<Epoll>,
}

impl Bell {
    pub(crate) fn new(fd: OwnedFd, epoll: &Arc<Epoll>) -> io::Result<Bell> {
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&fd, EpollEvent::new(events, 0))?;
        Ok(Bell {
            fd,
            epoll: epoll.clone(),
        })
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // It is there.
        let _ = self.epoll.delete(self.fd.as_fd());
    }
}

/// What a listener's events are known by.
pub(crate) const LISTENER: u64 = 1;
/// The same of a connection.
pub(crate) const SOCKET: u64 = 2;

/// What there is news of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct News {
    pub(crate) listener: bool,
    pub(crate) socket: bool,
}

/// Waits for a descriptor's input, which is asked for by [`news`].
pub(crate) fn watch(epoll: &Epoll, fd: impl AsFd, name: u64) -> io::Result<()> {
    Ok(epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, name))?)
}

/// Asks what there is news of: to accept and to read in vain costs more than that. What woke a sleeper by an edge is done with then. There
/// are 256 bells at most, and a socket or two.
pub(crate) fn news(epoll: &Epoll) -> News {
    let mut news = News::default();
    let mut events = [EpollEvent::empty(); 32];
    for _ in 0..9 {
        let count = epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            news.listener |= event.data() == LISTENER;
            news.socket |= event.data() == SOCKET;
        }
        if count < events.len() {
            break;
        }
    }
    news
}
