//! Messages that have begun: their calls go on to the end whatever another thread does to the descriptor, as in the kernel, which keeps
//! what a call has begun with.
//!
//! Whoever closes a connection, or puts something else in its place, waits for those of which a part is on the ring and more is to come.
//! They leave the ring for the kernel's road at their next step, with a descriptor of their own, so that this takes no longer than a copy.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

use libc::c_int;
use millrace_shm::sys;
use millrace_stream::SendHalf;

use crate::local::local;
use crate::socket::{Locked, Socket};
use crate::spin::{self, cycles};
use crate::thread;

/// Nanoseconds after which a message that was left in the middle, by a jump out of a signal handler, is not waited for any more.
const WAIT_NS: u64 = 1_000_000_000;
/// Times the processor is given away before the closing thread sleeps for a moment.
const YIELDS_BEFORE_NAP: u32 = 64;

/// How many of a connection's messages have begun, and whether somebody waits for their end.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    messages: AtomicU32,
    closers: AtomicU32,
}

impl Begun {
    /// In a forked child: the parent's other threads are not here.
    pub(crate) fn forget(&self) {
        self.messages.store(0, Relaxed);
        self.closers.store(0, Relaxed);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.messages.load(SeqCst) == 0 && self.closers.load(SeqCst) == 0
    }

    /// Whether a message leaves the ring, which is waited for.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.closers.load(Relaxed) != 0
    }
}

/// One fewer, unless they were forgotten meanwhile.
fn count_out(count: &AtomicU32) {
    let _ = count.fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1));
}

/// This thread's message, from its first part on until it is on the kernel's road for good.
#[derive(Debug)]
pub(super) struct Message(&'static Socket);

impl Message {
    /// The half is locked. None: there is no other thread that could close anything.
    pub(super) fn begin(socket: &'static Socket) -> Option<Message> {
        if thread::is_alone() {
            return None;
        }
        socket.begun.messages.fetch_add(1, SeqCst);
        let own = &local().messages;
        own.set(own.get() + 1);
        Some(Message(socket))
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let own = &local().messages;
        own.set(own.get().saturating_sub(1));
        count_out(&self.0.begun.messages);
    }
}

/// Before `fd` is this connection no more: waits for the messages that have begun. No other one begins while what is returned exists.
pub(crate) fn await_messages(
    socket: &'static Socket,
    fd: c_int,
) -> Option<Locked<SendHalf<'static>>> {
    // A message of this very thread goes on when the handler that we are in has returned, and finds the connection gone.
    if thread::is_alone() || local().messages.get() != 0 || !socket.is_attached() {
        return None;
    }
    let locked = socket.lock_send(fd)?;
    if socket.begun.messages.load(SeqCst) == 0 {
        return Some(locked);
    }
    drop(locked);
    wait(socket, fd)
}

#[cold]
fn wait(socket: &'static Socket, fd: c_int) -> Option<Locked<SendHalf<'static>>> {
    socket.begun.closers.fetch_add(1, SeqCst);
    let since = spin::clock();
    let mut yields = 0u32;
    let locked = loop {
        sys::yield_now();
        yields += 1;
        if yields.is_multiple_of(YIELDS_BEFORE_NAP) {
            sys::nap();
        }
        let is_late = spin::clock().wrapping_sub(since) > cycles(WAIT_NS);
        let locked = socket.lock_send(fd);
        if is_late || locked.is_none() || socket.begun.messages.load(SeqCst) == 0 {
            break locked;
        }
    };
    count_out(&socket.begun.closers);
    locked
}
