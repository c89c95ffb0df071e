//! All bearers: one cache line each, and more for those that have more ([`Bearer`] is how others see one).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};

use crate::bearer::{Bearer, BearerId, MeterId, Side};
use crate::blocks::Slab;
use crate::cause::Drops;
use crate::delivery::Delivery;
use crate::event::Events;
use crate::hold::{HeldCounts, HoldLimits, Pool};
use crate::meter::{Bucket, Limit};
use crate::paths::{PathState, Paths};
use hot::{Extra, Hot, Meter, OCCUPIED, RESTING};
use places::Places;
use search::Search;
use slots::Slots;
use users::{User, Users};

pub(crate) mod hot;
pub(crate) mod moving;
pub(crate) mod pass;
mod places;
mod search;
mod slots;
mod store;
#[cfg(test)]
mod tests;
pub(crate) mod users;

/// All bearers.
#[derive(Debug)]
pub struct Table {
    slots: Slots,
    places: Places,
    count: usize,
    extras: Slab<Extra>,
    meters: Slab<Meter>,
    pub(crate) paths: Paths,
    users: [Users; 2],
    prefixes: Slab<u64>,
    pool: Pool,
    /// Whose packets are given out.
    releasing: VecDeque<(BearerId, Side)>,
    search: Search,
    pub(crate) events: Events,
    /// What was dropped of what came by either side.
    pub(crate) drops: [Drops; 2],
}

impl Default for Table {
    fn default() -> Self {
        Table::with_limits(HoldLimits::default())
    }
}

impl Table {
    /// None yet.
    #[must_use]
    pub fn new() -> Table {
        Table::default()
    }

    /// None yet, with other limits for what paused ones hold.
    #[must_use]
    pub fn with_limits(limits: HoldLimits) -> Table {
        Table {
            slots: Slots::default(),
            places: Places::default(),
            count: 0,
            extras: Slab::default(),
            meters: Slab::default(),
            paths: Paths::default(),
            users: [Users::default(), Users::default()],
            prefixes: Slab::default(),
            pool: Pool::new(limits),
            releasing: VecDeque::new(),
            search: Search::default(),
            events: Events::default(),
            drops: [Drops::default(); 2],
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a bearer. None: there are [`crate::BEARERS_MAX`], or 16 million peers. A user whose address another bearer has is this one's
    /// from now on.
    pub fn add(&mut self, bearer: Bearer) -> Option<BearerId> {
        self.add_in(bearer, None)
    }

    /// The same, in a shard if one is said: whoever parts bearers by that has those together that belong together.
    pub(crate) fn add_in(&mut self, bearer: Bearer, shard: Option<u32>) -> Option<BearerId> {
        let slot = self.places.take(&mut self.slots, shard)?;
        let hot = self.slots.get(slot)?;
        let id = BearerId::new(slot, hot.generation.into());
        self.put(id, &bearer).then_some(id)
    }

    /// Adds a bearer by the number that it had before, in another table: its peers still send to its TEIDs. Whether it was added; not, if
    /// there is one in its slot.
    pub fn restore(&mut self, id: BearerId, bearer: &Bearer) -> bool {
        if id.generation() == 0 {
            return false;
        }
        self.claim(id) && self.put(id, bearer)
    }

    /// Has the slot of a number, which is free, go on with it: another table's does. Whether it is free.
    pub(crate) fn restore_free(&mut self, id: BearerId) -> bool {
        let is_free = self.claim(id);
        if is_free {
            self.places.rest(&mut self.slots, id.slot());
        }
        is_free
    }

    /// The number that each free slot goes on with.
    pub(crate) fn free_ids(&self) -> impl Iterator<Item = BearerId> {
        let slots = self.slots.iter_from(0);
        let free = slots.filter(|(_, hot)| hot.flags & RESTING != 0);
        free.map(|(slot, hot)| BearerId::new(slot, hot.generation.into()))
    }

    /// Has the slot of a number be kept for it. Whether it was free.
    fn claim(&mut self, id: BearerId) -> bool {
        if !self.places.claim(&mut self.slots, id.slot()) {
            return false;
        }
        if let Some(hot) = self.slots.get_mut(id.slot()) {
            // Of nine bits.
            hot.generation = id.generation() as u16;
        }
        true
    }

    /// Puts a bearer into a slot that is free and has its generation.
    fn put(&mut self, id: BearerId, bearer: &Bearer) -> bool {
        let Some(hot) = self.slots.get_mut(id.slot()) else {
            return false;
        };
        hot.flags = OCCUPIED;
        self.count += 1;
        if !self.store(id, bearer) {
            self.remove(id);
            return false;
        }
        true
    }

    /// Whether there is a bearer of this number.
    #[must_use]
    pub fn contains(&self, id: BearerId) -> bool {
        self.hot(id).is_some()
    }

    /// A bearer, if there is one of this number.
    #[must_use]
    pub fn get(&self, id: BearerId) -> Option<Bearer> {
        self.hot(id).map(|hot| self.load(hot))
    }

    /// The same, to be changed: what is written is the bearer's once the guard is dropped. Packets that were held are given out if it is
    /// paused no more.
    pub fn get_mut(&mut self, id: BearerId) -> Option<Changing<'_>> {
        let bearer = self.get(id)?;
        Some(Changing {
            table: self,
            id,
            bearer,
        })
    }

    /// Takes a bearer away; what is held for it is dropped.
    pub fn remove(&mut self, id: BearerId) -> Option<Bearer> {
        let bearer = self.get(id)?;
        self.drop_held(id);
        // Without anything that takes more than its line.
        self.store_extra(id, &Bearer::new(bearer.core, bearer.radio));
        for side in Side::BOTH {
            self.clear_peer(id, side);
        }
        let hot = self.hot_mut(id)?;
        *hot = Hot::empty(id.next().generation() as u16);
        self.count -= 1;
        self.places.rest(&mut self.slots, id.slot());
        Some(bearer)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (BearerId, Bearer)> {
        self.iter_from(0)
    }

    /// Those from a slot on.
    pub(crate) fn iter_from(&self, slot: usize) -> impl Iterator<Item = (BearerId, Bearer)> {
        let slots = self.slots.iter_from(slot);
        slots.filter(|(_, hot)| hot.is_there()).map(|(slot, hot)| {
            let id = BearerId::new(slot, hot.generation.into());
            (id, self.load(hot))
        })
    }

    /// Whose bearer an address is, on a side without tunnels.
    #[must_use]
    pub fn find_user(&self, side: Side, address: IpAddr) -> Option<BearerId> {
        self.users[side as usize].find(User::of(address))
    }

    /// All users of a side without tunnels.
    #[inline]
    pub(crate) fn users(&self, side: Side) -> &Users {
        &self.users[side as usize]
    }

    /// Reads the bearer's line of a TEID, and nothing else. Whoever does so for each packet of a burst first has all of them on their way
    /// from memory at once, and not one after another.
    #[inline]
    #[must_use]
    pub fn touch(&self, teid: u32) -> u32 {
        let (id, _) = BearerId::of(teid);
        self.slots.get(id.slot()).map_or(0, |hot| hot.flags.into())
    }

    /// Adds what limits all bearers of a user together, towards either side.
    pub fn add_meter(&mut self, limits: [Limit; 2]) -> MeterId {
        MeterId(self.meters.add(Meter {
            buckets: limits.map(Bucket::new),
            bearers: 0,
            shard: 0,
        }))
    }

    /// The same by the number that it has in another table; one that is there is changed.
    pub(crate) fn put_meter(&mut self, meter: MeterId, limits: [Limit; 2]) {
        if !self.set_meter(meter, limits) {
            let made = Meter {
                buckets: limits.map(Bucket::new),
                bearers: 0,
                shard: 0,
            };
            self.meters.put(meter.0, made);
        }
    }

    /// How many users there are with limits of their own.
    pub(crate) fn meter_count(&self) -> usize {
        self.meters.len()
    }

    /// What limits users' bearers together, and how many bearers each has.
    pub(crate) fn meters(&self) -> impl Iterator<Item = (MeterId, [Limit; 2], u32)> {
        let meters = self.meters.iter();
        meters.map(|(number, meter)| {
            (
                MeterId(number),
                meter.buckets.map(|bucket| bucket.limit()),
                meter.bearers,
            )
        })
    }

    pub(crate) fn meter(&self, meter: MeterId) -> Option<([Limit; 2], u32)> {
        let meter = self.meters.get(meter.0)?;
        Some((meter.buckets.map(|bucket| bucket.limit()), meter.bearers))
    }

    /// In which shard the first of a meter's bearers is. None: it has none.
    pub(crate) fn meter_shard(&self, meter: MeterId) -> Option<u32> {
        let meter = self.meters.get(meter.0)?;
        (meter.bearers > 0).then_some(meter.shard)
    }

    /// Changes it; whether there is one.
    pub fn set_meter(&mut self, meter: MeterId, limits: [Limit; 2]) -> bool {
        let found = self.meters.get_mut(meter.0);
        found.is_some_and(|meter| {
            for (bucket, limit) in meter.buckets.iter_mut().zip(limits) {
                // What is as it was goes on with what it has.
                if bucket.limit() != limit {
                    *bucket = Bucket::new(limit);
                }
            }
            true
        })
    }

    /// Takes it away, if no bearer has it; whether it was.
    pub fn remove_meter(&mut self, meter: MeterId) -> bool {
        let is_used = self
            .meters
            .get(meter.0)
            .is_none_or(|meter| meter.bearers > 0);
        !is_used && self.meters.remove(meter.0).is_some()
    }

    /// What became of a bearer's packets, if that is followed.
    #[must_use]
    pub fn delivery(&self, id: BearerId) -> Option<&Delivery> {
        self.extra(id)?.delivery.as_deref()
    }

    /// The same, to be changed.
    pub fn delivery_mut(&mut self, id: BearerId) -> Option<&mut Delivery> {
        let extra = self.hot(id)?.extra;
        self.extras.get_mut(extra)?.delivery.as_deref_mut()
    }

    /// Packets that are held for a bearer, towards a side.
    #[must_use]
    pub fn held(&self, id: BearerId, to: Side) -> u32 {
        self.extra(id)
            .map_or(0, |extra| extra.queues[to as usize].packets)
    }

    /// How many bytes more may be held for a bearer, towards a side, where it has more than its line.
    pub(crate) fn room_to_hold(&self, id: BearerId, to: Side) -> Option<u32> {
        Some(self.pool.room_of(&self.extra(id)?.queues[to as usize]))
    }

    /// What is held of all bearers, and was.
    #[must_use]
    pub fn held_counts(&self) -> HeldCounts {
        self.pool.counts
    }

    /// The paths that tunnels go by; of several workers' functions those that this one asks by.
    pub fn paths(&self) -> impl Iterator<Item = PathState> {
        self.paths.iter()
    }

    /// How many bearers have more than their line, and how many bytes that is for each: the line is 64.
    #[must_use]
    pub fn extra_bytes(&self) -> (usize, usize) {
        (self.extras.len(), Slab::<Extra>::place_bytes())
    }

    #[inline]
    pub(crate) fn hot(&self, id: BearerId) -> Option<&Hot> {
        let hot = self.slots.get(id.slot())?;
        (hot.is_there() && u32::from(hot.generation) == id.generation()).then_some(hot)
    }

    #[inline]
    pub(crate) fn hot_mut(&mut self, id: BearerId) -> Option<&mut Hot> {
        let hot = self.slots.get_mut(id.slot())?;
        (hot.is_there() && u32::from(hot.generation) == id.generation()).then_some(hot)
    }

    /// The same, and all paths.
    #[inline]
    pub(crate) fn hot_and_paths(&mut self, id: BearerId) -> Option<(&mut Hot, &Paths)> {
        let hot = self.slots.get_mut(id.slot())?;
        let is_it = hot.is_there() && u32::from(hot.generation) == id.generation();
        is_it.then_some((hot, &self.paths))
    }

    /// The paging policy that containers say which are written for a bearer, if any.
    pub(crate) fn paging_policy(&self, hot: &Hot) -> Option<u8> {
        self.extras.get(hot.extra)?.paging_policy
    }

    pub(crate) fn extra(&self, id: BearerId) -> Option<&Extra> {
        self.extras.get(self.hot(id)?.extra)
    }

    #[inline]
    pub(crate) fn is_releasing(&self) -> bool {
        !self.releasing.is_empty()
    }

    /// When something is due.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        let searching = (!self.search.is_over()).then_some(0);
        let due = [
            searching,
            self.pool.next_timeout_ns(),
            self.paths.next_timeout_ns(),
        ];
        due.into_iter().flatten().min()
    }

    /// Whether an address is the user's, on a side without a tunnel.
    #[inline]
    pub(crate) fn is_user(&self, hot: &Hot, side: Side, user: User) -> bool {
        match user {
            User::V4(address) => hot.user_v4(side) == Some(address),
            User::V6(prefix) => self.prefix(hot, side) == Some(prefix),
        }
    }
}

impl Hot {
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.flags & OCCUPIED != 0
    }
}

/// A bearer that is changed.
#[derive(Debug)]
pub struct Changing<'a> {
    table: &'a mut Table,
    id: BearerId,
    bearer: Bearer,
}

impl Deref for Changing<'_> {
    type Target = Bearer;

    fn deref(&self) -> &Bearer {
        &self.bearer
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Bearer {
        &mut self.bearer
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.table.store(self.id, &self.bearer);
    }
}
