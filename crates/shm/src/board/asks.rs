//! A sender that has asked for a recall, and the agent that is at work on it.
//!
//! A sender that waits goes on when the work is done; one that waits no more goes on to send, or to shut its direction down.
//! **Forbidden**: the agent at work while the sender goes on. Each says what it does and learns of the other by one operation on the same
//! word: who comes second sees the first, and (Release there, Acquire here, in both directions) all that it did before. An agent that
//! dies at work is known by the time that it takes: who waits ends its work, as its worker does.

use super::{Identity, flags};
use crate::atomic::Ordering::{AcqRel, Acquire};

impl Identity {
    /// Sender: it is about to ask, and waits.
    pub fn begin_ask(&self) {
        self.flags.fetch_and(!flags::ASK_OVER, AcqRel);
    }

    /// Sender: it waits no more, but, where this is true, until [`Self::is_at_work`] is not.
    #[must_use]
    pub fn end_ask(&self) -> bool {
        self.flags.fetch_or(flags::ASK_OVER, AcqRel) & flags::AT_WORK != 0
    }

    /// Whether the agent is at work on what was asked.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.flags.load(Acquire) & flags::AT_WORK != 0
    }

    /// Whether the sender, which has asked, waits.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.flags.load(Acquire) & flags::ASK_OVER == 0
    }

    /// Agent: it is about to work. False: it must not, as the sender waits no more.
    #[must_use]
    pub fn begin_work(&self) -> bool {
        let waits = self.flags.fetch_or(flags::AT_WORK, AcqRel) & flags::ASK_OVER == 0;
        if !waits {
            self.end_work();
        }
        waits
    }

    /// Agent: what the sender asked for is done. And whoever finds that the agent is gone.
    pub fn end_work(&self) {
        self.flags.fetch_and(!flags::AT_WORK, AcqRel);
    }
}
