//! Which bearers there are, as they were asked for: what is told to workers, and kept for the next process.
//!
//! A change is checked, written down, and only then told to workers and to whoever asked. So a bearer that somebody was told of is there
//! after a kill, and its tunnels have the numbers that its peers know.

use std::collections::HashSet;
use std::fmt;

use crate::bearer::{BEARERS_MAX, Bearer, BearerId, MeterId, SHARDS};
use crate::hold::HoldLimits;
use crate::spec::{BearerSpec, UeSpec};
use crate::store::{Loaded, Store, StoreError};
use crate::table::Table;

/// Why a change was not made.
#[derive(Debug)]
pub enum ChangeError {
    /// There is none of this number.
    Unknown,
    /// It cannot be; the text says why.
    Refused(String),
    /// It could not be written down.
    Store(StoreError),
    /// Workers have no room to be told of it.
    Busy,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::Unknown => write!(f, "there is no such one"),
            ChangeError::Refused(why) => write!(f, "{why}"),
            ChangeError::Store(error) => write!(f, "{error}"),
            ChangeError::Busy => write!(
                f,
                "workers are so busy that there is no room for changes: nothing was changed; try again"
            ),
        }
    }
}

impl std::error::Error for ChangeError {}

impl From<StoreError> for ChangeError {
    fn from(error: StoreError) -> ChangeError {
        ChangeError::Store(error)
    }
}

/// A bearer that is as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Its number.
    pub id: BearerId,
    /// How it was before; none: it was added.
    pub before: Option<Bearer>,
}

/// All bearers, as they were asked for.
#[derive(Debug)]
pub struct Registry {
    table: Table,
    store: Option<Store>,
}

impl Default for Registry {
    fn default() -> Self {
        Registry::new()
    }
}

impl Registry {
    /// One that is not kept.
    #[must_use]
    pub fn new() -> Registry {
        // No packet waits here.
        let limits = HoldLimits {
            packets: 0,
            bytes: 0,
            ..HoldLimits::default()
        };
        Registry {
            table: Table::with_limits(limits),
            store: None,
        }
    }

    /// One that is kept in a store, with what is in it.
    #[must_use]
    pub fn restored(mut store: Store) -> Registry {
        let loaded = store.take_loaded();
        Registry::of(&loaded, Some(store))
    }

    /// One of what a store has said, and which is kept there.
    pub(crate) fn of(loaded: &Loaded, store: Option<Store>) -> Registry {
        let mut registry = Registry::new();
        for (ue, spec) in &loaded.ues {
            registry.table.put_meter(MeterId(*ue), spec.limits());
        }
        for (id, spec) in loaded.bearers() {
            // One number was read once, and so many far ends were there before.
            registry.table.restore(id, &spec.bearer());
        }
        for id in loaded.free() {
            registry.table.restore_free(id);
        }
        registry.store = store;
        registry
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// A bearer.
    #[must_use]
    pub fn get(&self, id: BearerId) -> Option<Bearer> {
        self.table.get(id)
    }

    /// All of them, by their places.
    pub fn iter(&self) -> impl Iterator<Item = (BearerId, Bearer)> {
        self.table.iter()
    }

    /// Those whose places are from `place` on, at most so many.
    #[must_use]
    pub fn page(&self, place: usize, most: usize) -> Vec<(BearerId, Bearer)> {
        self.table.iter_from(place).take(most).collect()
    }

    /// Adds bearers, each if it can be. What was added is written down.
    ///
    /// # Errors
    /// When it cannot be written: then none was added.
    pub fn add(
        &mut self,
        specs: &[BearerSpec],
    ) -> Result<Vec<Result<BearerId, String>>, StoreError> {
        let wanted: Vec<_> = specs.iter().map(|spec| (None, spec)).collect();
        let put = self.put(&wanted)?.into_iter();
        let added = put.map(|put| put.map(|put| put.id).map_err(|error| error.to_string()));
        Ok(added.collect())
    }

    /// Has bearers be so that have a number, and adds those that have none, one after another and each if it can be. What was put is
    /// written down, at once.
    ///
    /// # Errors
    /// When it cannot be written: then nothing has changed.
    pub fn put(
        &mut self,
        wanted: &[(Option<BearerId>, &BearerSpec)],
    ) -> Result<Vec<Result<Put, ChangeError>>, StoreError> {
        let mut known = HashSet::new();
        let put = wanted.iter().map(|(id, spec)| match id {
            // Workers are told of all that is added, and then of all that changes.
            Some(id) if !known.insert(*id) => {
                let why = "it was changed before in the same request: a bearer is there once";
                Err(ChangeError::Refused(why.to_owned()))
            }
            Some(id) => self.alter(*id, spec),
            None => self.admit(spec).map_err(ChangeError::Refused),
        });
        let put: Vec<Result<Put, ChangeError>> = put.collect();
        let written = put.iter().zip(wanted);
        let written = written.filter_map(|(put, (_, spec))| Some((put.as_ref().ok()?.id, *spec)));
        let written = match &mut self.store {
            Some(store) => store.append(written),
            None => Ok(()),
        };
        if let Err(error) = written {
            // What was put last is undone first: a user may have been another's before.
            for put in put.into_iter().rev().flatten() {
                self.undo(put);
            }
            return Err(error);
        }
        self.compact();
        Ok(put)
    }

    fn undo(&mut self, put: Put) {
        match put.before {
            None => drop(self.table.remove(put.id)),
            Some(before) => {
                if let Some(mut place) = self.table.get_mut(put.id) {
                    *place = before;
                }
            }
        }
    }

    fn admit(&mut self, spec: &BearerSpec) -> Result<Put, String> {
        spec.check()?;
        let bearer = spec.bearer();
        self.check_users(spec, None)?;
        let shard = self.shard(spec.ue)?;
        let added = self.table.add_in(bearer, shard);
        let put = added.map(|id| Put { id, before: None });
        put.ok_or_else(|| match spec.ue {
            Some(ue) if self.table.len() < BEARERS_MAX => {
                format!("where the bearers of ue {ue} are is no place for one more")
            }
            _ => format!("there are {BEARERS_MAX} bearers, and can be no more"),
        })
    }

    /// A user is one bearer's, but for that which is to be changed.
    fn check_users(&self, spec: &BearerSpec, own: Option<BearerId>) -> Result<(), String> {
        for (side, user) in spec.users() {
            match self.table.find_user(side, user) {
                Some(other) if own != Some(other) => {
                    return Err(format!("bearer {other} has the user {user} already"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Has a bearer be as this says; returns how it was.
    ///
    /// # Errors
    /// When there is none, it cannot be so, or it cannot be written down: nothing has changed then.
    pub fn change(&mut self, id: BearerId, spec: &BearerSpec) -> Result<Bearer, ChangeError> {
        let put = self.put(&[(Some(id), spec)])?.pop();
        put.ok_or(ChangeError::Unknown)??
            .before
            .ok_or(ChangeError::Unknown)
    }

    fn alter(&mut self, id: BearerId, spec: &BearerSpec) -> Result<Put, ChangeError> {
        spec.check().map_err(ChangeError::Refused)?;
        let before = self.table.get(id).ok_or(ChangeError::Unknown)?;
        self.check_users(spec, Some(id))
            .map_err(ChangeError::Refused)?;
        self.shard(spec.ue).map_err(ChangeError::Refused)?;
        // One that it is of already may have bearers in several shards, since an older version kept it.
        let is_other = before.user != spec.ue.map(MeterId);
        let shard = spec.ue.and_then(|ue| self.table.meter_shard(MeterId(ue)));
        if is_other && shard.is_some_and(|shard| shard != id.shard()) {
            let why = "the bearers of this ue are elsewhere: add the bearer anew, as one of them";
            return Err(ChangeError::Refused(why.to_owned()));
        }
        if let Some(mut place) = self.table.get_mut(id) {
            *place = spec.bearer();
        }
        let before = Some(before);
        Ok(Put { id, before })
    }

    /// Takes bearers away; returns those that there were.
    ///
    /// # Errors
    /// When it cannot be written down: none is away then.
    pub fn remove(&mut self, ids: &[BearerId]) -> Result<Vec<(BearerId, Bearer)>, StoreError> {
        let there = ids.iter().filter(|id| self.table.contains(**id));
        let mut there: Vec<BearerId> = there.copied().collect();
        there.sort_unstable();
        there.dedup();
        if let Some(store) = &mut self.store {
            store.append_removed(there.iter().copied())?;
        }
        let gone = there.into_iter();
        let gone = gone
            .filter_map(|id| Some((id, self.table.remove(id)?)))
            .collect();
        self.compact();
        Ok(gone)
    }

    /// In which shard a bearer of a user equipment is added: they are all in one, so that one worker has them all, and their limit is one.
    /// It is that which has its bearers; for the first one it follows from the number, so that user equipments are spread evenly.
    fn shard(&self, ue: Option<u32>) -> Result<Option<u32>, String> {
        let Some(ue) = ue else { return Ok(None) };
        if self.table.meter(MeterId(ue)).is_none() {
            return Err(format!("there is no ue {ue}"));
        }
        let shard = self.table.meter_shard(MeterId(ue));
        Ok(shard.or(Some(ue % SHARDS as u32)))
    }

    /// Adds a user equipment, with what limits all its bearers together; returns its number.
    ///
    /// # Errors
    /// When there are as many as there can be bearers, or it cannot be written down: then it was not added.
    pub fn add_ue(&mut self, spec: UeSpec) -> Result<u32, ChangeError> {
        if self.table.meter_count() >= BEARERS_MAX {
            let full = format!("there are {BEARERS_MAX} ues, and can be no more");
            return Err(ChangeError::Refused(full));
        }
        let MeterId(ue) = self.table.add_meter(spec.limits());
        if let Some(store) = &mut self.store
            && let Err(error) = store.append_ue(ue, Some(spec))
        {
            self.table.remove_meter(MeterId(ue));
            return Err(error.into());
        }
        self.compact();
        Ok(ue)
    }

    /// A user equipment: its limits, and how many bearers it has.
    #[must_use]
    pub fn ue(&self, ue: u32) -> Option<(UeSpec, u32)> {
        let (limits, bearers) = self.table.meter(MeterId(ue))?;
        Some((UeSpec::of(limits), bearers))
    }

    /// All of them.
    pub fn ues(&self) -> impl Iterator<Item = (u32, UeSpec, u32)> {
        let all = self.table.meters();
        all.map(|(ue, limits, bearers)| (ue.0, UeSpec::of(limits), bearers))
    }

    /// Has one be limited otherwise.
    ///
    /// # Errors
    /// When there is none, or it cannot be written down.
    pub fn change_ue(&mut self, ue: u32, spec: UeSpec) -> Result<(), ChangeError> {
        self.ue(ue).ok_or(ChangeError::Unknown)?;
        if let Some(store) = &mut self.store {
            store
                .append_ue(ue, Some(spec))
                .map_err(ChangeError::Store)?;
        }
        self.table.set_meter(MeterId(ue), spec.limits());
        self.compact();
        Ok(())
    }

    /// Takes one away; returns how it was limited.
    ///
    /// # Errors
    /// When there is none, a bearer is of it, or it cannot be written down.
    pub fn remove_ue(&mut self, ue: u32) -> Result<UeSpec, ChangeError> {
        let (spec, bearers) = self.ue(ue).ok_or(ChangeError::Unknown)?;
        if bearers > 0 {
            return Err(ChangeError::Refused(format!(
                "{bearers} bearers are of ue {ue}"
            )));
        }
        if let Some(store) = &mut self.store {
            store.append_ue(ue, None).map_err(ChangeError::Store)?;
        }
        self.table.remove_meter(MeterId(ue));
        self.compact();
        Ok(spec)
    }

    /// Sees to it that what was written survives the machine as well.
    ///
    /// # Errors
    /// When the file cannot be synchronised.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.store.as_mut().map_or(Ok(()), Store::sync)
    }

    /// Writes the store anew when it is mostly of what is no more.
    fn compact(&mut self) {
        let Some(store) = &mut self.store else { return };
        if !store.is_to_compact() {
            return;
        }
        let bearers = self.table.iter();
        let bearers = bearers.map(|(id, bearer)| (id, BearerSpec::of(&bearer)));
        // What cannot be written anew stays as it is, and is as good.
        let ues = self.table.meters();
        let ues = ues.map(|(ue, limits, _)| (ue.0, UeSpec::of(limits)));
        if let Err(error) = store.compact(bearers, self.table.free_ids(), ues) {
            tracing::warn!("the store stays long: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::FarEnd;

    #[test]
    fn a_user_is_one_bearer_s() {
        let mut registry = Registry::new();
        let of = |user: &str, teid: u32| {
            BearerSpec::new(
                FarEnd::User(user.parse().unwrap()),
                FarEnd::Tunnel([192, 0, 2, 9].into(), teid),
            )
        };
        let specs = [of("10.0.0.1", 1), of("10.0.0.1", 2), of("10.0.0.2", 3)];
        let added = registry.add(&specs).unwrap();
        let ids: Vec<_> = added.iter().flatten().copied().collect();
        assert!(ids.len() == 2 && added[1].as_ref().unwrap_err().contains("already"));
        let refused = registry.change(ids[1], &specs[0]);
        assert!(matches!(refused, Err(ChangeError::Refused(_))));
        assert_eq!(
            registry.change(ids[0], &of("10.0.0.3", 1)).unwrap(),
            specs[0].bearer()
        );
        registry.change(ids[1], &specs[0]).unwrap();
        assert_eq!(registry.remove(&[ids[1], ids[1]]).unwrap().len(), 1);
        assert!(matches!(
            registry.change(ids[1], &specs[0]),
            Err(ChangeError::Unknown)
        ));
        assert_eq!((registry.len(), registry.page(0, 10).len()), (1, 1));
    }

    #[test]
    fn bearers_of_a_ue_are_in_one_shard() {
        let mut registry = Registry::new();
        let spec = |teid: u32, ue: Option<u32>| BearerSpec {
            ue,
            ..BearerSpec::new(
                FarEnd::Tunnel([192, 0, 2, 8].into(), teid),
                FarEnd::Tunnel([192, 0, 2, 9].into(), teid),
            )
        };
        let add = |registry: &mut Registry, ue| {
            let added = registry.add(&[spec(1, ue)]).unwrap();
            *added[0].as_ref().unwrap()
        };
        let ues: Vec<u32> = (0..1_100)
            .map(|_| registry.add_ue(UeSpec::default()).unwrap())
            .collect();
        let alone: Vec<_> = (0..3_000).map(|_| add(&mut registry, None)).collect();
        for ue in &ues {
            for _ in 0..3 {
                assert_eq!(add(&mut registry, Some(*ue)).shard(), ue % SHARDS as u32);
            }
        }
        // One that is there becomes the first of another, which has the others with it, and no other's.
        let last = registry.add_ue(UeSpec::default()).unwrap();
        let (first, other) = (alone[77], alone[78]);
        registry.change(first, &spec(1, Some(last))).unwrap();
        assert_eq!(add(&mut registry, Some(last)).shard(), first.shard());
        for ue in [last, ues[0]] {
            let refused = registry.change(other, &spec(1, Some(ue)));
            assert!(matches!(refused, Err(ChangeError::Refused(_))));
        }
        // An older version's may be in several, and can be changed where they are.
        let bearer = spec(1, Some(last)).bearer();
        let old = BearerId::new(40 * SHARDS + 9, 1);
        assert!(registry.table.restore(old, &bearer) && old.shard() != first.shard());
        registry.change(old, &spec(2, Some(last))).unwrap();
        assert_eq!(add(&mut registry, Some(last)).shard(), first.shard());
        registry.change(other, &spec(1, None)).unwrap();
    }
}
