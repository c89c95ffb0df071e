//! Latencies of moments in which nobody else had the processors.
//!
//! Where another program has one for a millisecond, many times a second, hardly any run is undisturbed, and its upper percentiles tell how
//! busy the machine was, of every device alike. So packets are sent in slices that are shorter than the time between two such programs, and
//! a slice is looked at as a run is: what was disturbed is void, and made again.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use hdrhistogram::Histogram;

use super::device::Taken;
use super::drive::{Generator, Run};
use crate::load::{Clock, histogram};

/// How long a slice is, of which latencies are kept.
const SLICE_NS: u64 = 10_000_000;
/// Before it packets are sent for so long: between slices a device has nothing to do, and may sleep.
const WARM_NS: u64 = 1_000_000;
/// So many times as many slices are made at most as are wanted.
const ATTEMPTS: u64 = 5;

/// What the slices of one kind have brought.
struct Kept {
    latency: Histogram<u64>,
    late_max_ns: u64,
    taken: Taken,
}

impl Kept {
    fn new() -> Result<Kept> {
        Ok(Kept {
            latency: histogram()?,
            late_max_ns: 0,
            taken: Taken::default(),
        })
    }

    /// A slice more. The run has nothing of it any longer.
    fn add(&mut self, run: &mut Run, taken: Taken) -> Result<()> {
        if let Some(latency) = &mut run.sink.latency {
            self.latency.add(&*latency)?;
            latency.reset();
        }
        self.late_max_ns = self.late_max_ns.max(run.late_max_ns);
        run.late_max_ns = 0;
        self.taken.own += taken.own;
        self.taken.device += taken.device;
        self.taken.stolen = self.taken.stolen.max(taken.stolen);
        Ok(())
    }
}

impl Generator {
    /// Sends in slices until those that count have `wanted_ns` together, by the run's clock, which stands still between them. Returns when
    /// it sent last, and what others took of the slices whose latencies the run has now: of those that were disturbed where no other was.
    pub(super) fn in_slices(
        &mut self,
        run: &mut Run,
        wanted_ns: u64,
        stop: &AtomicBool,
    ) -> Result<(u64, Taken)> {
        let (mut clean, mut void) = (Kept::new()?, Kept::new()?);
        let mut ended_ns = 0;
        let is_any_clean = repeat(wanted_ns.div_ceil(SLICE_NS), || {
            let watch = self.watched();
            run.clock = Clock::at(ended_ns);
            run.sink.timed_from_ns = ended_ns + WARM_NS;
            ended_ns = self.stretch(run, ended_ns + WARM_NS + SLICE_NS, stop)?;
            let taken = watch.taken();
            let kind = if taken.is_disturbance() {
                &mut void
            } else {
                &mut clean
            };
            kind.add(run, taken)?;
            let goes_on = !stop.load(Ordering::Relaxed);
            Ok(goes_on.then_some(!taken.is_disturbance()))
        })?;
        let kept = if is_any_clean { clean } else { void };
        run.sink.latency = Some(kept.latency);
        run.late_max_ns = kept.late_max_ns;
        Ok((ended_ns, kept.taken))
    }
}

/// Has slices made until `wanted` were clean, or too many were not; `one` says whether its own was, and nothing when it is to end.
/// Returns whether any was.
fn repeat(wanted: u64, mut one: impl FnMut() -> Result<Option<bool>>) -> Result<bool> {
    let mut clean = 0;
    for _ in 0..wanted * ATTEMPTS {
        match one()? {
            Some(is_clean) => clean += u64::from(is_clean),
            None => break,
        }
        if clean == wanted {
            break;
        }
    }
    Ok(clean > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many slices are made where one of `every` is clean, and whether any is.
    fn made(wanted: u64, every: u64) -> (u64, bool) {
        let mut number = 0;
        let is_any = repeat(wanted, || {
            number += 1;
            Ok(Some(number % every == 0))
        });
        (number, is_any.unwrap())
    }

    #[test]
    fn slices_are_made_again_until_enough_were_clean_or_too_many_were_not() {
        assert_eq!(made(10, 1), (10, true));
        assert_eq!(made(10, 3), (30, true));
        assert_eq!(made(10, 8), (50, true));
        assert_eq!(made(10, 100), (50, false));
        let mut number = 0;
        let is_any = repeat(10, || {
            number += 1;
            Ok((number < 3).then_some(true))
        });
        assert!(is_any.unwrap() && number == 3, "it ends when it is to");
    }
}
