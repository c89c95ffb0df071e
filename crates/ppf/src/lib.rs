//! The packet processing function of a 5G user plane: GTP-U between two sides, without I/O. Bytes and time go in, and what is to be sent
//! comes out.
//!
//! In reading order: `bearer` (what there is), `table` (where it is kept), `function` (what becomes of a message), `cause` (why one is
//! dropped); what it uses: `paths` (do peers live), `meter` (how much may pass), `hold` (what waits), `mark` and `inner` (users' packets),
//! `delivery` (what became of packets on the radio), `event` (what others should know). Beside it, for who has the ports: `fragment` and
//! `reassembly` (outer packets in parts).

#![forbid(unsafe_code)]

mod bearer;
mod blocks;
mod cause;
mod delivery;
mod event;
mod fragment;
mod function;
mod hold;
mod inner;
mod mark;
mod meter;
mod paths;
#[cfg(test)]
mod random;
mod reassembly;
mod table;

pub use bearer::{BEARERS_MAX, Bearer, BearerId, Flows, MeterId, Peer, Side, Thresholds, Usage};
pub use cause::{Cause, Drops};
pub use delivery::{Came, Delivery, State, Told};
pub use event::{Due, Event, Report, Sending};
pub use fragment::{Fragment, Piece, emit_v4_fragment_place, emit_v6_fragment_header, pieces};
pub use function::{Function, HEADER_BYTES_MAX, Outer, Reply, Settings, Verdict};
pub use hold::HoldLimits;
pub use mark::Marking;
pub use meter::Limit;
pub use paths::{PathId, PathState, Supervision};
pub use reassembly::{Outcome, Reassembler, ReassemblyLimits};
pub use table::{Changing, Table};
