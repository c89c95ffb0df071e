//! Calls by which a sender sends.
//!
//! They end soon, or there is made room for them. Whatever stops a process (SIGSTOP, a debugger) ends a sleep for room, too: the kernel has
//! the bytes that it has, and no more come before the process goes on. It notes them then, or begins its call anew where there were none.
//! So the direction of a sender that is stopped is at rest, though a call is announced: what the kernel counts is right, and what the
//! sender notes later is added to what it had noted.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use super::patience::pause;
use super::reorder::{CARRIED_MAX, give_up};
use super::{Asker, Refusal, Road, Unread};
use crate::{proof, sys};

impl Road<'_> {
    /// Unless the sender has asked, and waits no more: it goes on to send, or to shut its direction down. One that waits goes on when this
    /// is done, however long it takes.
    pub(super) fn bring_back_waited_for(
        &self,
        socket: BorrowedFd<'_>,
        reader: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<(), Refusal> {
        if !matches!(self.asker, Asker::Sender | Asker::Both) {
            return self.bring_back_locked(socket, reader, patience);
        }
        if !self.sender.identity.begin_work() {
            return Err(Refusal::TooLate);
        }
        let outcome = self.bring_back_locked(socket, reader, patience);
        self.sender.identity.end_work();
        outcome
    }

    /// Calls that were under way when the lock became ours end soon, where the kernel has room, and no others begin. False: they have
    /// not ended.
    pub(super) fn await_calls(&self, patience: Duration) -> bool {
        let began = Instant::now();
        // Acquire: as in `unread`.
        while self.sender.send.raw.load(Acquire) != 0 {
            if began.elapsed() >= patience {
                return false;
            }
            pause(began);
        }
        true
    }

    /// Whether a call that sleeps for room would end if there were as much as there can be, as far as its sender has said.
    pub(super) fn call_ends_in(&self, socket: BorrowedFd<'_>) -> bool {
        let hint = self.segment.words(self.direction).kernel_hint.load(Relaxed);
        sys::sent(socket, self.sender_connected)
            .is_some_and(|sent| hint.saturating_sub(sent) <= CARRIED_MAX)
    }

    /// Whether nobody who may be in a call can go on with it. A stop ends a call that sleeps for room, and leaves it what it has sent.
    pub(super) fn are_callers_stopped(&self) -> bool {
        !self.callers.is_empty() && self.callers.iter().all(|pid| proof::is_stopped(*pid))
    }

    /// How much the sender has sent by the kernel, as far as we know from itself.
    pub(super) fn noted(&self, unread: Unread) -> u64 {
        let noted = self.sender.send.kernel_position.load(Relaxed);
        unread.stopped_at.unwrap_or(noted)
    }

    /// A sender that was stopped has gone on meanwhile if it has sent more: then nobody knows what came first, and nobody is to read it.
    pub(super) fn must_have_sent(
        &self,
        count: u64,
        (sender, reader): (BorrowedFd<'_>, Option<BorrowedFd<'_>>),
    ) -> Result<(), Refusal> {
        if sys::sent(sender, self.sender_connected) == Some(count) {
            return Ok(());
        }
        give_up(sender, reader);
        Err(Refusal::Sending)
    }

    /// What the kernel has sent of a call that was stopped, and all before; None: no call is under way.
    pub(super) fn stopped_at(&self, socket: BorrowedFd<'_>) -> Result<Option<u64>, Refusal> {
        let send = &self.sender.send;
        // Acquire: pairs with the Release that ends a send by the kernel; its position is visible.
        if send.raw.load(Acquire) == 0 {
            return Ok(None);
        }
        if !self.are_callers_stopped() {
            return Err(Refusal::Sending);
        }
        let noted = send.kernel_position.load(Relaxed);
        let most = self.segment.words(self.direction).kernel_hint.load(Relaxed);
        let sent = sys::sent(socket, self.sender_connected);
        let is_its = |sent: &u64| (noted..=most).contains(sent);
        sent.filter(is_its).map(Some).ok_or(Refusal::Sending)
    }
}
