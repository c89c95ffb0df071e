//! How fast a generator sends what it is late with.
//!
//! One that was kept from its processor for a millisecond owes thousands of packets. Sent at once they come faster than any link brings
//! them, and overflow the ring of a device that is slower than its generator, at whatever rate is tried: what would be measured is how
//! often others have the generator's processor.

/// It catches up at this multiple of its rate. Who is away for more than a hundredth of the time does not keep up with the rate, and a run
/// of his does not hold.
const CATCH_UP: f64 = 1.01;
/// What is late by no more than this, and a burst, is sent at once: turns of the loop are not of one length.
const AT_ONCE_NS: f64 = 20_000.0;

/// When the next burst may be sent.
#[derive(Debug)]
pub(super) struct Pace {
    /// How far bursts are apart when it catches up.
    apart_ns: f64,
    next_ns: f64,
}

impl Pace {
    /// Of one that sends all at once.
    pub(super) const AT_ONCE: Pace = Pace {
        apart_ns: 0.0,
        next_ns: 0.0,
    };

    /// Of bursts that are due so far apart.
    pub(super) fn new(burst_ns: f64) -> Pace {
        Pace {
            apart_ns: burst_ns / CATCH_UP,
            next_ns: 0.0,
        }
    }

    /// Whether a burst that is due may be sent now: it is.
    #[inline]
    pub(super) fn allows(&mut self, now_ns: u64) -> bool {
        let now_ns = now_ns as f64;
        let may = now_ns >= self.next_ns;
        if may {
            let earliest = now_ns - AT_ONCE_NS - self.apart_ns;
            self.next_ns = self.next_ns.max(earliest) + self.apart_ns;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST_NS: u64 = 4_000;

    /// Sends what is due from `from_ns` to `to_ns`, looking each 100 ns.
    fn go_on(pace: &mut Pace, sent: &mut u64, from_ns: u64, to_ns: u64) {
        for now_ns in (from_ns..to_ns).step_by(100) {
            if *sent * BURST_NS <= now_ns && pace.allows(now_ns) {
                *sent += 1;
            }
        }
    }

    #[test]
    fn who_was_away_catches_up_slowly_and_wholly() {
        let (mut pace, mut sent) = (Pace::new(BURST_NS as f64), 0);
        go_on(&mut pace, &mut sent, 0, 1_000_000);
        assert_eq!(sent, 250, "nothing is late");
        let (away, back) = (1_000_000, 2_000_000);
        go_on(&mut pace, &mut sent, back, back + 1_000_000);
        assert!((250 + 250..=250 + 262).contains(&sent), "{sent}");
        go_on(&mut pace, &mut sent, back + 1_000_000, back + 110 * away);
        assert_eq!(sent, (back + 110 * away) / BURST_NS);
    }

    #[test]
    fn what_is_late_by_turns_of_the_loop_is_sent_at_once() {
        let (mut pace, mut sent) = (Pace::new(BURST_NS as f64), 0u64);
        for turn in 1..10_000 {
            let now_ns = turn * 15_000;
            while sent * BURST_NS <= now_ns {
                assert!(pace.allows(now_ns), "burst {sent} at {now_ns}");
                sent += 1;
            }
        }
    }
}
