//! A sender that asks for a recall and the agent that works on it, in every interleaving that loom finds; and mutants, which a model must
//! catch.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p millrace-shm --test loom_asks`
#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use millrace_shm::board::Row;
use millrace_shm::model::Fault;

/// Whose use of the word is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Sender,
    Agent,
}

type Mutant = Option<(Side, Fault)>;

struct Shared {
    row: Row,
    /// What is in the kernel's queue: one of the two puts something there.
    queue: UnsafeCell<u32>,
}

// SAFETY: what is in the cell is what the models are about: loom reports an access that nothing orders.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn apply(&self, mutant: Mutant, side: Side) {
        match mutant {
            Some((culprit, fault)) if culprit == side => self.row.identity.flags.break_here(fault),
            _ => {}
        }
    }

    fn put(&self) {
        // SAFETY: nobody else is at it: loom checks it.
        self.queue.with_mut(|queue| unsafe { *queue += 1 });
    }

    /// The sender asks, waits no more, and goes on.
    fn ask(&self) {
        let end = &self.row.identity;
        end.begin_ask();
        if end.end_ask() {
            while end.is_at_work() {
                thread::yield_now();
            }
        }
        self.put();
    }
}

/// The agent comes to what was asked at any time: it works before the sender goes on, or while it waits for something else, or not at all.
fn work_against_end(mutant: Mutant, asks: u32) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            row: Row::default(),
            queue: UnsafeCell::new(0),
        });
        shared.put();
        shared.row.identity.begin_ask();
        let agent = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.apply(mutant, Side::Agent);
                let works = shared.row.identity.begin_work();
                if works {
                    shared.put();
                    shared.row.identity.end_work();
                }
                works
            }
        });
        shared.apply(mutant, Side::Sender);
        for _ in 0..asks {
            shared.ask();
        }
        let works = agent.join().unwrap();
        // SAFETY: the other thread has ended.
        let all = shared.queue.with(|queue| unsafe { *queue });
        assert_eq!(all, 1 + asks + u32::from(works));
        assert!(!shared.row.identity.is_at_work());
    });
}

#[test]
fn the_agent_works_only_while_the_sender_waits() {
    work_against_end(None, 1);
    work_against_end(None, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_sender_without_order() {
    work_against_end(Some((Side::Sender, Fault::Relaxed)), 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_agent_without_order() {
    work_against_end(Some((Side::Agent, Fault::Relaxed)), 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_sender_that_does_not_look() {
    work_against_end(Some((Side::Sender, Fault::Deaf)), 1);
}
