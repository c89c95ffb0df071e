//! Making a plan's calls, and telling in words what came of them. The words hold nothing that may differ
//! between two runs on one road: no ports, no times, no counts that depend on how the kernel cut a stream.

mod connecting;
mod content;
mod descriptors;
mod options;
mod receiving;
mod sending;
mod streaming;
mod waiting;

use crate::board::{Board, Identity};
use crate::plan::{Call, Slot};
use crate::sys::{self, Answer, Fd};
use std::sync::Arc;
use std::time::Duration;

/// A slot that stands for a descriptor number that is never open.
pub(crate) const NEVER_OPEN: Slot = 255;
const NEVER_OPEN_FD: Fd = 995;

/// Descriptors of the tester itself lie at or above this number, out of the sequence's way.
pub(crate) const OWN_DESCRIPTORS: Fd = 600;
/// `DuplicateBy::FcntlHigh` asks for numbers from here on: beyond what an `fd_set` holds.
const HIGH_DESCRIPTORS: Fd = 1100;

/// Where calls are made: a process of the sequence.
#[derive(Clone)]
pub(crate) struct Context {
    /// The shared board.
    pub(crate) board: &'static Board,
    /// This process.
    pub(crate) process: u8,
    /// By process: the ends of a Unix socket pair, to send to it and to receive from.
    pub(crate) mail: Arc<Vec<(Fd, Fd)>>,
    /// The plan's IPv4 loopback address.
    pub(crate) address: [u8; 3],
    /// Nothing waits longer than this for something that should have come.
    pub(crate) patience: Duration,
}

impl Context {
    /// The descriptor that `slot` is here; -1 where it is closed.
    fn fd(&self, slot: Slot) -> Fd {
        if slot == NEVER_OPEN {
            NEVER_OPEN_FD
        } else {
            self.board.descriptor(self.process, slot)
        }
    }

    /// The end of a connection that `slot` is.
    fn end(&self, slot: Slot) -> Option<Identity> {
        if slot == NEVER_OPEN {
            None
        } else {
            self.board.identity(self.process, slot)
        }
    }

    /// Notes that `slot` is the descriptor that a call returned.
    fn opened(&self, slot: Slot, result: Answer, end: Option<Identity>) -> String {
        match result {
            Ok(fd) => {
                let fd = Fd::try_from(fd).unwrap_or(-1);
                self.board.set_descriptor(self.process, slot, fd);
                self.board.identify(self.process, slot, end);
                format!("fd {fd}")
            }
            Err(errno) => errno.to_string(),
        }
    }

    /// Makes one call.
    pub(crate) fn perform(&self, call: &Call) -> String {
        match call {
            Call::Receive { .. }
            | Call::ReceiveAll { .. }
            | Call::ReceiveUrgent { .. }
            | Call::AtMark { .. }
            | Call::Readable { .. } => self.perform_receiving(call),
            Call::Send { .. }
            | Call::SendAll { .. }
            | Call::Fill { .. }
            | Call::SendUrgent { .. } => self.perform_sending(call),
            Call::Poll { .. }
            | Call::EpollCreate { .. }
            | Call::EpollAdd { .. }
            | Call::EpollModify { .. }
            | Call::EpollDelete { .. }
            | Call::EpollWait { .. }
            | Call::EpollTour { .. }
            | Call::Await { .. } => self.perform_waiting(call),
            Call::SetOption { .. } | Call::GetOption { .. } | Call::Odd { .. } => {
                self.perform_options(call)
            }
            Call::Listen { .. }
            | Call::Socket { .. }
            | Call::Connect { .. }
            | Call::FastOpen { .. }
            | Call::Accept { .. }
            | Call::Refused { .. }
            | Call::Disconnect { .. }
            | Call::Name { .. } => self.perform_connecting(call),
            Call::Stream(stream) => self.perform_stream(stream),
            Call::Spawn { by } => sys::spawn_true(*by).unwrap_or_else(|errno| errno.to_string()),
            Call::Reap { child } => self.reap(*child),
            Call::Pause { ms } => {
                pause(Duration::from_millis(u64::from(*ms)));
                "0".into()
            }
            _ => self.perform_on_descriptor(call),
        }
    }

    /// Calls `ready` until it tells something or patience ends, giving way in between.
    fn wait_until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        let start = std::time::Instant::now();
        let mut round = 0_u32;
        loop {
            if let Some(found) = ready() {
                return Some(found);
            }
            if start.elapsed() > self.patience {
                return None;
            }
            round += 1;
            pause(Duration::from_micros(match round {
                0..4 => 0,
                4..20 => 50,
                _ => 1000,
            }));
        }
    }

    fn reap(&self, child: u8) -> String {
        let pid = self.board.pids[usize::from(child)].load(std::sync::atomic::Ordering::SeqCst);
        if pid == 0 {
            return "no such process".into();
        }
        sys::reap(pid).unwrap_or_else(|errno| errno.to_string())
    }
}

/// A result as a trace shows it: the number, or the name of the error.
fn show(result: Answer) -> String {
    match result {
        Ok(number) => number.to_string(),
        Err(errno) => errno.to_string(),
    }
}

/// Sleeps, without entering the C library.
pub(crate) fn pause(time: Duration) {
    let request = rustix::time::Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // A sleep cut short by a signal is long enough here.
    let _ = rustix::thread::nanosleep(&request);
}
