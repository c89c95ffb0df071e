//! Events that wait at a worker, by priority and stage, and whose turn it is.

use std::collections::VecDeque;

use crate::STARVATION_BATCHES;
use crate::event::{Event, Priority, StageId};
use crate::graph::STAGES_MAX;

// Stages that have something are bits of a word.
const _: () = assert!(STAGES_MAX <= u64::BITS as usize);

/// A queue: its priority and its stage.
pub(super) type Queue = (Priority, StageId);

/// Events that wait.
#[derive(Debug)]
pub(super) struct Queues {
    waiting: Vec<VecDeque<Event>>,
    stages: usize,
    /// Of each priority: events, and the stages that have some, by bits.
    counts: [usize; 4],
    used: [u64; 4],
    /// Among priorities, and among the stages of one.
    priorities: Turns,
    stages_of: [Turns; 4],
}

/// Whose turn it is among some of which one comes first: once in [`STARVATION_BATCHES`] it is one of the others, which take it in turns.
#[derive(Debug, Clone, Copy, Default)]
struct Turns {
    /// Batches since the last one of another, and which one that was of.
    passed_over: usize,
    last_other: usize,
}

impl Turns {
    /// Between the first and the others that have something, by bits: none of them is the first.
    #[inline]
    fn choose(&mut self, first: usize, others: u64) -> usize {
        if others == 0 {
            self.passed_over = 0;
            return first;
        }
        self.passed_over += 1;
        if self.passed_over < STARVATION_BATCHES {
            return first;
        }
        self.passed_over = 0;
        // No shift by 64: what comes after bit 63 is nothing.
        let later = others & (!0 << self.last_other) & !(1 << self.last_other);
        let next = if later == 0 { others } else { later };
        self.last_other = next.trailing_zeros() as usize;
        self.last_other
    }
}

impl Queues {
    pub(super) fn new(stages: usize) -> Queues {
        Queues {
            waiting: (0..4 * stages).map(|_| VecDeque::new()).collect(),
            stages,
            counts: [0; 4],
            used: [0; 4],
            priorities: Turns::default(),
            stages_of: [Turns::default(); 4],
        }
    }

    #[inline]
    fn at(&self, (priority, stage): Queue) -> usize {
        priority as usize * self.stages + stage.index()
    }

    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        let queue = (event.priority, event.stage);
        self.extend(queue, &[event]);
    }

    /// Adds events of one queue.
    #[inline]
    pub(super) fn extend(&mut self, queue: Queue, events: &[Event]) {
        let at = self.at(queue);
        self.counts[queue.0 as usize] += events.len();
        self.used[queue.0 as usize] |= u64::from(!events.is_empty()) << queue.1.index();
        self.waiting[at].extend(events);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == [0; 4]
    }

    /// The stages that have something, by bits.
    #[inline]
    pub(super) fn stages(&self) -> u64 {
        let [highest, high, normal, low] = self.used;
        highest | high | normal | low
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    /// How many wait at a stage.
    pub(super) fn at_stage(&self, stage: StageId) -> usize {
        let of = |priority: &Priority| self.waiting[self.at((*priority, stage))].len();
        Priority::ALL.iter().map(of).sum()
    }

    /// Whose turn it is: the most urgent, and of those the stage that is nearest to the way out; but once in a while one of the others, so
    /// that who waits behind what never ends has its turn, too.
    #[inline]
    pub(super) fn choose(&mut self) -> Option<Queue> {
        let used = |at: usize| u64::from(self.used[at] != 0) << at;
        let waiting = (0..self.used.len()).map(used).sum::<u64>();
        if waiting == 0 {
            return None;
        }
        let priority = self
            .priorities
            .choose(waiting.trailing_zeros() as usize, waiting & (waiting - 1));
        let used = self.used[priority];
        let last = used.ilog2() as usize;
        let stage = self.stages_of[priority].choose(last, used & !(1 << last));
        Some((Priority::ALL[priority], StageId(stage as u8)))
    }

    /// Whether it may be the next one's turn, if it has something: nothing else is as urgent, or less so, and no stage behind it, nor it
    /// itself, has something. Stages before it have their turn in [`Queues::choose`].
    #[inline]
    pub(super) fn is_next(&self, (priority, stage): Queue) -> bool {
        let mut others = self.used;
        let own = std::mem::take(&mut others[priority as usize]);
        others == [0; 4] && own >> stage.index() == 0
    }

    /// Moves a batch of them over.
    #[inline]
    pub(super) fn take(&mut self, queue: Queue, most: usize, batch: &mut Vec<Event>) {
        let at = self.at(queue);
        let waiting = &mut self.waiting[at];
        let count = waiting.len().min(most);
        let (first, second) = waiting.as_slices();
        let from_first = count.min(first.len());
        batch.extend_from_slice(&first[..from_first]);
        batch.extend_from_slice(&second[..count - from_first]);
        waiting.drain(..count);
        self.counts[queue.0 as usize] -= count;
        if waiting.is_empty() {
            self.used[queue.0 as usize] &= !(1 << queue.1.index());
        }
    }

    /// Takes out those of a stage that are leaving, in their order.
    pub(super) fn extract(
        &mut self,
        stage: StageId,
        is_leaving: impl Fn(&Event) -> bool,
        mut each: impl FnMut(Event),
    ) {
        for priority in Priority::ALL {
            if self.used[priority as usize] >> stage.index() & 1 == 0 {
                continue;
            }
            let at = self.at((priority, stage));
            let queue = &mut self.waiting[at];
            let before = queue.len();
            queue.retain(|event| {
                let is_leaving = is_leaving(event);
                if is_leaving {
                    each(*event);
                }
                !is_leaving
            });
            self.counts[priority as usize] -= before - queue.len();
            if queue.is_empty() {
                self.used[priority as usize] &= !(1 << stage.index());
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn event(priority: Priority, stage: u8) -> Event {
        Event {
            flow: 0,
            stage: StageId(stage),
            priority,
            entry: 0,
            is_sent_on: false,
            value: 0,
        }
    }

    #[test]
    fn the_most_urgent_goes_first_and_the_least_is_not_starved() {
        let mut queues = Queues::new(64);
        let mut batch = Vec::new();
        let (high, low) = (Priority::High, Priority::Low);
        for _ in 0..100 {
            queues.push(event(high, 3));
            queues.push(event(high, 63));
            queues.push(event(low, 5));
        }
        let mut turns = Vec::new();
        while let Some(queue) = queues.choose() {
            assert!(queues.at_stage(queue.1) > 0);
            queues.take(queue, 1, &mut batch);
            turns.push(queue);
        }
        assert_eq!((batch.len(), queues.len()), (300, 0));
        for turns in turns[..200].chunks(STARVATION_BATCHES) {
            assert_eq!(
                turns.iter().filter(|turn| turn.0 == low).count(),
                turns.len() / 16
            );
        }
        let of_high: Vec<_> = turns.iter().filter(|turn| turn.0 == high).collect();
        let last = |turn: &&&Queue| turn.1 == StageId(63);
        let first_hundred = of_high[..100].iter().filter(last).count();
        assert_eq!(first_hundred, 100 - 100 / STARVATION_BATCHES);
    }

    #[test]
    fn stages_before_one_whose_events_never_end_have_their_turn() {
        let mut queues = Queues::new(64);
        let mut counts = [0; 64];
        let mut batch = Vec::new();
        for _ in 0..1000 {
            for stage in [0, 7, 63] {
                queues.push(event(Priority::Normal, stage));
            }
        }
        for _ in 0..2 * STARVATION_BATCHES * 10 {
            // What is nearest to the way out is there again at once.
            queues.push(event(Priority::Normal, 63));
            let queue = queues.choose().unwrap();
            queues.take(queue, 1, &mut batch);
            counts[queue.1.index()] += 1;
        }
        assert_eq!([counts[0], counts[7], counts[63]], [10, 10, 300]);
    }

    #[test]
    fn those_between_the_most_and_the_least_urgent_are_not_starved_either() {
        let mut queues = Queues::new(2);
        for priority in Priority::ALL {
            for _ in 0..1000 {
                queues.push(event(priority, 0));
            }
        }
        let mut batch = Vec::new();
        let mut counts = [0; 4];
        for _ in 0..3 * STARVATION_BATCHES * 10 {
            let queue = queues.choose().unwrap();
            queues.take(queue, 1, &mut batch);
            counts[queue.0 as usize] += 1;
        }
        assert_eq!(counts, [450, 10, 10, 10]);
    }

    #[test]
    fn a_batch_goes_straight_on_only_where_it_would_be_chosen() {
        let mut queues = Queues::new(64);
        let normal = |stage| (Priority::Normal, StageId(stage));
        assert!(queues.is_next(normal(0)) && queues.is_next(normal(63)));
        queues.push(event(Priority::Normal, 5));
        assert!(queues.is_next(normal(6)), "it is nearer to the way out");
        assert!(!queues.is_next(normal(5)), "there are older ones");
        assert!(!queues.is_next(normal(4)));
        for other in [Priority::Highest, Priority::Low] {
            let mut queues = Queues::new(64);
            queues.push(event(other, 0));
            assert!(!queues.is_next(normal(6)));
        }
    }
}
