//! A timer in the epoll set of a participant, made when one is needed.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    timer: Option<TimerFd>,
    is_set: bool,
}

impl Alarm {
    /// Goes off once after this time, which is not zero, if it is not set already; `None`: not at all.
    pub(super) fn set(&mut self, after: Option<Duration>, epoll: &Epoll) -> nix::Result<()> {
        if after.is_some() == self.is_set {
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
        self.is_set = after.is_some();
        Ok(())
    }

    /// It has gone off.
    pub(super) fn quiet(&mut self) {
        if let Some(timer) = &self.timer {
            // Not blocking: where somebody has read it before, there is nothing to wait for.
            let _ = timer.wait();
        }
        self.is_set = false;
    }
}
