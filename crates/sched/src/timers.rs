//! Events that come later: a hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987), since many
//! timers are set, and each is due once.
//!
//! A timer lies at the level of the highest digit, of 6 bits, in which its tick differs from the tick that was reached. When that digit
//! comes, what lies there goes to lower levels: before anything else can come into these, so that what is due in one tick comes in the
//! order that it was set in.

use crate::event::Event;

/// A tick is 2^14 ns, that is 16 µs.
const TICK_BITS: u32 = 14;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Enough for all ticks that nanoseconds in a word have.
const LEVELS: usize = ((u64::BITS - TICK_BITS).div_ceil(DIGIT_BITS)) as usize;

#[derive(Debug, Clone, Copy)]
struct Timer {
    tick: u64,
    event: Event,
}

/// The timers of a worker.
#[derive(Debug)]
pub(crate) struct Timers {
    /// All that is due in it, or before, has come out.
    tick: u64,
    /// Of each level, which slots have something.
    used: [u64; LEVELS],
    slots: Vec<Vec<Timer>>,
    count: usize,
}

impl Timers {
    pub(crate) fn new(now_ns: u64) -> Timers {
        Timers {
            tick: now_ns >> TICK_BITS,
            used: [0; LEVELS],
            slots: (0..LEVELS * SLOTS).map(|_| Vec::new()).collect(),
            count: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Has an event come out at `due_ns`, or up to a tick later.
    pub(crate) fn set(&mut self, due_ns: u64, event: Event) {
        let tick = due_ns.div_ceil(1 << TICK_BITS).max(self.tick + 1);
        self.count += 1;
        self.place(Timer { tick, event });
    }

    fn place(&mut self, timer: Timer) {
        let differs = (timer.tick ^ self.tick) | 1;
        let level = (differs.ilog2() / DIGIT_BITS) as usize;
        let slot = digit(timer.tick, level);
        self.used[level] |= 1 << slot;
        self.slots[level * SLOTS + slot].push(timer);
    }

    /// The next tick at which there is something to do, and the level that it is to be done at.
    fn next(&self) -> Option<(u64, usize)> {
        // What lies at a lower level is due before all that lies at higher ones.
        let level = self.used.iter().position(|used| *used != 0)?;
        let slot = u64::from(self.used[level].trailing_zeros());
        let shift = level as u32 * DIGIT_BITS;
        // The digits above are those of now, the ones below zero.
        let above = shift + DIGIT_BITS;
        Some((self.tick >> above << above | slot << shift, level))
    }

    /// When to look again, at the latest.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.next().map(|(tick, _)| tick << TICK_BITS)
    }

    /// Takes out what is due, the earliest first.
    pub(crate) fn expire(&mut self, now_ns: u64, due: &mut Vec<Event>) {
        let now = now_ns >> TICK_BITS;
        while let Some((tick, level)) = self.next()
            && tick <= now
        {
            self.tick = tick;
            let slot = digit(tick, level);
            self.used[level] &= !(1 << slot);
            let at = level * SLOTS + slot;
            let mut timers = std::mem::take(&mut self.slots[at]);
            if level == 0 {
                self.count -= timers.len();
                due.extend(timers.drain(..).map(|timer| timer.event));
            } else {
                timers.drain(..).for_each(|timer| self.place(timer));
            }
            // Its memory is used again.
            self.slots[at] = timers;
        }
        self.tick = self.tick.max(now);
    }
}

fn digit(tick: u64, level: usize) -> usize {
    (tick >> (level as u32 * DIGIT_BITS)) as usize % SLOTS
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::event::{Priority, StageId};

    fn event(value: u64) -> Event {
        Event {
            flow: 0,
            stage: StageId(0),
            priority: Priority::Normal,
            entry: 0,
            is_sent_on: false,
            value,
        }
    }

    /// Against a sorted list.
    #[test]
    fn timers_come_in_order_never_early_and_within_a_tick() {
        let mut state = 7u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..50u64 {
            let mut now = random() >> (random() % 60 + 2);
            let mut timers = Timers::new(now);
            let mut model: Vec<(u64, u64)> = Vec::new();
            let mut number = 0;
            for _ in 0..400 {
                for _ in 0..random() % 4 {
                    let due = now + (random() >> (random() % 62 + 2));
                    timers.set(due, event(number));
                    let tick = due.div_ceil(1 << TICK_BITS).max((now >> TICK_BITS) + 1);
                    model.push((tick, number));
                    number += 1;
                }
                now += random() >> (20 + random() % 40);
                let mut due = Vec::new();
                timers.expire(now, &mut due);
                let is_due = |timer: &(u64, u64)| timer.0 <= now >> TICK_BITS;
                let mut expected: Vec<_> = model.iter().copied().filter(is_due).collect();
                expected.sort_unstable();
                model.retain(|timer| !is_due(timer));
                let came: Vec<u64> = due.iter().map(|event| event.value).collect();
                let expected: Vec<u64> = expected.iter().map(|timer| timer.1).collect();
                assert_eq!(came, expected, "round {round}");
                assert_eq!(timers.len(), model.len());
                let first = model.iter().map(|timer| timer.0 << TICK_BITS).min();
                assert_eq!(timers.next_ns().is_some(), first.is_some());
                assert!(timers.next_ns() <= first, "round {round}: it would be late");
            }
        }
    }
}
