//! Both ends of a link in every interleaving of two threads that loom finds; and mutants, each of which a model must catch.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p millrace-shm --test loom_link`
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering::SeqCst};
use loom::thread;

use millrace_shm::link::{Descriptor, Link, PublishEnd, SubscribeEnd};
use millrace_shm::model::Fault;

/// Which word is broken, for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// A descriptor's first word.
    Slot,
    /// A released ticket.
    Release,
    Taken,
    SubscriberAsleep,
    PublisherAsleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Publisher,
    Subscriber,
}

type Mutant = Option<(Side, Word, Fault)>;

struct Shared {
    link: Arc<Link>,
    /// The messages: one for each ticket.
    messages: [UnsafeCell<u32>; 2],
    /// Doorbells rung.
    rung: AtomicU32,
}

// SAFETY: what is in the cells is what the models are about: loom reports an access that nothing orders.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            link: Arc::new(Link::of_model(2)),
            messages: [UnsafeCell::new(0), UnsafeCell::new(0)],
            rung: AtomicU32::new(0),
        })
    }

    fn apply(&self, mutant: Mutant, side: Side) {
        let Some((culprit, word, fault)) = mutant else {
            return;
        };
        if culprit == side {
            let words = self.link.words(0);
            match word {
                Word::Slot => self.link.break_slot(0, 0, fault),
                Word::Release => self.link.break_release(0, 0, fault),
                Word::Taken => words.taken.break_here(fault),
                Word::SubscriberAsleep => words.subscriber_asleep.break_here(fault),
                Word::PublisherAsleep => words.publisher_asleep.break_here(fault),
            }
        }
    }

    fn write(&self, ticket: u16, value: u32) {
        // SAFETY: loom checks that nobody else accesses it.
        self.messages[usize::from(ticket)].with_mut(|message| unsafe { *message = value });
    }

    fn read(&self, ticket: u16) -> u32 {
        // SAFETY: as above.
        self.messages[usize::from(ticket)].with(|message| unsafe { *message })
    }
}

fn descriptor(ticket: u16, sequence: u64) -> Descriptor {
    Descriptor {
        line: 0,
        bytes: 4,
        flags: 0,
        ticket,
        sequence,
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

fn is_caught(model: fn(Mutant), mutant: (Side, Word, Fault)) -> bool {
    catch_unwind(AssertUnwindSafe(|| explore(move || model(Some(mutant))))).is_err()
}

/// Two messages in a batch; each is read as it was written, and its place is written again only when it came back.
fn messages_are_whole(mutant: Mutant) {
    let shared = Shared::new();
    let other = Arc::clone(&shared);
    let reader = thread::spawn(move || {
        other.apply(mutant, Side::Subscriber);
        let mut end = SubscribeEnd::new(Arc::clone(&other.link), 0, false);
        let mut seen = 0;
        for _ in 0..3 {
            if let Some(popped) = end.pop() {
                let ticket = popped.descriptor.ticket;
                assert_eq!(popped.descriptor.sequence, seen);
                assert_eq!(u64::from(other.read(ticket)), 10 + seen);
                seen += 1;
                end.release(ticket);
            }
        }
    });
    shared.apply(mutant, Side::Publisher);
    let mut end = PublishEnd::new(Arc::clone(&shared.link), 0);
    for ticket in 0..2 {
        shared.write(ticket, 10 + u32::from(ticket));
        end.push(&descriptor(ticket, u64::from(ticket)));
    }
    end.publish();
    if let Some(ticket) = end.collect() {
        shared.write(ticket, 12);
        end.push(&descriptor(ticket, 2));
        end.publish();
    }
    reader.join().unwrap();
}

/// A subscriber that goes to sleep is rung for what was published, or sees it.
fn no_sleep_over_a_message(mutant: Mutant) {
    let shared = Shared::new();
    let other = Arc::clone(&shared);
    let reader = thread::spawn(move || {
        other.apply(mutant, Side::Subscriber);
        let mut end = SubscribeEnd::new(Arc::clone(&other.link), 0, false);
        end.sleep()
    });
    shared.apply(mutant, Side::Publisher);
    let mut end = PublishEnd::new(Arc::clone(&shared.link), 0);
    end.push(&descriptor(0, 0));
    if end.publish() {
        shared.rung.store(1, SeqCst);
    }
    let sleeps = reader.join().unwrap();
    assert!(
        !sleeps || shared.rung.load(SeqCst) == 1,
        "it sleeps for ever"
    );
}

/// A publisher that waits for room is rung when some came back, or sees it.
fn no_sleep_over_room(mutant: Mutant) {
    let shared = Shared::new();
    let other = Arc::clone(&shared);
    let reader = thread::spawn(move || {
        other.apply(mutant, Side::Subscriber);
        let mut end = SubscribeEnd::new(Arc::clone(&other.link), 0, false);
        if end.release(0) {
            other.rung.store(1, SeqCst);
        }
    });
    shared.apply(mutant, Side::Publisher);
    let mut end = PublishEnd::new(Arc::clone(&shared.link), 0);
    let sleeps = end.sleep();
    reader.join().unwrap();
    assert!(
        !sleeps || shared.rung.load(SeqCst) == 1,
        "it sleeps for ever"
    );
}

/// One message that both want: exactly one has it, and only the publisher writes its place again.
fn the_oldest_is_one_s(mutant: Mutant) {
    let shared = Shared::new();
    let mut end = PublishEnd::new(Arc::clone(&shared.link), 0);
    shared.write(0, 10);
    end.push(&descriptor(0, 0));
    end.publish();
    let other = Arc::clone(&shared);
    let reader = thread::spawn(move || {
        other.apply(mutant, Side::Subscriber);
        let mut end = SubscribeEnd::new(Arc::clone(&other.link), 0, true);
        let mut had = 0;
        for _ in 0..2 {
            if let Some(popped) = end.pop() {
                let message = other.read(popped.descriptor.ticket);
                assert_eq!(u64::from(message), 10 + popped.descriptor.sequence);
                had += 1;
            }
        }
        had
    });
    shared.apply(mutant, Side::Publisher);
    let taken_back = end.take_back().unwrap() == Some(0);
    if taken_back {
        shared.write(0, 11);
        end.push(&descriptor(0, 1));
        end.publish();
    }
    let had = reader.join().unwrap();
    assert!(had <= 1, "two messages from one ticket");
}

#[test]
fn messages_are_whole_in_every_order() {
    explore(|| messages_are_whole(None));
}

#[test]
fn nobody_sleeps_over_a_message() {
    explore(|| no_sleep_over_a_message(None));
}

#[test]
fn nobody_sleeps_over_room() {
    explore(|| no_sleep_over_room(None));
}

#[test]
fn the_oldest_message_is_the_publisher_s_or_the_subscriber_s() {
    explore(|| the_oldest_is_one_s(None));
}

#[test]
fn mutants_are_caught() {
    use Fault::{Blind, Deaf, Mute, Relaxed};
    use Side::{Publisher, Subscriber};
    type Model = fn(Mutant);
    let mutants: [(Model, (Side, Word, Fault)); 10] = [
        (messages_are_whole, (Publisher, Word::Slot, Relaxed)),
        (messages_are_whole, (Subscriber, Word::Slot, Relaxed)),
        (messages_are_whole, (Publisher, Word::Release, Relaxed)),
        (messages_are_whole, (Subscriber, Word::Release, Relaxed)),
        (
            no_sleep_over_a_message,
            (Subscriber, Word::SubscriberAsleep, Mute),
        ),
        (
            no_sleep_over_a_message,
            (Publisher, Word::SubscriberAsleep, Deaf),
        ),
        (no_sleep_over_room, (Publisher, Word::PublisherAsleep, Mute)),
        (
            no_sleep_over_room,
            (Subscriber, Word::PublisherAsleep, Deaf),
        ),
        (the_oldest_is_one_s, (Publisher, Word::Taken, Blind)),
        (the_oldest_is_one_s, (Subscriber, Word::Taken, Blind)),
    ];
    for (model, mutant) in mutants {
        assert!(is_caught(model, mutant), "{mutant:?} goes unnoticed");
    }
}
