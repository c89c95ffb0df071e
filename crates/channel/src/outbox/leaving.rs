//! Subscribers that go, and those that the publisher goes on without.

use std::time::{Duration, Instant};

use millrace_shm::link::Lie;

use super::Outbox;
use crate::routes::PeerIndex;
use crate::sys;
use crate::tickets::Out;

impl Outbox {
    /// A subscriber gets no more: it sees that its link is over when it has read what it has, and that comes back when it says so, or when
    /// it goes. The others of its group get that too, where it is to be delivered again.
    pub(crate) fn part(&mut self, index: PeerIndex) {
        self.collect(index);
        self.publish();
        let Some(peer) = self.peers[index].as_mut().filter(|peer| !peer.is_parted) else {
            return;
        };
        peer.is_parted = true;
        peer.full_since = None;
        sys::say_no_more(&peer.bell);
        let (id, group) = (peer.id, peer.group);
        if group == 0 {
            self.singles.retain(|single| *single != index);
            return;
        }
        let out = if self.options.redeliver {
            peer.tickets.all()
        } else {
            Vec::new()
        };
        // It may still read all of it.
        let taken = Ok(peer.end.tail());
        self.leave_group(group, id, index);
        for out in &out {
            self.flights.hold(out.flight);
        }
        self.orphan(group, &out, taken);
    }

    /// A subscriber has gone. What it had comes back, waits for another member of its group, or will have been read by nobody.
    pub(crate) fn remove(&mut self, index: PeerIndex) {
        let Some(mut peer) = self.peers.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.out_bytes -= peer.tickets.bytes;
        let slots = peer.end.link().slots() as usize;
        let back: Vec<u16> = std::iter::from_fn(|| peer.end.collect())
            .take(slots)
            .collect();
        for out in back
            .into_iter()
            .filter_map(|ticket| peer.tickets.take(ticket))
        {
            self.flights.settle(out.flight);
        }
        let left = peer.tickets.take_all();
        self.singles.retain(|single| *single != index);
        self.dirty.retain(|dirty| *dirty != index);
        // Whoever has its place next is another.
        self.liars.retain(|liar| *liar != index);
        self.hindered_by = self.hindered_by.filter(|hindering| *hindering != index);
        let is_member = peer.group != 0 && !peer.is_parted;
        if is_member {
            self.leave_group(peer.group, peer.id, index);
        }
        if is_member && self.options.redeliver {
            self.orphan(peer.group, &left, peer.end.taken());
            return;
        }
        if peer.is_parted && peer.group != 0 && self.options.redeliver {
            // Another member has got it already.
            for out in left {
                self.flights.settle(out.flight);
            }
            return;
        }
        self.forget_groups();
        for out in left {
            self.dropped += 1;
            if let Some(pending) = &mut self.pending {
                pending.give_up(self.flights.get(out.flight).sequence, peer.id);
            }
            self.flights.settle(out.flight);
        }
    }

    fn leave_group(&mut self, name: u64, id: u64, index: PeerIndex) {
        let (group, orphans) = self.group_of(name);
        group.remove(id, index);
        if group.members.is_empty() {
            orphans.alone_since = Some(Instant::now());
        }
    }

    /// Groups that have no member, and for which nothing waits, are as those that never were.
    pub(super) fn forget_groups(&mut self) {
        self.groups
            .retain(|(group, orphans)| !group.members.is_empty() || !orphans.flights.is_empty());
    }

    /// What a member of a group had waits for another one. `taken`: how far it says that it has read.
    fn orphan(&mut self, group: u64, out: &[Out], taken: Result<u32, Lie>) {
        for out in out {
            if taken.is_ok_and(|taken| out.position.wrapping_sub(taken).cast_signed() < 0) {
                self.flights.note_taken(out.flight);
            }
        }
        let mut orphans: Vec<u32> = out.iter().map(|out| out.flight).collect();
        let flights = &self.flights;
        orphans.sort_by_key(|flight| flights.get(*flight).sequence);
        let bytes = orphans.iter().map(|flight| flights.bytes(*flight));
        self.out_bytes += bytes.sum::<u64>();
        let waiting = &mut self.group_of(group).1.flights;
        orphans.extend(waiting.drain(..));
        waiting.extend(orphans);
        self.place_orphans();
        self.forget_groups();
    }

    /// Subscribers that have had no room, and given nothing back, for longer than that; and how long it is until the next one will have, or
    /// until what waits for a member of a group that has none is kept no longer.
    pub(crate) fn slow(
        &self,
        now: Instant,
        patience: Duration,
    ) -> (Vec<PeerIndex>, Option<Duration>) {
        let mut slow = Vec::new();
        let mut next: Option<Duration> = None;
        for (index, peer) in self.peers().filter(|(_, peer)| !peer.is_parted) {
            let Some(since) = peer.full_since else {
                continue;
            };
            let age = now.saturating_duration_since(since);
            match patience.checked_sub(age) {
                None | Some(Duration::ZERO) => slow.push(index),
                Some(left) => next = Some(next.map_or(left, |next| next.min(left))),
            }
        }
        let waiting = self.groups.iter().map(|(_, orphans)| orphans);
        let waiting = waiting.filter(|orphans| !orphans.flights.is_empty());
        let left = waiting.filter_map(|orphans| {
            let age = now.saturating_duration_since(orphans.alone_since?);
            patience.checked_sub(age).filter(|left| !left.is_zero())
        });
        (slow, next.into_iter().chain(left).min())
    }
}
