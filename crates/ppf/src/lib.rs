//! The packet processing function of a 5G user plane: GTP-U between two sides, without I/O. Bytes and time go in, and what is to be sent
//! comes out.
//!
//! In reading order: `bearer` (what there is), `function` (what becomes of a message), `cause` (why one is dropped).

#![forbid(unsafe_code)]

mod bearer;
mod cause;
mod function;

pub use bearer::{BEARERS_MAX, Bearer, BearerId, Peer, Side, Table, Usage};
pub use cause::{Cause, Drops};
pub use function::{Function, HEADER_BYTES_MAX, Outer, Reply, Verdict};
