//! What it costs here to hand an event from one worker to another: measured when workers start, by two of them, where they run.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::ring::{Consumer, Producer, ring};
use crate::shared::Shared;

/// Events of a burst, and bursts that are sent.
const BURST: u64 = 32;
const BURSTS: usize = 64;
/// It takes some microseconds. Where the other one does not get a processor so long, it is left at the estimate.
const PATIENCE: Duration = Duration::from_millis(2);

/// Two workers' parts in it.
pub(crate) fn sides() -> [Side; 2] {
    let (producer, consumer) = ring(256);
    [Side::Sends(producer), Side::Receives(consumer)]
}

/// One worker's part.
#[derive(Debug)]
pub(crate) enum Side {
    Sends(Producer),
    Receives(Consumer),
}

impl Side {
    /// Plays it, and tells what it cost.
    pub(crate) fn measure(self, shared: &Shared) {
        let (side, mut costs_ns) = match self {
            Side::Sends(ring) => (0, send(ring)),
            Side::Receives(ring) => (1, receive(ring)),
        };
        if costs_ns.len() >= BURSTS / 4 {
            costs_ns.sort_unstable();
            let median = costs_ns[costs_ns.len() / 2];
            shared.fusion.set_cost(side, median);
        }
    }
}

/// The costs of an event, of each burst.
fn send(mut ring: Producer) -> Vec<u64> {
    let begin = Instant::now();
    let mut costs = Vec::with_capacity(BURSTS);
    while costs.len() < BURSTS && begin.elapsed() < PATIENCE {
        if ring.room(BURST) < BURST {
            std::hint::spin_loop();
            continue;
        }
        let begin = Instant::now();
        // As in `Outbox::send`: one fence before the look at the table, and one before that at who sleeps.
        fence(Ordering::SeqCst);
        let (first, count) = ring.reserve(BURST);
        (first..first + count).for_each(|at| ring.fill(at, [at, at]));
        fence(Ordering::SeqCst);
        costs.push(begin.elapsed().as_nanos() as u64 / BURST);
    }
    costs
}

fn receive(mut ring: Consumer) -> Vec<u64> {
    let begin = Instant::now();
    let mut costs = Vec::with_capacity(BURSTS);
    let mut sum = 0u64;
    while ring.taken() < BURST * BURSTS as u64 && begin.elapsed() < PATIENCE {
        if !ring.is_ready() {
            std::hint::spin_loop();
            continue;
        }
        let (begin, before) = (Instant::now(), ring.taken());
        ring.take(BURST, |[first, second]| {
            sum = sum.wrapping_add(first ^ second);
        });
        let count = ring.taken() - before;
        if count >= BURST / 2 {
            costs.push(begin.elapsed().as_nanos() as u64 / count);
        }
    }
    std::hint::black_box(sum);
    costs
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_sides_end_also_when_one_of_them_never_comes() {
        let [sends, receives] = sides();
        let Side::Sends(producer) = sends else {
            panic!("the first one sends");
        };
        // The ring is full, then.
        assert!(send(producer).len() < BURSTS);
        let Side::Receives(consumer) = receives else {
            panic!("the second one receives");
        };
        assert_eq!(receive(consumer).len(), 8);
        let [sends, receives] = sides();
        let other = std::thread::spawn(move || match receives {
            Side::Receives(consumer) => receive(consumer),
            Side::Sends(producer) => send(producer),
        });
        let Side::Sends(producer) = sends else {
            panic!("the first one sends");
        };
        let sent = send(producer);
        assert!(sent.len() <= BURSTS && other.join().unwrap().len() <= BURSTS * 2);
    }
}
