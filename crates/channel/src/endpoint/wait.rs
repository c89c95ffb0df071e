//! Waiting: looks for a while, then says so and sleeps.

use std::time::{Duration, Instant};

use millrace_shm::spin::{self, Spinner};
use nix::sys::epoll::{EpollEvent, EpollTimeout};

use super::{Endpoint, NEWS_MAX, deadline_after};
use crate::outbox::Outbox;
use crate::pending::Pending;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Message,
    Room,
    Peers,
}

impl Endpoint {
    /// Waits until so many participants are linked with this one. False: not in time.
    pub(crate) fn wait_for_peers(&mut self, count: usize, timeout: Duration) -> bool {
        let deadline = deadline_after(timeout);
        let has_enough = |endpoint: &mut Endpoint| endpoint.peers().count() >= count;
        self.check().is_ok() && self.wait(For::Peers, deadline, has_enough)
    }

    /// Waits until there is a message. False: not in time.
    pub(crate) fn wait_for_message(&mut self, deadline: Option<Instant>) -> bool {
        self.wait(For::Message, deadline, |endpoint| {
            endpoint.inbox.has_some() || endpoint.has_lost()
        })
    }

    /// Whether there is a request that nobody will answer.
    pub(crate) fn has_lost(&self) -> bool {
        let pending = self
            .outbox
            .as_ref()
            .and_then(|outbox| outbox.pending.as_ref());
        pending.is_some_and(Pending::has_lost)
    }

    /// Waits until `done`, which is asked whenever something has been given back or somebody has come or gone. False: not in time.
    pub(crate) fn wait_for_room(
        &mut self,
        deadline: Option<Instant>,
        done: impl FnMut(&mut Endpoint) -> bool,
    ) -> bool {
        self.wait(For::Room, deadline, done)
    }

    /// `done` is not asked again after it has said so: what it was waiting for, it has.
    fn wait(
        &mut self,
        what: For,
        deadline: Option<Instant>,
        done: impl FnMut(&mut Endpoint) -> bool,
    ) -> bool {
        let is_done = self.wait_for(what, deadline, done);
        self.rearm();
        is_done
    }

    fn wait_for(
        &mut self,
        what: For,
        deadline: Option<Instant>,
        mut done: impl FnMut(&mut Endpoint) -> bool,
    ) -> bool {
        loop {
            if self.spin_until(&mut done) {
                return true;
            }
            if self.is_behind {
                self.look_now(Some(Duration::ZERO));
            }
            self.report_over();
            // What came before that is said is seen now; what comes later rings.
            let mut is_done = false;
            if self.sleep(what) {
                is_done = done(self) || self.sleep_until(what, deadline, &mut done);
            } else {
                self.look_now(Some(Duration::ZERO));
                self.collect_all();
            }
            self.wake();
            if is_done || done(self) {
                return true;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
        }
    }

    /// Waits for news, and asks once more.
    fn sleep_until(
        &mut self,
        what: For,
        deadline: Option<Instant>,
        done: &mut impl FnMut(&mut Endpoint) -> bool,
    ) -> bool {
        let began = spin::clock();
        let now = Instant::now();
        let slow = if what == For::Room || self.has_orphans() {
            self.part_with_slow()
        } else {
            None
        };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let timeout = [left, slow, self.retry_in(now)].into_iter().flatten().min();
        let mut news = [EpollEvent::empty(); NEWS_MAX];
        let count = self.await_news(&mut news, timeout);
        let is_done = done(self);
        if is_done {
            self.spinner.slept(began);
        }
        if what == For::Message && is_done {
            self.is_behind = true;
        } else {
            self.take_news(&news[..count]);
        }
        is_done
    }

    /// Says that this end sleeps, for somebody who waits himself this once. False: there is something already.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        self.look_now(Some(Duration::ZERO));
        self.rearm_backlog();
        self.check().is_err() || self.inbox.sleep()
    }

    fn spin_until(&mut self, done: &mut impl FnMut(&mut Endpoint) -> bool) -> bool {
        if done(self) {
            return true;
        }
        let spinner = std::mem::replace(&mut self.spinner, Spinner::new());
        let mut is_done = false;
        if let Some(mut spin) = spinner.begin_for_bytes(u64::MAX, self.links.len()) {
            while spin.go_on() {
                if done(self) {
                    spin.hit();
                    is_done = true;
                    break;
                }
            }
        }
        self.spinner = spinner;
        is_done
    }

    fn sleep(&mut self, what: For) -> bool {
        match (what, &mut self.outbox) {
            (For::Peers, _) => self.backlog_sleeps(),
            (For::Message, _) => self.inbox.sleep() && self.backlog_sleeps(),
            (For::Room, Some(outbox)) => {
                outbox.publish();
                outbox.sleep()
            }
            (For::Room, None) => {
                let mut links = self.links.iter_mut().flatten();
                links.all(|held| held.replies.as_mut().is_none_or(Outbox::sleep))
            }
        }
    }

    fn wake(&self) {
        self.inbox.wake();
        let replies = self
            .links
            .iter()
            .flatten()
            .filter_map(|held| held.replies.as_ref());
        self.outbox.iter().chain(replies).for_each(Outbox::wake);
    }
}

/// Rounded up, so that nobody wakes before its time.
pub(super) fn epoll_timeout(timeout: Option<Duration>) -> EpollTimeout {
    let Some(timeout) = timeout else {
        return EpollTimeout::NONE;
    };
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    EpollTimeout::try_from(u32::try_from(millis).unwrap_or(u32::MAX)).unwrap_or(EpollTimeout::MAX)
}
