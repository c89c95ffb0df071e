//! How to take part in a channel.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use millrace_shm::link::is_slot_count;
use millrace_shm::pool::is_pool_size;
use millrace_shm::withheld::watch_forks;
use millrace_wire::{ChannelName, Role};

use crate::endpoint::Endpoint;
use crate::{Client, Error, Publisher, Server, Subscriber};

/// What a publisher does when a subscriber has no room for a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Wait. Nothing is lost; and without anybody to get it, a message waits too.
    #[default]
    Block,
    /// Say so, [`Error::Full`], and leave the message to the caller.
    Fail,
    /// Take back the oldest message that this subscriber has not read. It learns how many it missed.
    DropOldest,
    /// Pass this subscriber over. It learns how many it missed.
    DropNewest,
}

/// A channel by its name, and how to take part in it.
#[derive(Debug, Clone)]
pub struct Channel {
    pub(crate) name: String,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) pool_bytes: u64,
    pub(crate) slots: u32,
    pub(crate) when_full: WhenFull,
    pub(crate) timeout: Option<Duration>,
    pub(crate) patience: Option<Duration>,
    pub(crate) redeliver: bool,
    pub(crate) group: Option<String>,
}

impl Channel {
    /// The channel of this name: 1 to 64 letters of ASCII, digits or `. _ / -`, the first a letter or digit. Who may use
    /// which is the agent's policy; without one, all programs of one user, or of one container or pod.
    #[must_use]
    pub fn new(name: &str) -> Channel {
        watch_forks();
        Channel {
            name: name.to_owned(),
            agent: None,
            pool_bytes: 8 << 20,
            slots: 1024,
            when_full: WhenFull::default(),
            timeout: None,
            patience: Some(Duration::from_secs(1)),
            redeliver: false,
            group: None,
        }
    }

    /// The agent's socket. Otherwise the one that `MILLRACE_AGENT` names; else root's, `/run/millrace/agent.sock`, where it answers; else
    /// the user's own, `millrace/agent.sock` in `XDG_RUNTIME_DIR`, or `/tmp/millrace-UID/agent.sock` where that is not set.
    #[must_use]
    pub fn agent(mut self, socket: impl Into<PathBuf>) -> Channel {
        self.agent = Some(socket.into());
        self
    }

    /// Memory for messages, in bytes: a multiple of 65 536 up to 4 GiB. Of a client: as much again for the replies of each server. 8 MiB
    /// when nothing is said. It is charged to this program's quota.
    #[must_use]
    pub fn pool_bytes(mut self, bytes: u64) -> Channel {
        self.pool_bytes = bytes;
        self
    }

    /// Messages that may be outstanding between a publisher and a subscriber, unread or read and not given back: a power of two from 2 to
    /// 32 768; the smaller of both ends' counts. 1 024 when nothing is said.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Channel {
        self.slots = slots;
        self
    }

    /// What to do when a subscriber has no room.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Channel {
        self.when_full = when_full;
        self
    }

    /// How long [`WhenFull::Block`], and whoever waits for a message, waits. For ever when nothing is said.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Channel {
        self.timeout = Some(timeout);
        self
    }

    /// How long a publisher that waits, or is told that there is no room, bears a subscriber that gives nothing back, before it goes on
    /// without it, and how long it keeps what waits for a member of a group that has none where others need the room: one second when
    /// nothing is said; `None`: for ever. One that was left can read what it has; then it is brought together with the publisher again, and
    /// what it missed is lost to it.
    #[must_use]
    pub fn patience(mut self, patience: Option<Duration>) -> Channel {
        self.patience = patience;
        self
    }

    /// Whether what a dead member of a group had, unread or read and not given back, goes to another member, in order, with a mark where
    /// the dead one had read it. Otherwise it is lost.
    #[must_use]
    pub fn redeliver(mut self, redeliver: bool) -> Channel {
        self.redeliver = redeliver;
        self
    }

    /// Of all subscribers that name the same group, one gets each message: the one that the message's key belongs to, or else the one with
    /// the fewest outstanding. Without a group, a subscriber gets every message. Its name is one as channels have. All servers are one
    /// group.
    #[must_use]
    pub fn group(mut self, group: &str) -> Channel {
        self.group = Some(group.to_owned());
        self
    }

    /// Takes part as one that sends.
    ///
    /// # Errors
    /// When an option makes no sense, no agent answers, or it refuses.
    pub fn publisher(&self) -> Result<Publisher, Error> {
        self.endpoint(Role::Publisher).map(Publisher::new)
    }

    /// Takes part as one that gets messages.
    ///
    /// # Errors
    /// As [`Channel::publisher`].
    pub fn subscriber(&self) -> Result<Subscriber, Error> {
        self.endpoint(Role::Subscriber).map(Subscriber::new)
    }

    /// Takes part as one that sends requests, and gets their replies.
    ///
    /// # Errors
    /// As [`Channel::publisher`].
    pub fn client(&self) -> Result<Client, Error> {
        self.endpoint(Role::Client).map(Client::new)
    }

    /// Takes part as one that gets requests, and replies.
    ///
    /// # Errors
    /// As [`Channel::publisher`].
    pub fn server(&self) -> Result<Server, Error> {
        self.endpoint(Role::Server).map(Server::new)
    }

    fn endpoint(&self, role: Role) -> Result<Endpoint, Error> {
        let name = ChannelName::new(&self.name).map_err(Error::Name)?;
        let wrong = |option, value: &dyn Display, wanted| {
            Error::Option(format!("{option} is {value}; it must be {wanted}"))
        };
        if !is_slot_count(self.slots) {
            let wanted = "a power of two from 2 to 32768";
            return Err(wrong("slots", &self.slots, wanted));
        }
        if role.sends() && !is_pool_size(self.pool_bytes) {
            let wanted = "a multiple of 65536 up to 4294967296";
            return Err(wrong("pool_bytes", &self.pool_bytes, wanted));
        }
        let group = self.group.as_ref().map(|group| {
            let name = ChannelName::new(group);
            name.map_err(|error| {
                Error::Option(format!("group is {group:?}; {error}, and so has a group's"))
            })
        });
        let group = group.transpose()?;
        Endpoint::open(self, role, name, group)
    }
}
