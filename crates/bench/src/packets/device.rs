//! What happens to the generator and the device under test while they work: whether somebody else had their processors.

use std::fs;

use crate::account::Reading;
use crate::load::{Clock, preempted};

/// Where the hypervisor took more than this share of the time, that is a disturbance.
const STEAL_MAX: f64 = 0.05;

/// The counts of a moment.
pub(super) struct Watch {
    clock: Clock,
    all: Reading,
    own: u64,
    device: Option<u32>,
    of_device: Switches,
}

/// What others have taken since then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Taken {
    /// How often the processor of the calling thread.
    pub(super) own: u64,
    /// How often that of the device.
    pub(super) device: u64,
    /// The share of the time that the hypervisor took of all processors.
    pub(super) stolen: f64,
}

impl Watch {
    /// Of the calling thread and of this process, from now on.
    pub(super) fn new(device: Option<u32>) -> Watch {
        Watch {
            all: Reading::now(None),
            of_device: device.map(Switches::of).unwrap_or_default(),
            device,
            clock: Clock::start(),
            own: preempted(),
        }
    }

    /// By the same thread.
    pub(super) fn taken(&self) -> Taken {
        let own = preempted() - self.own;
        let time_s = self.clock.now().max(1) as f64 / 1e9;
        let of_device = self.device.map(Switches::of).unwrap_or_default();
        Taken {
            own,
            device: of_device.taken_since(self.of_device),
            stolen: Reading::now(None).since(&self.all).steal_s / time_s,
        }
    }
}

impl Taken {
    /// Whether that was more than nothing.
    pub(super) fn is_disturbance(self) -> bool {
        self.own + self.device > 0 || self.stolen > STEAL_MAX
    }
}

/// How often the threads of a process have left their processors, since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Switches {
    /// By themselves, to wait.
    own: u64,
    /// Because somebody else was to run.
    forced: u64,
}

impl Switches {
    /// Of a process as it is now; none where there is no such process.
    fn of(pid: u32) -> Switches {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        let texts = threads
            .flatten()
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
        texts.fold(Switches::default(), |sum, text| {
            let one = Switches::parse(&text);
            Switches {
                own: sum.own + one.own,
                forced: sum.forced + one.forced,
            }
        })
    }

    /// Of the `status` of a thread, proc_pid_status(5).
    fn parse(text: &str) -> Switches {
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
        };
        Switches {
            own: count("voluntary_ctxt_switches:"),
            forced: count("nonvoluntary_ctxt_switches:"),
        }
    }

    /// How often since then a thread gave way to somebody who was none of its own: each time that one of them went to wait it had run, and
    /// may have taken the processor from another one of them. That is the device's own doing, as a switch with many threads does it.
    fn taken_since(self, before: Switches) -> u64 {
        let own = self.own.saturating_sub(before.own);
        self.forced
            .saturating_sub(before.forced)
            .saturating_sub(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn who_gave_way_to_its_own_threads_was_not_disturbed() {
        let text = "Name:\tdevice\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t12\n";
        let found = Switches::parse(text);
        assert_eq!(found, Switches { own: 7, forced: 12 });
        let later = |own, forced| Switches { own, forced }.taken_since(found);
        assert_eq!(later(7, 12), 0);
        assert_eq!(later(7, 15), 3);
        assert_eq!(later(9, 15), 1);
        assert_eq!(later(20, 15), 0);
        assert_eq!(Switches::parse("nothing"), Switches::default());
    }

    #[test]
    fn a_process_is_found_with_its_threads() {
        // Another one: the threads of this one come and go, and take their counts with them.
        let waiting = Command::new("cat").stdin(Stdio::piped()).spawn();
        let mut waiting = waiting.expect("a program that waits for its input");
        let found = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            Switches::of(waiting.id()).own > 0
        });
        drop(waiting.stdin.take());
        waiting.wait().expect("its end");
        assert!(found);
        assert_eq!(Switches::of(u32::MAX), Switches::default());
    }
}
