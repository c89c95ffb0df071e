//! Which ends can be the two of one connection, by what two looks saw of them. No I/O.

use std::collections::HashMap;

use millrace_wire::Address;

use crate::bpf::TcpSocket;
use crate::offers::OfferKey;
use crate::tenant::Tenant;

/// Two ends that fit by chance are one in 2^64 of so many, where their addresses mirror each other…
const CHANCES_MAX_MIRRORED: u64 = 1 << 36;
/// …and where they do not.
const CHANCES_MAX: u64 = 1 << 24;

/// One end, as it was offered and as two looks saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) key: OfferKey,
    pub(super) local: Address,
    pub(super) remote: Address,
    /// It is in the agent's network namespace.
    pub(super) is_near: bool,
    /// Its network namespace belongs to the agent's user namespace.
    pub(super) is_own: bool,
    /// Whose program it is. Not which user's: root of two containers is not one.
    pub(super) tenant: Tenant,
    pub(super) seen: [TcpSocket; 2],
}

impl End {
    fn mirrors(&self, other: &End) -> bool {
        self.local == other.remote && self.remote == other.local
    }

    /// What the receiver's next number may be, if this is the sender: from what was unacknowledged first to what was to be sent last.
    fn sends(&self) -> (u32, u32) {
        (self.seen[0].send_unacknowledged, self.seen[1].send_next)
    }

    /// From what it was to receive next first to what last.
    fn receives(&self) -> (u32, u32) {
        (self.seen[0].receive_next, self.seen[1].receive_next)
    }
}

/// Which of them are paired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairing {
    /// Only those whose addresses mirror each other.
    Mirrored,
    Any,
}

/// The pairs of ends that fit each other and nobody else, at least one of them in another namespace than the agent's.
pub(super) fn only_fits(ends: &[End], pairing: Pairing) -> Vec<[OfferKey; 2]> {
    let candidates = Candidates::of(ends);
    let only: Vec<Option<usize>> = (0..ends.len())
        .map(|index| {
            let mut fitting = candidates
                .of_end(index)
                .filter(|other| may_be_one(&ends[index], &ends[*other]));
            fitting.next().filter(|_| fitting.next().is_none())
        })
        .collect();
    let pairs = only.iter().enumerate().filter_map(|(index, partner)| {
        let partner = (*partner)?;
        let is_mutual = index < partner && only[partner] == Some(index);
        let is_wanted = pairing == Pairing::Any || ends[index].mirrors(&ends[partner]);
        (is_mutual && is_wanted).then(|| [ends[index].key, ends[partner].key])
    });
    pairs.collect()
}

/// Who could fit whom, without trying everybody with everybody.
struct Candidates<'a> {
    ends: &'a [End],
    by_addresses: HashMap<(Address, Address), Vec<usize>>,
    /// By the first number that the receiver may have next: the ends that can fit one whose addresses do not mirror theirs.
    by_number: Vec<(u32, usize)>,
    /// The most that is between the first of these numbers and the last, of one end.
    span_max: u32,
}

impl<'a> Candidates<'a> {
    fn of(ends: &'a [End]) -> Candidates<'a> {
        let mut by_addresses: HashMap<_, Vec<usize>> = HashMap::new();
        let mut by_number = Vec::new();
        let mut span_max = 0;
        for (index, end) in ends.iter().enumerate() {
            let place = by_addresses.entry((end.local, end.remote));
            place.or_default().push(index);
            let (low, high) = end.sends();
            let span = high.wrapping_sub(low);
            if u64::from(span) < CHANCES_MAX {
                span_max = span_max.max(span);
                by_number.push((low, index));
            }
        }
        by_number.sort_unstable();
        Candidates {
            ends,
            by_addresses,
            by_number,
            span_max,
        }
    }

    /// Those that can be the senders of what this one receives, each once.
    fn of_end(&self, index: usize) -> impl Iterator<Item = usize> {
        let end = &self.ends[index];
        let mirrored = self.by_addresses.get(&(end.remote, end.local));
        let (low, high) = end.receives();
        let moved = high.wrapping_sub(low);
        let by_number = (u64::from(moved) < CHANCES_MAX)
            .then(|| self.numbered(low.wrapping_sub(self.span_max), moved + self.span_max))
            .into_iter()
            .flatten()
            .filter(|other| !end.mirrors(&self.ends[*other]));
        let mirrored = mirrored.into_iter().flatten().copied();
        mirrored
            .chain(by_number)
            .filter(move |other| *other != index)
    }

    /// Ends whose first number is one of `count` and one from `from` on, across the wrap.
    fn numbered(&self, from: u32, count: u32) -> impl Iterator<Item = usize> {
        let start = self.by_number.partition_point(|(low, _)| *low < from);
        let (before, after) = self.by_number.split_at(start);
        after
            .iter()
            .chain(before)
            .take_while(move |(low, _)| low.wrapping_sub(from) <= count)
            .map(|(_, index)| *index)
    }
}

/// Whether two ends can be those of one connection: they fit, that says enough, and nobody can have made them fit.
fn may_be_one(first: &End, second: &End) -> bool {
    let chances_max = if first.mirrors(second) {
        CHANCES_MAX_MIRRORED
    } else {
        CHANCES_MAX
    };
    let is_allowed = first.is_own && second.is_own || first.tenant.is_one_with(second.tenant);
    let both_near = first.is_near && second.is_near;
    is_allowed && !both_near && fit(first, second).is_some_and(|chances| chances <= chances_max)
}

/// Whether two sockets can have been, in two looks, the two ends of one connection: of 2^64 pairs of numbers so many would fit, too.
fn fit(first: &End, second: &End) -> Option<u64> {
    let (there, back) = (chances(first, second)?, chances(second, first)?);
    (first.seen[0].cookie != second.seen[0].cookie).then(|| there.saturating_mul(back))
}

/// How many values the receiver's next number could have had, if it can be this sender's.
fn chances(sender: &End, receiver: &End) -> Option<u64> {
    let (low, high) = sender.sends();
    let (first, last) = receiver.receives();
    let is_behind = |a: u32, b: u32| b.wrapping_sub(a).cast_signed() >= 0;
    let fits = is_behind(low, last) && is_behind(first, high);
    let moved = last.wrapping_sub(first);
    fits.then(|| u64::from(high.wrapping_sub(low)) + u64::from(moved) + 1)
}

#[cfg(test)]
mod tests;
