//! What loom plays: see `tests/loom.rs`.

use std::sync::Arc;

use loom::thread;

use crate::event::StageId;
use crate::map::{Owners, Pins, Place, Sending};
use crate::ring::ring;
use crate::state::States;

/// A sender sends twice while the owner gives the bucket away: what was sent on, and behind it what came straight, is in order.
pub fn a_bucket_moves() {
    let owners = Arc::new(Owners::new(1, 2, &Pins::new(), |_| 0));
    let senders: Arc<[Sending]> = Arc::new([Sending::default()]);
    let place = Place::new(StageId(0), 0);
    let (mut to_old, mut old) = ring(2);
    let (mut to_new, mut new) = ring(2);
    let sender = {
        let (owners, senders) = (owners.clone(), senders.clone());
        thread::spawn(move || {
            for number in 1..=2 {
                senders[0].begin();
                let ring = match owners.of(place) {
                    0 => &mut to_old,
                    _ => &mut to_new,
                };
                let (at, count) = ring.reserve(1);
                assert_eq!(count, 1);
                ring.fill(at, [number, 0]);
                senders[0].end();
            }
        })
    };
    let mut leave = owners.give(&[place], 1, &senders);
    let mut order = Vec::new();
    while !leave.is_over(&senders, &old) {
        old.take(9, |[number, _]| order.push(number));
        thread::yield_now();
    }
    // Here the bucket is handed over: whatever the former owner had is before it.
    sender.join().unwrap();
    assert_eq!(
        (old.taken(), order.len() as u64),
        (old.reserved(), old.reserved()),
        "something came, or was there still, after the bucket was handed over"
    );
    new.take(9, |[number, _]| order.push(number));
    assert_eq!(order, [1, 2]);
}

/// What is kept of a bucket is there when its new owner is told of it.
pub fn a_state_goes_with_its_bucket() {
    let states = Arc::new(States::new(1));
    let place = Place::new(StageId(0), 1);
    // Slots are made when they are used first: here, since loom has no lock for that.
    states.put(Place::new(StageId(0), 0), Box::new(0));
    let (mut to_new, mut new) = ring(2);
    let former = {
        let states = states.clone();
        thread::spawn(move || {
            states.put(place, Box::new(7));
            let (at, _) = to_new.reserve(1);
            to_new.fill(at, [1, 0]);
        })
    };
    let mut fetched = None;
    let mut is_told = false;
    while !is_told {
        new.take(1, |_| is_told = true);
        if is_told {
            fetched = states.fetch(place);
        }
        thread::yield_now();
    }
    let fetched = fetched.and_then(|state| state.downcast::<i32>().ok());
    assert_eq!(fetched, Some(Box::new(7)));
    former.join().unwrap();
}

/// Who has a bucket and is clear has no event of it that was sent before: a sender sends one, then says so, while the bucket moves.
pub fn what_is_done_in_place_overtakes_nothing() {
    let owners = Arc::new(Owners::new(1, 2, &Pins::new(), |_| 0));
    let senders: Arc<[Sending]> = Arc::new([Sending::default(), Sending::default()]);
    let place = Place::new(StageId(0), 0);
    let (mut to_old, mut old) = ring(2);
    let (mut to_new, mut new) = ring(2);
    let mut words = to_new.clone();
    let told = Arc::new(loom::sync::atomic::AtomicBool::new(false));
    let sender = {
        let (owners, senders, told) = (owners.clone(), senders.clone(), told.clone());
        thread::spawn(move || {
            senders[0].begin();
            let ring = match owners.of(place) {
                0 => &mut to_old,
                _ => &mut to_new,
            };
            let (at, _) = ring.reserve(1);
            ring.fill(at, [1, 0]);
            senders[0].end();
            told.store(true, std::sync::atomic::Ordering::Release);
        })
    };
    let receiver = {
        let told = told.clone();
        thread::spawn(move || {
            let (mut came, mut has) = (0, false);
            // What was sent before is done: then this one would be done in place.
            let is_later = told.load(std::sync::atomic::Ordering::Acquire);
            new.take(9, |[what, _]| match what {
                2 => has = true,
                _ => came += 1,
            });
            if is_later && has && new.is_empty() {
                assert_eq!(came, 1, "it is overtaken");
            }
        })
    };
    let mut leave = owners.give(&[place], 1, &senders);
    let mut came = 0;
    while !leave.is_over(&senders, &old) {
        old.take(9, |_| came += 1);
        thread::yield_now();
    }
    // It is sent on, and behind it the bucket is handed over.
    let (at, count) = words.reserve(came + 1);
    (at..at + count - 1).for_each(|at| words.fill(at, [1, 0]));
    words.fill(at + count - 1, [2, 0]);
    sender.join().unwrap();
    receiver.join().unwrap();
}

/// Two producers of one ring: what comes later because of something that came before is behind it.
pub fn causes_come_first() {
    let (mut first, mut consumer) = ring(2);
    let mut second = first.clone();
    let told = Arc::new(loom::sync::atomic::AtomicBool::new(false));
    let effect = {
        let told = told.clone();
        thread::spawn(move || {
            if told.load(std::sync::atomic::Ordering::Acquire) {
                let (at, _) = second.reserve(1);
                second.fill(at, [2, 0]);
            }
        })
    };
    let (at, _) = first.reserve(1);
    first.fill(at, [1, 0]);
    told.store(true, std::sync::atomic::Ordering::Release);
    effect.join().unwrap();
    let mut order = Vec::new();
    consumer.take(9, |[number, _]| order.push(number));
    assert!(order == [1] || order == [1, 2], "{order:?}");
}
