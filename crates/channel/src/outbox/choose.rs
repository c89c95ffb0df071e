//! Which subscribers get a message, and whether they have room.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use millrace_shm::link::flags;

use super::flights::Sent;
use super::{COLLECT_AFTER, Hindrance, Outbox, Peer};
use crate::WhenFull;
use crate::routes::{Group, PeerIndex, Turn};

impl Outbox {
    /// Whether this subscriber can be sent a message that takes so much memory.
    #[inline]
    pub(super) fn has_room(&mut self, index: PeerIndex, memory: u64) -> bool {
        let is_due = |peer: &Peer| peer.tickets.count() >= peer.collect_at;
        if self.peers[index].as_ref().is_some_and(is_due) {
            self.collect(index);
            if let Some(peer) = self.peers[index].as_mut() {
                peer.collect_at = peer.tickets.count() + COLLECT_AFTER;
            }
        }
        self.is_room(index, memory) || {
            self.collect(index);
            self.is_room(index, memory)
        }
    }

    /// A subscriber may have half of what the others leave: in balance all have as much, and whoever comes finds some, also where those
    /// before have taken all that they may and give nothing back. One message it may have in any case.
    #[inline]
    fn is_room(&self, index: PeerIndex, memory: u64) -> bool {
        self.peers[index].as_ref().is_some_and(|peer| {
            let tickets = &peer.tickets;
            let is_its = tickets.bytes + self.out_bytes + 2 * memory <= self.pool().bytes();
            tickets.has_free() && (is_its || tickets.count() == 0)
        })
    }

    /// Whether it could be given another message, if there were memory for it.
    fn lacks_memory(&self, index: PeerIndex) -> bool {
        let peer = self.peers[index].as_ref();
        peer.is_some_and(|peer| peer.tickets.has_free())
    }

    /// Finds out who gets a message, into `targets`.
    pub(super) fn choose(&mut self, memory: u64, key: Option<u64>) -> Result<(), Hindrance> {
        self.targets.clear();
        if self.has_orphans() {
            // Before anybody is chosen: it could take the room that one of the chosen has.
            self.place_orphans();
        }
        for place in 0..self.singles.len() {
            self.choose_peer(self.singles[place], None, memory)?;
        }
        for place in 0..self.groups.len() {
            if self.groups[place].0.members.is_empty() {
                continue;
            }
            if !self.groups[place].1.flights.is_empty() && self.must_wait() {
                return Err(Hindrance::Full);
            }
            let (member, bucket) = self.choose_member(place, key, memory)?;
            let chosen = self.choose_peer(member, bucket, memory);
            self.groups[place].0.is_counted &= chosen.is_ok();
            chosen?;
        }
        Ok(())
    }

    pub(super) fn must_wait(&self) -> bool {
        matches!(self.options.when_full, WhenFull::Block | WhenFull::Fail)
    }

    /// Adds a subscriber to the targets if it has room, or makes room, or passes it over, as the user wants it.
    fn choose_peer(
        &mut self,
        index: PeerIndex,
        bucket: Option<u16>,
        memory: u64,
    ) -> Result<(), Hindrance> {
        if self.has_room(index, memory)
            || self.lacks_memory(index)
                && self.give_up_orphans(self.options.patience)
                && self.has_room(index, memory)
        {
            self.targets.push((index, bucket));
            return Ok(());
        }
        if self.must_wait() {
            self.note_full(index);
            return Err(Hindrance::Full);
        }
        if self.options.when_full == WhenFull::DropOldest {
            while self.take_back(index) {
                if self.has_room(index, memory) {
                    self.targets.push((index, bucket));
                    return Ok(());
                }
            }
        }
        self.skip(index);
        Ok(())
    }

    /// A message is given up that was for this subscriber.
    pub(super) fn skip(&mut self, index: PeerIndex) {
        if let Some(peer) = self.peers[index].as_mut() {
            peer.dropped += 1;
            peer.skipped += 1;
            peer.has_gap = true;
            self.dropped += 1;
            // Also where nothing goes to this one.
            self.note_dirty(index);
        }
    }

    /// This subscriber has no room for what is for it. Where somebody waits for that, it holds that up, from now on or since it was first
    /// said; where somebody is told so, [`Outbox::count_full`] says that.
    pub(super) fn note_full(&mut self, index: PeerIndex) {
        self.hindered_by = Some(index);
        if self.is_waited() {
            self.note_held_up(index);
        }
    }

    fn note_held_up(&mut self, index: PeerIndex) {
        if let Some(peer) = self.peers[index].as_mut() {
            peer.full_since.get_or_insert_with(Instant::now);
        }
    }

    /// Somebody waits for room from now on.
    pub(crate) fn begin_wait(&mut self) {
        self.waited_since = Some(Instant::now());
    }

    /// He does not wait any more. Who held nothing up but what has found room now is not slow.
    pub(crate) fn end_wait(&mut self, has_room: bool) {
        let Some(began) = self.waited_since.take().filter(|_| has_room) else {
            return;
        };
        for peer in self.peers.iter_mut().flatten() {
            peer.full_since = peer.full_since.filter(|since| *since < began);
        }
    }

    /// Whether somebody waits for room.
    pub(crate) fn is_waited(&self) -> bool {
        self.waited_since.is_some()
    }

    /// The publisher waits for what could not go just now, or `is_told` so: then who had no room holds that up from now on. Onlookers learn
    /// of it at once: one whose messages cannot go publishes nothing.
    pub(crate) fn count_full(&mut self, is_told: bool) {
        let Some(index) = self.hindered_by else {
            return;
        };
        if let Some(peer) = self.peers[index].as_mut() {
            peer.full += 1;
            peer.end.tell_full(peer.full);
        }
        if is_told {
            self.note_held_up(index);
        }
    }

    /// Whether this subscriber is why the last message or loan could not go, or has no room for what a dead member of its group had.
    pub(crate) fn is_hindering(&self, index: PeerIndex) -> bool {
        let group = self.peers[index].as_ref().map(|peer| peer.group);
        let mut groups = self.groups.iter();
        self.hindered_by == Some(index)
            || groups.any(|(of, orphans)| Some(of.name) == group && !orphans.flights.is_empty())
    }

    /// Something is to be seen of this subscriber's link with the next publication.
    fn note_dirty(&mut self, index: PeerIndex) {
        if let Some(peer) = self.peers[index].as_mut()
            && !std::mem::replace(&mut peer.is_dirty, true)
        {
            self.dirty.push(index);
        }
    }

    /// Which member of a group gets a message: the least loaded, or of those that have room if that one has none.
    fn choose_member(
        &mut self,
        place: usize,
        key: Option<u64>,
        memory: u64,
    ) -> Result<(PeerIndex, Option<u16>), Hindrance> {
        if let Some(key) = key {
            return self.choose_owner(place, Group::bucket(key));
        }
        if !std::mem::replace(&mut self.groups[place].0.is_counted, true) {
            for member in 0..self.groups[place].0.members.len() {
                self.collect(self.groups[place].0.members[member].1);
            }
        }
        let group = &self.groups[place].0;
        let count = group.members.len();
        let load = |index: PeerIndex| {
            let peer = self.peers[index].as_ref();
            peer.map_or(usize::MAX, |peer| peer.tickets.count())
        };
        let in_turn = (0..count).map(|step| group.members[(group.next + step) % count].1);
        let chosen = in_turn.clone().min_by_key(|index| load(*index));
        let mut chosen = chosen.ok_or(Hindrance::NoReceiver)?;
        if !self.is_room(chosen, memory) {
            let others = in_turn.filter(|index| self.is_room(*index, memory));
            chosen = others.min_by_key(|index| load(*index)).unwrap_or(chosen);
        }
        let group = &mut self.groups[place].0;
        group.next = (group.next + 1) % count;
        Ok((chosen, None))
    }

    fn choose_owner(
        &mut self,
        place: usize,
        bucket: u16,
    ) -> Result<(PeerIndex, Option<u16>), Hindrance> {
        let mut turn = self.groups[place].0.turn(bucket);
        if let Turn::Moving(owner) = turn {
            if let Some(index) = self.groups[place].0.place(owner) {
                self.collect(index);
            }
            turn = self.groups[place].0.turn(bucket);
        }
        let owner = match turn {
            Turn::Go(owner) => owner,
            Turn::Moving(owner) if !self.must_wait() => owner,
            Turn::Moving(owner) => {
                if let Some(index) = self.groups[place].0.place(owner) {
                    self.note_full(index);
                }
                return Err(Hindrance::Full);
            }
            Turn::Nobody => return Err(Hindrance::NoReceiver),
        };
        let index = self.groups[place].0.place(owner);
        Ok((index.ok_or(Hindrance::NoReceiver)?, Some(bucket)))
    }

    /// Whether something that dead members of groups had waits for living ones.
    pub(crate) fn has_orphans(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|(_, orphans)| !orphans.flights.is_empty())
    }

    /// The same, where there are living ones that could take it.
    pub(crate) fn has_heirs(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|(group, orphans)| !orphans.flights.is_empty() && !group.members.is_empty())
    }

    /// Gives what dead members of groups had to living ones, as far as these have room.
    pub(super) fn place_orphans(&mut self) {
        for place in 0..self.groups.len() {
            if self.groups[place].0.members.is_empty() {
                continue;
            }
            let mut waiting = std::mem::take(&mut self.groups[place].1.flights);
            // Keys stay in order; those that wait hold no others up.
            let mut stuck = HashSet::new();
            waiting.retain(|flight| {
                let bucket = self.flights.get(*flight).key.map(Group::bucket);
                let waits = stuck.contains(&bucket) || !self.place_orphan(place, *flight);
                if waits {
                    stuck.insert(bucket);
                }
                waits
            });
            self.groups[place].1.flights = waiting;
        }
        self.publish();
    }

    /// Gives a member of a group what a dead one had. False: there is no room.
    fn place_orphan(&mut self, place: usize, number: u32) -> bool {
        let flight = self.flights.get(number);
        let Some(buffer) = &flight.buffer else {
            // Nobody has it any more: it is not out.
            return true;
        };
        let marks = if flight.was_taken {
            flags::REDELIVERED
        } else {
            0
        };
        let (sent, key) = (Sent::new(buffer, flight.sequence, marks), flight.key);
        // What it takes here, it will take there.
        self.out_bytes -= sent.memory_bytes;
        let is_placed = self.give_to_member(place, number, key, sent);
        if !is_placed {
            self.out_bytes += sent.memory_bytes;
        }
        is_placed
    }

    fn give_to_member(&mut self, place: usize, number: u32, key: Option<u64>, sent: Sent) -> bool {
        let chosen = self.choose_member(place, key, sent.memory_bytes);
        let Ok((member, bucket)) = chosen else {
            return false;
        };
        if !self.has_room(member, sent.memory_bytes) {
            self.groups[place].0.is_counted = false;
            self.note_held_up(member);
            return false;
        }
        self.write(member, number, bucket, sent);
        true
    }

    /// Where there is no room for something else: gives up what waits for a member of a group that has had none for so long. False: nothing
    /// does.
    pub(super) fn give_up_orphans(&mut self, patience: Option<Duration>) -> bool {
        if !self.has_orphans() {
            return false;
        }
        let now = Instant::now();
        // What one has that was left takes its memory in any case.
        let peers = self.peers.iter().flatten();
        let out: HashSet<u32> = peers
            .flat_map(|peer| peer.tickets.all())
            .map(|out| out.flight)
            .collect();
        let mut given_up = Vec::new();
        for (_, orphans) in &mut self.groups {
            let age = orphans
                .alone_since
                .map(|since| now.saturating_duration_since(since));
            // None: the group has a member, or there is no end to patience.
            if age
                .zip(patience)
                .is_some_and(|(age, patience)| age >= patience)
            {
                let (kept, over): (VecDeque<u32>, VecDeque<u32>) = orphans
                    .flights
                    .drain(..)
                    .partition(|flight| out.contains(flight));
                orphans.flights = kept;
                given_up.extend(over);
            }
        }
        for flight in &given_up {
            self.dropped += 1;
            if let Some(pending) = &mut self.pending {
                pending.forget(self.flights.get(*flight).sequence);
            }
            self.out_bytes -= self.flights.settle(*flight);
        }
        !given_up.is_empty()
    }
}
