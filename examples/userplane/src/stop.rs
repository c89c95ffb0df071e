//! Signals that ask a stage to stop, as a descriptor.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Whether to stop: SIGTERM or SIGINT has come.
#[derive(Debug)]
pub(crate) struct Stop(SignalFd);

impl Stop {
    /// From now on these signals end nothing by themselves. They are kept until they are asked for, also in the first process of a
    /// container, which otherwise gets none.
    pub(crate) fn new() -> anyhow::Result<Stop> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        signals.thread_block().context("to hold back signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&signals, flags).context("a descriptor for signals")?;
        Ok(Stop(fd))
    }

    /// Whether one has come since this was asked last.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.0.read_signal(), Ok(Some(_)))
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
