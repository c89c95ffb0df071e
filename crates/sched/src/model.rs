//! What loom plays: see `tests/loom.rs`.

use std::sync::Arc;

use loom::thread;

use crate::event::StageId;
use crate::map::{Owners, Pins, Place, Sending};
use crate::ring::ring;

/// A sender sends twice while the owner gives the bucket away: what was sent on, and behind it what came straight, is in order.
pub fn a_bucket_moves() {
    let owners = Arc::new(Owners::new(1, 2, &Pins::new()));
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
