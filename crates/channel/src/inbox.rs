//! The subscriber's side: publishers, each with its link and pool, and who of them is served next.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_shm::link::{Descriptor, SubscribeEnd, flags};
use millrace_shm::pool::{Bytes, PoolView};

use crate::sys::{self, WithheldFd};

/// Messages that are taken from one publisher before the others have their turn.
const TURN_MESSAGES: u32 = 32;

/// In the place of the last number, before the first message.
const FIRST: u64 = u64::MAX;

/// So many publishers whose links are over are remembered.
const FORMER_MAX: usize = 64;

/// How many messages ahead memory is asked for.
const AHEAD: u32 = 6;

/// A publisher that messages come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) id: u64,
    end: SubscribeEnd,
    pool: Arc<PoolView>,
    pub(crate) bell: Arc<WithheldFd>,
    /// The publisher's count, in full.
    sequence: u64,
    /// Tickets that the user has.
    held: Vec<bool>,
    held_count: u32,
    /// No more will be published.
    is_ended: bool,
    /// It wrote what cannot be: nothing of it is read any more.
    is_liar: bool,
    skipped_seen: u64,
    /// The last message, and the next one where that lies as far behind the last as the last behind the one before.
    last_line: u32,
    likely: Option<Descriptor>,
    /// Every message is for this subscriber: a number that is missing is one that it was not given.
    has_all: bool,
}

impl Source {
    /// `has_all`: the publisher's messages are for this subscriber, one and all.
    pub(crate) fn new(
        id: u64,
        end: SubscribeEnd,
        pool: PoolView,
        bell: Arc<WithheldFd>,
        has_all: bool,
    ) -> Source {
        let slots = end.link().slots() as usize;
        Source {
            id,
            end,
            pool: Arc::new(pool),
            bell,
            has_all,
            sequence: FIRST,
            held: vec![false; slots],
            held_count: 0,
            is_ended: false,
            is_liar: false,
            skipped_seen: 0,
            last_line: 0,
            likely: None,
        }
    }
}

/// A message that was taken, and what gives it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) source: usize,
    /// The source's id: its place may be another's meanwhile.
    pub(crate) publisher: u64,
    pub(crate) descriptor: Descriptor,
    pub(crate) sequence: u64,
    /// Messages for us that the publisher has given up before this one.
    pub(crate) lost: u64,
}

impl Taken {
    pub(crate) fn is_redelivered(&self) -> bool {
        self.descriptor.flags & flags::REDELIVERED != 0
    }
}

/// All publishers.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    sources: Vec<Option<Source>>,
    /// Who is served, and for how many messages more.
    turn: usize,
    left: u32,
    lost: u64,
    /// Publishers whose links are over, each with the number of its last message: who has left us may come again.
    former: VecDeque<(u64, u64)>,
    /// Ids of publishers that have gone, or go on without us, of which nothing is left to read.
    pub(crate) over: Vec<u64>,
}

impl Inbox {
    pub(crate) fn sources(&self) -> impl Iterator<Item = (usize, &Source)> {
        let all = self.sources.iter().enumerate();
        all.filter_map(|(index, source)| Some((index, source.as_ref()?)))
    }

    pub(crate) fn source(&self, index: usize) -> Option<&Source> {
        self.sources.get(index)?.as_ref()
    }

    /// What the messages of a publisher lie in.
    pub(crate) fn pool_of(&self, publisher: u64) -> Option<Arc<PoolView>> {
        let mut sources = self.sources.iter().flatten();
        let source = sources.find(|source| source.id == publisher);
        source.map(|source| Arc::clone(&source.pool))
    }

    /// Messages that publishers have given up, of those that were for us.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// A publisher has come, or comes again: then what it has sent meanwhile is missing.
    pub(crate) fn add(&mut self, mut source: Source) -> usize {
        if let Some(place) = self.former.iter().position(|(id, _)| *id == source.id)
            && let Some((_, sequence)) = self.former.remove(place)
        {
            source.sequence = sequence;
        }
        if let Some(index) = self.sources.iter().position(Option::is_none) {
            self.sources[index] = Some(source);
            return index;
        }
        self.sources.push(Some(source));
        self.sources.len() - 1
    }

    /// A publisher has gone. What it has published can still be taken.
    pub(crate) fn end(&mut self, index: usize) {
        if let Some(source) = self.sources.get_mut(index).and_then(Option::as_mut) {
            source.is_ended = true;
        }
        self.bury(index);
    }

    /// Forgets a publisher that has gone when all of it was read and given back.
    fn bury(&mut self, index: usize) {
        let is_over = self.source(index).is_some_and(|source| {
            source.is_ended && source.held_count == 0 && (source.is_liar || !source.end.has_some())
        });
        if is_over
            && let Some(source) = self.sources[index].take()
            && !source.is_liar
        {
            self.over.push(source.id);
            if source.has_all && source.sequence != FIRST {
                self.former.truncate(FORMER_MAX - 1);
                self.former.push_front((source.id, source.sequence));
            }
        }
    }

    /// The next message of the publisher whose turn it is, if it has not had that yet.
    #[inline(always)]
    pub(crate) fn pop_in_turn(&mut self) -> Option<Taken> {
        self.left = self.left.checked_sub(1)?;
        self.pop_from(self.turn)
    }

    /// The next message, of each publisher in turn.
    pub(crate) fn pop(&mut self) -> Option<Taken> {
        if let Some(taken) = self.pop_in_turn() {
            return Some(taken);
        }
        for _ in 0..self.sources.len() {
            self.turn = if self.turn + 1 < self.sources.len() {
                self.turn + 1
            } else {
                0
            };
            if let Some(taken) = self.pop_from(self.turn) {
                self.left = TURN_MESSAGES - 1;
                return Some(taken);
            }
        }
        self.left = 0;
        None
    }

    #[inline(always)]
    fn pop_from(&mut self, index: usize) -> Option<Taken> {
        let source = self.sources.get_mut(index)?.as_mut()?;
        if source.is_liar {
            return None;
        }
        let Some(popped) = source.end.pop() else {
            source.await_likely();
            if source.is_ended {
                self.bury(index);
            }
            return None;
        };
        let descriptor = popped.descriptor;
        let ticket = source.held.get_mut(usize::from(descriptor.ticket));
        let is_sound = source.pool.message(&descriptor).is_some();
        let Some(is_held) = ticket.filter(|is_held| is_sound && !**is_held) else {
            return self.expose(index);
        };
        *is_held = true;
        source.held_count += 1;
        source.expect_behind(descriptor);
        if let Some(later) = source.end.peek(AHEAD) {
            source.pool.will_read(&later);
        }
        let last = source.sequence;
        source.sequence = in_full(last, descriptor.sequence);
        let mut lost = u64::from(popped.lost);
        // All of this is the publisher's word, and may be any number.
        if source.has_all && last != FIRST {
            lost = source.sequence.saturating_sub(last.wrapping_add(1));
        } else if descriptor.flags & flags::GAP != 0 || popped.lost != 0 {
            // The mark of a message that was taken back is not seen.
            lost = lost.saturating_add(source.newly_skipped());
        }
        let taken = Taken {
            source: index,
            publisher: source.id,
            descriptor,
            sequence: source.sequence,
            lost,
        };
        self.lost = self.lost.saturating_add(lost);
        Some(taken)
    }

    /// A publisher that writes what cannot be: its link is left.
    #[cold]
    fn expose(&mut self, index: usize) -> Option<Taken> {
        if let Some(source) = self.sources[index].as_mut() {
            source.is_liar = true;
            sys::hang_up(&source.bell);
        }
        None
    }

    /// Where a message lies. None: its publisher is another's place now.
    #[inline(always)]
    pub(crate) fn bytes(&self, taken: &Taken) -> Option<Bytes<'_>> {
        let source = self.source(taken.source)?;
        let is_its = source.id == taken.publisher;
        source.pool.message(&taken.descriptor).filter(|_| is_its)
    }

    /// Gives a message back. False: it has been given back before.
    #[inline(always)]
    pub(crate) fn release(&mut self, index: usize, publisher: u64, ticket: u16) -> bool {
        let Some(source) = self.let_go(index, publisher, ticket) else {
            return false;
        };
        if source.end.release(ticket) {
            sys::ring(&source.bell);
        }
        if source.is_ended {
            self.bury(index);
        }
        true
    }

    /// Lets go of a message without giving it back: to its publisher it was not worked on when the link is over.
    pub(crate) fn abandon(&mut self, taken: &Taken) {
        let (index, ticket) = (taken.source, taken.descriptor.ticket);
        self.let_go(index, taken.publisher, ticket);
        self.bury(index);
    }

    /// The source of a message that the user has, and has no more then.
    #[inline(always)]
    fn let_go(&mut self, index: usize, publisher: u64, ticket: u16) -> Option<&mut Source> {
        let source = self.sources.get_mut(index)?.as_mut()?;
        let is_held = source.held.get_mut(usize::from(ticket))?;
        if !*is_held || source.id != publisher {
            return None;
        }
        *is_held = false;
        source.held_count -= 1;
        Some(source)
    }

    /// Whether a message waits.
    pub(crate) fn has_some(&self) -> bool {
        self.sources()
            .any(|(_, source)| !source.is_liar && source.end.has_some())
    }

    /// Says to all publishers that the subscriber sleeps. False: one has published something.
    pub(crate) fn sleep(&mut self) -> bool {
        let mut sources = self.sources.iter_mut().flatten();
        let sleeps = sources.all(|source| source.is_liar || source.end.sleep());
        if !sleeps {
            self.wake();
        }
        sleeps
    }

    /// Says that it sleeps no more.
    pub(crate) fn wake(&self) {
        for (_, source) in self.sources() {
            source.end.wake();
        }
    }
}

impl Source {
    #[inline]
    fn expect_behind(&mut self, last: Descriptor) {
        let step = last.line.wrapping_sub(self.last_line);
        self.last_line = last.line;
        self.likely = Some(Descriptor {
            line: last.line.wrapping_add(step),
            ..last
        });
    }

    /// There is nothing yet: has the line of the next message come together with its descriptor's, not after it. A twentieth of a round
    /// trip.
    #[inline]
    fn await_likely(&self) {
        if let Some(likely) = &self.likely {
            self.pool.will_read(likely);
        }
    }

    /// Messages that were given up unpublished since the last one that told so.
    fn newly_skipped(&mut self) -> u64 {
        let skipped = self.end.skipped();
        let new = skipped.saturating_sub(self.skipped_seen);
        self.skipped_seen = skipped;
        new
    }
}

/// The count nearest to `last` that ends in these 48 bits.
fn in_full(last: u64, low: u64) -> u64 {
    if last == FIRST {
        return low;
    }
    let apart = low.wrapping_sub(last) << 16;
    last.wrapping_add_signed(apart.cast_signed() >> 16)
}

#[cfg(test)]
mod tests {
    use super::{FIRST, in_full};

    #[test]
    fn sequences_go_on_beyond_their_bits() {
        let full = (1_u64 << 48) - 1;
        assert_eq!(in_full(0, 5), 5);
        assert_eq!(in_full(FIRST, 1 << 47), 1 << 47, "the first");
        assert_eq!(in_full(full - 2, full), full);
        assert_eq!(in_full(full, 0), 1 << 48);
        assert_eq!(in_full((7 << 48) + 3, 2), (7 << 48) + 2, "redelivered");
        assert_eq!(in_full(7 << 48, full), (7 << 48) - 1);
    }
}
