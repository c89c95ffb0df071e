//! A timer in the epoll set of a participant, made when one is needed.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// A time that is less than this before the one that is set is the same.
const SLACK: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    timer: Option<TimerFd>,
    /// When it goes off.
    at: Option<Instant>,
}

impl Alarm {
    /// Goes off once after this time, which is not zero, or earlier if it is set already; `None`: not at all.
    pub(super) fn set(&mut self, after: Option<Duration>, epoll: &Epoll) -> nix::Result<()> {
        let at = after.map(|after| Instant::now() + after);
        let is_set = match (at, self.at) {
            (Some(at), Some(before)) => before < at + SLACK,
            (at, before) => at == before,
        };
        if is_set {
            return Ok(());
        }
        if self.timer.is_none() {
            let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
            let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
            epoll.add(
                timer.as_fd(),
                EpollEvent::new(EpollFlags::EPOLLIN, super::RETRY),
            )?;
            self.timer = Some(timer);
        }
        if let Some(timer) = &self.timer {
            match after {
                Some(after) => timer.set(
                    Expiration::OneShot(TimeSpec::from_duration(after)),
                    TimerSetTimeFlags::empty(),
                )?,
                None => timer.unset()?,
            }
        }
        self.at = at;
        Ok(())
    }

    /// It has gone off.
    pub(super) fn quiet(&mut self) {
        if let Some(timer) = &self.timer {
            // Not blocking: where somebody has read it before, there is nothing to wait for.
            let _ = timer.wait();
        }
        self.at = None;
    }
}
