//! What `millrace channels` shows.
//!
//! Who takes part, and who is linked with whom, is the agent's own knowledge; what has passed is what the ends say of it.

use std::collections::HashMap;

use millrace_shm::link::Counters;
use millrace_wire::Role;
use serde::{Deserialize, Serialize};

use super::matching::{Member, Tie};
use super::names::{ChannelKey, Scope};
use super::{Channels, Participant};
use crate::answers::monotonic_ns;
use crate::clients::Client;
use crate::offers::ClientId;
use crate::report::Holder;
use crate::server::Server;

/// Most ends, and most links of all of them, in one answer.
const ENTRIES_MAX: usize = 100_000;

/// The answer to `Query::Channels`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelsReport {
    /// The agent's `CLOCK_MONOTONIC` in nanoseconds, to compute rates with. 0: it is older than this field.
    #[serde(default)]
    pub now_ns: u64,
    /// There was more than one answer holds.
    pub truncated: bool,
    /// The channels that somebody takes part in whom the caller may see.
    pub channels: Vec<ChannelReport>,
}

/// One channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelReport {
    /// Its name.
    pub name: String,
    /// `messages`: publishers and subscribers; `requests`: clients and servers.
    pub kind: String,
    /// `rule`: the configuration says who may take part; else the tenant whose own it is.
    pub scope: String,
    /// Those who take part, and whom the caller may see.
    pub ends: Vec<ChannelEndReport>,
}

/// One participant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelEndReport {
    /// `publisher`, `subscriber`, `client` or `server`.
    pub role: String,
    /// The process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its name, printable.
    pub program: String,
    /// The number of the container that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The unique id of the Kubernetes pod that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// That pod's namespace and name, where the machine's kubelet knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// What the agent calls it, in hexadecimal.
    pub id: String,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seconds since it came.
    pub age_s: u64,
    /// The size of the pool that it publishes from; 0: it has none of its own.
    pub pool_bytes: u64,
    /// That is of huge pages.
    pub huge: bool,
    /// Messages that may be outstanding on a link of it.
    pub slots: u32,
    /// Its links.
    pub links: Vec<ChannelLinkReport>,
}

/// One link, as one of its ends sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelLinkReport {
    /// The agent's number, in hexadecimal; `None`: an earlier agent made it.
    pub id: Option<String>,
    /// The other participant, if the caller may see it.
    pub peer: Option<String>,
    /// Its process.
    pub peer_pid: Option<i32>,
    /// What this end sends. `None`: nothing, or the agent cannot look.
    pub sent: Option<FlowReport>,
    /// What it receives.
    pub received: Option<FlowReport>,
    /// Bytes of memory, without pools.
    pub bytes: u64,
    /// The size of the pool that its replies are published from; 0: it has none.
    #[serde(default)]
    pub replies_bytes: u64,
    /// Seconds since it was made.
    pub age_s: u64,
}

/// One direction of a link, as its two ends say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    /// Messages published.
    pub messages: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Messages given up.
    pub dropped: u64,
    /// Messages published once more, after the death of who had them.
    pub redelivered: u64,
    /// Times that a message found no room, and its publisher waited or was told so.
    #[serde(default)]
    pub full: u64,
    /// Messages that wait to be taken.
    pub queued: u32,
    /// Messages that were taken and are in use.
    pub held: u32,
}

impl FlowReport {
    pub(super) fn of(counters: Counters) -> FlowReport {
        FlowReport {
            messages: counters.messages,
            bytes: counters.bytes,
            dropped: counters.dropped,
            redelivered: counters.redelivered,
            full: counters.full,
            queued: counters.queued,
            held: counters.held,
        }
    }
}

impl ChannelKey {
    pub(super) fn kind(&self) -> &'static str {
        if self.two_way { "requests" } else { "messages" }
    }

    pub(super) fn scope_name(&self) -> String {
        match self.scope {
            Scope::Rule => "rule".to_owned(),
            Scope::Tenant(tenant) => tenant.to_string(),
        }
    }

    /// Channels that the configuration knows come first, so that nobody can displace them.
    pub(super) fn place(&self) -> (bool, &str, &'static str, String) {
        let is_own = self.scope != Scope::Rule;
        (is_own, self.name.as_str(), self.kind(), self.scope_name())
    }
}

impl Server {
    pub(crate) fn report_channels(&self, asker: ClientId) -> serde_json::Result<String> {
        let mut report = ChannelsReport {
            now_ns: monotonic_ns(),
            ..ChannelsReport::default()
        };
        let mut entries = 0;
        for (key, members) in self.channels.by_channel() {
            let mut ends = Vec::new();
            for (id, member) in members {
                let client = self.clients.get(&id).filter(|it| self.may_see(asker, it));
                let participant = self.channels.participants.get(&id);
                let (Some(client), Some(participant)) = (client, participant) else {
                    continue;
                };
                let room = ENTRIES_MAX.saturating_sub(entries + 1);
                if entries >= ENTRIES_MAX || member.ties().count() > room {
                    report.truncated = true;
                    continue;
                }
                let end = self.end_report(asker, client, participant, member);
                entries += 1 + end.links.len();
                ends.push(end);
            }
            if !ends.is_empty() {
                report.channels.push(ChannelReport {
                    name: key.name.to_string(),
                    kind: key.kind().to_owned(),
                    scope: self.scope_of(&key),
                    ends,
                });
            }
        }
        serde_json::to_string(&report)
    }

    /// For people: with a pod's name, where that is known.
    fn scope_of(&self, key: &ChannelKey) -> String {
        let is_its = |client: &&Client| key.scope == Scope::Tenant(client.tenant);
        let mut participants = self.channels.participants.keys();
        let found = participants.find_map(|id| self.clients.get(id).filter(is_its));
        found.map_or_else(|| key.scope_name(), |client| self.pods.tenant_name(client))
    }

    fn end_report(
        &self,
        asker: ClientId,
        client: &Client,
        participant: &Participant,
        member: &Member,
    ) -> ChannelEndReport {
        let Holder {
            pid,
            uid,
            program,
            container,
            pod,
            pod_name,
        } = self.holder(client);
        let Participant {
            open, huge, since, ..
        } = participant;
        let ties = member.ties();
        let links = ties.map(|(peer, tie)| self.link_report(asker, open.role, peer, tie));
        ChannelEndReport {
            role: open.role.as_str().to_owned(),
            pid,
            uid,
            program,
            container,
            pod,
            pod_name,
            id: hexadecimal(member.id),
            group: open.group.map(|group| group.to_string()),
            age_s: since.elapsed().as_secs(),
            pool_bytes: open.pool_bytes,
            huge: *huge,
            slots: open.slots,
            links: links.collect(),
        }
    }

    fn link_report(
        &self,
        asker: ClientId,
        role: Role,
        peer: ClientId,
        tie: Tie,
    ) -> ChannelLinkReport {
        let member = self.channels.matching.get(peer);
        let seen = self.clients.get(&peer).filter(|it| self.may_see(asker, it));
        let number = match tie {
            Tie::Link(number) => Some(number),
            Tie::Held => None,
        };
        let made = number.and_then(|number| self.channels.links.get(&number));
        let [out, back] = [0, 1].map(|direction| made.and_then(|made| made.flow(direction)));
        let (sent, received) = if role.sends() {
            (out, back)
        } else {
            (back, out)
        };
        ChannelLinkReport {
            id: number.map(hexadecimal),
            peer: seen.and(member).map(|member| hexadecimal(member.id)),
            peer_pid: seen.map(|client| client.pid),
            sent,
            received,
            bytes: made.map_or(0, |made| made.bytes),
            replies_bytes: made.map_or(0, |made| made.replies_bytes),
            age_s: made.map_or(0, |made| made.since.elapsed().as_secs()),
        }
    }
}

fn hexadecimal(number: u64) -> String {
    format!("{number:016x}")
}

impl Channels {
    /// Channels by their place, and those who take part in the order in which they came.
    fn by_channel(&self) -> Vec<(ChannelKey, Vec<(ClientId, &Member)>)> {
        let mut channels: HashMap<ChannelKey, Vec<(ClientId, &Member)>> = HashMap::new();
        for (id, member) in self.matching.members() {
            channels.entry(member.key).or_default().push((id, member));
        }
        let mut channels: Vec<_> = channels.into_iter().collect();
        channels.sort_by(|a, b| a.0.place().cmp(&b.0.place()));
        for (_, members) in &mut channels {
            members.sort_by_key(|(id, member)| (!member.sends, *id));
        }
        channels
    }
}
