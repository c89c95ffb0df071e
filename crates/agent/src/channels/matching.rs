//! Who is to be linked with whom. Pure bookkeeping: no I/O, no memory of anybody's.
//!
//! A participant takes part when its pool is sealed and it has said which links it has. Then each sender of a channel is to be linked with
//! each of its receivers: a pair is *wanted*, until it is linked or one of the two leaves. Links are made one after the other, as both
//! have room for the news; who cannot be linked now waits, and is looked at again when something has changed for it.
//!
//! | a pair is | becomes | when |
//! |---|---|---|
//! | not there | wanted | the later of the two takes part |
//! | not there | linked | the same, and either has said that it holds a link with the other |
//! | wanted | linked | there is room, and memory |
//! | linked | wanted | both have said that it is over for them, or the one that alone has it, or held it when this agent came |
//! | wanted, linked | not there | one of the two leaves |

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;

use super::names::ChannelKey;
use crate::offers::ClientId;

/// Links of one participant of which the server has not said yet that it has mapped them. Each is three descriptors of the agent.
pub(crate) const UNREADY_MAX: u32 = 4;

/// What two participants have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tie {
    /// A link of this number.
    Link(u64),
    /// A link that an earlier agent made.
    Held,
}

/// One participant.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) key: ChannelKey,
    /// It publishes in a link's first direction.
    pub(crate) sends: bool,
    /// What others know it by.
    pub(crate) id: u64,
    /// Its pool is sealed, or it has none.
    is_sealed: bool,
    /// So many more links will it say that it holds.
    claims_to_come: u32,
    claims: HashSet<u64>,
    wanted: BTreeSet<ClientId>,
    ties: BTreeMap<ClientId, Tie>,
    /// Those whose link with it is over, as it says.
    left: BTreeSet<ClientId>,
    unready: u32,
}

impl Member {
    pub(crate) fn new(key: ChannelKey, sends: bool, id: u64, claims_to_come: u32) -> Member {
        Member {
            key,
            sends,
            id,
            is_sealed: false,
            claims_to_come,
            claims: HashSet::new(),
            wanted: BTreeSet::new(),
            ties: BTreeMap::new(),
            left: BTreeSet::new(),
            unready: 0,
        }
    }

    /// Those that it has a link with.
    pub(crate) fn ties(&self) -> impl Iterator<Item = (ClientId, Tie)> + '_ {
        self.ties.iter().map(|(peer, tie)| (*peer, *tie))
    }
}

/// Something that a participant has no right to say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfTurn;

/// A sender and a receiver.
pub(crate) type Pair = [ClientId; 2];

/// All participants.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    members: HashMap<ClientId, Member>,
    ids: HashMap<u64, ClientId>,
    /// Those who take part: senders and receivers.
    channels: HashMap<ChannelKey, [BTreeSet<ClientId>; 2]>,
    /// Whose wanted pairs are to be looked at, and behind which of their peers.
    due: VecDeque<ClientId>,
    cursors: HashMap<ClientId, Option<ClientId>>,
    /// Those for whom there was no memory.
    refused: BTreeSet<ClientId>,
}

impl Matching {
    pub(crate) fn get(&self, client: ClientId) -> Option<&Member> {
        self.members.get(&client)
    }

    pub(crate) fn is_id_in_use(&self, id: u64) -> bool {
        self.ids.contains_key(&id)
    }

    /// Somebody has come. Its id must be nobody's.
    pub(crate) fn open(&mut self, client: ClientId, member: Member) {
        self.ids.insert(member.id, client);
        self.members.insert(client, member);
    }

    /// It says that it holds a link with the participant of this id.
    pub(crate) fn handle_claim(&mut self, client: ClientId, peer: u64) -> Result<(), OutOfTurn> {
        let member = self.members.get_mut(&client).ok_or(OutOfTurn)?;
        member.claims_to_come = member.claims_to_come.checked_sub(1).ok_or(OutOfTurn)?;
        member.claims.insert(peer);
        self.take_part_if_complete(client);
        Ok(())
    }

    /// Nobody else can write to its pool any more, or it has none.
    pub(crate) fn handle_sealed(&mut self, client: ClientId) {
        if let Some(member) = self.members.get_mut(&client)
            && !member.is_sealed
        {
            member.is_sealed = true;
            self.take_part_if_complete(client);
        }
    }

    fn take_part_if_complete(&mut self, client: ClientId) {
        let Some(mut member) = self.members.remove(&client) else {
            return;
        };
        if member.is_sealed && member.claims_to_come == 0 {
            self.take_part(client, &mut member);
        }
        self.members.insert(client, member);
    }

    /// `member` is not in the table meanwhile.
    fn take_part(&mut self, client: ClientId, member: &mut Member) {
        let sides = self.channels.entry(member.key).or_default();
        for peer_id in &sides[usize::from(member.sends)] {
            let Some(peer) = self.members.get_mut(peer_id) else {
                continue;
            };
            let claimed = [
                member.claims.remove(&peer.id),
                peer.claims.remove(&member.id),
            ];
            if claimed.contains(&true) {
                member.ties.insert(*peer_id, Tie::Held);
                peer.ties.insert(client, Tie::Held);
                // Who does not hold it will not say that it is over.
                if !claimed[0] {
                    member.left.insert(*peer_id);
                }
                if !claimed[1] {
                    peer.left.insert(client);
                }
            } else {
                member.wanted.insert(*peer_id);
                peer.wanted.insert(client);
            }
        }
        sides[usize::from(!member.sends)].insert(client);
        self.wake(client);
    }

    /// It has gone. Returns the links that it had.
    pub(crate) fn leave(&mut self, client: ClientId) -> Vec<u64> {
        let Some(member) = self.members.remove(&client) else {
            return Vec::new();
        };
        self.ids.remove(&member.id);
        self.cursors.remove(&client);
        self.due.retain(|due| *due != client);
        self.refused.remove(&client);
        if let Some(sides) = self.channels.get_mut(&member.key) {
            sides[usize::from(!member.sends)].remove(&client);
            if sides.iter().all(BTreeSet::is_empty) {
                self.channels.remove(&member.key);
            }
        }
        for peer in member.wanted.iter().chain(member.ties.keys()) {
            if let Some(peer) = self.members.get_mut(peer) {
                peer.wanted.remove(&client);
                peer.ties.remove(&client);
                peer.left.remove(&client);
            }
        }
        let ties = member.ties.into_values();
        ties.filter_map(|tie| match tie {
            Tie::Link(link) => Some(link),
            Tie::Held => None,
        })
        .collect()
    }

    /// Its link with the participant of this id is over, it says. When the other has said so too, or has not got its end
    /// (`is_unready` says that of a link), the pair is wanted again: returns the link that they had, if this agent made it.
    pub(crate) fn handle_left(
        &mut self,
        client: ClientId,
        peer_id: u64,
        is_unready: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let peer = *self.ids.get(&peer_id)?;
        let member = self.members.get_mut(&client)?;
        let tie = *member.ties.get(&peer)?;
        // What is not ready, its server alone has.
        let is_alone = matches!(tie, Tie::Link(link) if !member.sends && is_unready(link));
        member.left.insert(peer);
        let other = self.members.get(&peer)?;
        if !is_alone && !other.left.contains(&client) {
            return None;
        }
        let mut link = None;
        for (one, other) in [(client, peer), (peer, client)] {
            let member = self.members.get_mut(&one)?;
            member.left.remove(&other);
            member.wanted.insert(other);
            if let Some(Tie::Link(number)) = member.ties.remove(&other) {
                link = Some(number);
            }
        }
        self.wake(client);
        link
    }

    /// Something has changed for a participant: its wanted pairs are looked at again, from the first.
    pub(crate) fn wake(&mut self, client: ClientId) {
        if self.cursors.insert(client, None).is_none() {
            self.due.push_back(client);
        }
    }

    /// Memory has come back: those who got none are looked at again.
    pub(crate) fn wake_refused(&mut self) {
        for client in std::mem::take(&mut self.refused) {
            self.wake(client);
        }
    }

    /// Whether pairs are to be looked at.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The next pair that can be linked now. `has_room` says of whom; `budget` is how many pairs may still be looked at.
    pub(crate) fn next_pair(
        &mut self,
        budget: &mut u32,
        has_room: impl Fn(ClientId) -> bool,
    ) -> Option<Pair> {
        while *budget > 0 {
            *budget -= 1;
            let client = *self.due.front()?;
            let after = self.cursors.get(&client).copied().flatten();
            match self.next_wanted(client, after, &has_room) {
                Some(peer) => {
                    self.cursors.insert(client, Some(peer));
                    if self.can_be_linked(peer, &has_room) {
                        let sends = self.members.get(&client).is_some_and(|member| member.sends);
                        return Some(if sends {
                            [client, peer]
                        } else {
                            [peer, client]
                        });
                    }
                }
                None => {
                    self.due.pop_front();
                    self.cursors.remove(&client);
                }
            }
        }
        None
    }

    fn next_wanted(
        &self,
        client: ClientId,
        after: Option<ClientId>,
        has_room: &impl Fn(ClientId) -> bool,
    ) -> Option<ClientId> {
        if !self.can_be_linked(client, has_room) {
            return None;
        }
        let beginning = after.map_or(Bound::Unbounded, Bound::Excluded);
        let wanted = &self.members.get(&client)?.wanted;
        wanted.range((beginning, Bound::Unbounded)).next().copied()
    }

    fn can_be_linked(&self, client: ClientId, has_room: &impl Fn(ClientId) -> bool) -> bool {
        let member = self.members.get(&client);
        member.is_some_and(|member| member.unready < UNREADY_MAX) && has_room(client)
    }

    /// A wanted pair has got a link. `unready`: the server has to map it first.
    pub(crate) fn link(&mut self, pair: Pair, link: u64, unready: bool) {
        for (client, peer) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            if let Some(member) = self.members.get_mut(&client) {
                member.wanted.remove(&peer);
                member.ties.insert(peer, Tie::Link(link));
                member.unready += u32::from(unready && client == pair[1]);
            }
        }
    }

    /// There is nothing for a wanted pair now.
    pub(crate) fn refuse(&mut self, pair: Pair) {
        self.refused.extend(pair);
    }

    /// The server has mapped the pair's link, or one of the two has gone before.
    pub(crate) fn handle_mapped(&mut self, pair: Pair) {
        for client in pair {
            if let Some(member) = self.members.get_mut(&client) {
                member.unready = member.unready.saturating_sub(u32::from(client == pair[1]));
                self.wake(client);
            }
        }
    }

    /// Every participant, by channel and in the order in which they came.
    pub(crate) fn members(&self) -> impl Iterator<Item = (ClientId, &Member)> {
        self.members
            .iter()
            .map(|(client, member)| (*client, member))
    }
}

#[cfg(test)]
mod tests;
