//! The socket to the agent.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use libc::c_int;
use millrace_wire::{
    Hello, MAX_BYTES, Mode, Recall, SEGMENT_VERSION, ToAgent, ToClient, VERSION_MAX, VERSION_MIN,
};

use super::RETRY_NS;
use crate::kernel::{self, kernel};

/// The moment that is waited for a message before others may have read it are thought of, nanoseconds.
const MAIL_WAIT_NS: libc::c_long = 1_000_000;
/// Children of `vfork` ask the agent nothing before that: it has left one of them without an answer.
static APART_AGAIN_NS: AtomicU64 = AtomicU64::new(0);

/// `prctl`: who may trace us, where Yama lets nobody but our ancestors (`ptrace_scope` 1, as many systems have it). Elsewhere an error.
pub(crate) const PR_SET_PTRACER: c_int = 0x5961_6d61;
/// In a user namespace that does not map the agent's user, root shows as this one.
const OVERFLOW_USER: libc::uid_t = 65534;
/// The program says itself who may trace it.
static NAMES_TRACER: AtomicBool = AtomicBool::new(false);
/// An agent is named as who may trace us, where Yama heeds that.
static AGENT_IS_TRACER: AtomicBool = AtomicBool::new(false);

/// The program says who may trace it, from now on and also when that is nobody (0). There is one at a time. Returns whether the agent may
/// not any more.
pub(crate) fn keep_tracer(named: libc::c_ulong) -> bool {
    const ANYBODY: libc::c_ulong = libc::c_ulong::MAX;
    NAMES_TRACER.store(true, Relaxed);
    named != ANYBODY && AGENT_IS_TRACER.load(Relaxed)
}

/// In a forked child: what was said of its parent does not hold for it.
pub(crate) fn forget_tracer() {
    NAMES_TRACER.store(false, Relaxed);
    AGENT_IS_TRACER.store(false, Relaxed);
}

/// Lets the agent borrow our sockets for a recall (`pidfd_getfd`), for which it must be allowed to trace us. Root's is allowed anyway.
fn let_borrow(agent: &libc::ucred) {
    let is_own_user = agent.uid != 0 && agent.uid == kernel::user_id();
    // Zero: it is in another PID namespace.
    if is_own_user && agent.pid > 0 && !NAMES_TRACER.load(Relaxed) {
        let named = kernel!(
            libc::SYS_prctl,
            PR_SET_PTRACER,
            agent.pid,
            0usize,
            0usize,
            0usize
        );
        AGENT_IS_TRACER.store(named == 0, Relaxed);
    }
}

/// Who listens at the other end, if it is root or our own user.
fn trusted(fd: c_int) -> Option<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let result = kernel!(
        libc::SYS_getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_PEERCRED,
        &raw mut peer,
        &raw mut bytes
    );
    let is_trusted = peer.uid == 0 || peer.uid == OVERFLOW_USER || peer.uid == kernel::user_id();
    (result == 0 && is_trusted).then_some(peer)
}

/// A connection to the agent, non-blocking, on a high descriptor. None: nobody who is trusted answers, or there is no such descriptor.
pub(super) fn connect(path: &CString) -> Option<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let number = kernel!(libc::SYS_socket, libc::AF_UNIX, kind, 0usize);
    let number = c_int::try_from(number).ok().filter(|number| *number >= 0)?;
    // SAFETY: the kernel has just made it for us. It goes when its copy is there.
    let _low = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return None;
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    let connected = kernel!(
        libc::SYS_connect,
        number,
        &raw const address,
        size_of::<libc::sockaddr_un>()
    );
    let agent = trusted(number).filter(|_| connected == 0)?;
    let_borrow(&agent);
    kernel::high_copy(number)
}

/// Waits a moment, asleep, for a message on the agent's descriptor. Nothing is locked, so that another thread may have read it already, or
/// the number may be another's by now: a moment is all that costs.
pub(super) fn wait_for_mail(number: RawFd) {
    let mut entry = libc::pollfd {
        fd: number,
        events: libc::POLLIN,
        revents: 0,
    };
    let patience = libc::timespec {
        tv_sec: 0,
        tv_nsec: MAIL_WAIT_NS,
    };
    kernel!(
        libc::SYS_ppoll,
        &raw mut entry,
        1usize,
        &raw const patience,
        0usize,
        0usize
    );
}

/// The descriptor that came with a message.
pub(super) fn passed_descriptor(header: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled header and control buffer.
    let control = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    if control.cmsg_level != libc::SOL_SOCKET || control.cmsg_type != libc::SCM_RIGHTS {
        return None;
    }
    // SAFETY: such a message carries at least one descriptor.
    let number = unsafe { libc::CMSG_DATA(control).cast::<c_int>().read_unaligned() };
    // SAFETY: the kernel has just made it for us.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// For a child of `vfork`, from whom the agent takes nothing by its parent's socket: asks by one of its own, and waits for the answer,
/// so long at most, and not again for each connection.
pub(super) fn recall_apart(path: &CString, recall: Recall, patience_ms: u64) {
    if answers_apart() && ask_apart(path, recall, patience_ms).is_none() {
        APART_AGAIN_NS.store(kernel::monotonic_ns() + RETRY_NS, Relaxed);
    }
}

/// Whether such a child is answered, as far as is known.
pub(super) fn answers_apart() -> bool {
    kernel::monotonic_ns() >= APART_AGAIN_NS.load(Relaxed)
}

/// None: no answer.
fn ask_apart(path: &CString, recall: Recall, patience_ms: u64) -> Option<()> {
    let fd = connect(path)?;
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        segment_version: SEGMENT_VERSION,
        mode: Mode::default(),
    };
    let mut buffer = [0u8; MAX_BYTES];
    for message in [ToAgent::Hello(hello), ToAgent::Recall(recall)] {
        let bytes = message.encode(VERSION_MIN, &mut buffer);
        kernel!(libc::SYS_write, fd.as_raw_fd(), buffer.as_ptr(), bytes);
    }
    let deadline = kernel::monotonic_ns() + patience_ms * 1_000_000;
    while kernel::monotonic_ns() < deadline {
        // The descriptor that comes with the welcome is dropped by the kernel: there is no room for it.
        let read = kernel!(
            libc::SYS_read,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            MAX_BYTES
        );
        match usize::try_from(read) {
            Ok(0) => return None,
            Ok(bytes) => {
                if let Ok(ToClient::Recalled(_)) = ToClient::parse(&buffer[..bytes]) {
                    return Some(());
                }
            }
            Err(_) if read == -(libc::EAGAIN as isize) => kernel::pause(1),
            Err(_) => return None,
        }
    }
    None
}
