//! The publisher's side: which subscribers get a message, what is on its way to whom, and what comes back. Its links and its pool are its
//! only I/O.
//!
//! A message is a *flight* from its publication until the last subscriber that it went to has given it back. All of this is private memory:
//! a subscriber that dies, or lies about what it gives back, is removed, and what it had comes home.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_shm::link::{Descriptor, Lie, MESSAGE_BYTES_MAX, PublishEnd, Troubles, flags};
use millrace_shm::pool::{Buffer, Pool};

use crate::WhenFull;
use crate::pending::{NOBODY, Pending};
use crate::routes::{Group, PeerIndex};
use crate::sys::{self, WithheldFd};
use crate::tickets::{Out, Tickets};

mod choose;
mod details;
mod flights;
mod leaving;

pub(crate) use details::{Details, Hindrance, OutboxOptions};
use flights::{Flights, Sent};

/// So many tickets of one link go out before those that came back are looked at again: they lie sixteen in a line, which the subscriber
/// writes, and each look takes that away from it.
const COLLECT_AFTER: usize = 32;

/// A subscriber that messages go to.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    /// Its group; zero: it sees every message.
    pub(crate) group: u64,
    pub(crate) end: PublishEnd,
    /// A byte on it wakes the subscriber; its end of file is the subscriber's death.
    pub(crate) bell: Arc<WithheldFd>,
    tickets: Tickets,
    /// Those that came back are looked at when so many are out.
    collect_at: usize,
    /// Messages before the next one were not sent to it.
    has_gap: bool,
    dropped: u64,
    skipped: u64,
    redelivered: u64,
    /// Times that a message found no room here, and the publisher waited or was told so.
    full: u64,
    /// Since when it has had no room and given nothing back.
    full_since: Option<Instant>,
    is_dirty: bool,
    /// It gets no more, and may still read what it has.
    is_parted: bool,
}

impl Peer {
    pub(crate) fn new(id: u64, group: u64, end: PublishEnd, bell: Arc<WithheldFd>) -> Peer {
        let slots = end.link().slots();
        Peer {
            id,
            group,
            end,
            bell,
            tickets: Tickets::new(slots),
            collect_at: COLLECT_AFTER,
            has_gap: false,
            dropped: 0,
            skipped: 0,
            redelivered: 0,
            full: 0,
            full_since: None,
            is_dirty: false,
            is_parted: false,
        }
    }
}

/// Flights that wait for another member of their group, since the one that had them has died.
#[derive(Debug, Default)]
struct Orphans {
    flights: VecDeque<u32>,
    /// Since when the group has had no member.
    alone_since: Option<Instant>,
}

/// A pool, and who its messages go to.
#[derive(Debug)]
pub(crate) struct Outbox {
    options: OutboxOptions,
    flights: Flights,
    peers: Vec<Option<Peer>>,
    /// Places of those without a group.
    singles: Vec<PeerIndex>,
    groups: Vec<(Group, Orphans)>,
    /// Bytes that subscribers have out, or that wait for one, those of each counted.
    out_bytes: u64,
    sequence: u64,
    dropped: u64,
    /// Messages that have no answer yet, where they get one.
    pub(crate) pending: Option<Pending>,
    /// Peers that lied: to be removed.
    pub(crate) liars: Vec<PeerIndex>,
    /// Of the message at hand.
    targets: Vec<(PeerIndex, Option<u16>)>,
    dirty: Vec<PeerIndex>,
    /// Who had no room for what could not go last.
    hindered_by: Option<PeerIndex>,
    /// Since when somebody waits for room.
    waited_since: Option<Instant>,
}

impl Outbox {
    pub(crate) fn new(pool: Pool, options: OutboxOptions) -> Outbox {
        Outbox {
            out_bytes: 0,
            options,
            flights: Flights::new(pool),
            peers: Vec::new(),
            singles: Vec::new(),
            groups: Vec::new(),
            sequence: 0,
            dropped: 0,
            pending: options.is_answered.then(Pending::default),
            liars: Vec::new(),
            targets: Vec::new(),
            dirty: Vec::new(),
            hindered_by: None,
            waited_since: None,
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.flights.pool
    }

    pub(crate) fn pool_mut(&mut self) -> &mut Pool {
        &mut self.flights.pool
    }

    /// A message for whoever gets everything was given up by who sends it.
    pub(crate) fn note_dropped(&mut self) {
        for single in 0..self.singles.len() {
            self.skip(self.singles[single]);
        }
    }

    /// Messages given up, by whatever cause.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = (PeerIndex, &Peer)> {
        let all = self.peers.iter().enumerate();
        all.filter_map(|(index, peer)| Some((index, peer.as_ref()?)))
    }

    /// A subscriber has come.
    pub(crate) fn add(&mut self, mut peer: Peer) -> PeerIndex {
        if self.options.when_full == WhenFull::DropOldest {
            peer.tickets.note_positions();
        }
        let free = self.peers.iter().position(Option::is_none);
        let index = free.unwrap_or(self.peers.len());
        if peer.group == 0 {
            self.singles.push(index);
        } else {
            let (group, orphans) = self.group_of(peer.group);
            group.add(peer.id, index);
            orphans.alone_since = None;
        }
        if free.is_some() {
            self.peers[index] = Some(peer);
        } else {
            self.peers.push(Some(peer));
        }
        index
    }

    fn group_of(&mut self, name: u64) -> &mut (Group, Orphans) {
        let found = self.groups.iter().position(|(group, _)| group.name == name);
        let place = found.unwrap_or_else(|| {
            self.groups.push((Group::new(name), Orphans::default()));
            self.groups.len() - 1
        });
        &mut self.groups[place]
    }

    /// Takes what a subscriber has given back.
    #[inline]
    fn collect(&mut self, index: PeerIndex) {
        let Some(peer) = self.peers[index].as_mut() else {
            return;
        };
        while let Some(ticket) = peer.end.collect() {
            peer.full_since = None;
            let Some(out) = peer.tickets.take(ticket) else {
                return self.liars.push(index);
            };
            let bytes = self.flights.settle(out.flight);
            peer.tickets.bytes -= bytes;
            self.out_bytes -= bytes;
            if let Some(bucket) = out.bucket {
                came(&mut self.groups, peer, bucket);
            }
        }
    }

    /// Whether it pays to look for room again: each look takes a line from the subscriber that writes there, and of all that it gives
    /// back one by one, half, or enough, is waited for. Where there are others, it pays at once.
    pub(crate) fn has_much_back(&self) -> bool {
        let ([single], true) = (self.singles.as_slice(), self.groups.is_empty()) else {
            return true;
        };
        self.peers[*single].as_ref().is_none_or(|peer| {
            let much = (peer.tickets.count() / 2).min(COLLECT_AFTER);
            peer.end.has_back(much as u32)
        })
    }

    /// Takes what all subscribers have given back. False: nothing.
    pub(crate) fn collect_all(&mut self) -> bool {
        let before = self.out_bytes;
        for index in 0..self.peers.len() {
            if self.peers[index].is_some() {
                self.collect(index);
            }
        }
        let is_back = self.out_bytes != before;
        self.place_orphans();
        self.forget_groups();
        is_back
    }

    /// Memory for a message.
    #[inline]
    pub(crate) fn loan(&mut self, bytes: usize) -> Result<Buffer, Hindrance> {
        if let Some(buffer) = self.flights.pool.take(bytes) {
            return Ok(buffer);
        }
        self.loan_scarce(bytes)
    }

    #[cold]
    fn loan_scarce(&mut self, bytes: usize) -> Result<Buffer, Hindrance> {
        self.hindered_by = None;
        self.collect_all();
        if bytes > MESSAGE_BYTES_MAX.min(self.pool().longest_bytes()) {
            // Nobody has to make room for what never has any.
            return Err(Hindrance::Full);
        }
        // Who does not wait for room does not wait for members either.
        let patience = match self.must_wait() {
            true => self.options.patience,
            false => Some(Duration::ZERO),
        };
        loop {
            if let Some(buffer) = self.flights.pool.take(bytes) {
                return Ok(buffer);
            }
            if !self.give_up_orphans(patience) && !self.take_any_back() {
                break;
            }
        }
        let peers = self
            .peers()
            .filter(|(_, peer)| peer.tickets.count() != 0 && !peer.is_parted);
        let greediest = peers.max_by_key(|(_, peer)| peer.tickets.bytes);
        if let Some((index, _)) = greediest {
            self.note_full(index);
        }
        Err(Hindrance::Full)
    }

    /// Takes a message back, where that is wanted, from who has the most memory among those that have one unread. False: there is none.
    fn take_any_back(&mut self) -> bool {
        if self.options.when_full != WhenFull::DropOldest {
            return false;
        }
        let peers = self.peers();
        let mut all: Vec<_> = peers
            .map(|(index, peer)| (peer.tickets.bytes, index))
            .collect();
        all.sort_unstable();
        all.into_iter()
            .rev()
            .any(|(_, index)| self.take_back(index))
    }

    /// Takes the oldest message back that this subscriber has not read. False: there is none.
    fn take_back(&mut self, index: PeerIndex) -> bool {
        let Some(peer) = self.peers[index].as_mut() else {
            return false;
        };
        let found = match peer.end.take_back() {
            Ok(Some(position)) => peer.tickets.take_at(position).ok_or(Lie),
            Ok(None) => return false,
            Err(Lie) => Err(Lie),
        };
        let Ok(out) = found else {
            self.liars.push(index);
            return false;
        };
        peer.dropped += 1;
        self.dropped += 1;
        if let Some(pending) = &mut self.pending {
            pending.give_up(self.flights.get(out.flight).sequence, peer.id);
        }
        let bytes = self.flights.settle(out.flight);
        peer.tickets.bytes -= bytes;
        self.out_bytes -= bytes;
        if let Some(bucket) = out.bucket {
            came(&mut self.groups, peer, bucket);
        }
        true
    }

    /// The subscriber that gets everything, if there is only one, and it has room for a message that takes so much memory.
    #[inline]
    pub(crate) fn single(&mut self, memory: u64) -> Option<PeerIndex> {
        let ([single], true) = (self.singles.as_slice(), self.groups.is_empty()) else {
            return None;
        };
        let single = *single;
        self.has_room(single, memory).then_some(single)
    }

    /// Whether the subscriber that gets everything, if there is only one, has no room for a message of so many bytes.
    pub(crate) fn is_full(&mut self, bytes: u64) -> bool {
        let ([single], true) = (self.singles.as_slice(), self.groups.is_empty()) else {
            return false;
        };
        let single = *single;
        !self.has_room(single, bytes)
    }

    /// As [`Outbox::push`], to one that [`Outbox::single`] has found for it.
    #[inline]
    pub(crate) fn push_to(
        &mut self,
        single: PeerIndex,
        buffer: Buffer,
        sequence: Option<u64>,
        marks: u8,
    ) -> u64 {
        let number = self.number(sequence);
        let sent = Sent::new(&buffer, number, marks);
        let flight = self.flights.add(buffer, 1, number, None);
        self.write(single, flight, None, sent);
        number
    }

    /// Sends a message to whom it concerns; seen after [`Outbox::publish`]. Returns its number, or the buffer when it cannot go now.
    pub(crate) fn push(
        &mut self,
        buffer: Buffer,
        details: Details,
    ) -> Result<u64, (Buffer, Hindrance)> {
        self.hindered_by = None;
        if let Err(hindrance) = self.choose(buffer.memory_bytes(), details.key) {
            return Err((buffer, hindrance));
        }
        let has_receivers = !self.singles.is_empty()
            || self
                .groups
                .iter()
                .any(|(group, _)| !group.members.is_empty());
        if !has_receivers && self.must_wait() {
            return Err((buffer, Hindrance::NoReceiver));
        }
        let number = self.number(details.sequence);
        if self.targets.is_empty() {
            self.dropped += u64::from(!has_receivers);
            self.flights.pool.give_back(buffer);
            if let Some(pending) = &mut self.pending {
                pending.went(number, NOBODY);
                pending.give_up(number, NOBODY);
            }
            return Ok(number);
        }
        let sent = Sent::new(&buffer, number, details.marks);
        let holders = self.targets.len() as u32;
        let flight = self.flights.add(buffer, holders, number, details.key);
        for place in 0..self.targets.len() {
            let (index, bucket) = self.targets[place];
            self.write(index, flight, bucket, sent);
        }
        Ok(number)
    }

    /// The number of a message that goes out.
    #[inline]
    fn number(&mut self, given: Option<u64>) -> u64 {
        given.unwrap_or_else(|| {
            self.sequence += 1;
            self.sequence - 1
        })
    }

    /// Writes a message's descriptor for a subscriber that has room.
    #[inline]
    fn write(&mut self, index: PeerIndex, flight: u32, bucket: Option<u16>, sent: Sent) {
        let Some(peer) = self.peers[index].as_mut() else {
            return;
        };
        let out = Out {
            flight,
            position: peer.end.tail(),
            bucket,
        };
        let Some(ticket) = peer.tickets.give(out) else {
            return;
        };
        peer.tickets.bytes += sent.memory_bytes;
        self.out_bytes += sent.memory_bytes;
        let gap = if std::mem::take(&mut peer.has_gap) {
            flags::GAP
        } else {
            0
        };
        peer.end.push(&Descriptor {
            line: sent.line,
            bytes: sent.bytes,
            flags: sent.marks | gap,
            ticket,
            sequence: sent.sequence,
        });
        if sent.marks & flags::REDELIVERED != 0 {
            peer.redelivered += 1;
        }
        if !std::mem::replace(&mut peer.is_dirty, true) {
            self.dirty.push(index);
        }
        let (id, group) = (peer.id, peer.group);
        if let Some(pending) = &mut self.pending {
            pending.went(sent.sequence, id);
        }
        if let Some(bucket) = bucket {
            self.group_of(group).0.went(bucket);
        }
    }

    /// Lets the subscribers see what was pushed.
    #[inline]
    pub(crate) fn publish(&mut self) {
        for (group, _) in &mut self.groups {
            group.is_counted = false;
        }
        while let Some(index) = self.dirty.pop() {
            if let Some(peer) = self.peers[index].as_mut() {
                peer.is_dirty = false;
                if peer.dropped | peer.redelivered | peer.full != 0 {
                    peer.end.tell(Troubles {
                        dropped: peer.dropped,
                        skipped: peer.skipped,
                        redelivered: peer.redelivered,
                        full: peer.full,
                    });
                }
                if peer.end.publish() {
                    sys::ring(&peer.bell);
                }
            }
        }
    }

    /// Says to all subscribers that the publisher sleeps until they give something back. False: some have.
    pub(crate) fn sleep(&mut self) -> bool {
        let mut peers = self.peers.iter_mut().flatten();
        let sleeps = peers.all(|peer| peer.end.sleep());
        if !sleeps {
            self.wake();
        }
        sleeps
    }

    /// Says that it sleeps no more.
    pub(crate) fn wake(&self) {
        self.peers.iter().flatten().for_each(|peer| peer.end.wake());
    }

    /// Messages that are on their way to somebody.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.count()
    }
}

/// A message of a bucket has come back from a peer.
fn came(groups: &mut [(Group, Orphans)], peer: &Peer, bucket: u16) {
    let group = groups
        .iter_mut()
        .find(|(group, _)| group.name == peer.group);
    if let Some((group, _)) = group {
        group.came(bucket, peer.id);
    }
}

#[cfg(test)]
mod tests;
