//! What the kernel's account says of its processors, and how far it can be believed.
//!
//! `/proc/stat` has columns of two kinds. How long a processor was idle is measured, from when it went to sleep to when it awoke. What it
//! did when it was awake is found out by ticks, a hundred in a second to a thousand: whoever is caught by one has the whole of it. Where
//! the work itself comes at equal distances (an open loop at 5 000 requests a second, on a kernel with 250 ticks), every tick falls on the
//! same place of it, and the account says that all of the time was work, or none of it. So what was busy is taken from idle time, and the
//! two are held against each other.
//!
//! What an interrupt takes, kernels count in two ways: as time of the program that it interrupted, or, with `IRQ_TIME_ACCOUNTING`, of no
//! program. Nothing in the account says which.

use std::fs::{self, File};
use std::io::{self, Read};
use std::sync::OnceLock;
use std::time::Instant;

use flate2::read::GzDecoder;

/// Ticks catch programs by chance, and in short trials that may be wrong by so much.
pub(crate) const ACCOUNT_S: f64 = 0.1;
/// If they have caught less than this share of what programs have used, or more than what was busy by this share of all, it was not chance.
const LEAST_CAUGHT: f64 = 0.5;
const MOST_MORE: f64 = 0.05;
/// What is told then.
pub(crate) const IN_STEP: &str = "the kernel's ticks kept in step with the work, and its account of softirq is wrong: choose another rate";

/// What some processors have done since the machine started, in seconds, all together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    at: Instant,
    processors: u32,
    idle_s: f64,
    caught_s: f64,
    softirq_s: f64,
    interrupts_s: f64,
    steal_s: f64,
}

/// What they have done between two readings, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    /// All that could be had.
    pub(crate) room_s: f64,
    /// Of anything but waiting, measured.
    pub(crate) busy_s: f64,
    /// The same as ticks have it.
    pub(crate) caught_s: f64,
    /// In software interrupts, a part of that.
    pub(crate) softirq_s: f64,
    /// In interrupts of both kinds, a part of that.
    pub(crate) interrupts_s: f64,
    /// Taken by the hypervisor.
    pub(crate) steal_s: f64,
}

impl Reading {
    /// Now, of these processors, or of all.
    pub(crate) fn now(processors: Option<&[usize]>) -> Reading {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        Reading::of_text(&text, processors, Instant::now())
    }

    /// Lines of /proc/stat (proc_stat(5)).
    fn of_text(text: &str, processors: Option<&[usize]>, at: Instant) -> Reading {
        let mut sum = Reading {
            at,
            processors: 0,
            idle_s: 0.0,
            caught_s: 0.0,
            softirq_s: 0.0,
            interrupts_s: 0.0,
            steal_s: 0.0,
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().and_then(|name| name.strip_prefix("cpu"));
            // The line of all together has no number.
            let Some(Ok(number)) = name.map(str::parse::<usize>) else {
                continue;
            };
            if processors.is_some_and(|wanted| !wanted.contains(&number)) {
                continue;
            }
            let ticks: Vec<f64> = words.flat_map(str::parse).collect();
            let seconds = |indices: &[usize]| {
                let column = |index: &usize| ticks.get(*index).copied().unwrap_or(0.0);
                indices.iter().map(column).sum::<f64>() / crate::sys::ticks_per_second() as f64
            };
            sum.processors += 1;
            sum.idle_s += seconds(&[3, 4]);
            sum.caught_s += seconds(&[0, 1, 2, 5, 6]);
            sum.softirq_s += seconds(&[6]);
            sum.interrupts_s += seconds(&[5, 6]);
            sum.steal_s += seconds(&[7]);
        }
        sum
    }

    /// What has been done since an earlier one of the same processors.
    pub(crate) fn since(&self, earlier: &Reading) -> Work {
        let elapsed_s = self.at.duration_since(earlier.at).as_secs_f64();
        let room_s = elapsed_s * f64::from(self.processors);
        let steal_s = self.steal_s - earlier.steal_s;
        Work {
            room_s,
            busy_s: (room_s - (self.idle_s - earlier.idle_s) - steal_s).clamp(0.0, room_s),
            caught_s: self.caught_s - earlier.caught_s,
            softirq_s: self.softirq_s - earlier.softirq_s,
            interrupts_s: self.interrupts_s - earlier.interrupts_s,
            steal_s,
        }
    }
}

impl Work {
    /// What remains of it for programs of others, where ours have used so much. `are_apart`: interrupts are time of no program.
    ///
    /// Idle time may lack a part of what woke a processor, and ticks may keep in step with the work. What both say is believed.
    pub(crate) fn of_others(&self, ours_s: f64, are_apart: bool) -> f64 {
        let interrupts_s = if are_apart { self.interrupts_s } else { 0.0 };
        (self.busy_s.min(self.caught_s) - interrupts_s - ours_s).max(0.0)
    }

    /// Whether ticks contradict what programs of ours have used, or what was not idle, by more than chance.
    pub(crate) fn is_in_step(&self, ours_s: f64) -> bool {
        self.caught_s + ACCOUNT_S < LEAST_CAUGHT * ours_s
            || self.caught_s > self.busy_s + MOST_MORE * self.room_s + ACCOUNT_S
    }
}

/// How this kernel counts interrupts. None: it does not tell.
pub(crate) fn are_interrupts_apart() -> Option<bool> {
    static APART: OnceLock<Option<bool>> = OnceLock::new();
    *APART.get_or_init(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let release = release.trim();
        let mut own = String::new();
        let own = File::open("/proc/config.gz")
            .and_then(|file| GzDecoder::new(file).read_to_string(&mut own).map(|_| own));
        let kept = |place: String| -> io::Result<String> { fs::read_to_string(place) };
        let text = own
            .or_else(|_| kept(format!("/boot/config-{release}")))
            .or_else(|_| kept(format!("/lib/modules/{release}/config")));
        text.ok().as_deref().map(are_apart_by)
    })
}

/// The same by its configuration.
fn are_apart_by(configuration: &str) -> bool {
    let mut lines = configuration.lines();
    lines.any(|line| line == "CONFIG_IRQ_TIME_ACCOUNTING=y")
}

/// For people who read the machine's facts.
pub(crate) fn how_interrupts_count() -> &'static str {
    match are_interrupts_apart() {
        Some(true) => "apart from programs (IRQ_TIME_ACCOUNTING)",
        Some(false) => "as time of the program that they interrupt",
        None => "not told: there is no configuration of this kernel here",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// In ticks of 10 ms: user, nice, system, idle, waiting for a disk, interrupts, software interrupts, steal.
    fn stat(first: [u64; 8], second: [u64; 8]) -> String {
        let line = |name: &str, ticks: [u64; 8]| {
            let words: Vec<String> = ticks.iter().map(u64::to_string).collect();
            format!("{name} {} 0 0\n", words.join(" "))
        };
        let sum: Vec<u64> = first
            .iter()
            .zip(second)
            .map(|(one, other)| one + other)
            .collect();
        let all = line("cpu ", sum.try_into().unwrap());
        format!(
            "{all}{}{}intr 5 0\n",
            line("cpu0", first),
            line("cpu1", second)
        )
    }

    fn work(before: [[u64; 8]; 2], after: [[u64; 8]; 2], processors: Option<&[usize]>) -> Work {
        assert_eq!(crate::sys::ticks_per_second(), 100);
        let at = Instant::now();
        let read = |[first, second]: [[u64; 8]; 2], at| {
            Reading::of_text(&stat(first, second), processors, at)
        };
        read(after, at + Duration::from_secs(2)).since(&read(before, at))
    }

    fn is_near(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() < 1e-9
    }

    #[test]
    fn busy_is_what_was_not_idle_however_many_ticks_found_it() {
        let before = [[10, 0, 10, 500, 5, 1, 2, 3], [0, 0, 0, 600, 0, 0, 0, 0]];
        // Of two seconds the first processor was idle for 0.8, waited for a disk for 0.2 and was robbed of 0.1.
        let after = [[20, 10, 20, 580, 25, 2, 7, 13], [0, 0, 0, 800, 0, 0, 0, 0]];
        let all = work(before, after, None);
        assert!(
            is_near(all.room_s, 4.0) && is_near(all.busy_s, 0.9),
            "{all:?}"
        );
        assert!(
            is_near(all.caught_s, 0.36) && is_near(all.softirq_s, 0.05),
            "{all:?}"
        );
        assert!(
            is_near(all.interrupts_s, 0.06) && is_near(all.steal_s, 0.1),
            "{all:?}"
        );
        let second = work(before, after, Some(&[1]));
        assert!(
            is_near(second.room_s, 2.0) && second.busy_s == 0.0,
            "{second:?}"
        );
        assert_eq!(work(before, after, Some(&[])), Work::default());
    }

    #[test]
    fn interrupts_are_none_of_others_whichever_way_they_are_counted() {
        // Our programs took 1.5 s, of which interrupts had 0.6.
        let whole = Work {
            room_s: 4.0,
            busy_s: 1.5,
            caught_s: 1.5,
            softirq_s: 0.5,
            interrupts_s: 0.6,
            steal_s: 0.0,
        };
        assert!(is_near(whole.of_others(1.5, false), 0.0));
        assert!(is_near(whole.of_others(0.9, true), 0.0));
        // And a stranger half a second.
        let with_stranger = Work {
            busy_s: 2.0,
            caught_s: 2.0,
            ..whole
        };
        assert!(is_near(with_stranger.of_others(1.5, false), 0.5));
        assert!(is_near(with_stranger.of_others(0.9, true), 0.5));
    }

    #[test]
    fn ticks_that_keep_in_step_are_noticed_and_make_no_strangers() {
        let of = |busy_s, caught_s| Work {
            room_s: 3.1,
            busy_s,
            caught_s,
            ..Work::default()
        };
        // As they were found at 5 000 requests a second, with 250 ticks.
        for (caught_s, ours_s) in [(0.15, 0.89), (0.08, 0.75), (0.43, 1.18), (3.10, 0.87)] {
            let work = of(ours_s + 0.2, caught_s);
            assert!(work.is_in_step(ours_s), "{work:?}");
            assert!(work.of_others(ours_s, false) < 0.21, "{work:?}");
        }
        // Where programs wake for every message, a third may be missed without that.
        for (caught_s, ours_s) in [(0.92, 1.31), (1.5, 1.5), (2.9, 2.8)] {
            assert!(!of(ours_s, caught_s).is_in_step(ours_s));
        }
        // Chance, in a short trial.
        assert!(!of(0.1, 0.0).is_in_step(0.1));
    }

    #[test]
    fn the_account_of_this_machine_can_be_read() {
        let before = Reading::now(None);
        std::thread::sleep(Duration::from_millis(50));
        let work = Reading::now(None).since(&before);
        assert!(
            work.room_s >= 0.05 && (0.0..=work.room_s).contains(&work.busy_s),
            "{work:?}"
        );
        assert!(before.processors > 0 && Reading::now(Some(&[])).processors == 0);
    }

    #[test]
    fn a_configuration_says_how_interrupts_are_counted() {
        assert!(are_apart_by("CONFIG_A=y\nCONFIG_IRQ_TIME_ACCOUNTING=y\n"));
        assert!(!are_apart_by("# CONFIG_IRQ_TIME_ACCOUNTING is not set\n"));
        assert!(!how_interrupts_count().is_empty());
    }
}
