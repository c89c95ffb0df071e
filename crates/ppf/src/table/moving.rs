//! Bearers go from one worker's table to another's, by value: whoever has one has all that is known of it, and nobody else anything.
//!
//! What leaves, of each bearer: its line, with what passed, in which second the last packet did, and what its peers have lost; its far
//! ends by their addresses, as numbers of paths and prefixes are each table's own; and, where there is more, limits with their credit and
//! the time that it is of, that of its user equipment's meter, thresholds and what was reported, maps of flows, pauses, what is known of
//! delivery, and packets that are held, with the times at which they came. A shard takes along as well in which order its bearers' packets
//! are given out, and events of its bearers that nobody has fetched.
//!
//! What stays: what was counted (drops, held packets that were taken in and given out: moving is neither), and messages of the function's
//! own that wait to be sent. Tunnels that peers have lost are looked for before a bearer leaves and when it has come, so that none is
//! missed because it moved; but for what a peer says while a shard is in neither table, which it says again when it gets more.
//!
//! *Paths.* A bearer's tunnels go by paths of the table that has it. What other tables know of its peers they are told
//! ([`Paths::know`](crate::paths::Paths::know)), and moving changes nothing in that.
//!
//! *Users* of sides without tunnels are in the table of whoever has their bearer, and go with it. Who else looks for them keeps lists of
//! its own.
//!
//! *Meters.* Which there are and what their limits are is told to every worker; only credit moves, with the bearers that use it: of one
//! without bearers none does. It becomes the receiving meter's if that has no bearers. If it has some, as of a user equipment whose
//! bearers are in several shards, the lesser credit counts. A meter that is not known here yet is made; one that is known with other
//! limits keeps what it has.
//!
//! A slot whose bearer has left is kept for it, and is nobody else's. A shard that has left has no slots here any more, nor memory: where
//! it comes from bearers must not be added but by numbers that another table gives ([`Table::restore`]).

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Table;
use super::hot::{Extra, Hot, Meter, NO_EXTRA};
use super::users::User;
use crate::bearer::{BearerId, MeterId, SHARDS, Side};
use crate::cause::Cause;
use crate::event::Event;
use crate::hold::{Held, Queue};
use crate::meter::Bucket;

/// A packet that is held, on its way to another table.
#[derive(Debug)]
struct Packet {
    held: Held,
    bytes: Box<[u8]>,
}

/// What few bearers have.
#[derive(Debug)]
struct More {
    /// Without packets.
    extra: Extra,
    /// What its user equipment's meter has.
    credit: Option<[Bucket; 2]>,
}

/// A bearer on its way to another table.
#[derive(Debug)]
struct Moved {
    /// Its numbers of paths and prefixes mean nothing.
    hot: Hot,
    /// Where its tunnels lead; without a tunnel, the user's prefix of IPv6, if there is one.
    ends: [IpAddr; 2],
    slot: u32,
    more: Option<Box<More>>,
}

/// A shard on its way to another table.
#[derive(Debug)]
pub(crate) struct Shard {
    bearers: Vec<Moved>,
    /// Packets of all of them, the oldest first.
    held: Vec<Packet>,
    /// Whose packets are given out, in this order.
    releasing: Vec<(BearerId, Side)>,
    events: VecDeque<Event>,
}

impl Moved {
    fn id(&self) -> BearerId {
        BearerId::new(self.slot as usize, self.hot.generation.into())
    }
}

impl Table {
    /// Gives all bearers of a shard away.
    pub(crate) fn take_shard(&mut self, shard: u32) -> Shard {
        let lines = self.slots.of(shard as usize);
        let count = lines.iter().filter(|hot| hot.is_there()).count();
        let slots = (0..lines.len()).map(|row| row * SHARDS + shard as usize);
        let mut bearers = Vec::with_capacity(count);
        let mut held = Vec::new();
        bearers.extend(slots.filter_map(|slot| self.lift(slot, &mut held)));
        self.places.clear(&mut self.slots, shard as usize);
        self.slots.clear(shard as usize);
        held.sort_by_key(|packet| packet.held.at_ns);
        let is_moved = |releasing: &(BearerId, Side)| releasing.0.shard() == shard;
        let releasing = self.releasing.iter().copied().filter(is_moved).collect();
        self.releasing.retain(|releasing| !is_moved(releasing));
        Shard {
            bearers,
            held,
            releasing,
            events: self.events.take_shard(shard),
        }
    }

    /// Has all bearers of a shard from now on that another table had.
    pub(crate) fn put_shard(&mut self, shard: Shard) {
        // What was said before the shard left comes first.
        for event in shard.events {
            self.events.push(event);
        }
        for moved in shard.bearers {
            let is_put = self.put_down(moved);
            debug_assert!(is_put, "a shard is in one table");
        }
        self.hold_moved(shard.held);
        for (id, side) in shard.releasing {
            self.releasing.push_back((id, side));
            // There may have been no room for what it holds.
            self.settle(id);
        }
    }

    /// Takes what is in a slot away, if a bearer is, and adds what it holds to `held`.
    #[inline]
    fn lift(&mut self, slot: usize, held: &mut Vec<Packet>) -> Option<Moved> {
        if !self.slots.get(slot)?.is_there() {
            return None;
        }
        if !self.search.is_over() {
            self.look_at(slot);
        }
        let line = self.slots.get_mut(slot)?;
        let hot = *line;
        *line = Hot::empty(hot.generation);
        self.count -= 1;
        let id = BearerId::new(slot, hot.generation.into());
        let ends = Side::BOTH.map(|side| self.lift_end(id, &hot, side));
        let more = match hot.extra {
            NO_EXTRA => None,
            extra => self.lift_extra(id, extra, held),
        };
        Some(Moved {
            hot,
            ends,
            slot: slot as u32,
            more,
        })
    }

    #[inline]
    fn lift_end(&mut self, id: BearerId, hot: &Hot, side: Side) -> IpAddr {
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if !hot.has_peer(side) {
            return unspecified;
        }
        if !hot.is_plain(side) {
            return self.paths.release(hot.path(side)).unwrap_or(unspecified);
        }
        for user in self.addresses(hot, side).into_iter().flatten() {
            self.users[side as usize].remove(user, id);
        }
        let prefix = hot.user_v6(side).and_then(|v6| self.prefixes.remove(v6));
        prefix.map_or(unspecified, |prefix| {
            Ipv6Addr::from_bits(u128::from(prefix) << 64).into()
        })
    }

    fn lift_extra(
        &mut self,
        id: BearerId,
        number: u32,
        held: &mut Vec<Packet>,
    ) -> Option<Box<More>> {
        let mut extra = self.extras.remove(number)?;
        let meter = extra.user.and_then(|user| self.meters.get(user.0));
        let credit = meter.map(|meter| meter.buckets);
        self.count_bearer(id, extra.user, None);
        let mut bytes = Vec::new();
        for queue in &mut extra.queues {
            while let Some(packet) = self.pool.pop(queue, &mut bytes) {
                held.push(Packet {
                    held: packet,
                    bytes: bytes.as_slice().into(),
                });
            }
            *queue = Queue::default();
        }
        Some(Box::new(More { extra, credit }))
    }

    /// Puts a bearer into its slot, without what it holds. Not, if there is one, or there are too many peers.
    #[inline]
    fn put_down(&mut self, moved: Moved) -> bool {
        let id = moved.id();
        if !self.places.claim(&mut self.slots, id.slot()) {
            return false;
        }
        let (mut hot, mut is_whole) = (moved.hot, true);
        for side in Side::BOTH {
            is_whole &= self.put_end(id, &mut hot, side, moved.ends[side as usize]);
        }
        hot.extra = match moved.more {
            None => NO_EXTRA,
            Some(more) => self.put_extra(id, *more),
        };
        let Some(line) = self.slots.get_mut(id.slot()) else {
            return false;
        };
        *line = hot;
        self.count += 1;
        if !self.search.is_over() {
            self.look_at(id.slot());
        }
        if !is_whole {
            self.remove(id);
        }
        is_whole
    }

    /// Not, if there are too many paths: there are more numbers than far ends of bearers.
    #[inline]
    fn put_end(&mut self, id: BearerId, hot: &mut Hot, side: Side, end: IpAddr) -> bool {
        if !hot.has_peer(side) {
            return true;
        }
        if !hot.is_plain(side) {
            let path = self.paths.acquire(side, end);
            match path {
                Some(path) => hot.set_number(side, path.0),
                None => hot.clear_peer(side),
            }
            return path.is_some();
        }
        let has_v6 = hot.user_v6(side).is_some();
        let v6 = User::of(end);
        for user in [hot.user_v4(side).map(User::V4), has_v6.then_some(v6)] {
            let Some(user) = user else { continue };
            self.users[side as usize].insert(user, id);
            if let User::V6(prefix) = user {
                hot.set_number(side, self.prefixes.add(prefix));
            }
        }
        true
    }

    fn put_extra(&mut self, id: BearerId, more: More) -> u32 {
        let user = more.extra.user;
        if let (Some(user), Some(credit)) = (user, more.credit) {
            self.put_credit(user, credit);
        }
        self.count_bearer(id, None, user);
        self.extras.add(more.extra)
    }

    fn put_credit(&mut self, user: MeterId, credit: [Bucket; 2]) {
        let Some(meter) = self.meters.get_mut(user.0) else {
            let made = Meter {
                buckets: credit,
                bearers: 0,
                shard: 0,
            };
            return self.meters.put(user.0, made);
        };
        for (there, moved) in meter.buckets.iter_mut().zip(credit) {
            if there.limit() == moved.limit() {
                *there = match meter.bearers {
                    0 => moved,
                    _ => there.lesser(moved),
                };
            }
        }
    }

    /// Holds packets that another table held, the oldest first. What there is no room for is dropped.
    fn hold_moved(&mut self, held: Vec<Packet>) {
        let mut before = None;
        for packet in held {
            let (id, to) = (packet.held.bearer, packet.held.to);
            let extra = self.hot(id).map(|hot| hot.extra);
            let extra = extra.and_then(|extra| self.extras.get_mut(extra));
            let put = match extra {
                Some(extra) => {
                    let queue = &mut extra.queues[to as usize];
                    let bytes = &packet.bytes;
                    self.pool.put(queue, packet.held, bytes, before)
                }
                None => Err(Cause::HeldGone),
            };
            match put {
                Ok(record) => before = Some(record),
                Err(cause) => self.drops[to.other() as usize].add(cause),
            }
        }
    }
}

#[cfg(test)]
mod tests;
