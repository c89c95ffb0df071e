//! What became of packets that were sent to the radio (TS 38.425): followed per bearer from both ends.
//!
//! As the *corresponding node*, which has the radio, the function counts what comes by [`UserData::sequence`], knows what was lost on the
//! way, and says so. As the one that hosts PDCP, or one between the two, it keeps what it was told last.

use millrace_wire::gtpu::nr_ran::{DeliveryStatus, Ranges, UserData};

const SEQUENCES: u32 = 1 << 24;
/// Further than this ahead is behind.
const HALF: u32 = SEQUENCES / 2;
/// Ranges that are remembered, at most: with more, the oldest are reported no more.
const LOST_MAX: usize = 32;
const RANGE_BYTES: usize = 6;
/// Between two statuses, at least.
const APART_NS: u64 = 100_000;

/// What is known of a bearer's packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The sequence number that comes next; none came yet, if there is none.
    next: Option<u32>,
    /// First and last numbers of what did not come, in order.
    lost: Vec<(u32, u32)>,
    /// How often what is missing was said, and when it was last, in nanoseconds.
    said: u64,
    said_ns: Option<u64>,
    /// What the far end said last.
    pub told: Told,
}

/// What a delivery status said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// How many there were.
    pub statuses: u64,
    /// So many bytes are wanted.
    pub desired_bytes: u32,
    /// So many in a second.
    pub desired_rate: Option<u32>,
    /// The highest PDCP number that was transmitted.
    pub transmitted: Option<u32>,
    /// The highest that was delivered in sequence.
    pub delivered: Option<u32>,
    /// How many packets were said to be lost, in all.
    pub lost: u64,
    /// There will be no more statuses.
    pub is_final: bool,
}

/// What a packet's number says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// It is the next.
    InOrder,
    /// So many before it are missing.
    After(u32),
    /// It was missing.
    Late,
    /// It came before.
    Again,
}

/// What is to be said in a status beside what is known here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State {
    /// See [`DeliveryStatus`].
    pub desired_bytes: u32,
    /// See [`DeliveryStatus`].
    pub delivered: Option<u32>,
    /// See [`DeliveryStatus`].
    pub transmitted: Option<u32>,
}

impl Delivery {
    /// Takes notice of a packet that came.
    pub fn handle_user_data(&mut self, frame: &UserData<'_>) -> Came {
        let sequence = frame.sequence % SEQUENCES;
        let Some(next) = self.next else {
            self.next = Some(after(sequence));
            return Came::InOrder;
        };
        let ahead = sequence.wrapping_sub(next) % SEQUENCES;
        if ahead < HALF {
            self.next = Some(after(sequence));
            if ahead == 0 {
                return Came::InOrder;
            }
            if self.lost.len() == LOST_MAX {
                self.lost.remove(0);
            }
            self.lost.push((next, before(sequence)));
            return Came::After(ahead);
        }
        self.find(sequence)
    }

    /// Takes a number out of those that are missing.
    fn find(&mut self, sequence: u32) -> Came {
        let within = |&(first, last): &(u32, u32)| {
            sequence.wrapping_sub(first) % SEQUENCES <= last.wrapping_sub(first) % SEQUENCES
        };
        let Some(at) = self.lost.iter().position(within) else {
            return Came::Again;
        };
        let (first, last) = self.lost[at];
        match (sequence == first, sequence == last) {
            (true, true) => {
                self.lost.remove(at);
            }
            (true, false) => self.lost[at].0 = after(sequence),
            (false, true) => self.lost[at].1 = before(sequence),
            (false, false) => {
                self.lost[at].1 = before(sequence);
                self.lost.insert(at + 1, (after(sequence), last));
                if self.lost.len() > LOST_MAX {
                    self.lost.remove(0);
                }
            }
        }
        Came::Late
    }

    /// What is missing: first and last numbers, in order.
    #[must_use]
    pub fn lost(&self) -> &[(u32, u32)] {
        &self.lost
    }

    /// How many numbers these are.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.lost.iter().copied().map(count_of).sum()
    }

    /// The sequence number that comes next, once one came.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    /// How many statuses were sent.
    #[must_use]
    pub fn said(&self) -> u64 {
        self.said
    }

    /// Whether enough time has passed since the last status: who sends may poll in each packet.
    #[must_use]
    pub fn may_say(&self, now_ns: u64) -> bool {
        self.said_ns
            .is_none_or(|said_ns| now_ns.saturating_sub(said_ns) >= APART_NS)
    }

    /// A status was sent: what is missing is said once (TS 38.425, 5.4.2.1).
    pub fn handle_said(&mut self, now_ns: u64) {
        self.said += 1;
        self.said_ns = Some(now_ns);
        self.lost.clear();
    }

    /// What is to be said to who sends; the bytes of its ranges are written to `ranges`.
    pub fn status<'a>(&self, state: &State, ranges: &'a mut Vec<u8>) -> DeliveryStatus<'a> {
        ranges.clear();
        ranges.reserve(self.lost.len() * RANGE_BYTES);
        for (first, last) in &self.lost {
            ranges.extend_from_slice(&Ranges::emit_one(*first, *last));
        }
        DeliveryStatus {
            desired_bytes: state.desired_bytes,
            delivered: state.delivered,
            transmitted: state.transmitted,
            lost: Ranges::new(ranges).filter(|_| !self.lost.is_empty()),
            ..DeliveryStatus::default()
        }
    }

    /// Takes notice of what the far end says.
    pub fn handle_status(&mut self, status: &DeliveryStatus<'_>) {
        let told = &mut self.told;
        told.statuses += 1;
        told.desired_bytes = status.desired_bytes;
        told.desired_rate = status.desired_rate.or(told.desired_rate);
        told.transmitted = status.transmitted.or(told.transmitted);
        told.delivered = status.delivered.or(told.delivered);
        told.is_final = status.is_final;
        told.lost += status
            .lost
            .iter()
            .flat_map(Ranges::iter)
            .map(count_of)
            .sum::<u64>();
    }
}

/// How many numbers there are from the first to the last.
fn count_of((first, last): (u32, u32)) -> u64 {
    u64::from(last.wrapping_sub(first) % SEQUENCES) + 1
}

fn after(sequence: u32) -> u32 {
    (sequence + 1) % SEQUENCES
}

fn before(sequence: u32) -> u32 {
    sequence.wrapping_sub(1) % SEQUENCES
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::Random;

    fn data(sequence: u32) -> UserData<'static> {
        UserData {
            sequence,
            ..UserData::default()
        }
    }

    #[test]
    fn gaps_are_told_and_filled() {
        let mut delivery = Delivery::default();
        let numbers = [SEQUENCES - 2, SEQUENCES - 1, 3, 4, 1, 1, 0, 2, 4];
        let came: Vec<_> = numbers
            .into_iter()
            .map(|number| delivery.handle_user_data(&data(number)))
            .collect();
        let after_three = Came::After(3);
        let late = Came::Late;
        assert_eq!(
            came,
            [
                Came::InOrder,
                Came::InOrder,
                after_three,
                Came::InOrder,
                late,
                Came::Again,
                late,
                late,
                Came::Again
            ]
        );
        assert!(delivery.lost().is_empty());
        delivery.handle_user_data(&data(10));
        let state = State {
            desired_bytes: 9,
            delivered: Some(5),
            transmitted: None,
        };
        let mut ranges = Vec::new();
        let status = delivery.status(&state, &mut ranges);
        assert_eq!(status.lost.unwrap().iter().collect::<Vec<_>>(), [(5, 9)]);
        let mut other = Delivery::default();
        other.handle_status(&status);
        assert_eq!((other.told.lost, other.told.delivered), (5, Some(5)));
        assert_eq!((delivery.missing(), delivery.said()), (5, 0));
        assert!(delivery.may_say(0));
        delivery.handle_said(5);
        assert!(!delivery.may_say(4 + APART_NS) && delivery.may_say(5 + APART_NS));
        assert_eq!(delivery.status(&state, &mut ranges).lost, None);
        assert_eq!((delivery.missing(), delivery.said()), (0, 1));
    }

    #[test]
    fn what_is_missing_is_what_a_set_says() {
        for seed in 1..50 {
            let mut random = Random(seed);
            let mut delivery = Delivery::default();
            let start = SEQUENCES - 100;
            // Each number once, a few places away from where it was, some never, and few enough gaps that all are remembered.
            let mut numbers: Vec<u32> = (0..200).filter(|_| random.below(12) != 0).collect();
            for _ in 0..20 {
                let at = random.below(numbers.len() as u64 - 3) as usize;
                numbers.swap(at, at + 2);
            }
            let mut seen = BTreeSet::new();
            let mut highest = None;
            for number in numbers {
                delivery.handle_user_data(&data((start + number) % SEQUENCES));
                seen.insert(number);
                highest = highest.max(Some(number));
                let first = *seen.first().unwrap();
                let first = first.min(number);
                let missing: Vec<u32> = (first..highest.unwrap())
                    .filter(|one| !seen.contains(one))
                    .collect();
                let lost: Vec<u32> = delivery
                    .lost()
                    .iter()
                    .flat_map(|(first, last)| {
                        let count = last.wrapping_sub(*first) % SEQUENCES;
                        let first = first.wrapping_sub(start) % SEQUENCES;
                        first..=first + count
                    })
                    .collect();
                // What came before the first is unknown to who has just begun.
                let known: Vec<u32> = missing
                    .into_iter()
                    .filter(|one| lost.contains(one) || *one > 4)
                    .collect();
                assert_eq!(lost, known, "seed {seed}");
            }
        }
    }
}
