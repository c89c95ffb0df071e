//! Bearers that move all the time, beside the same ones that never do: nothing that anybody sees is different.

use std::collections::{BTreeMap, HashMap};

use super::super::*;
use super::made::{bearer, lost, message, packets, server, user};
use super::{HOLD, SECOND};
use crate::bearer::Bearer;
use crate::cause::Drops;
use crate::function::{Function, Outer, Settings, Verdict};
use crate::hold::HeldCounts;
use crate::inner::{v4_packet, v6_packet};
use crate::meter::Limit;
use crate::random::Random;

/// Shards whose bearers there are, and slots of each.
pub(super) const SHARDS_USED: [u32; 3] = [3, 7, 1023];
const SLOTS: u64 = 3;
pub(super) const UES: u32 = 3;
const TABLES: usize = 3;

fn function() -> Function {
    let mut function = Function::with_settings(Settings {
        hold: HOLD,
        errors_per_second: u32::MAX,
        ..Settings::default()
    });
    for ue in 0..UES {
        let limits = [packets(1, 2), Limit::bytes(20_000)];
        function.bearers.put_meter(MeterId(ue), limits);
    }
    function
}

fn outer(side: Side) -> Outer {
    Outer {
        side,
        source: server(),
        destination: server(),
        source_port: 2152,
    }
}

/// What a verdict says, without numbers of paths, which are each table's own.
fn said(verdict: &Verdict<'_>) -> String {
    match verdict {
        Verdict::Relay {
            bearer,
            side,
            to,
            class,
            header,
            body,
            ..
        } => {
            let header = &header.0[..header.1];
            format!("{bearer} {side:?} {to:?} {class} {header:?} {body:?}")
        }
        other => format!("{other:?}"),
    }
}

/// Functions of several workers, and one that has all bearers and never moves any.
struct Twins {
    still: Function,
    moving: Vec<Function>,
    /// By shard.
    owners: HashMap<u32, usize>,
    bearers: BTreeMap<BearerId, Bearer>,
    /// By bearer: events of the one, and of the others.
    events: BTreeMap<BearerId, [Vec<Event>; 2]>,
    released: BTreeMap<(BearerId, Side), [Vec<String>; 2]>,
    now_ns: u64,
}

impl Twins {
    fn new() -> Twins {
        Twins {
            still: function(),
            moving: (0..TABLES)
                .map(|worker| {
                    let mut function = function();
                    function.bearers.paths.share(worker, TABLES);
                    function
                })
                .collect(),
            owners: SHARDS_USED.map(|shard| (shard, 0)).into(),
            bearers: BTreeMap::new(),
            events: BTreeMap::new(),
            released: BTreeMap::new(),
            now_ns: SECOND,
        }
    }

    fn owner(&mut self, id: BearerId) -> &mut Function {
        &mut self.moving[self.owners[&id.shard()]]
    }

    /// As `Node::know_peers` and `Node::forget_peers` do.
    fn tell(&mut self, bearer: &Bearer, is_known: bool) {
        let peers = Side::BOTH.map(|side| (side, bearer.peer(side)));
        let tunnels = peers.iter().filter(|(_, peer)| !peer.is_plain());
        for (side, peer) in tunnels {
            for function in &mut self.moving {
                let paths = &mut function.bearers.paths;
                match is_known {
                    true => paths.know(*side, peer.address),
                    false => paths.forget(*side, peer.address),
                }
            }
        }
    }

    fn put(&mut self, id: BearerId, bearer: Bearer) {
        if let Some(before) = self.bearers.insert(id, bearer.clone()) {
            self.tell(&before, false);
        }
        self.tell(&bearer, true);
        let owner = self.owners[&id.shard()];
        for function in [&mut self.still, &mut self.moving[owner]] {
            let mut bearer = bearer.clone();
            if let Some(mut there) = function.bearers.get_mut(id) {
                (bearer.usage, bearer.active_s) = (there.usage, there.active_s);
                *there = bearer;
                continue;
            }
            assert!(function.bearers.restore(id, &bearer));
        }
    }

    fn remove(&mut self, id: BearerId) {
        if let Some(before) = self.bearers.remove(&id) {
            self.tell(&before, false);
        }
        let still = self.still.bearers.remove(id);
        assert_eq!(self.owner(id).bearers.remove(id), still);
    }

    fn send(&mut self, random: &mut Random, id: BearerId) {
        let side = Side::BOTH[random.below(2) as usize];
        let is_plain = self
            .bearers
            .get(&id)
            .is_some_and(|bearer| bearer.peer(side).is_plain());
        let bytes = message(random, id, side);
        let packet = match random.below(2) {
            0 => v4_packet([198, 51, 100, 7], [10, 0, 0, user(id)], 0, &[1; 40]),
            _ => v6_packet(99, user(id), 0, &[2; 40]),
        };
        let (now_ns, owner) = (self.now_ns, self.owners[&id.shard()]);
        let [still, moved] = [&mut self.still, &mut self.moving[owner]].map(|function| {
            let verdict = match is_plain {
                true => function.handle_plain(side, &packet, now_ns),
                false => function.handle_at(&outer(side), 0, &bytes, now_ns),
            };
            said(&verdict)
        });
        assert_eq!(moved, still, "{id} at {now_ns}");
    }

    /// A peer says that it has a tunnel no more: all look for it to the end, while shards may move.
    fn lose(&mut self, random: &mut Random, id: BearerId) {
        let side = Side::BOTH[random.below(2) as usize];
        let Some(bearer) = self.bearers.get(&id) else {
            return;
        };
        let peer = bearer.peer(side);
        if peer.is_plain() {
            return;
        }
        let said = lost(peer);
        for function in self.all() {
            function.handle_at(&outer(side), 0, &said, 0);
        }
        let moves_at = random.below(16);
        for step in 0..16 {
            if step == moves_at {
                self.shift(random);
            }
            self.all().for_each(|function| function.bearers.look_on());
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Function> {
        std::iter::once(&mut self.still).chain(&mut self.moving)
    }

    /// A shard moves.
    fn shift(&mut self, random: &mut Random) {
        let shard = SHARDS_USED[random.below(3) as usize];
        let (from, to) = (self.owners[&shard], random.below(3) as usize);
        let moved = self.moving[from].bearers.take_shard(shard);
        let ids = self.bearers.keys().filter(|id| id.shard() == shard);
        assert_eq!(moved.bearers.len(), ids.count());
        self.moving[to].bearers.put_shard(moved);
        self.owners.insert(shard, to);
    }

    /// Events are fetched, from tables in any order.
    fn fetch(&mut self, random: &mut Random) {
        let first = random.below(TABLES as u64) as usize;
        let order = (0..TABLES).map(|table| (first + table) % TABLES);
        while let Some(event) = self.still.poll_event() {
            let id = event.bearer().unwrap();
            self.events.entry(id).or_default()[0].push(event);
        }
        for table in order {
            while let Some(event) = self.moving[table].poll_event() {
                let id = event.bearer().unwrap();
                self.events.entry(id).or_default()[1].push(event);
            }
        }
    }

    /// So many packets that were held are given out.
    fn give_out(&mut self, most: u64) {
        let now_ns = self.now_ns;
        let functions = std::iter::once((0, &mut self.still));
        let functions = functions.chain(self.moving.iter_mut().map(|one| (1, one)));
        for (which, function) in functions {
            for _ in 0..most {
                let Some(verdict) = function.poll_released(now_ns) else {
                    break;
                };
                let said = said(&verdict);
                let (Verdict::Relay { bearer, side, .. } | Verdict::Plain { bearer, side, .. }) =
                    verdict
                else {
                    continue;
                };
                self.released.entry((bearer, side)).or_default()[which].push(said);
            }
        }
    }

    fn check(&mut self, random: &mut Random) {
        self.give_out(u64::MAX);
        self.fetch(random);
        for (id, [still, moved]) in &self.events {
            assert_eq!(moved, still, "events of {id}");
        }
        for (id, [still, moved]) in &self.released {
            assert_eq!(moved, still, "released of {id:?}");
        }
        for id in self.bearers.keys().copied() {
            let table = &self.moving[self.owners[&id.shard()]].bearers;
            let still = &self.still.bearers;
            assert_eq!(table.get(id), still.get(id));
            assert_eq!(table.delivery(id), still.delivery(id));
            for side in Side::BOTH {
                assert_eq!(table.held(id, side), still.held(id, side));
                let user = self.bearers[&id].peer(side);
                if user.is_plain() {
                    assert_eq!(table.find_user(side, user.address), Some(id));
                }
            }
        }
        let mut drops = [Drops::default(); 2];
        let mut held = HeldCounts::default();
        for function in &self.moving {
            for side in Side::BOTH {
                drops[side as usize].add_all(function.drops(side));
            }
            let counts = function.bearers.held_counts();
            held.packets += counts.packets;
            held.bytes += counts.bytes;
            held.taken += counts.taken;
            held.released += counts.released;
        }
        assert_eq!(held, self.still.bearers.held_counts());
        assert_eq!(
            Side::BOTH.map(|side| drops[side as usize]),
            self.still.bearers.drops
        );
        let lengths = self.moving.iter().map(|function| function.bearers.len());
        assert_eq!(lengths.sum::<usize>(), self.bearers.len());
        let paths = |function: &Function| {
            let paths = function.bearers.paths();
            let paths =
                paths.map(|path| (format!("{:?} {}", path.side, path.address), path.tunnels));
            paths.collect::<BTreeMap<_, _>>()
        };
        // One of them asks by each path.
        let found = self.moving.iter().flat_map(paths);
        assert_eq!(found.collect::<BTreeMap<_, _>>(), paths(&self.still));
    }

    fn step(&mut self, random: &mut Random) {
        self.now_ns += random.below(SECOND / 4);
        let slot = SHARDS_USED[random.below(3) as usize] as u64 + random.below(SLOTS) * 1024;
        let id = BearerId::new(slot as usize, 1);
        let is_there = self.bearers.contains_key(&id);
        match random.below(40) {
            0 if is_there && id.slot() >= SHARDS => self.remove(id),
            0..=4 => {
                let made = bearer(random, id);
                self.put(id, made);
            }
            5 | 6 => {
                let waits = |id: &&BearerId| {
                    Side::BOTH
                        .iter()
                        .any(|to| self.still.bearers.held(**id, *to) > 0)
                };
                let waiting = self.bearers.keys().find(waits).copied();
                if let Some(id) = waiting {
                    let mut resumed = self.bearers[&id].clone();
                    resumed.paused = [false; 2];
                    self.put(id, resumed);
                }
            }
            7..=10 => self.shift(random),
            11 => self.fetch(random),
            12..=14 => {
                // One packet of many: what is given out goes on in another table.
                let all = self.still.bearers.releasing.len();
                self.give_out(if all == 1 { 1 } else { u64::MAX });
            }
            15 => self.lose(random, id),
            16 => {
                let limits = [packets(1 + random.below(2) as u32, 2), Limit::default()];
                let ue = MeterId(random.below(UES.into()) as u32);
                self.all().for_each(|one| one.bearers.put_meter(ue, limits));
            }
            17 => {
                let now_ns = self.now_ns;
                self.all().for_each(|one| one.bearers.drop_old(now_ns));
            }
            _ => self.send(random, id),
        }
    }
}

#[test]
fn nothing_shows_that_bearers_have_moved() {
    let mut drops = Drops::default();
    for seed in 1..40 {
        let mut random = Random(seed);
        let mut twins = Twins::new();
        for shard in SHARDS_USED {
            let id = BearerId::new(shard as usize, 1);
            let made = bearer(&mut random, id);
            twins.put(id, made);
        }
        for step in 0..1_500 {
            twins.step(&mut random);
            if step % 100 == 99 {
                twins.check(&mut random);
            }
        }
        let events: usize = twins.events.values().map(|both| both[1].len()).sum();
        let released: usize = twins.released.values().map(|both| both[1].len()).sum();
        assert!(events > 100 && released > 20, "{events}, {released}");
        for side in &twins.still.bearers.drops {
            drops.add_all(side);
        }
        for id in twins.bearers.keys().copied().collect::<Vec<_>>() {
            twins.remove(id);
        }
        for table in twins.moving.iter().map(|function| &function.bearers) {
            let left = (
                table.extras.len(),
                table.prefixes.len(),
                table.paths().count(),
            );
            assert_eq!((left, table.releasing.len()), ((0, 0, 0), 0));
            assert!(table.meters().all(|(_, _, bearers)| bearers == 0));
            assert_eq!(table.held_counts().packets, 0);
        }
    }
    let causes = [Cause::BearerLimit, Cause::UserLimit, Cause::HeldAge];
    let counts = causes.map(|cause| drops.of(cause));
    assert!(counts.into_iter().all(|count| count > 50), "{counts:?}");
}
