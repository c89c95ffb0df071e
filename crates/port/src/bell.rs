//! What a port waits for: its sockets, and eventfds by which a peer wakes us.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
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

/// The same no more. Who is closed by another thread, later, would be news until then.
pub(crate) fn unwatch(epoll: &Epoll, fd: impl AsFd) {
    // It is there.
    let _ = epoll.delete(fd);
}

/// Asks what there is news of. To read in vain costs more than that, and to accept in vain much more: the kernel makes a socket first, and
/// throws it away. What woke a sleeper by an edge is done with then. There are 256 bells at most, and a socket or two.
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

/// Rings a peer's bell. It must not wait, which a peer could arrange by taking the flag back that says so, and filling the eventfd: the
/// flag is set again each time. A peer that does both between the two calls holds this thread up; nothing that the kernel has closes that.
pub(crate) fn ring(bell: BorrowedFd<'_>) {
    if fcntl(bell, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
        // Nothing to do about it where it fails: a peer that has filled its bell is awake.
        let _ = nix::unistd::write(bell, &1u64.to_ne_bytes());
    }
}

/// The same of one that is to be rung, and counts it.
#[inline]
pub(crate) fn wake(bell: Option<BorrowedFd<'_>>, wakes: &mut u64) {
    if let Some(bell) = bell {
        ring(bell);
        *wakes += 1;
    }
}
