//! Which worker has which flows: a table of owners by bucket, for each stage, and how an owner finds out that nobody goes by an older
//! table.
//!
//! A sender looks up owners and fills rings between `begin` and `end` of its own [`Sending`], and nowhere else. Who gives a bucket away
//! writes the new owner, and then waits until each sender was seen outside, or in a later round ([`Quiet`]): whatever comes after that goes
//! by the new table. A sender that sleeps, waits, or works in a handler for long is outside, and is waited for by nobody.

use std::collections::HashMap;

use crate::atomic::{Apart, AtomicU8, AtomicU64, Ordering, fence};
use crate::event::StageId;
use crate::ring::Consumer;

/// Buckets of each stage: flows that share one move together.
pub const BUCKETS: usize = if cfg!(loom) { 2 } else { 4096 };

/// The bucket of a flow, the same at each stage. Multiplied by the golden ratio: keys whose low bits are alike are spread.
#[inline]
#[must_use]
pub fn bucket_of(flow: u32) -> usize {
    (flow.wrapping_mul(0x9e37_79b9) >> (32 - BUCKETS.trailing_zeros())) as usize
}

/// A bucket of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place(u32);

impl Place {
    /// Of a flow's events at a stage.
    #[inline]
    pub(crate) fn of(stage: StageId, flow: u32) -> Place {
        Place::new(stage, bucket_of(flow))
    }

    /// All of them, of so many stages.
    pub(crate) fn all(stages: usize) -> impl Iterator<Item = Place> {
        (0..(stages * BUCKETS) as u32).map(Place)
    }

    #[inline]
    pub(crate) fn new(stage: StageId, bucket: usize) -> Place {
        Place(u32::from(stage.0) * BUCKETS as u32 + bucket as u32)
    }

    pub(crate) fn bucket(self) -> usize {
        self.index() % BUCKETS
    }

    pub(crate) fn stage(self) -> StageId {
        StageId((self.0 / BUCKETS as u32) as u8)
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn word(self) -> u32 {
        self.0
    }

    pub(crate) fn from_word(word: u32) -> Place {
        Place(word)
    }
}

/// Buckets that stay with a worker, whatever happens.
pub(crate) type Pins = HashMap<Place, usize>;

/// The tables. Only a bucket's owner writes its entry.
#[derive(Debug)]
pub(crate) struct Owners(Box<[AtomicU8]>);

impl Owners {
    /// Buckets go round the workers, but for those that are pinned; those of a stage that is not to stay with the one before it begin at
    /// another worker than that one's: `shift` says by how many it is another one.
    pub(crate) fn new(
        stages: usize,
        workers: usize,
        pins: &Pins,
        shift: impl Fn(usize) -> usize,
    ) -> Owners {
        let first = |place: Place| match pins.get(&place) {
            Some(worker) => *worker as u8,
            None => ((place.bucket() + shift(place.stage().index())) % workers) as u8,
        };
        Owners(
            Place::all(stages)
                .map(|place| AtomicU8::new(first(place)))
                .collect(),
        )
    }

    #[inline]
    pub(crate) fn of(&self, place: Place) -> usize {
        // Acquire, and Release in `set`: who gets an event that went by a new entry sees that entry, too.
        usize::from(self.0[place.index()].load(Ordering::Acquire))
    }

    fn set(&self, place: Place, worker: usize) {
        self.0[place.index()].store(worker as u8, Ordering::Release);
    }

    /// Gives buckets to another worker. What was sent by the older table is on its way until the result says that it is over.
    pub(crate) fn give(&self, places: &[Place], worker: usize, senders: &[Sending]) -> Leave {
        for place in places {
            self.set(*place, worker);
        }
        Leave {
            quiet: Quiet::after(senders),
            mark: None,
        }
    }
}

/// How buckets that were given away are left: once nobody sends by the older table, what is in the former owner's ring by then is the last.
#[derive(Debug)]
pub(crate) struct Leave {
    quiet: Quiet,
    /// How far the ring was filled when nobody was left.
    mark: Option<u64>,
}

impl Leave {
    /// Whether the former owner has all that will ever come to it. `ring` is its own.
    pub(crate) fn is_over(&mut self, senders: &[Sending], ring: &Consumer) -> bool {
        if self.mark.is_none() && self.quiet.poll(senders) {
            self.mark = Some(ring.reserved());
        }
        self.mark.is_some_and(|mark| ring.taken() >= mark)
    }
}

/// Whether a sender is sending: odd while it is.
#[derive(Debug, Default)]
pub(crate) struct Sending(Apart<AtomicU64>);

impl Sending {
    /// The sender looks up owners from here on.
    #[inline]
    pub(crate) fn begin(&self) {
        // Relaxed: nobody else writes it.
        let round = self.0.0.load(Ordering::Relaxed);
        // Release: who sees this round and not the end of the one before sees what was sent in that one, too.
        self.0.0.store(round + 1, Ordering::Release);
        // SeqCst: pairs with the one in `Quiet::after`: either that sees this round, or this round sees the new owner.
        fence(Ordering::SeqCst);
    }

    /// All it had is in rings, and visible.
    #[inline]
    pub(crate) fn end(&self) {
        let round = self.0.0.load(Ordering::Relaxed);
        // Release: pairs with the acquire in `Quiet::poll`; what is in the rings is visible after it.
        self.0.0.store(round + 1, Ordering::Release);
    }
}

/// Senders that may still go by an older table.
#[derive(Debug)]
struct Quiet(Vec<(usize, u64)>);

impl Quiet {
    fn after(senders: &[Sending]) -> Quiet {
        // SeqCst: see `Sending::begin`.
        fence(Ordering::SeqCst);
        let round = |sender: &Sending| sender.0.0.load(Ordering::Acquire);
        Quiet(
            senders
                .iter()
                .map(round)
                .enumerate()
                .filter(|(_, round)| round % 2 == 1)
                .collect(),
        )
    }

    /// Whether none is left.
    fn poll(&mut self, senders: &[Sending]) -> bool {
        // Acquire: pairs with `Sending::end`.
        self.0
            .retain(|&(sender, round)| senders[sender].0.0.load(Ordering::Acquire) == round);
        self.0.is_empty()
    }
}
