//! What one end of a connection does next, in each direction. No system call is made here and no byte copied.
//!
//! - [`SendHalf`]: ring or kernel for the next bytes that the program sends;
//! - [`ReceiveHalf`]: ring or kernel for the next bytes that it reads, and when the ring is opened and closed.
//!
//! Both are short-lived views: the state lives in the end record (`millrace_shm::board::Row`), the shared words in
//! the segment. Callers hold the half's lock.
#![forbid(unsafe_code)]

mod chaos;
mod receive;
mod send;

pub use chaos::Chaos;
pub use receive::{ReceiveHalf, ReceivePlan};
pub use send::{SendHalf, SendPlan};

/// Bytes that pass at once. Long messages pass in parts, so that the reader takes one while the next is written.
#[must_use]
#[inline]
pub fn step_of(window: u32) -> u32 {
    (window / 4).max(STEP_MIN)
}

/// Shorter messages are not worth a second publication.
const STEP_MIN: u32 = 16_384;

/// The peer broke a rule of the shared words: its connection must end, and nothing else may suffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

#[cfg(test)]
mod tests;
