//! Takes what lies in the queue of one socket, and gives bytes to another.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};

use super::patience::pause;
use super::room::Room;

/// How long nothing may arrive of what has no room in the reader's queue, and nothing be taken, once the queue has been touched.
pub(super) const STANDSTILL: Duration = Duration::from_millis(100);
/// How long a queue may take to be emptied: who has the network between the ends may let a byte through now and then.
pub(super) const TAKE_MAX: Duration = Duration::from_secs(2);

/// A sender's socket by which nothing is held back until this is dropped: its reader looks for the bytes at once. Nagle's algorithm would
/// have the last ones wait for an acknowledgement, MSG_MORE for others to come.
#[derive(Debug)]
pub(super) struct Prompt<'a> {
    delays: Option<BorrowedFd<'a>>,
}

impl<'a> Prompt<'a> {
    pub(super) fn of(socket: BorrowedFd<'a>) -> Prompt<'a> {
        let delays = matches!(getsockopt(&socket, sockopt::TcpNoDelay), Ok(false));
        // Also where it is set: whoever sets it has the kernel send what it holds.
        let _ = setsockopt(&socket, sockopt::TcpNoDelay, &true);
        Prompt {
            delays: delays.then_some(socket),
        }
    }
}

impl Drop for Prompt<'_> {
    fn drop(&mut self) {
        if let Some(socket) = self.delays {
            let _ = setsockopt(&socket, sockopt::TcpNoDelay, &false);
        }
    }
}

/// Takes `count` bytes from a queue, as they arrive, while it `goes_on`. What is missing then, or stands still, does not come.
pub(super) fn take(reader: BorrowedFd<'_>, count: usize, goes_on: impl Fn() -> bool) -> Vec<u8> {
    let mut queue = vec![0; count];
    let mut taken = 0;
    let began = Instant::now();
    let mut since = began;
    while taken < count && goes_on() && began.elapsed() < TAKE_MAX {
        match recv(
            reader.as_raw_fd(),
            &mut queue[taken..],
            MsgFlags::MSG_DONTWAIT,
        ) {
            Ok(0) => break,
            Ok(bytes) => {
                taken += bytes;
                since = Instant::now();
            }
            Err(Errno::EINTR) => {}
            // Not by `poll`: the program may have said how much is worth waking up for.
            Err(Errno::EAGAIN) if since.elapsed() < STANDSTILL => pause(since),
            Err(_) => break,
        }
    }
    queue.truncate(taken);
    queue
}

/// Gives bytes to a socket, where there is or can be made room, and waits for it no longer than `patience`; returns how many it took.
pub(super) fn transmit(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    patience: Duration,
    room: &mut Room<'_>,
) -> usize {
    let deadline = Instant::now() + patience;
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let mut sent = 0;
    while sent < bytes.len() {
        match send(socket.as_raw_fd(), &bytes[sent..], flags) {
            Ok(count) => sent += count,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if room.make() => {}
            Err(Errno::EAGAIN) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let timeout = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::ZERO);
                let mut room = [PollFd::new(socket, PollFlags::POLLOUT)];
                if left.is_zero() || poll(&mut room, timeout) != Ok(1) {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    sent
}
