//! One call of the program's that is several of ours: the messages of `sendmmsg`, or the pieces of a file.
//!
//! In the kernel a handler runs when such a call has ended, or while it sleeps and has nothing to return.

use std::cell::{Cell, RefCell};

use crate::thread::{self, Busy, Interrupts};

/// How far such a call has come. Handlers wait while it goes on.
#[derive(Debug)]
pub(crate) struct Several {
    busy: RefCell<Option<Busy>>,
    began: Cell<Interrupts>,
    has_some: Cell<bool>,
}

impl Several {
    pub(crate) fn begin() -> Several {
        Several {
            busy: RefCell::new(Some(Busy::new())),
            began: Cell::new(thread::interrupts()),
            has_some: Cell::new(false),
        }
    }

    /// A message, or piece, is sent: whatever ends the next one, the call has something to return.
    pub(crate) fn note_sent(&self) {
        self.has_some.set(true);
        self.hold_handlers();
    }

    fn hold_handlers(&self) {
        self.busy.borrow_mut().get_or_insert_with(Busy::new);
    }

    pub(super) fn has_some(&self) -> bool {
        self.has_some.get()
    }

    /// Since when handlers end its waits.
    pub(super) fn began(&self) -> Interrupts {
        self.began.get()
    }

    /// It is about to sleep in a call of the kernel's, or has slept for nothing.
    pub(crate) fn let_handlers_run(&self) {
        drop(self.busy.take());
    }

    /// Whether a call that has nothing to return goes on after the handlers that have waited, which run here.
    pub(super) fn begin_again(&self) -> bool {
        self.let_handlers_run();
        // Before the question: whoever comes later counts for what goes on.
        self.hold_handlers();
        let goes_on = !self.began.get().end_call(false);
        if goes_on {
            self.began.set(thread::interrupts());
        }
        goes_on
    }
}
