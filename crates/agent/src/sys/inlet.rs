//! The agent's end of a client's socket, by which messages come and no descriptors.
//!
//! Whoever has a file in its table, or in a queue of a socket of its own, has to let go of it some day, and that may take as long as the
//! sender likes: a TCP connection with SO_LINGER and bytes that nobody takes, for one. So the listener forbids descriptors (SO_PASSRIGHTS,
//! Linux 6.16), which its sockets inherit, and senders get EPERM. On older kernels the agent looks at a message before it takes it; and a
//! socket in whose queue something waits is closed by a thread of its own, for which nobody waits.

use std::io::{self, IoSliceMut};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;

use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, Shutdown, SockaddrStorage, UnixCredentials, recvmsg, shutdown,
};

/// `include/uapi/asm-generic/socket.h`.
const SO_PASSRIGHTS: libc::c_int = 83;
/// What a thread needs that closes one socket.
const CLOSER_STACK_BYTES: usize = 64 << 10;

/// A socket, closed so that nobody waits for what may be in it.
#[derive(Debug)]
pub(crate) struct Inlet {
    socket: ManuallyDrop<OwnedFd>,
    /// The kernel knows of no way to forbid them.
    takes_descriptors: bool,
}

/// What came.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// The process that sent it. An end of the stream has none.
    pub(crate) sender: Option<i32>,
    /// Descriptors came with it, or would have.
    pub(crate) is_gift: bool,
}

impl Inlet {
    /// Takes over a socket; by one that has SO_PASSCRED messages come with their senders.
    pub(crate) fn new(socket: OwnedFd) -> Inlet {
        let takes_descriptors = !refuses_descriptors(socket.as_fd());
        Inlet {
            socket: ManuallyDrop::new(socket),
            takes_descriptors,
        }
    }

    /// Takes a message, if there is one. One that comes with descriptors is left where it is.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN`: there is none now.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        if self.takes_descriptors {
            let seen = receive(self.as_fd(), buffer, MsgFlags::MSG_PEEK)?;
            if seen.is_gift {
                return Ok(seen);
            }
        }
        receive(self.as_fd(), buffer, MsgFlags::empty())
    }

    /// Whether something waits in its queue, when nothing more can come.
    fn has_rest(&self) -> bool {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Read);
        let seen = receive(self.as_fd(), &mut [0], MsgFlags::MSG_PEEK);
        seen.is_ok_and(|seen| seen.bytes > 0 || seen.sender.is_some() || seen.is_gift)
    }
}

impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Inlet {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let has_rest = self.takes_descriptors && self.has_rest();
        // The client is to hear of it also while a worker that is stuck (`recall`) has the socket.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        // SAFETY: it is used no more.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if has_rest {
            // Where there can be no thread, its closure is dropped here, and with it the socket.
            let closer = thread::Builder::new().stack_size(CLOSER_STACK_BYTES);
            let _ = closer.spawn(move || drop(socket));
        }
    }
}

/// Closes a socket that somebody else may have sent to, and nobody has received from: nobody waits for what may be in it.
pub(crate) fn close_apart(socket: OwnedFd) {
    drop(Inlet::new(socket));
}

/// Has the kernel tell whoever sends descriptors to this socket, or to this listener's, that it may not, where the kernel can.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) {
    let no: libc::c_int = 0;
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads one int.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            bytes,
        )
    };
}

fn refuses_descriptors(socket: BorrowedFd<'_>) -> bool {
    let mut passes: libc::c_int = 1;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: as above, and the kernel writes one int.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut passes).cast(),
            &raw mut bytes,
        )
    };
    result == 0 && passes == 0
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: MsgFlags) -> io::Result<Received> {
    let mut control = cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = flags | MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut received = Received {
        bytes: message.bytes,
        is_gift: message.flags.contains(MsgFlags::MSG_CTRUNC),
        ..Received::default()
    };
    // There is room for nothing else, and of a message that was cut nobody needs to know more.
    for part in message.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmCredentials(sender) = part {
            received.sender = Some(sender.pid());
        }
    }
    Ok(received)
}
