//! What a [`Bearer`] says becomes a line, and more where there is more, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Table;
use super::hot::{Extra, Flow, Hot, NO_EXTRA, NUMBERS, REFLECTIVE};
use super::users::User;
use crate::bearer::{Bearer, BearerId, Flows, MeterId, Peer, Side};
use crate::cause::Cause;
use crate::mark::Marking;
use crate::meter::Bucket;

impl Table {
    pub(super) fn prefix(&self, hot: &Hot, side: Side) -> Option<u64> {
        self.prefixes.get(hot.user_v6(side)?).copied()
    }

    /// Addresses that a user has.
    pub(super) fn addresses(&self, hot: &Hot, side: Side) -> [Option<User>; 2] {
        [
            hot.user_v4(side).map(User::V4),
            self.prefix(hot, side).map(User::V6),
        ]
    }

    /// The far end on a side, and the user's other address if that is no tunnel.
    fn peer(&self, hot: &Hot, side: Side) -> (Peer, Option<Ipv6Addr>) {
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if !hot.is_plain(side) {
            let address = self.paths.address(hot.path(side)).unwrap_or(unspecified);
            let teid = hot.teid(side);
            return (Peer { address, teid }, None);
        }
        let v4 = hot.user_v4(side).map(Ipv4Addr::from_bits);
        let v6 = self.prefix(hot, side);
        let v6 = v6.map(|prefix| Ipv6Addr::from_bits(u128::from(prefix) << 64));
        match (v4, v6) {
            (Some(v4), also) => (Peer::plain(v4.into()), also),
            (None, Some(v6)) => (Peer::plain(v6.into()), None),
            (None, None) => (Peer::plain(unspecified), None),
        }
    }

    pub(super) fn load(&self, hot: &Hot) -> Bearer {
        let extra = self.extras.get(hot.extra);
        let flows = |side: Side| match hot.flow(side) {
            Flow::Kept => Flows::Kept,
            Flow::Removed => Flows::Removed,
            Flow::Set(flow) => Flows::Set(flow & !REFLECTIVE),
            Flow::Mapped => {
                let map = extra.and_then(|extra| extra.maps[side as usize].clone());
                map.map_or(Flows::Kept, Flows::Mapped)
            }
        };
        let (core, of_core) = self.peer(hot, Side::Core);
        let (radio, of_radio) = self.peer(hot, Side::Radio);
        let mut bearer = Bearer::new(core, radio);
        bearer.user_v6 = of_core.or(of_radio);
        bearer.gates = Side::BOTH.map(|side| hot.is_open(side));
        bearer.usage = hot.usage;
        bearer.active_s = hot.active_s;
        bearer.flows = Side::BOTH.map(flows);
        bearer.reflective =
            matches!(hot.flow(Side::Radio), Flow::Set(flow) if flow & REFLECTIVE != 0);
        bearer.marking = hot.marking.map(Marking::of_byte);
        bearer.forwards_numbers = hot.flags & NUMBERS != 0;
        if let Some(extra) = extra {
            bearer.paused = extra.paused;
            bearer.limits = extra.buckets.map(|bucket| bucket.limit());
            bearer.user = extra.user;
            bearer.thresholds = extra.thresholds;
            bearer.paging_policy = extra.paging_policy;
            bearer.follows_delivery = extra.delivery.is_some();
        }
        bearer
    }

    /// Makes a bearer what it is to be. Not, if a peer has no place; then its tunnel is what it was.
    pub(super) fn store(&mut self, id: BearerId, bearer: &Bearer) -> bool {
        let mut is_stored = true;
        for side in Side::BOTH {
            is_stored &= self.set_peer(id, side, bearer.peer(side), bearer.user_v6);
        }
        let Some(hot) = self.hot_mut(id) else {
            return false;
        };
        for side in Side::BOTH {
            hot.set_open(side, bearer.gates[side as usize]);
            let is_reflective = bearer.reflective && side == Side::Radio;
            hot.set_flow(side, &bearer.flows[side as usize], is_reflective);
        }
        hot.marking = bearer.marking.map(Marking::to_byte);
        hot.usage = bearer.usage;
        hot.active_s = bearer.active_s;
        hot.flags = if bearer.forwards_numbers {
            hot.flags | NUMBERS
        } else {
            hot.flags & !NUMBERS
        };
        self.store_extra(id, bearer);
        is_stored
    }

    fn set_peer(&mut self, id: BearerId, side: Side, peer: Peer, also: Option<Ipv6Addr>) -> bool {
        let Some(hot) = self.hot(id).copied() else {
            return false;
        };
        if peer.is_plain() {
            self.set_users(id, &hot, side, peer.address, also);
            return true;
        }
        let is_tunnel = hot.has_peer(side) && !hot.is_plain(side);
        if is_tunnel && self.peer(&hot, side).0 == peer {
            // Whoever says it anew has heard what the far end said of it, and wants to hear it again.
            if let Some(hot) = self.hot_mut(id) {
                hot.forget_loss(side);
            }
            return true;
        }
        let Some(path) = self.paths.acquire(side, peer.address) else {
            return false;
        };
        self.clear_peer(id, side);
        if let Some(hot) = self.hot_mut(id) {
            hot.set_tunnel(side, path, peer.teid);
        }
        true
    }

    fn set_users(
        &mut self,
        id: BearerId,
        hot: &Hot,
        side: Side,
        address: IpAddr,
        also: Option<Ipv6Addr>,
    ) {
        let wanted = match (address, also) {
            (IpAddr::V4(v4), also) => {
                let also = also.map(|also| User::of(also.into()));
                [Some(User::V4(v4.to_bits())), also]
            }
            (v6 @ IpAddr::V6(_), _) => [None, Some(User::of(v6))],
        };
        if hot.is_plain(side) && self.addresses(hot, side) == wanted {
            return;
        }
        self.clear_peer(id, side);
        let (mut v4, mut v6) = (None, None);
        for user in wanted.into_iter().flatten() {
            self.users[side as usize].insert(user, id);
            match user {
                User::V4(address) => v4 = Some(address),
                User::V6(prefix) => v6 = Some(self.prefixes.add(prefix)),
            }
        }
        if let Some(hot) = self.hot_mut(id) {
            hot.set_user(side, v4, v6);
        }
    }

    pub(super) fn clear_peer(&mut self, id: BearerId, side: Side) {
        let Some(hot) = self.hot(id).copied().filter(|hot| hot.has_peer(side)) else {
            return;
        };
        if hot.is_plain(side) {
            for user in self.addresses(&hot, side).into_iter().flatten() {
                self.users[side as usize].remove(user, id);
            }
            if let Some(prefix) = hot.user_v6(side) {
                self.prefixes.remove(prefix);
            }
        } else {
            self.paths.release(hot.path(side));
        }
        if let Some(hot) = self.hot_mut(id) {
            hot.clear_peer(side);
        }
    }

    pub(super) fn store_extra(&mut self, id: BearerId, bearer: &Bearer) {
        let Some(hot) = self.hot(id).copied() else {
            return;
        };
        let is_mapped = bearer
            .flows
            .iter()
            .any(|flows| matches!(flows, Flows::Mapped(_)));
        let has_more = bearer.limits.iter().any(|limit| !limit.is_none())
            || bearer.user.is_some()
            || !bearer.thresholds.is_none()
            || is_mapped
            || bearer.paging_policy.is_some()
            || bearer.paused != [false; 2]
            || bearer.follows_delivery;
        let waits = |extra: &Extra| extra.queues.iter().any(|queue| !queue.is_empty());
        let mut number = hot.extra;
        if !has_more && !self.extras.get(number).is_some_and(waits) {
            if let Some(extra) = self.extras.remove(number) {
                self.count_bearer(id, extra.user, None);
            }
            number = NO_EXTRA;
        } else {
            if self.extras.get(number).is_none() {
                number = self.extras.add(Extra::default());
            }
            self.fill_extra(id, number, bearer);
        }
        if let Some(hot) = self.hot_mut(id) {
            hot.extra = number;
        }
    }

    fn fill_extra(&mut self, id: BearerId, number: u32, bearer: &Bearer) {
        let user = bearer.user.filter(|user| self.meters.get(user.0).is_some());
        let before = self.extras.get(number).and_then(|extra| extra.user);
        self.count_bearer(id, before, user);
        let Some(extra) = self.extras.get_mut(number) else {
            return;
        };
        extra.user = user;
        extra.paging_policy = bearer.paging_policy;
        for side in Side::BOTH {
            let at = side as usize;
            if extra.buckets[at].limit() != bearer.limits[at] {
                extra.buckets[at] = Bucket::new(bearer.limits[at]);
            }
            extra.maps[at] = match &bearer.flows[at] {
                Flows::Mapped(map) => Some(map.clone()),
                _ => None,
            };
            let resumes = extra.paused[at] && !bearer.paused[at];
            extra.paused[at] = bearer.paused[at];
            if resumes && !extra.queues[at].is_empty() {
                self.releasing.push_back((id, side));
            }
        }
        if extra.thresholds != bearer.thresholds {
            extra.thresholds = bearer.thresholds;
            (extra.reported, extra.reported_s) = (bearer.usage, bearer.active_s);
        }
        if !bearer.follows_delivery {
            extra.delivery = None;
        } else if extra.delivery.is_none() {
            extra.delivery = Some(Box::default());
        }
    }

    pub(super) fn count_bearer(
        &mut self,
        id: BearerId,
        before: Option<MeterId>,
        now: Option<MeterId>,
    ) {
        if let Some(meter) = before.and_then(|before| self.meters.get_mut(before.0)) {
            meter.bearers = meter.bearers.saturating_sub(1);
        }
        if let Some(meter) = now.and_then(|now| self.meters.get_mut(now.0)) {
            if meter.bearers == 0 {
                meter.shard = id.shard();
            }
            meter.bearers += 1;
        }
    }

    pub(super) fn drop_held(&mut self, id: BearerId) {
        let Some(extra) = self.hot(id).map(|hot| hot.extra) else {
            return;
        };
        let Some(extra) = self.extras.get_mut(extra) else {
            return;
        };
        let mut bytes = Vec::new();
        for (to, queue) in Side::BOTH.into_iter().zip(&mut extra.queues) {
            while self.pool.pop(queue, &mut bytes).is_some() {
                self.drops[to.other() as usize].add(Cause::HeldGone);
            }
        }
    }
}
