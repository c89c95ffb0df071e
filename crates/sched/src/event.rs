//! What is scheduled: two words, which go by value from worker to worker.

use crate::graph::STAGES_MAX;

/// A stage of a graph, by its place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StageId(pub(crate) u8);

impl StageId {
    /// Its place in the graph, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The one behind it, in the order that they were added in.
    #[must_use]
    pub fn after(self) -> StageId {
        self.plus(1)
    }

    /// So many behind it.
    #[must_use]
    pub fn plus(self, stages: u8) -> StageId {
        StageId(self.0 + stages)
    }
}

/// How urgent an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Priority {
    /// Before all others, as signalling.
    Highest = 0,
    /// As voice.
    High = 1,
    /// As most.
    #[default]
    Normal = 2,
    /// When nothing else is there, and then at least once in [`crate::STARVATION_BATCHES`] batches.
    Low = 3,
}

impl Priority {
    /// All, the most urgent first.
    pub const ALL: [Priority; 4] = [
        Priority::Highest,
        Priority::High,
        Priority::Normal,
        Priority::Low,
    ];

    #[inline]
    fn of(bits: u8) -> Priority {
        match bits & 3 {
            0 => Priority::Highest,
            1 => Priority::High,
            2 => Priority::Normal,
            _ => Priority::Low,
        }
    }
}

/// A unit of work. Events of one flow, stage and priority keep their order, where the stage's kind says so.
///
/// It lies in memory as it goes through rings, so that it is packed by one load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// What must stay together: any number that is the same for the same flow. Its bits need not be mixed.
    pub flow: u32,
    /// Where it is to go.
    pub stage: StageId,
    /// How urgent it is.
    pub priority: Priority,
    /// By which entry point it, or what it was made of, came in.
    pub(crate) entry: u8,
    /// It went to a worker who had given its bucket away, and was sent on by that one.
    pub(crate) is_sent_on: bool,
    /// What its stage makes of it: a packet's buffer index, a pointer into a table.
    pub value: u64,
}

const _: () = assert!(size_of::<Event>() == 16);

/// Of the first word: stage and priority.
const QUEUE: u64 = 0xffff << 32;

impl Event {
    /// The same for another stage.
    #[inline]
    #[must_use]
    pub fn to(self, stage: StageId) -> Event {
        Event { stage, ..self }
    }

    /// Whether all of them are of the first one's stage and priority.
    #[inline]
    pub(crate) fn are_of_one_queue(events: &[Event]) -> bool {
        let Some(first) = events.first() else {
            return true;
        };
        // Without a way out of the loop: they are looked at side by side.
        let [first, _] = first.pack();
        let differs = |differs, event: &Event| differs | (event.pack()[0] ^ first);
        events.iter().fold(0, differs) & QUEUE == 0
    }

    /// Whether it is something that workers say to each other.
    #[inline]
    pub(crate) fn is_word(&self) -> bool {
        self.stage.index() >= STAGES_MAX
    }

    #[inline]
    pub(crate) fn pack(self) -> [u64; 2] {
        let first = u64::from(self.flow)
            | u64::from(self.stage.0) << 32
            | (self.priority as u64) << 40
            | u64::from(self.entry) << 48
            | u64::from(self.is_sent_on) << 56;
        [first, self.value]
    }

    #[inline]
    pub(crate) fn unpack([first, value]: [u64; 2]) -> Event {
        Event {
            flow: first as u32,
            value,
            stage: StageId((first >> 32) as u8),
            priority: Priority::of((first >> 40) as u8),
            entry: (first >> 48) as u8,
            is_sent_on: first >> 56 & 1 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_a_stage_and_a_priority() {
        let event = Event {
            flow: 1,
            stage: StageId(3),
            priority: Priority::High,
            entry: 0,
            is_sent_on: false,
            value: 2,
        };
        let other_flow = Event {
            flow: 9,
            entry: 1,
            is_sent_on: true,
            value: u64::MAX,
            ..event
        };
        let other_stage = event.to(StageId(2));
        let other_priority = Event {
            priority: Priority::Low,
            ..event
        };
        assert!(Event::are_of_one_queue(&[]) && Event::are_of_one_queue(&[event]));
        assert!(Event::are_of_one_queue(&[event, other_flow, event]));
        for other in [other_stage, other_priority] {
            for at in 1..6 {
                let mut events = [event; 6];
                events[at] = other;
                assert!(!Event::are_of_one_queue(&events));
            }
        }
    }

    #[test]
    fn events_are_two_words() {
        for priority in Priority::ALL {
            let event = Event {
                flow: 0xdead_beef,
                value: u64::MAX - 5,
                stage: StageId(200),
                priority,
                entry: 77,
                is_sent_on: priority == Priority::Low,
            };
            assert_eq!(Event::unpack(event.pack()), event);
        }
    }
}
