//! What participants of channels and the agent say to each other. A participant is a program that sends or receives messages by name,
//! and speaks to the agent by a connection of its own, whose first message is [`Open`].

use core::fmt;

/// The version of the layout of links and pools that this code uses. Builds with the feature `relaid` stand for a library with another one.
pub const CHANNEL_ABI: u16 = if cfg!(feature = "relaid") { 2 } else { 1 };

/// Sizes of pools are multiples of this, and at least this.
pub const POOL_UNIT_BYTES: u64 = 65_536;
/// No pool is larger.
pub const POOL_BYTES_MAX: u64 = 4 << 30;
/// Most messages that may be outstanding on a link; a power of two, as every such number is.
pub const SLOTS_MAX: u32 = 32_768;
/// Fewest.
pub const SLOTS_MIN: u32 = 2;

/// What a participant does on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Sends messages to subscribers.
    Publisher = 0,
    /// Gets messages of publishers.
    Subscriber = 1,
    /// Sends requests to servers, and gets their replies.
    Client = 2,
    /// Gets requests of clients, and replies.
    Server = 3,
}

impl Role {
    /// The role of this code, if there is one.
    #[must_use]
    pub const fn from_u8(code: u8) -> Option<Role> {
        match code {
            0 => Some(Role::Publisher),
            1 => Some(Role::Subscriber),
            2 => Some(Role::Client),
            3 => Some(Role::Server),
            _ => None,
        }
    }

    /// The name that users see.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Publisher => "publisher",
            Role::Subscriber => "subscriber",
            Role::Client => "client",
            Role::Server => "server",
        }
    }

    /// Whether it publishes in a link's first direction. The others subscribe there.
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(self, Role::Publisher | Role::Client)
    }

    /// Whether its links have a direction back.
    #[must_use]
    pub const fn is_two_way(self) -> bool {
        matches!(self, Role::Client | Role::Server)
    }
}

/// The name of a channel: 1 to 64 letters, digits, dots, underscores, slashes and hyphens, the first a letter or digit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelName {
    bytes: [u8; ChannelName::BYTES_MAX],
    length: u8,
}

/// Why a text is no channel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameError;

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a channel's name has 1 to 64 letters, digits or . _ / -, the first a letter or digit",
        )
    }
}

impl core::error::Error for NameError {}

impl ChannelName {
    /// Longest name, in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Checks a name.
    ///
    /// # Errors
    /// When it is too long, empty, or has other characters.
    pub fn new(text: &str) -> Result<ChannelName, NameError> {
        let length = u8::try_from(text.len()).map_err(|_| NameError)?;
        let mut bytes = [0; ChannelName::BYTES_MAX];
        let place = bytes.get_mut(..text.len()).ok_or(NameError)?;
        place.copy_from_slice(text.as_bytes());
        ChannelName::of_bytes(bytes, length).ok_or(NameError)
    }

    /// From bytes behind which there are only zeros.
    pub(crate) fn of_bytes(bytes: [u8; ChannelName::BYTES_MAX], length: u8) -> Option<ChannelName> {
        let (name, rest) = bytes.split_at_checked(length.into())?;
        let is_ours = |byte: &u8| byte.is_ascii_alphanumeric() || b"._/-".contains(byte);
        let is_name = name.first()?.is_ascii_alphanumeric() && name.iter().all(is_ours);
        (is_name && rest.iter().all(|byte| *byte == 0)).then_some(ChannelName { bytes, length })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Each byte is ASCII.
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }

    pub(crate) fn to_bytes(self) -> ([u8; ChannelName::BYTES_MAX], u8) {
        (self.bytes, self.length)
    }
}

impl fmt::Debug for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// "I take part in this channel." The first message of a participant. Its layout never changes; later versions may append to it.
///
/// `peers` messages [`Holds`] follow, and only then it is matched with others. No descriptor comes with any message of a participant: the
/// agent would have to close what it did not want, and some files do not let go of whoever does that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Open {
    /// Lowest control protocol version that the participant speaks.
    pub version_min: u16,
    /// Highest control protocol version that the participant speaks.
    pub version_max: u16,
    /// The layout of links and pools that the participant knows: [`CHANNEL_ABI`].
    pub abi: u16,
    /// What it does there.
    pub role: Role,
    /// A publisher that may take its oldest messages back when there is no room for new ones.
    pub overwrites: bool,
    /// The number of the descriptor of its pool, a memfd, where it has that from an earlier agent. The agent looks there.
    pub pool: Option<u32>,
    /// What an earlier agent called it; 0: none did.
    pub id: u64,
    /// The size of a publisher's pool, and of a client's own one and of each that replies to it come in; of others 0.
    pub pool_bytes: u64,
    /// Messages that may be outstanding on a link. It gets the smaller number of both ends'.
    pub slots: u32,
    /// How many [`Holds`] follow.
    pub peers: u32,
    /// The channel.
    pub name: ChannelName,
    /// Of subscribers or servers: whom it shares messages with.
    pub group: Option<ChannelName>,
}

impl Open {
    /// The group as links have it: a hash of its name (FNV-1a, 64 bits), never zero; 0: none. Servers that name none are one group all the
    /// same.
    #[must_use]
    pub fn group_number(&self) -> u64 {
        let name = match (&self.group, self.role) {
            (Some(name), _) => name.as_str(),
            (None, Role::Server) => "",
            (None, _) => return 0,
        };
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash.max(1)
    }
}

/// "I have a link with this participant already." It does not get another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holds {
    /// The other participant's id.
    pub peer: u64,
}

/// "My link with this participant is over." When the other says so too, has not got its end, or did not say [`Holds`] of it, and both are
/// still there, they get another link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Left {
    /// The other participant's id.
    pub peer: u64,
}

/// "It is mapped: seal it." Of a pool, before anybody else gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ready {
    /// 0: the participant's own pool; else the link whose reply pool is meant.
    pub link: u64,
}

/// The answer to [`Open`]. The pool, a memfd, comes with it, unless its size is 0 or the participant had it already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opened {
    /// The control protocol version that both speak from now on.
    pub version: u16,
    /// What the agent calls the participant. Never 0.
    pub id: u64,
    /// The size of its own pool.
    pub pool_bytes: u64,
    /// The pool is of huge pages.
    pub huge: bool,
}

/// Why a participant is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// A cause that this version does not know.
    Other = 0,
    /// The agent's configuration does not let it take part in this channel.
    NotAllowed = 1,
    /// A limit is reached.
    Quota = 2,
    /// There is not enough memory, or no descriptor.
    NoMemory = 3,
    /// The pool that came is not what was said, or others could change it.
    BadPool = 4,
}

impl Refusal {
    /// Every cause, in the order of its code.
    pub const ALL: [Refusal; 5] = [
        Refusal::Other,
        Refusal::NotAllowed,
        Refusal::Quota,
        Refusal::NoMemory,
        Refusal::BadPool,
    ];

    /// The cause of this code.
    #[must_use]
    pub const fn from_u8(code: u8) -> Refusal {
        match code {
            1 => Refusal::NotAllowed,
            2 => Refusal::Quota,
            3 => Refusal::NoMemory,
            4 => Refusal::BadPool,
            _ => Refusal::Other,
        }
    }

    /// The name that users see.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Refusal::Other => "other",
            Refusal::NotAllowed => "not_allowed",
            Refusal::Quota => "quota",
            Refusal::NoMemory => "no_memory",
            Refusal::BadPool => "bad_pool",
        }
    }
}

/// "You cannot take part." The agent closes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refused {
    /// Why. A code that this version does not know reads as [`Refusal::Other`].
    pub reason: Refusal,
}

/// Which end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkEnd {
    /// It publishes in the first direction: a publisher's or a client's.
    Publishes = 0,
    /// It subscribes there: a subscriber's or a server's.
    Subscribes = 1,
}

/// "Here is a link with another participant." Descriptors come with it, in this order: the link, a memfd; one end of a pair of sockets;
/// the peer's pool, if `peer_pool_bytes` is not 0; the receiver's own pool for replies, if `own_pool_bytes` is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Linked {
    /// The agent's number for the link. Never 0.
    pub link: u64,
    /// The other participant's id.
    pub peer: u64,
    /// Messages that may be outstanding, in each direction.
    pub slots: u32,
    /// The one that publishes may take its oldest messages back.
    pub overwrites: bool,
    /// The link has a direction back: it is a client's and a server's.
    pub two_way: bool,
    /// The receiver's end.
    pub end: LinkEnd,
    /// [`Open::group_number`] of the one that subscribes.
    pub group: u64,
    /// The size of the pool that the peer publishes from, to this one; 0: it does not publish.
    pub peer_pool_bytes: u64,
    /// The size of the pool that the receiver replies from; 0: it has its own from [`Opened`], or does not publish.
    pub own_pool_bytes: u64,
    /// The peer's process, or 0 when that is not known.
    pub peer_pid: u32,
}

impl Linked {
    /// How many descriptors come with it.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        2 + (self.peer_pool_bytes != 0) as usize + (self.own_pool_bytes != 0) as usize
    }
}
