//! The loops around a run: epoll for many connections, and for one a receive that blocks, or is repeated.

use std::time::Duration;

use anyhow::Result;

use super::Waiting;
use super::protocol::Protocol;
use super::run::Run;
use super::schedule::Schedule;
use super::sys::Wait;

/// A receive that blocks looks at the time so often.
pub(super) const RECEIVE_TIMEOUT: Duration = Duration::from_millis(250);
/// So does the loop around epoll.
const LOOK_NS: u64 = 100_000_000;
/// Before a request is due, the generator does not sleep but looks: waking takes about this long, and the rest of it.
const WAKE_NS: u64 = 100_000;

impl<P: Protocol> Run<'_, P> {
    /// Runs until the time is over.
    pub(super) fn drive(&mut self) -> Result<()> {
        if self.poller.is_some() {
            self.drive_many()
        } else {
            self.drive_one()
        }
    }

    fn drive_many(&mut self) -> Result<()> {
        let mut ready = Vec::with_capacity(self.connections.len());
        for index in 0..self.connections.len() {
            self.fill(index)?;
        }
        let (mut cursor, mut worked, mut idle_ns) = (0, true, 0);
        loop {
            let mut now_ns = self.clock.now();
            if self.pass(now_ns)? {
                return Ok(());
            }
            if worked {
                idle_ns = now_ns;
                worked = false;
            }
            if self.send_due(&mut cursor, now_ns)? {
                self.meter.idled(idle_ns, now_ns);
                now_ns = self.clock.now();
                idle_ns = now_ns;
            }
            let wait = self.patience(cursor, now_ns);
            if let Some(poller) = &mut self.poller {
                poller.wait(wait, &mut ready)?;
            }
            if ready.is_empty() {
                self.check_stalled(now_ns)?;
                continue;
            }
            worked = true;
            let now_ns = self.clock.now();
            self.meter.waited(idle_ns, now_ns, ready.len());
            for &index in &ready {
                self.handle(index)?;
            }
        }
    }

    /// In an open loop, looks at each request that has become due since the last time, `cursor` being the next: where its connection is
    /// free it is sent; elsewhere it is when an answer makes room.
    #[inline]
    fn send_due(&mut self, cursor: &mut u64, now_ns: u64) -> Result<bool> {
        if self.schedule == Schedule::Closed {
            return Ok(false);
        }
        let mut any = false;
        loop {
            let due_ns = self.schedule.due_ns(*cursor);
            if due_ns > now_ns || due_ns >= self.end_ns {
                return Ok(any);
            }
            let index = (*cursor % self.connections.len() as u64) as usize;
            let connection = &self.connections[index];
            if connection.next == *cursor && connection.takes_requests(self.target.options.pipeline)
            {
                if self.recorder.counts(due_ns) {
                    self.late_max_ns = self.late_max_ns.max(now_ns - due_ns);
                }
                self.fill(index)?;
                any = true;
            }
            *cursor += 1;
        }
    }

    /// How long may be waited for answers.
    #[inline]
    fn patience(&self, cursor: u64, now_ns: u64) -> Wait {
        let mark_ns = if self.meter.has_begun() {
            self.end_ns
        } else {
            self.begin_ns
        };
        let gap_ns = match mark_ns.checked_sub(now_ns) {
            Some(gap_ns) => gap_ns.min(LOOK_NS),
            None => LOOK_NS,
        };
        if self.schedule == Schedule::Closed || self.meter.has_ended() {
            return Wait::Coarse(Duration::from_nanos(gap_ns));
        }
        let due_ns = self.schedule.due_ns(cursor).saturating_sub(now_ns);
        match due_ns.min(gap_ns) {
            0..WAKE_NS => Wait::Poll,
            gap_ns => Wait::Exact(Duration::from_nanos(gap_ns - WAKE_NS / 2)),
        }
    }

    fn drive_one(&mut self) -> Result<()> {
        let spins = self.target.options.waiting == Waiting::Spin;
        let (mut worked, mut idle_ns) = (true, 0);
        loop {
            let now_ns = self.clock.now();
            if self.pass(now_ns)? {
                return Ok(());
            }
            if worked {
                idle_ns = now_ns;
                worked = false;
            }
            if self.wait_until_due(now_ns) {
                continue;
            }
            self.flush(0)?;
            let sent = self.sent;
            self.note_late(now_ns, spins);
            self.fill(0)?;
            if self.sent > sent {
                self.meter.idled(idle_ns, now_ns);
                idle_ns = self.clock.now();
            }
            if self.receive(0)? {
                self.meter.waited(idle_ns, self.received_ns, 1);
                worked = true;
            } else {
                self.check_stalled(now_ns)?;
                if spins {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// In an open loop, how long the request that is sent next was due. What became due while its connection was not free is sent when an
    /// answer makes room, and so is what did in a receive that blocks.
    #[inline]
    fn note_late(&mut self, now_ns: u64, spins: bool) {
        if self.schedule == Schedule::Closed || (self.in_flight > 0 && !spins) {
            return;
        }
        let connection = &self.connections[0];
        let due_ns = self.schedule.due_ns(connection.next);
        let is_sent = due_ns <= now_ns && due_ns < self.end_ns;
        if is_sent
            && connection.takes_requests(self.target.options.pipeline)
            && self.recorder.counts(due_ns)
        {
            self.late_max_ns = self.late_max_ns.max(now_ns - due_ns);
        }
    }

    /// In an open loop, when no answer is awaited: sleeps or looks away until the next request is due. `false` when it is.
    fn wait_until_due(&self, now_ns: u64) -> bool {
        if self.in_flight > 0 || self.schedule == Schedule::Closed {
            return false;
        }
        let due_ns = self.schedule.due_ns(self.connections[0].next);
        let gap_ns = due_ns.min(self.end_ns).saturating_sub(now_ns).min(LOOK_NS);
        if gap_ns > WAKE_NS {
            std::thread::sleep(Duration::from_nanos(gap_ns - WAKE_NS / 2));
        }
        gap_ns > 0
    }
}
