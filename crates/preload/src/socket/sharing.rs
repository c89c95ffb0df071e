//! One end that several processes hold: who of them may use the rings.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::c_int;
use millrace_shm::board::flags;
use millrace_wire::Reason;

use super::Socket;
use crate::{client, kernel, process, table};

/// Calls on a connection that others hold, too, after which they are looked for again.
const CALLS_PER_LOOK: u32 = 16;
const PINNED: u32 = flags::SEND_PINNED | flags::RECEIVE_PINNED;

impl Socket {
    #[cold]
    pub(super) fn claim_from_another(&'static self) {
        if self.has_lost_sets.swap(false, Relaxed) {
            return self.pin(Reason::Forked);
        }
        let row = self.row();
        let is_pinned = row.identity.flags.load(Relaxed) & flags::RECEIVE_PINNED != 0;
        let alone = if is_pinned {
            self.is_held_alone()
        } else {
            process::outlives_others(row)
        };
        if alone {
            self.take_over();
        } else if !is_pinned {
            self.pin_while_shared();
        }
    }

    /// Whether no other process holds the connection. Whether others are alive is asked now and then only.
    pub(crate) fn is_held_alone(&self) -> bool {
        let row = self.row();
        process::holds_alone(row)
            || (self
                .questions
                .fetch_add(1, Relaxed)
                .is_multiple_of(CALLS_PER_LOOK)
                && process::outlives_others(row))
    }

    /// Both directions take the kernel's road until one holder is left.
    pub(super) fn pin_while_shared(&'static self) {
        let identity = &self.row().identity;
        identity.reason.store(Reason::Forked as u8, Relaxed);
        // Not by `pin`: whoever finds itself alone meanwhile may have unpinned it again.
        let _ = identity
            .flags
            .fetch_update(AcqRel, Acquire, |word| match word & PINNED {
                0 => Some(word | PINNED | flags::FORKED),
                PINNED => None,
                _ => Some(word | PINNED),
            });
        // Nobody's: whoever is left claims it.
        identity.owner.store(0, Relaxed);
        self.leave_halves(PINNED, Reason::Forked);
    }

    /// Another program gets a connection that this process, or others, keep: the rings are left until one of them is alone with it.
    pub(crate) fn leave_to_program(&'static self, fd: c_int) {
        // One that is not attached does not join while others hold it.
        if self.is_attached() {
            self.pin_while_shared();
            self.show_no_delay(fd);
            self.leave_rings(fd);
        }
    }

    /// The other users are gone: the connection is ours, and what was pinned for their sake is not any more.
    ///
    /// Others can come by this process only, and do not meanwhile: we would unpin it under the hands of a program that another thread
    /// starts.
    fn take_over(&'static self) {
        let identity = &self.row().identity;
        if identity.flags.load(Acquire) & flags::FORKED == 0 {
            return client::keep_holders(|| {
                if process::holds_alone(self.row()) {
                    identity.owner.store(process::id(), Relaxed);
                }
            });
        }
        let Some(fd) = table::all().find(|fd| table::is(*fd, self)) else {
            return;
        };
        let (Some(receive), Some(send)) = (self.lock_receive(fd), self.lock_send(fd)) else {
            return;
        };
        if !receive.is_nested() && !send.is_nested() && receive.half.is_drained() {
            client::keep_holders(|| self.unpin_forked(fd));
        }
    }

    /// The others may have been killed before they counted what they took and sent, so the counts are the kernel's, as when an end joins.
    /// Calls that are under way are waited for. Both halves are locked.
    fn unpin_forked(&'static self, fd: c_int) {
        let row = self.row();
        if !row.is_quiet() || !process::holds_alone(row) {
            return;
        }
        let sent = kernel::sent(fd, self.active.load(Relaxed));
        let (Some(sent), Some(taken)) = (sent, kernel::taken(fd)) else {
            return;
        };
        row.send.kernel_position.store(sent, Relaxed);
        row.receive.kernel_position.store(taken, Relaxed);
        if let Err(reason) = self.learn_again(fd) {
            // As if this process had asked for it: no program has to let go of it any more.
            row.identity.flags.fetch_and(!flags::FORKED, AcqRel);
            row.identity.reason.store(reason as u8, Relaxed);
            row.identity.owner.store(process::id(), Relaxed);
            return;
        }
        let unpin =
            |word: u32| (word & flags::FORKED != 0).then_some(word & !(PINNED | flags::FORKED));
        if let Ok(before) = row.identity.flags.fetch_update(AcqRel, Acquire, unpin) {
            if before & flags::CORRUPT == 0 {
                row.identity.reason.store(Reason::None as u8, Relaxed);
            }
            self.hide_no_delay(fd);
        }
        row.identity.owner.store(process::id(), Relaxed);
    }
}
