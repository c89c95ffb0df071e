//! Ports: anything that packets enter and leave by, in bursts, and without waiting.
//!
//! What it is: one trait, [`Port`], and its kinds. [`memif`] speaks a protocol of other people, exactly, so that a program with DPDK or VPP
//! at the other end connects unchanged; so do [`vhost_user`], for guests and what behaves as they do, and [`virtio_user`], which behaves as
//! they do; [`ring`] joins two containers by a channel; [`af_xdp`] takes the packets that it is asked for from an interface of the
//! kernel's; [`tap`] has the kernel's own stack at the other end; [`pcap`] reads and writes captures. Two more wrap any port: [`trace`]
//! captures what passes, and [`fault`] loses, delays, reorders, doubles and corrupts it. What it is not: it starts no thread but a trace's
//! writer, and decides nothing about packets. A port is used by one thread at a time.
//!
//! A port has a side for packets and one for everything else. [`Port::receive`] and [`Port::transmit`] make no system call but to wake a
//! peer that sleeps, never wait, and return how many; [`Port::poll`] does what sockets and timers ask for. A connection that ends says why
//! ([`Closed`]), and a port that can have another goes on with it, its [`Counters`] kept.
//!
//! Nothing in a peer's memory is believed. Indices, lengths, offsets and numbers of regions are copied out once by atomic access, checked,
//! and only then used; there is no reference to memory that a peer can write. The first [`HEAD_BYTES`] of each packet are copied to private
//! memory before anybody looks at them, and are what is sent on.
//!
//! In reading order: `port` (the trait), `counters`, `burst` (packets on their way), `offload` (what they leave to others to do), `memory`
//! (where the rest of them lies), `limits` (what a peer can cost), `handed`, `listener` and `bell` (what peers hand over, connect to, and
//! ring), [`memif`], [`virtio`], [`vhost_user`], [`virtio_user`], [`ring`], [`af_xdp`], [`tap`], [`pcap`]; [`fault`] and [`trace`].

#![deny(unsafe_code)]

pub mod af_xdp;
mod bell;
mod burst;
mod counters;
pub mod fault;
mod handed;
mod limits;
mod listener;
pub mod memif;
mod memory;
mod offload;
pub mod pcap;
mod port;
pub mod ring;
pub mod tap;
pub mod trace;
pub mod vhost_user;
pub mod virtio;
pub mod virtio_user;

pub use burst::{Burst, HEAD_BYTES, PACKET_BYTES_MAX, Packet};
pub use counters::{Cause, Counters, Tally};
pub use memory::Memory;
pub use offload::{Checksum, Offload, Offloads, Segment, SegmentKind};
pub use port::{Closed, Port, State};
