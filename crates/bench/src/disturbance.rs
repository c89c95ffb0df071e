//! What takes processors from a trial: the hypervisor, and programs that are none of the run's.
//!
//! A thread that is preempted is looked for by who ran in its place. The processors of server and client were busy for so long by the
//! kernel's account, and everything that the run started has used so much: the rest others had. So it does not matter whether a
//! scenario's own programs share a processor, as server and client where there is one, or wait behind hogs that the scenario has: what
//! they take from each other is what is measured. Threads that were preempted often say less: those of one program preempt each other,
//! and a program that sleeps between messages waits for a processor without having been preempted.

use std::time::{Duration, Instant};

use crate::account::{ACCOUNT_S, IN_STEP, Reading, Work, are_interrupts_apart};
use crate::line;
use crate::process;
use crate::processors::{Processors, wider};

/// A trial is void if the hypervisor took more than this share of the processors.
const STEAL_MAX: f64 = 0.05;
/// Or if others had more than this share of the processors of server and client, and more than the account may be wrong by.
const OTHERS_MAX: f64 = 0.05;

/// A trial under way.
pub(crate) struct Watch {
    processors: Vec<usize>,
    begun: Instant,
    all: Reading,
    there: Reading,
    ours: Duration,
    line_ns: Option<f64>,
    megahertz: Option<[f64; 2]>,
    slowed: u64,
}

/// What has been seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) elapsed_s: f64,
    /// Of all processors.
    pub(crate) work: Work,
    /// Ticks kept in step with the work.
    in_step: bool,
    /// What others had of the processors of server and client; nothing where these are not pinned.
    pub(crate) others_s: f64,
    /// Of the processors of server and client, all that could be had.
    room_s: f64,
    /// See [`crate::results::Processor`], as of the rest.
    pub(crate) line_ns: Option<f64>,
    pub(crate) megahertz: Option<[f64; 2]>,
    pub(crate) slowed_for_heat: u64,
}

impl Watch {
    /// Begins, on the processors of server and client, if they are pinned.
    pub(crate) fn begin(processors: Option<[usize; 2]>) -> Watch {
        let line_ns = processors.and_then(line::round_trip_ns);
        let mut processors = processors.map_or(Vec::new(), Vec::from);
        processors.dedup();
        Watch {
            ours: process::used_by_us().total(),
            there: Reading::now(Some(&processors)),
            all: Reading::now(None),
            begun: Instant::now(),
            line_ns,
            megahertz: None,
            slowed: Processors::here().slowed(&processors),
            processors,
        }
    }

    /// Looks how fast the processors are, while they have work.
    pub(crate) fn look(&mut self) {
        let now = Processors::here().speeds(&self.processors);
        self.megahertz = now.into_iter().chain(self.megahertz).reduce(wider);
    }

    /// What has been since it began. Ours is read last, and was read first, so that others never have it.
    pub(crate) fn end(self) -> Seen {
        let elapsed_s = self.begun.elapsed().as_secs_f64();
        let work = Reading::now(None).since(&self.all);
        let there = Reading::now(Some(&self.processors)).since(&self.there);
        let ours = process::used_by_us().total().saturating_sub(self.ours);
        let ours_s = ours.as_secs_f64();
        // A kernel that does not say how it counts interrupts may count them apart: better a stranger unseen than none of its trials.
        let are_apart = are_interrupts_apart().unwrap_or(true);
        let judged = if self.processors.is_empty() {
            work
        } else {
            there
        };
        Seen {
            elapsed_s,
            work,
            in_step: judged.is_in_step(ours_s),
            others_s: there.of_others(ours_s, are_apart),
            room_s: elapsed_s * self.processors.len() as f64,
            line_ns: self.line_ns,
            megahertz: self.megahertz,
            slowed_for_heat: Processors::here()
                .slowed(&self.processors)
                .saturating_sub(self.slowed),
        }
    }
}

impl Seen {
    /// What a reader has to know of the account.
    pub(crate) fn note(&self) -> Option<&'static str> {
        self.in_step.then_some(IN_STEP)
    }

    /// Why the trial is void, if it is.
    pub(crate) fn disturbance(&self) -> Option<String> {
        let steal =
            self.work.steal_s / (self.work.steal_s + self.work.busy_s).max(f64::MIN_POSITIVE);
        if steal > STEAL_MAX {
            return Some(format!(
                "the hypervisor took {:.0} % of the processors' time",
                steal * 100.0
            ));
        }
        (self.others_s > OTHERS_MAX * self.room_s + ACCOUNT_S).then(|| {
            format!(
                "other programs had {:.0} % of the processors of server and client",
                100.0 * self.others_s / self.room_s.max(f64::MIN_POSITIVE)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(steal_s: f64, others_s: f64, elapsed_s: f64) -> Seen {
        Seen {
            elapsed_s,
            work: Work {
                steal_s,
                busy_s: 2.0 * elapsed_s,
                ..Work::default()
            },
            in_step: false,
            others_s,
            room_s: 2.0 * elapsed_s,
            line_ns: None,
            megahertz: None,
            slowed_for_heat: 0,
        }
    }

    #[test]
    fn a_trial_is_void_above_the_bounds_and_what_the_account_can_be_wrong_by() {
        assert_eq!(seen(0.1, 0.3, 3.0).disturbance(), None);
        let told = seen(0.1, 0.5, 3.0).disturbance().unwrap();
        assert_eq!(
            told,
            "other programs had 8 % of the processors of server and client"
        );
        assert_eq!(seen(0.0, 0.12, 0.3).disturbance(), None);
        let told = seen(0.5, 0.0, 3.0).disturbance().unwrap();
        assert_eq!(told, "the hypervisor took 8 % of the processors' time");
    }

    #[test]
    fn our_own_work_is_not_that_of_others() {
        let all = crate::machine::allowed_processors();
        let watch = Watch::begin(Some([all[0]; 2]));
        assert_eq!(watch.processors, [all[0]]);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let ours = process::used_by_us().total().saturating_sub(watch.ours);
        assert!(ours > Duration::ZERO);
        let seen = watch.end();
        assert!(seen.others_s <= seen.room_s + ACCOUNT_S, "{seen:?}");
        let free = Watch::begin(None).end();
        assert_eq!((free.others_s, free.disturbance()), (0.0, None));
    }
}
