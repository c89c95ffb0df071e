//! What went through a port.

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Cause {
    /// Its descriptor, or that of a part of it, cannot be. The connection ends with it.
    Malformed,
    /// It is longer than [`crate::PACKET_BYTES_MAX`], or than the peer's ring has room for.
    TooLong,
    /// It is too short for a header of the port's mode.
    TooShort,
    /// Its end is missing: it was captured without.
    Cut,
    /// The peer had no room for it.
    Full,
    /// There is no peer.
    NoPeer,
    /// The peer has no such queue.
    NoQueue,
    /// It leaves to others what the peer does not do, or what cannot be.
    Offload,
    /// A fault that was asked for ([`crate::fault`]) has lost it.
    Fault,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 9] = [
        Cause::Malformed,
        Cause::TooLong,
        Cause::TooShort,
        Cause::Cut,
        Cause::Full,
        Cause::NoPeer,
        Cause::NoQueue,
        Cause::Offload,
        Cause::Fault,
    ];

    /// What it is called in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Malformed => "malformed",
            Cause::TooLong => "too_long",
            Cause::TooShort => "too_short",
            Cause::Cut => "cut",
            Cause::Full => "full",
            Cause::NoPeer => "no_peer",
            Cause::NoQueue => "no_queue",
            Cause::Offload => "offload",
            Cause::Fault => "fault",
        }
    }
}

/// Packets in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Handed out, or sent.
    pub packets: u64,
    /// Bytes of those.
    pub bytes: u64,
    drops: [u64; Cause::ALL.len()],
}

impl Tally {
    /// Packets that were dropped for a cause.
    #[must_use]
    pub fn dropped(&self, cause: Cause) -> u64 {
        self.drops[cause as usize]
    }

    /// Packets that were dropped.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets in all: that a peer sent here, or that a program wanted to send.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.packets + self.drops()
    }

    /// Counts packets as dropped: for ports of kinds that are made elsewhere.
    pub fn drop(&mut self, cause: Cause, packets: u64) {
        self.drops[cause as usize] += packets;
    }

    fn add(&mut self, other: &Tally) {
        self.pass(other.packets, other.bytes);
        for (to, more) in self.drops.iter_mut().zip(other.drops) {
            *to += more;
        }
    }

    /// Counts packets as handed out, or as sent.
    #[inline]
    pub fn pass(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }
}

/// All that a port counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// What came.
    pub received: Tally,
    /// What went.
    pub transmitted: Tally,
    /// Connections that were made.
    pub connections: u64,
    /// How often a sleeping peer was woken.
    pub wakes: u64,
}

impl Counters {
    /// Adds what another part of the same port has counted.
    pub fn add(&mut self, other: &Counters) {
        self.received.add(&other.received);
        self.transmitted.add(&other.transmitted);
        self.connections += other.connections;
        self.wakes += other.wakes;
    }
}
