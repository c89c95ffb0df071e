//! Playing one plan: a controller that touches no socket orders one process after the other to make a call,
//! waits until it has come to rest, and writes down what came of it.

mod actor;
mod controller;
mod watch;
mod wire;

/// What a trace says of a sequence that does not go on.
pub(crate) const HANG: &str = "HANG";

pub(crate) use actor::run_actor;
pub(crate) use controller::play;
