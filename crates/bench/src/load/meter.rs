//! What the generator itself did during the measured time.

use std::io;

use super::sys;

/// Between the beginning and the end of what is measured.
#[derive(Debug, Default)]
pub(super) struct Meter {
    before: Option<(f64, f64)>,
    /// Seconds of processor time in programs and in the kernel, once it has ended.
    pub(super) used: Option<(f64, f64)>,
    began_ns: u64,
    ended_ns: u64,
    /// What a look for events costs that finds none: that much of each wait is work.
    look_ns: u64,
    waited_ns: u64,
    pub(super) wakes: u64,
    pub(super) ready: u64,
}

impl Meter {
    pub(super) fn new(look_ns: u64) -> Meter {
        Meter {
            look_ns,
            ..Meter::default()
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.before.is_some()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.used.is_some()
    }

    pub(super) fn begin(&mut self, now_ns: u64) -> io::Result<()> {
        self.before = Some(sys::processor_time()?);
        self.began_ns = now_ns;
        (self.waited_ns, self.wakes, self.ready) = (0, 0, 0);
        Ok(())
    }

    pub(super) fn end(&mut self, now_ns: u64) -> io::Result<()> {
        let (user, system) = sys::processor_time()?;
        let (user_before, system_before) = self.before.unwrap_or((user, system));
        self.used = Some((user - user_before, system - system_before));
        self.ended_ns = now_ns;
        Ok(())
    }

    /// A wait that ended with so many connections to look at.
    #[inline]
    pub(super) fn waited(&mut self, from_ns: u64, to_ns: u64, ready: usize) {
        self.idled(from_ns, to_ns);
        if !self.has_ended() {
            self.wakes += 1;
            self.ready += ready as u64;
        }
    }

    /// A wait that ended because there was something to send.
    #[inline]
    pub(super) fn idled(&mut self, from_ns: u64, to_ns: u64) {
        if !self.has_ended() {
            let from_ns = from_ns.max(self.began_ns);
            self.waited_ns += to_ns.saturating_sub(from_ns + self.look_ns);
        }
    }

    /// The share of the time in which it did not wait.
    pub(super) fn busy(&self) -> f64 {
        let time_ns = self.ended_ns.saturating_sub(self.began_ns).max(1);
        1.0 - (self.waited_ns as f64 / time_ns as f64).min(1.0)
    }
}
