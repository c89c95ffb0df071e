//! What the preload library and the agent say to each other, and what programs ask. All messages are `Copy` and of fixed size.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::Reason;
use crate::channel::{Holds, Left, Linked, Open, Opened, Ready, Refused};

/// The lowest control protocol version that this code speaks.
///
/// Builds with the feature `apart` stand for what no longer speaks any version of this one.
pub const VERSION_MIN: u16 = if cfg!(feature = "apart") { 5 } else { 2 };
/// The highest control protocol version that this code speaks.
///
/// Builds with the feature `ahead` stand for what is two versions further, so that tests can have old and new speak with each other.
pub const VERSION_MAX: u16 = if cfg!(feature = "apart") {
    6
} else if cfg!(feature = "ahead") {
    4
} else {
    2
};
/// The version of the segment's layout that this code uses.
pub const SEGMENT_VERSION: u16 = 1;

/// How eagerly a client wants its connections on the ring. Only `Default` is for production; the others are for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Mode {
    /// Offer a connection once it has proved long enough to gain.
    #[default]
    Default = 0,
    /// Offer at once, use the ring from the first byte on, spin long.
    Eager = 1,
    /// As `Eager`, but never spin.
    EagerNospin = 2,
    /// Switch roads at seeded random moments.
    Chaos = 3,
}

impl Mode {
    /// The mode of this code, if there is one.
    #[must_use]
    pub const fn from_u8(code: u8) -> Option<Mode> {
        match code {
            0 => Some(Mode::Default),
            1 => Some(Mode::Eager),
            2 => Some(Mode::EagerNospin),
            3 => Some(Mode::Chaos),
            _ => None,
        }
    }

    /// The name that `MILLRACE_MODE` and users use. A chaos seed follows its name after a colon.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::Eager => "eager",
            Mode::EagerNospin => "eager-nospin",
            Mode::Chaos => "chaos",
        }
    }
}

/// The address family of a socket (not of its addresses: an IPv6 socket may have v4-mapped ones).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// `AF_INET`.
    V4 = 4,
    /// `AF_INET6`.
    V6 = 6,
}

/// An IP address and port. IPv4 addresses are v4-mapped, so that both ends of one connection compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The sixteen bytes of an IPv6 address, in network order.
    pub ip: [u8; 16],
    /// The port, in host order.
    pub port: u16,
}

impl Address {
    /// Whether this is an IPv4 address in its v4-mapped form.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        Ipv6Addr::from(self.ip).to_ipv4_mapped().is_some()
    }
}

impl From<SocketAddr> for Address {
    /// Drops flow label and scope of an IPv6 address: they are not part of a connection's identity here.
    fn from(address: SocketAddr) -> Address {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Address {
            ip,
            port: address.port(),
        }
    }
}

impl From<Address> for SocketAddr {
    /// Turns v4-mapped addresses into IPv4 addresses.
    fn from(address: Address) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(address.ip).to_canonical(), address.port)
    }
}

/// Which end of a connection. It decides which direction of the segment is whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum End {
    /// The end that connected.
    Active = 0,
    /// The end that accepted.
    Passive = 1,
}

/// The first message of a client. Its layout never changes; later versions may append to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Lowest control protocol version that the client speaks.
    pub version_min: u16,
    /// Highest control protocol version that the client speaks.
    pub version_max: u16,
    /// The layout of segments that the client knows.
    pub segment_version: u16,
    /// How eager the client is.
    pub mode: Mode,
}

/// "I hold one end of this connection and would like it on a ring."
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Chosen by the client, unique among its offers that are neither declined nor withdrawn.
    pub offer_id: u64,
    /// The descriptor's number in the client. Never negative.
    pub fd: i32,
    /// The row of the client's board that describes this end.
    pub row: u32,
    /// The socket's family.
    pub family: Family,
    /// Which end this is.
    pub end: End,
    /// `getsockname`.
    pub local: Address,
    /// `getpeername`.
    pub remote: Address,
    /// `SO_COOKIE`.
    pub cookie: u64,
    /// `SO_NETNS_COOKIE`; 0 where the kernel has none.
    pub netns_cookie: u64,
}

/// "I want it still": the answer to [`Matched`], said when the process has read that, which one that sleeps does not. When both ends have
/// said so, each gets [`Paired`]. A [`Take`] has one answer in all: [`Paired`] or [`Declined`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Take {
    /// The offer's id.
    pub offer_id: u64,
}

/// "Forget this offer." Also said when a paired connection's end has gone. An offer that was taken and not paired is then declined, so
/// that the client knows that no segment is under way to it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Withdraw {
    /// The offer's id.
    pub offer_id: u64,
}

/// "The gate is shut, and bytes lie in the ring unread: have the sender's kernel socket send them." For a reader that leaves
/// its ring, and for a sender after whom nobody could do it any more. Of an offer that was paired and is not withdrawn, or of a
/// connection that another process offered, its parent, and of which the asking one has an end too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recall {
    /// The offer's id. The answer has the same.
    pub offer_id: u64,
    /// The number that the agent gave the connection.
    pub connection_id: u64,
    /// A descriptor of the end.
    pub fd: i32,
    /// The direction that is meant is the one in which the asking end sends; otherwise the one that it reads.
    pub sends: bool,
}

/// "The ring that I send into is too small." Of an offer that was paired and is not withdrawn. The answer, if the agent grants more, are
/// the words `grant` of both ends' rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grow {
    /// The offer's id.
    pub offer_id: u64,
}

/// A question that needs no [`Hello`]. Its layout never changes; what is appended to it is read by those who know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Query {
    /// All connections that the caller may see.
    Connections,
    /// What the agent is, and how it is.
    Status,
    /// The same, of a process that will need the agent: it shall stay until that has ended. An older agent takes it for `Status`.
    StatusAndStay,
    /// All channels that the caller may see. An agent that is older than channels hangs up.
    Channels,
}

/// A message from a client to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToAgent {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`Offer`].
    Offer(Offer),
    /// See [`Withdraw`].
    Withdraw(Withdraw),
    /// See [`Query`].
    Query(Query),
    /// See [`Recall`].
    Recall(Recall),
    /// See [`Grow`].
    Grow(Grow),
    /// See [`Take`].
    Take(Take),
    /// See [`Open`].
    Open(Open),
    /// See [`Holds`].
    Holds(Holds),
    /// See [`Left`].
    Left(Left),
    /// See [`Ready`].
    Ready(Ready),
}

/// The answer to [`Hello`]. The client's board, a memfd, comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Welcome {
    /// The control protocol version that both speak from now on.
    pub version: u16,
    /// Rows on the board.
    pub rows: u32,
    /// The spin budget in microseconds.
    pub spin_us: u32,
    /// Offer a connection after this many calls on it (`u32::MAX`: never for this cause)…
    pub offer_after_calls: u32,
    /// …or after this many bytes (`u32::MAX`: never for this cause).
    pub offer_after_bytes: u32,
}

/// "We have no version in common." The agent closes after it. Its layout never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unsupported {
    /// Lowest control protocol version that the agent speaks.
    pub version_min: u16,
    /// Highest control protocol version that the agent speaks.
    pub version_max: u16,
}

/// "Both ends are here. Do you want it still?" Nothing comes with it, and no memory exists yet: it may lie unread for ever, as where a
/// server's child has taken the connection over and the server waits for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matched {
    /// The offer's id.
    pub offer_id: u64,
}

/// "Both ends want it." The segment, a memfd, comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Paired {
    /// The offer's id.
    pub offer_id: u64,
    /// The agent's number for the connection, unique while the agent runs.
    pub connection_id: u64,
    /// Which end of the segment is the receiver's.
    pub end: End,
    /// Size of each direction's large ring, a power of two.
    pub ring_bytes: u32,
}

/// "This offer leads nowhere."
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Declined {
    /// The offer's id.
    pub offer_id: u64,
    /// Why. A code that this version does not know reads as [`Reason::Unsupported`].
    pub reason: Reason,
}

/// The answer to a [`Query`]. A memfd that holds JSON comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Length of the JSON text.
    pub bytes: u32,
}

/// The answer to a [`Recall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recalled {
    /// The offer's id.
    pub offer_id: u64,
    /// Whether nothing is left in the ring: all that was there now comes by the kernel. If not, the end's own head says how
    /// much has gone over, and the rest is still in the ring.
    pub ok: bool,
}

/// A message from the agent to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToClient {
    /// See [`Welcome`].
    Welcome(Welcome),
    /// See [`Unsupported`].
    Unsupported(Unsupported),
    /// See [`Paired`].
    Paired(Paired),
    /// See [`Declined`].
    Declined(Declined),
    /// See [`Answer`].
    Answer(Answer),
    /// See [`Recalled`].
    Recalled(Recalled),
    /// See [`Matched`].
    Matched(Matched),
    /// See [`Opened`].
    Opened(Opened),
    /// See [`Refused`].
    Refused(Refused),
    /// See [`Linked`].
    Linked(Linked),
}

impl ToClient {
    /// Whether one file descriptor always comes with this message. With [`Opened`] one may come, and with [`Linked`] several do.
    #[must_use]
    pub const fn carries_descriptor(&self) -> bool {
        matches!(
            self,
            ToClient::Welcome(_) | ToClient::Paired(_) | ToClient::Answer(_)
        )
    }
}
