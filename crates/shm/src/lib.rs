//! Memory that two processes share, and what may be done with it.
//!
//! This crate is where pointers into shared memory live. It knows nothing of sockets. In reading order:
//!
//! - [`gate`]: the one word per direction that decides whether bytes go through the ring;
//! - [`segment`]: the memory that the two ends of a connection share, and the rings in it;
//! - [`board`]: the memory that the processes of *one* end share with the agent: end records and mail;
//! - [`link`]: the memory that a publisher and a subscriber of a channel share, and its rings; [`pool`]: the memory of messages;
//! - [`lock`]: a lock in shared memory that outlives its owner's death;
//! - [`withheld`]: what a forked child does not get of it;
//! - [`spin`]: how long to look at such memory before sleeping;
//! - [`sys`]: system calls that touch neither `errno` nor the program's hooks.
//!
//! Nothing in a segment is believed: values are copied out, checked, and only then used
//! (`docs/shm-abi.md` draws every byte).

pub mod board;
pub mod gate;
pub mod link;
pub mod lock;
#[cfg(not(loom))]
pub mod pool;
pub mod segment;
#[cfg(not(loom))]
pub mod spin;
pub mod sys;
#[cfg(not(loom))]
pub mod withheld;

mod atomic;
mod mapping;

#[cfg(loom)]
pub use atomic::model;
pub use mapping::Mapping;
