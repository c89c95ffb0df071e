//! Eventfds by which a peer wakes us.

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

/// What woke a sleeper by an edge is done with by asking for it. There are 256 bells at most, and a socket or two.
pub(crate) fn quiet(epoll: &Epoll) {
    let mut events = [EpollEvent::empty(); 32];
    for _ in 0..9 {
        if epoll.wait(&mut events, EpollTimeout::ZERO) != Ok(events.len()) {
            break;
        }
    }
}
