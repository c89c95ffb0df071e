//! Messages that have begun: their calls go on to the end whatever another thread does to the descriptor, as in the kernel, which keeps
//! what a call has begun with.
//!
//! Whoever closes a connection, or puts something else in its place, waits for those of which a part is on the ring and more is to come.
//! They leave the ring for the kernel's road at their next step, so that this takes no longer than a copy.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
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
/// So long, in nanoseconds, messages leave the ring after somebody was last seen to wait.
const AWAITED_NS: u64 = 10_000_000;
/// Times the processor is given away before the closing thread sleeps for a moment.
const YIELDS_BEFORE_NAP: u32 = 64;

/// A connection's messages that have begun, and whether somebody waits for their end.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    messages: AtomicU32,
    /// Whose the last one is, if it has not ended; zero: nobody's.
    thread: AtomicU32,
    /// Until when, of `spin::clock`, they leave the ring.
    awaited_until: AtomicU64,
}

impl Begun {
    /// Those who began them are not here any more.
    pub(crate) fn forget(&self) {
        self.messages.store(0, Relaxed);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        // Acquire: pairs with the Release that ends a message; what its call has announced is visible.
        self.messages.load(Acquire) == 0
    }

    /// Whether a message leaves the ring, which is waited for.
    #[inline]
    pub(super) fn is_awaited(&self, now: u64) -> bool {
        now < self.awaited_until.load(Relaxed)
    }
}

/// This thread's message, from its first part on until its last call of the kernel begins.
#[derive(Debug)]
pub(super) struct Message {
    socket: &'static Socket,
    /// What `Local::message_at` was.
    outer: usize,
}

/// Where the stack is.
#[inline(never)]
fn here() -> usize {
    let place = 0u8;
    std::hint::black_box(&raw const place) as usize
}

/// Whether this thread is in the middle of a message, below on its stack. One that was left by a jump lies beyond its end.
fn is_in_message() -> bool {
    local().message_at.get() > here()
}

impl Message {
    /// The half is locked. None: there is no other thread that could close anything.
    pub(super) fn begin(socket: &'static Socket) -> Option<Message> {
        if thread::is_alone() {
            return None;
        }
        socket.begun.thread.store(thread::id(), Relaxed);
        // Relaxed, as the half's lock orders it: who closes looks under that lock.
        socket.begun.messages.fetch_add(1, Relaxed);
        let outer = local().message_at.replace(here());
        Some(Message { socket, outer })
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        local().message_at.set(self.outer);
        let begun = &self.socket.begun;
        // It may be gone soon; there may be others' messages.
        let _ = begun
            .thread
            .compare_exchange(thread::id(), 0, Relaxed, Relaxed);
        // They may have been forgotten meanwhile.
        let fewer = |count: u32| count.checked_sub(1);
        // Release: pairs with the Acquire in `Begun::is_quiet`.
        let _ = begun.messages.fetch_update(Release, Relaxed, fewer);
    }
}

/// Before `fd` is this connection no more: waits for the messages that have begun. No other one begins while what is returned exists.
pub(crate) fn await_messages(
    socket: &'static Socket,
    fd: c_int,
) -> Option<Locked<SendHalf<'static>>> {
    // A message of this very thread goes on when the handler that we are in has returned, and finds the connection gone.
    if thread::is_alone() || is_in_message() || !socket.is_attached() {
        return None;
    }
    let locked = socket.lock_send(fd)?;
    let has_calls = || socket.row().send.raw.load(Relaxed) != 0;
    if socket.begun.is_quiet() && !has_calls() {
        return Some(locked);
    }
    drop(locked);
    let locked = wait(socket, fd)?;
    if !has_calls() {
        return Some(locked);
    }
    drop(locked);
    // One may be about to enter the kernel, by the descriptor's number.
    sys::nap();
    wait(socket, fd)
}

#[cold]
fn wait(socket: &'static Socket, fd: c_int) -> Option<Locked<SendHalf<'static>>> {
    let begun = &socket.begun;
    let since = spin::clock();
    let mut yields = 0u32;
    loop {
        let locked = socket.lock_send(fd)?;
        if begun.is_quiet() {
            return Some(locked);
        }
        drop(locked);
        let now = spin::clock();
        let until = now.saturating_add(cycles(AWAITED_NS));
        begun.awaited_until.store(until, Relaxed);
        sys::yield_now();
        yields += 1;
        if !yields.is_multiple_of(YIELDS_BEFORE_NAP) {
            continue;
        }
        sys::nap();
        let thread = begun.thread.load(Relaxed);
        let is_gone = thread != 0 && !sys::thread_exists(thread);
        if is_gone || now.wrapping_sub(since) > cycles(WAIT_NS) {
            begun.forget();
        }
    }
}
