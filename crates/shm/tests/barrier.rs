//! The barrier that the sleeper makes (`src/link/sleep.rs`), in every interleaving of an end that publishes and one that sleeps.
//!
//! loom knows no `membarrier(2)`, so both ends are written out here step by step, on processors whose stores wait in a buffer before
//! others see them: what a processor may look at before its store is seen is all that this is about. Mutants are missed wake-ups that
//! must be found.

use std::collections::{HashSet, VecDeque};

/// Messages that are published one by one.
const MESSAGES: u8 = 3;
const ASLEEP: u8 = 1;
const BARRIER: u8 = 2;

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// The sleeper's barrier for all.
    Membarrier,
    /// The publisher's own, where the sleeper makes none.
    Fence,
    /// Every barrier of the sleeper: it may look before others see that it sleeps.
    SleepersFence,
    /// The last look of the sleeper.
    LastLook,
    /// The sleeper makes its barrier for all before it says that it sleeps.
    MembarrierTooEarly,
}

/// A word that both ends use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Published,
    Sleep,
}

/// A processor: where its end is, what it remembers, and stores that others do not see yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Processor {
    step: u8,
    remembers: u8,
    buffer: VecDeque<(Word, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    published: u8,
    sleep: u8,
    bells: u8,
    taken: u8,
    publisher: Processor,
    sleeper: Processor,
}

/// Steps of the publisher: `PublishEnd::publish` and `must_ring`.
mod publish {
    pub(super) const STORE: u8 = 0;
    pub(super) const LOOK: u8 = 1;
    pub(super) const FENCE: u8 = 2;
    pub(super) const LOOK_AGAIN: u8 = 3;
    pub(super) const RING: u8 = 4;
    pub(super) const OVER: u8 = 5;
}

/// Steps of the sleeper: it takes what is there, `Sleeper::say_asleep`, a last look, the kernel's sleep, `Sleeper::say_awake`.
mod sleep {
    pub(super) const TAKE: u8 = 0;
    pub(super) const EARLY: u8 = 1;
    pub(super) const SAY: u8 = 2;
    pub(super) const FENCE: u8 = 3;
    pub(super) const MEMBARRIER: u8 = 4;
    pub(super) const LAST_LOOK: u8 = 5;
    pub(super) const ASLEEP: u8 = 6;
    pub(super) const WAKE: u8 = 7;
}

impl World {
    fn new(sleep: u8) -> World {
        World {
            published: 0,
            sleep,
            bells: 0,
            taken: 0,
            publisher: Processor::default(),
            sleeper: Processor::default(),
        }
    }

    fn memory(&mut self, word: Word) -> &mut u8 {
        match word {
            Word::Published => &mut self.published,
            Word::Sleep => &mut self.sleep,
        }
    }

    fn processor(&mut self, is_sleeper: bool) -> &mut Processor {
        if is_sleeper {
            &mut self.sleeper
        } else {
            &mut self.publisher
        }
    }

    /// A load: of the processor's own last store, if others do not see that yet.
    fn load(&mut self, is_sleeper: bool, word: Word) -> u8 {
        let own = self.processor(is_sleeper).buffer.iter().rev();
        let own = own.clone().find(|(stored, _)| *stored == word).copied();
        own.map_or_else(|| *self.memory(word), |(_, value)| value)
    }

    fn store(&mut self, is_sleeper: bool, word: Word, value: u8) {
        self.processor(is_sleeper).buffer.push_back((word, value));
    }

    /// Others see the oldest store that they do not see yet. False: there is none.
    fn drain_one(&mut self, is_sleeper: bool) -> bool {
        let Some((word, value)) = self.processor(is_sleeper).buffer.pop_front() else {
            return false;
        };
        *self.memory(word) = value;
        true
    }

    fn drain(&mut self, is_sleeper: bool) {
        while self.drain_one(is_sleeper) {}
    }

    /// The publisher's next step. None: it is over.
    fn publish(mut self, mutant: Mutant, number: u8) -> Option<World> {
        let found = |value: u8| {
            if value & ASLEEP != 0 {
                publish::RING
            } else {
                publish::STORE
            }
        };
        self.publisher.step = match self.publisher.step {
            publish::STORE if number == MESSAGES => publish::OVER,
            publish::STORE => {
                self.store(false, Word::Published, number + 1);
                publish::LOOK
            }
            publish::LOOK => match self.load(false, Word::Sleep) {
                value if value & BARRIER != 0 => found(value),
                _ if mutant == Mutant::Fence => publish::LOOK_AGAIN,
                _ => publish::FENCE,
            },
            publish::FENCE => {
                self.drain(false);
                publish::LOOK_AGAIN
            }
            publish::LOOK_AGAIN => found(self.load(false, Word::Sleep)),
            publish::RING => {
                // An atomic operation drains the buffer, too; whoever takes the bit back rings.
                self.drain(false);
                if self.sleep & ASLEEP != 0 {
                    self.sleep &= !ASLEEP;
                    self.bells += 1;
                }
                publish::STORE
            }
            _ => return None,
        };
        Some(self)
    }

    /// The sleeper's next step, of which there may be two. None: it sleeps, or has taken all.
    fn sleep(mut self, mutant: Mutant) -> Vec<World> {
        let mut next = Vec::new();
        self.sleeper.step = match self.sleeper.step {
            sleep::TAKE if self.taken == MESSAGES => return next,
            sleep::TAKE => {
                let published = self.load(true, Word::Published);
                if published > self.taken {
                    self.taken += 1;
                    sleep::TAKE
                } else {
                    self.sleeper.remembers = self.load(true, Word::Sleep);
                    sleep::EARLY
                }
            }
            sleep::EARLY => {
                if mutant == Mutant::MembarrierTooEarly {
                    self.drain(true);
                    self.drain(false);
                }
                sleep::SAY
            }
            sleep::SAY => {
                self.store(true, Word::Sleep, ASLEEP);
                sleep::FENCE
            }
            sleep::FENCE => {
                if mutant != Mutant::SleepersFence {
                    self.drain(true);
                }
                sleep::MEMBARRIER
            }
            sleep::MEMBARRIER => {
                let leaves = [Mutant::Membarrier, Mutant::MembarrierTooEarly].contains(&mutant);
                if self.sleeper.remembers & BARRIER != 0
                    && !leaves
                    && mutant != Mutant::SleepersFence
                {
                    self.drain(true);
                    self.drain(false);
                }
                sleep::LAST_LOOK
            }
            sleep::LAST_LOOK => {
                let is_there = self.load(true, Word::Published) > self.taken;
                if is_there && mutant != Mutant::LastLook {
                    sleep::WAKE
                } else {
                    sleep::ASLEEP
                }
            }
            sleep::ASLEEP if self.bells == 0 => return next,
            sleep::ASLEEP => {
                self.drain(true);
                self.bells -= 1;
                sleep::WAKE
            }
            _ => {
                // Who sleeps often leaves the barriers to the other.
                for value in [0, BARRIER] {
                    let mut awake = self.clone();
                    awake.store(true, Word::Sleep, value);
                    awake.sleeper.step = sleep::TAKE;
                    next.push(awake);
                }
                return next;
            }
        };
        next.push(self);
        next
    }

    /// How many messages the publisher has written, whether others see them or not.
    fn written(&self) -> u8 {
        let own = self.publisher.buffer.iter().rev();
        let mut own = own.filter(|(word, _)| *word == Word::Published);
        own.next().map_or(self.published, |(_, value)| *value)
    }

    fn successors(&self, mutant: Mutant) -> Vec<World> {
        let mut next = self.clone().sleep(mutant);
        next.extend(self.clone().publish(mutant, self.written()));
        for is_sleeper in [false, true] {
            let mut drained = self.clone();
            if drained.drain_one(is_sleeper) {
                next.push(drained);
            }
        }
        next
    }
}

/// Every state that can come; those that nothing follows and in which a message was not taken.
fn stuck(mutant: Mutant) -> (usize, Vec<World>) {
    let mut seen: HashSet<World> = HashSet::new();
    let mut open: Vec<World> = [0, BARRIER].map(World::new).to_vec();
    let mut stuck = Vec::new();
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let next = world.successors(mutant);
        if next.is_empty() && world.taken < MESSAGES {
            stuck.push(world);
        } else {
            open.extend(next);
        }
    }
    (seen.len(), stuck)
}

#[test]
fn nobody_sleeps_over_a_message_whoever_makes_the_barriers() {
    let (states, stuck) = stuck(Mutant::None);
    assert!(states > 1000, "{states}");
    assert_eq!(stuck, []);
}

#[test]
fn every_mutant_is_caught() {
    for mutant in [
        Mutant::Membarrier,
        Mutant::Fence,
        Mutant::SleepersFence,
        Mutant::LastLook,
        Mutant::MembarrierTooEarly,
    ] {
        assert_ne!(stuck(mutant).1, [], "{mutant:?}");
    }
}
