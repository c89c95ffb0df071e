//! System calls, and the memory that a child does not inherit.
#![allow(
    unsafe_code,
    reason = "descriptors that the kernel has made, and a page of our own"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use millrace_shm::withheld::{Withheld, between_forks};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, recv,
    send, shutdown, socket, sockopt,
};
use nix::unistd::geteuid;

/// In a user namespace that does not map the agent's user, root shows as this one.
const OVERFLOW_USER: u32 = 65_534;
/// No message brings more descriptors.
const DESCRIPTORS_MAX: usize = 4;

/// A descriptor that forked children do not get: one in a child would hide our end from whoever is at the other.
pub(crate) type WithheldFd = Withheld<OwnedFd>;

/// Connects to the agent, if it is root's or our own user's.
pub(crate) fn connect_to_agent(path: &Path) -> io::Result<WithheldFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let kind = (AddressFamily::Unix, SockType::SeqPacket);
    let stream = between_forks(|| socket(kind.0, kind.1, flags, None).map(Withheld::new))?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    let peer = getsockopt(&*stream, sockopt::PeerCredentials)?.uid();
    if peer != 0 && peer != OVERFLOW_USER && peer != geteuid().as_raw() {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    Ok(stream)
}

/// Sends a message.
pub(crate) fn send_message(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    send(socket.as_raw_fd(), bytes, flags)?;
    Ok(())
}

/// Takes one message, with the descriptors that come with it. None: there is none now. No bytes: it is over.
pub(crate) fn receive_message(
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Vec<WithheldFd>)>> {
    between_forks(|| receive(socket, buffer))
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<WithheldFd>)>> {
    let mut control = cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: zeros are a value of it.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.capacity() as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header says where there is room, and how much.
    let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    match Errno::result(bytes) {
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno.into()),
        Ok(bytes) => {
            // SAFETY: the kernel has just filled it.
            let descriptors = unsafe { descriptors_of(&header) };
            Ok(Some((bytes.unsigned_abs(), descriptors)))
        }
    }
}

/// The descriptors that came with a message: fewer than were sent, where this process can have no more.
///
/// # Safety
/// The kernel has just filled the header, and nobody has looked at it.
unsafe fn descriptors_of(header: &libc::msghdr) -> Vec<WithheldFd> {
    let mut found = Vec::new();
    // SAFETY: the header is the kernel's; so are the numbers behind it, of descriptors that nothing else knows of.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(head) = message.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(message).cast::<RawFd>();
                let bytes = head.cmsg_len - libc::CMSG_LEN(0) as usize;
                let fds =
                    (0..bytes / size_of::<RawFd>()).map(|place| data.add(place).read_unaligned());
                found.extend(fds.map(|fd| Withheld::new(OwnedFd::from_raw_fd(fd))));
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    found
}

/// Waits until something can be read, whatever signals come meanwhile. False: the time is over.
pub(crate) fn wait_readable(socket: &OwnedFd, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut polled, timeout) {
            Err(Errno::EINTR) => {}
            polled => return polled.is_ok_and(|count| count != 0),
        }
    }
}

/// Wakes the peer of a link. One that has bytes to read already is awake, or will be.
pub(crate) fn ring(bell: &OwnedFd) {
    let _ = send(
        bell.as_raw_fd(),
        &[0],
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
    );
}

/// Reads what the peer has rung once; the rest is still there. False: it is gone.
pub(crate) fn hear(bell: &OwnedFd) -> bool {
    let heard = recv(bell.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT);
    match heard {
        Ok(count) => count != 0,
        Err(errno) => matches!(errno, Errno::EAGAIN | Errno::EINTR),
    }
}

/// Lets the peer of a link see that nothing more comes. Its own end can still be seen.
pub(crate) fn say_no_more(bell: &OwnedFd) {
    let _ = shutdown(bell.as_raw_fd(), Shutdown::Write);
}

/// Lets the peer of a link see that it is over.
pub(crate) fn hang_up(bell: &OwnedFd) {
    let _ = shutdown(bell.as_raw_fd(), Shutdown::Both);
}

/// Tells a process from its forked children: its page is empty in them.
#[derive(Debug)]
pub(crate) struct ForkGuard(NonNull<AtomicU8>);

// SAFETY: a page of atomics, of this value alone.
unsafe impl Send for ForkGuard {}

const PAGE: usize = 4096;

impl ForkGuard {
    pub(crate) fn new() -> io::Result<ForkGuard> {
        let base = millrace_shm::sys::map_private(PAGE)?;
        // SAFETY: the page is ours, and its contents do not matter yet.
        let wiped = unsafe { libc::madvise(base.as_ptr().cast(), PAGE, libc::MADV_WIPEONFORK) };
        let guard = ForkGuard(base.cast());
        if wiped != 0 {
            return Err(io::Error::last_os_error());
        }
        guard.byte().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    fn byte(&self) -> &AtomicU8 {
        // SAFETY: mapped as long as `self`.
        unsafe { self.0.as_ref() }
    }

    /// Whether this is the process that made it.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.byte().load(Ordering::Relaxed) != 0
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page is ours, and nobody looks at it any more.
        unsafe { millrace_shm::sys::unmap(self.0.cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::socketpair;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn a_bell_that_rings_without_end_is_left_and_heard_again() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (own, peer) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        (0..2).for_each(|_| ring(&peer));
        assert!(hear(&own) && wait_readable(&own, Duration::ZERO));
        assert!(hear(&own) && !wait_readable(&own, Duration::ZERO));
        ring(&peer);
        drop(peer);
        assert!(hear(&own) && !hear(&own));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn of_a_message_that_is_cut_no_descriptor_is_lost() {
        use nix::sys::socket::{ControlMessage, sendmsg};
        use std::io::{IoSlice, Read};
        let flags = SockFlag::SOCK_CLOEXEC;
        let (own, peer) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let fds = [writer.as_raw_fd(); DESCRIPTORS_MAX + 2];
        let control = [ControlMessage::ScmRights(&fds)];
        let bytes = [IoSlice::new(b"abc")];
        sendmsg::<()>(peer.as_raw_fd(), &bytes, &control, MsgFlags::empty(), None).unwrap();
        let (bytes, descriptors) = receive_message(&own, &mut [0; 8]).unwrap().unwrap();
        assert_eq!((bytes, descriptors.len()), (3, DESCRIPTORS_MAX));
        drop((writer, descriptors));
        assert_eq!(
            reader.read(&mut [0]).unwrap(),
            0,
            "nobody has the other end"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn signals_do_not_end_a_wait() {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler = nothing as extern "C" fn(libc::c_int);
        // SAFETY: the handler does nothing, and the signal is nobody else's in here.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        let flags = SockFlag::SOCK_CLOEXEC;
        let (own, peer) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        // SAFETY: no arguments.
        let waiting = unsafe { libc::pthread_self() };
        let disturbing = std::thread::spawn(move || {
            for _ in 0..20 {
                // SAFETY: that thread waits for this one.
                unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_millis(1));
            }
            ring(&peer);
        });
        assert!(wait_readable(&own, Duration::from_secs(20)));
        disturbing.join().unwrap();
    }
}
