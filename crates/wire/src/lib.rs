//! Every byte format that Millrace speaks: the control protocol between the agent and its clients, the preload library
//! and participants of channels, version 2 (one message per datagram of a `SOCK_SEQPACKET` socket, little endian, fixed layouts), and
//! those of other people that packets come by.
//!
//! The crate does no I/O, allocates nothing, has no dependency and no unsafe code. Parsing never panics, whatever the
//! bytes. File descriptors that travel beside a message (`SCM_RIGHTS`) are the caller's business; each message says
//! whether one comes with it.
//!
//! In reading order: `reason` (why a connection is on the kernel's road), `message` (what the two sides
//! say), `channel` (what participants of channels and the agent say), `codec` (the bytes); [`memif`]; [`virtio`], [`vhost_user`];
//! [`pcap`]; [`gtpu`].

#![no_std]
#![forbid(unsafe_code)]

mod channel;
mod codec;
pub mod gtpu;
pub mod memif;
mod message;
pub mod pcap;
mod reason;
pub mod vhost_user;
pub mod virtio;

pub use channel::{
    CHANNEL_ABI, ChannelName, Holds, Left, LinkEnd, Linked, NameError, Open, Opened,
    POOL_BYTES_MAX, POOL_UNIT_BYTES, Ready, Refusal, Refused, Role, SLOTS_MAX, SLOTS_MIN,
};
pub use codec::{MAGIC, MAX_BYTES, ParseError};
pub use message::{
    Address, Answer, Declined, End, Family, Grow, Hello, Matched, Mode, Offer, Paired, Query,
    Recall, Recalled, SEGMENT_VERSION, Take, ToAgent, ToClient, Unsupported, VERSION_MAX,
    VERSION_MIN, Welcome, Withdraw,
};
pub use reason::Reason;
