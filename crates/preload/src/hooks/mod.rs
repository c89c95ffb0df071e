//! The functions that the program calls instead of the C library's: shells around the operations, one file per family.
//!
//! A shell finds the descriptor in the table, calls the operation, and turns its outcome into a return value and `errno`.

mod aio;
mod aliases;
mod by_number;
mod descriptors;
#[cfg(target_arch = "x86_64")]
mod lookup;
mod programs;
mod receive;
mod send;
mod signals;
mod sockets;
mod streams;
mod uring;
mod variadic;
mod wait;

pub(crate) use streams::begin_child;

use crate::Outcome;
use crate::thread;

/// Looks up what the hooks with instructions of their own go on to, so that none does it inside a signal handler, or a forked child.
pub(crate) fn look_up_all() {
    variadic::look_up_all();
    #[cfg(target_arch = "x86_64")]
    lookup::look_up_all();
}

/// What a C function returns for an outcome; `pass` makes the program's own call.
#[inline]
fn finish(outcome: Outcome, pass: impl FnOnce() -> isize) -> isize {
    match outcome {
        Outcome::Handled(result) => result,
        Outcome::Errno(error) => {
            thread::set_errno(error);
            -1
        }
        Outcome::PassThrough => pass(),
    }
}
