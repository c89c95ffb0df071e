//! The gate and the owner's lock, in every interleaving of two threads that loom finds; and mutants of both,
//! each of which a model must catch.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p millrace-shm -p millrace-stream --test loom`
#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;

use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

use millrace_shm::gate::{Gate, GateWord};
use millrace_shm::lock::{Held, OwnerLock};
use millrace_shm::model::{self, Fault};

/// `1 << 32` is the open bit, what is below the tail, and the epoch lies above bit 38: see `docs/shm-abi.md`.
const OPEN_BIT: u64 = 1 << 32;
const TAIL_BITS: u64 = 0xffff_ffff;
const EPOCH_BITS: u64 = !0 << 38;
const WINDOW_LOG2: u32 = 12;

/// Whose use of a word is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Sender,
    Receiver,
}
use Side::{Receiver, Sender};

type Mutant = Option<(Side, Fault)>;

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

/// A gate, and a ring of one message.
struct Shared {
    gate: GateWord,
    /// What the sender wrote before it published.
    message: UnsafeCell<u32>,
    /// The epoch that the sender's switch position is for.
    switch: AtomicU32,
}

// SAFETY: what is in the cell is what the models are about: loom reports an access that nothing orders.
unsafe impl Sync for Shared {}

impl Shared {
    fn opened() -> Arc<Shared> {
        let shared = Shared {
            gate: GateWord::new(),
            message: UnsafeCell::new(0),
            switch: AtomicU32::new(0),
        };
        shared.gate.open(shared.gate.load(), WINDOW_LOG2).unwrap();
        Arc::new(shared)
    }

    fn apply(&self, mutant: Mutant, side: Side) {
        match mutant {
            Some((culprit, fault)) if culprit == side => self.gate.break_here(fault),
            _ => {}
        }
    }

    /// Puts the message into the ring; true when it counts as delivered.
    fn send(&self, seen: Gate) -> bool {
        if !seen.open {
            return false;
        }
        // SAFETY: nobody reads the message before it is published: loom checks it.
        self.message.with_mut(|message| unsafe { *message = 7 });
        self.switch.store(seen.epoch, Relaxed);
        self.gate.publish(seen, 1).is_ok()
    }

    fn check_message(&self, gate: Gate) {
        // SAFETY: the sender has published it and writes no more: loom checks it.
        assert_eq!(self.message.with(|message| unsafe { *message }), 7);
        assert_eq!(
            self.switch.load(Relaxed),
            gate.epoch,
            "another epoch's switch position"
        );
    }
}

/// The sender publishes while the receiver closes the gate to sleep.
fn publish_against_close(mutant: Mutant) {
    explore(move || {
        let shared = Shared::opened();
        let sender = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.apply(mutant, Sender);
                shared.send(shared.gate.load())
            }
        });
        shared.apply(mutant, Receiver);
        let seen = shared.gate.load();
        let asleep = if seen.tail == 0 {
            shared.gate.close(seen)
        } else {
            Err(seen)
        };
        if let Err(now) = asleep {
            assert_eq!(now.tail, 1, "nobody else moves the gate");
            shared.check_message(now);
        }
        let delivered = sender.join().unwrap();
        let now = shared.gate.load();
        assert_eq!(
            now.open,
            asleep.is_err(),
            "open for a sleeper, or closed for nobody"
        );
        assert_eq!(
            now.tail,
            u32::from(delivered),
            "published bytes are those that were delivered"
        );
        assert_ne!(
            delivered,
            asleep.is_ok(),
            "slept upon a published byte, or lost one"
        );
    });
}

/// The receiver closes and opens again at the same tail while the sender acts on what it saw before.
fn publish_across_epochs(mutant: Mutant) {
    explore(move || {
        let shared = Shared::opened();
        let sender = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.apply(mutant, Sender);
                shared.send(shared.gate.load())
            }
        });
        if let Ok(closed) = shared.gate.close(shared.gate.load())
            && closed.tail == 0
        {
            shared.gate.open(closed, WINDOW_LOG2).unwrap();
        }
        let delivered = sender.join().unwrap();
        let now = shared.gate.load();
        assert_eq!(now.tail, u32::from(delivered));
        if delivered {
            shared.check_message(now);
        }
    });
}

/// Both sides end the epoch: one of them wins, and both see the same end.
#[test]
fn both_sides_may_close() {
    explore(|| {
        let shared = Shared::opened();
        let sender = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let delivered = shared.send(shared.gate.load());
                shared.gate.close_now();
                (delivered, shared.gate.load())
            }
        });
        shared.gate.close_now();
        let seen = shared.gate.load();
        let (delivered, other) = sender.join().unwrap();
        assert_eq!(seen, other);
        assert_eq!((seen.open, seen.tail), (false, u32::from(delivered)));
    });
}

#[test]
fn no_published_byte_is_slept_upon() {
    publish_against_close(None);
}

#[test]
fn an_epoch_is_not_mistaken_for_the_next() {
    publish_across_epochs(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_publish_without_release() {
    publish_against_close(Some((Sender, Fault::Relaxed)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_load_without_acquire() {
    publish_against_close(Some((Receiver, Fault::Relaxed)));
}

#[test]
#[should_panic(expected = "slept upon")]
fn mutant_publish_into_a_closed_gate() {
    publish_against_close(Some((Sender, Fault::Overlook(OPEN_BIT))));
}

#[test]
#[should_panic(expected = "open for a sleeper")]
fn mutant_publish_that_opens_a_closed_gate() {
    publish_against_close(Some((Sender, Fault::Blind)));
}

#[test]
#[should_panic(expected = "slept upon")]
fn mutant_close_without_looking_at_the_tail() {
    publish_against_close(Some((Receiver, Fault::Overlook(TAIL_BITS))));
}

#[test]
#[should_panic(expected = "published bytes are those that were delivered")]
fn mutant_close_that_takes_bytes_back() {
    publish_against_close(Some((Receiver, Fault::Blind)));
}

#[test]
#[should_panic(expected = "another epoch's switch position")]
fn mutant_publish_without_looking_at_the_epoch() {
    publish_across_epochs(Some((Sender, Fault::Overlook(EPOCH_BITS))));
}

/// What the lock guards, and who holds it.
struct Guarded {
    lock: OwnerLock,
    count: UnsafeCell<u32>,
}

// SAFETY: as of `Shared`.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded {
            lock: OwnerLock::default(),
            count: UnsafeCell::new(0),
        })
    }

    fn increment(&self) {
        // SAFETY: the lock is held: loom checks that this excludes others.
        self.count.with_mut(|count| unsafe { *count += 1 });
    }

    fn visit(&self, thread: u32) -> Held {
        let held = self.lock.lock(thread);
        self.increment();
        self.lock.unlock(held);
        held
    }

    fn total(&self) -> u32 {
        // SAFETY: every other thread has been joined.
        self.count.with(|count| unsafe { *count })
    }
}

/// Two threads take the lock; `fault` is one's.
fn lock_excludes(fault: Option<Fault>) {
    explore(move || {
        let guarded = Guarded::new();
        let other = thread::spawn({
            let guarded = Arc::clone(&guarded);
            move || guarded.visit(2)
        });
        if let Some(fault) = fault {
            guarded.lock.break_here(fault);
        }
        assert_eq!(guarded.visit(1), Held::Owned);
        assert_eq!(other.join().unwrap(), Held::Owned);
        assert_eq!(guarded.total(), 2);
    });
}

/// The owner dies with the lock held while another waits. `alive`: it only seems to have died.
fn owner_dies(alive: bool) {
    explore(move || {
        let guarded = Guarded::new();
        assert_eq!(guarded.lock.lock(9), Held::Owned);
        let heir = thread::spawn({
            let guarded = Arc::clone(&guarded);
            move || guarded.visit(1)
        });
        if alive {
            model::die(9);
            guarded.increment();
        } else {
            guarded.increment();
            model::die(9);
        }
        assert_eq!(heir.join().unwrap(), Held::Inherited);
        assert_eq!(guarded.total(), 2);
    });
}

/// Two threads find the lock with a dead owner; `fault` is one's.
fn two_heirs(fault: Option<Fault>) {
    explore(move || {
        let guarded = Guarded::new();
        assert_eq!(guarded.lock.lock(9), Held::Owned);
        model::die(9);
        let other = thread::spawn({
            let guarded = Arc::clone(&guarded);
            move || guarded.visit(2)
        });
        if let Some(fault) = fault {
            guarded.lock.break_here(fault);
        }
        let held = [guarded.visit(1), other.join().unwrap()];
        assert_eq!(guarded.total(), 2);
        assert_eq!(
            held.iter().filter(|held| **held == Held::Inherited).count(),
            1,
            "heirs"
        );
    });
}

#[test]
fn the_lock_excludes() {
    lock_excludes(None);
}

#[test]
fn a_dead_owner_is_succeeded() {
    owner_dies(false);
}

#[test]
fn a_dead_owner_has_one_heir() {
    two_heirs(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_lock_without_order() {
    lock_excludes(Some(Fault::Relaxed));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_lock_without_comparison() {
    lock_excludes(Some(Fault::Blind));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_succession_without_order() {
    two_heirs(Some(Fault::Relaxed));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_succession_from_a_living_owner() {
    owner_dies(true);
}
