//! Channels: messages by name between programs that are written for Millrace. The agent makes the memory, and says who shares it with
//! whom; it is not on the path of any message.
//!
//! A participant speaks by a connection of its own, and what it owns here ends with that. In reading order:
//!
//! - `brought`: pools that participants have from an earlier agent;
//! - `names`: which channel a name is, and who may take part in it;
//! - `matching`: who is to be linked with whom, without I/O;
//! - `linking`: making links and handing them out; `segments/channels.rs`: their memory, and who pays for it;
//! - `report`: what `millrace channels` shows; `metrics`: what Prometheus gets.
//!
//! A publisher's pool is handed to nobody before the publisher has said that it is mapped: then it is sealed, and nobody gets a writable
//! mapping any more, whatever it does with the descriptor.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use millrace_shm::{link, pool};
use millrace_wire::{
    CHANNEL_ABI, Holds, Left, Open, Opened, Ready, Refusal, Refused, ToClient, Unsupported,
    VERSION_MAX, VERSION_MIN,
};
use tracing::{debug, warn};

use crate::clients::Client;
use crate::labels::{LABELS_DIRECTORY, Labels};
use crate::offers::ClientId;
use crate::proof;
use crate::segments;
use crate::server::Server;

mod brought;
mod linking;
mod matching;
mod metrics;
mod names;
mod report;

use linking::{Made, Unready};
use matching::{Matching, Member};
use metrics::Totals;
pub use names::ChannelRule;
use names::{Applicant, ChannelKey};
pub use report::{ChannelEndReport, ChannelLinkReport, ChannelReport, ChannelsReport, FlowReport};

const _: () = assert!(CHANNEL_ABI == link::LINK_VERSION);
const _: () = assert!(millrace_wire::SLOTS_MAX == link::SLOTS_MAX);
const _: () = assert!(millrace_wire::POOL_BYTES_MAX == pool::POOL_BYTES_MAX);

/// What the agent has of a participant.
#[derive(Debug)]
struct Participant {
    open: Open,
    /// What it publishes from.
    pool: Option<Rc<OwnedFd>>,
    huge: bool,
    since: Instant,
}

/// Everything about channels.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    matching: Matching,
    participants: HashMap<ClientId, Participant>,
    /// Links whose two ends have not gone.
    links: HashMap<u64, Made>,
    /// Those of them that a server has not mapped yet.
    unready: HashMap<u64, Unready>,
    /// There was no memory for a pair: it is tried again then.
    again: Option<Instant>,
    /// What went by links that are no more, of channels that are.
    totals: HashMap<ChannelKey, Totals>,
    numbers: Numbers,
    refused: [u64; Refusal::ALL.len()],
    links_made: u64,
    links_refused: u64,
}

/// Numbers that nobody can guess: a keyed hash of a counter (SipHash, with a key from the kernel's randomness).
#[derive(Debug, Default)]
struct Numbers {
    key: RandomState,
    count: u64,
}

impl Numbers {
    /// Never 0.
    fn next(&mut self) -> u64 {
        loop {
            self.count += 1;
            match self.key.hash_one(self.count) {
                0 => {}
                number => return number,
            }
        }
    }
}

impl Channels {
    /// How many take part.
    pub(crate) fn participants(&self) -> usize {
        self.participants.len()
    }

    /// Something was read that waited for a participant.
    pub(crate) fn handle_flushed(&mut self, client: ClientId) {
        if self.participants.contains_key(&client) {
            self.matching.wake(client);
        }
    }

    /// Memory has come back.
    pub(crate) fn handle_freed(&mut self) {
        // Where there was none at all, what was given up then has come back, too.
        if self.again.is_none() {
            self.matching.wake_refused();
        }
    }

    /// What the participant is called from now on: what it says, unless that is another's.
    fn id_for(&mut self, said: u64) -> u64 {
        let mut id = said;
        // None of those that mean nobody.
        while id == 0 || id == u64::MAX || self.matching.is_id_in_use(id) {
            id = self.numbers.next();
        }
        id
    }
}

impl Server {
    /// Somebody takes part in a channel.
    pub(crate) fn handle_open(&mut self, id: ClientId, open: &Open) {
        let speaks = open.version_min <= VERSION_MAX && open.version_max >= VERSION_MIN;
        if !speaks || open.abi != CHANNEL_ABI {
            return self.refuse_version(id, open);
        }
        if let Err(reason) = self.admit(id, open) {
            self.refuse_participant(id, open, reason);
        }
    }

    fn refuse_version(&mut self, id: ClientId, open: &Open) {
        self.metrics.clients_refused += 1;
        if let (Some(client), true) = (self.clients.get(&id), self.log_limit.allows()) {
            warn!(
                pid = client.pid,
                tenant = self.pods.tenant_name(client),
                channel = open.name.as_str(),
                role = open.role.as_str(),
                versions = ?open.version_min..=open.version_max,
                layout = open.abi,
                "refused a participant: this agent speaks versions {VERSION_MIN}..={VERSION_MAX} and layout {CHANNEL_ABI} of channels"
            );
        }
        let message = Unsupported {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
        };
        self.send(id, ToClient::Unsupported(message), None);
        self.doomed.push(id);
    }

    fn refuse_participant(&mut self, id: ClientId, open: &Open, reason: Refusal) {
        // Of one that is being killed, or has left since it asked, not all can be seen any more.
        let is_there = |client: &&Client| {
            let pid = client.pid.cast_unsigned();
            !client.has_left() && (pid == 0 || proof::is_alive(pid))
        };
        if let Some(client) = self.clients.get(&id).filter(is_there) {
            self.metrics.clients_refused += 1;
            self.channels.refused[reason as usize] += 1;
            if self.log_limit.allows() {
                warn!(
                    pid = client.pid,
                    tenant = self.pods.tenant_name(client),
                    channel = open.name.as_str(),
                    role = open.role.as_str(),
                    reason = reason.as_str(),
                    "refused a participant"
                );
            }
        }
        self.send(id, ToClient::Refused(Refused { reason }), None);
        self.doomed.push(id);
    }

    fn admit(&mut self, id: ClientId, open: &Open) -> Result<(), Refusal> {
        let client = self.clients.get(&id).ok_or(Refusal::Other)?;
        let tenant = client.tenant;
        let groups = || client.process.as_ref()?.read("cgroup");
        let labels = || {
            let number = client.containment.container_of(tenant)?;
            Labels::read(Path::new(LABELS_DIRECTORY), &number)
        };
        let applicant = Applicant {
            tenant,
            pod: self.pods.of_client(client),
            groups: &groups,
            labels: &labels,
        };
        let key = names::find(&self.config.channel, open, &applicant).ok_or(Refusal::NotAllowed)?;
        if open.peers > self.config.quota.channel_links_per_participant
            || !self.segments.take_participant(tenant)
        {
            return Err(Refusal::Quota);
        }
        let (pool, huge) = match self.pool_for(id, open) {
            Ok(pool) => pool,
            Err(reason) => {
                self.segments.give_back_participant(tenant);
                return Err(reason);
            }
        };
        self.segments.give_back_silent(tenant);
        let version = VERSION_MAX.min(open.version_max);
        let number = self.channels.id_for(open.id);
        if let Some(client) = self.clients.get_mut(&id) {
            client.become_participant(version);
            debug!(
                client = id.0,
                pid = client.pid,
                channel = open.name.as_str(),
                role = open.role.as_str(),
                "takes part"
            );
        }
        self.channels.totals.entry(key).or_default().members += 1;
        let member = Member::new(key, open.role.sends(), number, open.peers);
        self.channels.matching.open(id, member);
        let participant = Participant {
            open: *open,
            pool,
            huge,
            since: Instant::now(),
        };
        self.greet(id, number, version, participant);
        Ok(())
    }

    /// Says what it is called, and hands its pool over if that is new.
    fn greet(&mut self, id: ClientId, number: u64, version: u16, participant: Participant) {
        let Participant {
            open, pool, huge, ..
        } = &participant;
        let message = Opened {
            version,
            id: number,
            pool_bytes: open.pool_bytes,
            huge: *huge,
        };
        let is_sealed = open.pool.is_some() || pool.is_none();
        let fd = pool.as_ref().filter(|_| open.pool.is_none()).map(Rc::clone);
        self.channels.participants.insert(id, participant);
        // Whoever was expected has come.
        self.leave_at = Instant::now();
        self.send(id, ToClient::Opened(message), fd);
        if is_sealed {
            self.channels.matching.handle_sealed(id);
        }
    }

    /// What it publishes from, and whether that is of huge pages.
    fn pool_for(
        &mut self,
        id: ClientId,
        open: &Open,
    ) -> Result<(Option<Rc<OwnedFd>>, bool), Refusal> {
        let tenant = self.payer(id).tenant;
        let (fd, huge) = match open.pool {
            Some(number) => {
                let process = self.clients.get(&id).and_then(|c| c.process.as_ref());
                let brought = process.and_then(|process| brought::open(process, number));
                let fd = brought.ok_or(Refusal::BadPool)?;
                let huge = brought::checked(&fd, open.pool_bytes).ok_or(Refusal::BadPool)?;
                let adopted = self.segments.adopt_pool(tenant, open.pool_bytes, fd);
                (adopted.map_err(|refusal| self.explain(refusal))?, huge)
            }
            None if open.pool_bytes == 0 => return Ok((None, false)),
            None => {
                let made = self.segments.create_pool(tenant, open.pool_bytes);
                made.map_err(|refusal| self.explain(refusal))?
            }
        };
        Ok((Some(Rc::new(fd)), huge))
    }

    fn explain(&mut self, refusal: segments::Refusal) -> Refusal {
        match refusal {
            segments::Refusal::Quota => Refusal::Quota,
            segments::Refusal::NoDescriptor => Refusal::NoMemory,
            segments::Refusal::NoMemory(error) => {
                if self.log_limit.allows() {
                    warn!("no memory for a channel: {error}");
                }
                Refusal::NoMemory
            }
        }
    }

    /// It holds a link with somebody. A text: it breaks the protocol.
    pub(crate) fn handle_holds(&mut self, id: ClientId, holds: Holds) -> Option<String> {
        let handled = self.channels.matching.handle_claim(id, holds.peer);
        handled
            .err()
            .map(|_| "it holds more links than it said".to_owned())
    }

    /// A link is over for it. What it says of a link that it does not have is not answered: the other may have gone meanwhile.
    pub(crate) fn handle_left(&mut self, id: ClientId, left: Left) {
        let Channels {
            matching, unready, ..
        } = &mut self.channels;
        let is_unready = |link| unready.contains_key(&link);
        if let Some(link) = matching.handle_left(id, left.peer, is_unready) {
            self.channels.forget(link);
        }
    }

    /// A pool is mapped: it is sealed now, before anybody else gets it. A text: it breaks the protocol.
    pub(crate) fn handle_ready(&mut self, id: ClientId, ready: Ready) -> Option<String> {
        if ready.link != 0 {
            return self.handle_link_ready(id, ready.link);
        }
        let participant = self.channels.participants.get(&id)?;
        let Some(pool) = &participant.pool else {
            return Some("it has no pool that could be sealed".to_owned());
        };
        if !sealed(pool, participant.open.pool_bytes) {
            return Some("its pool cannot be sealed".to_owned());
        }
        self.channels.matching.handle_sealed(id);
        None
    }

    /// A participant is gone, or as good as gone.
    pub(crate) fn leave_channel(&mut self, client: &Client) {
        let id = client.id;
        self.segments.give_back_participant(client.tenant);
        self.channels.leave(id);
    }
}

/// Seals a pool, unless it is. False: it is none that others can be given.
fn sealed(pool: &OwnedFd, bytes: u64) -> bool {
    (pool::is_sealed(pool.as_fd(), bytes) || pool::seal(pool.as_fd()).is_ok())
        && brought::is_whole(pool, bytes)
}
