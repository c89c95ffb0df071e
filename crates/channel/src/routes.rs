//! Of a group one takes each message: which one.
//!
//! Keys fall into buckets, and each bucket has an owner: the member with the highest hash of both (rendezvous hashing), so that few buckets
//! change hands when a member joins or leaves. A bucket changes hands only while nothing of it is out: what the old owner has not given
//! back, the new one could overtake.

/// Buckets of keys.
pub(crate) const BUCKETS: usize = 1024;

/// Who a peer is to its publisher: its place among the peers.
pub(crate) type PeerIndex = usize;

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// The member that has what is out.
    owner: u64,
    /// The member that is to have what comes.
    heir: u64,
    out: u32,
}

/// What a message of a bucket has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Go to this member.
    Go(u64),
    /// Wait until the owner has given back what it has, or go to it all the same.
    Moving(u64),
    /// There is no member.
    Nobody,
}

/// A group of subscribers.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its name's hash.
    pub(crate) name: u64,
    /// Ids of those that are there, with their places among the peers.
    pub(crate) members: Vec<(u64, PeerIndex)>,
    buckets: Vec<Bucket>,
    /// Where the search for the least loaded begins.
    pub(crate) next: usize,
    /// What its members have given back has been counted since the last publication: a batch is shared out by what was known when it began.
    pub(crate) is_counted: bool,
}

impl Group {
    pub(crate) fn new(name: u64) -> Group {
        Group {
            name,
            members: Vec::new(),
            buckets: Vec::new(),
            next: 0,
            is_counted: false,
        }
    }

    pub(crate) fn add(&mut self, id: u64, index: PeerIndex) {
        self.members.push((id, index));
        self.choose_heirs();
    }

    /// A member has gone; what it had out is not out any more.
    pub(crate) fn remove(&mut self, id: u64, index: PeerIndex) {
        self.members.retain(|member| *member != (id, index));
        for bucket in &mut self.buckets {
            if bucket.owner == id {
                bucket.out = 0;
            }
        }
        self.choose_heirs();
    }

    /// Where the peer of this id is.
    pub(crate) fn place(&self, id: u64) -> Option<PeerIndex> {
        let found = self.members.iter().find(|(member, _)| *member == id);
        found.map(|(_, index)| *index)
    }

    fn choose_heirs(&mut self) {
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            bucket.heir = heir(&self.members, number);
        }
    }

    /// The bucket of a key.
    #[inline]
    pub(crate) fn bucket(key: u64) -> u16 {
        (mix(key) % BUCKETS as u64) as u16
    }

    /// Who is to have a message of this bucket.
    pub(crate) fn turn(&mut self, bucket: u16) -> Turn {
        if self.buckets.is_empty() {
            self.buckets = (0..BUCKETS)
                .map(|number| Bucket {
                    owner: 0,
                    heir: heir(&self.members, number),
                    out: 0,
                })
                .collect();
        }
        let bucket = &mut self.buckets[usize::from(bucket)];
        if bucket.heir == 0 {
            return Turn::Nobody;
        }
        if bucket.out == 0 {
            bucket.owner = bucket.heir;
        }
        if bucket.owner == bucket.heir {
            Turn::Go(bucket.owner)
        } else {
            Turn::Moving(bucket.owner)
        }
    }

    /// A message of this bucket has gone to its owner.
    #[inline]
    pub(crate) fn went(&mut self, bucket: u16) {
        self.buckets[usize::from(bucket)].out += 1;
    }

    /// It has come back from the member of this id, or from one of a group of this name that was forgotten meanwhile.
    #[inline]
    pub(crate) fn came(&mut self, bucket: u16, id: u64) {
        if let Some(bucket) = self.buckets.get_mut(usize::from(bucket))
            && bucket.owner == id
        {
            bucket.out = bucket.out.saturating_sub(1);
        }
    }
}

/// The member with the highest hash; zero: there is none.
fn heir(members: &[(u64, PeerIndex)], bucket: usize) -> u64 {
    let ids = members.iter().map(|(id, _)| *id);
    ids.max_by_key(|id| mix(id ^ mix(bucket as u64)))
        .unwrap_or(0)
}

/// Spreads a number over all bits (SplitMix64's finalizer, Steele et al. 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(group: &mut Group) -> Vec<u64> {
        (0..BUCKETS as u16)
            .map(|bucket| match group.turn(bucket) {
                Turn::Go(id) | Turn::Moving(id) => id,
                Turn::Nobody => 0,
            })
            .collect()
    }

    #[test]
    fn buckets_are_shared_evenly_and_few_change_hands() {
        let mut group = Group::new(1);
        assert_eq!(group.turn(0), Turn::Nobody);
        for id in 1..=4 {
            group.add(id * 7919, id as usize);
        }
        let before = owners(&mut group);
        for id in 1..=4 {
            let count = before.iter().filter(|owner| **owner == id * 7919).count();
            assert!((180..340).contains(&count), "{count} of {BUCKETS}");
        }
        group.add(5 * 7919, 5);
        let after = owners(&mut group);
        let moved = |before: &[u64], after: &[u64]| {
            before.iter().zip(after).filter(|(a, b)| a != b).count()
        };
        assert!((150..270).contains(&moved(&before, &after)));
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(a, b)| a == b || *b == 5 * 7919)
        );
        group.remove(5 * 7919, 5);
        assert_eq!(owners(&mut group), before);
    }

    #[test]
    fn a_bucket_changes_hands_when_nothing_of_it_is_out() {
        let mut group = Group::new(1);
        group.add(1, 0);
        let bucket = (0..BUCKETS as u16)
            .find(|bucket| heir(&[(1, 0), (2, 1)], usize::from(*bucket)) == 2)
            .unwrap();
        assert_eq!(group.turn(bucket), Turn::Go(1));
        group.went(bucket);
        group.add(2, 1);
        assert_eq!(group.turn(bucket), Turn::Moving(1));
        group.came(bucket, 1);
        assert_eq!(group.turn(bucket), Turn::Go(2));
        group.went(bucket);
        group.remove(2, 1);
        assert_eq!(group.turn(bucket), Turn::Go(1), "the dead has nothing out");
    }
}
