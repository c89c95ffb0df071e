//! What a peer can cost in one call, where its ring's size alone would allow more than a worker has time for. What is beyond comes with the
//! next call.

/// Buffers of one packet, at most: each takes time, and nothing but the ring's size limits them otherwise, while a driver of virtio's can
/// put one and the same table into every chain. A packet of the longest kind takes 1089 buffers of the smallest that our own ends make
/// (64 bytes), and a chain of QEMU's or of Linux's is far shorter.
pub(crate) const BUFFERS_MAX: u32 = 4096;
/// The same of all packets of one call, but for the last of them.
pub(crate) const BUFFERS_PER_CALL: u32 = 2 * BUFFERS_MAX;
/// Packets that are dropped in one call: a good one takes room in a burst, these take none, and the peer has each of them for a few bytes.
/// Eight times a usual burst.
pub(crate) const DROPS_PER_CALL: u32 = 256;
/// As how many buffers one of them counts, where those are counted.
pub(crate) const DROP_BUFFERS: u32 = BUFFERS_PER_CALL / DROPS_PER_CALL;
