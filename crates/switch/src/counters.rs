//! What the switch itself does with packets; ports count what passes through them.
//!
//! Over all ports, and exactly: received by ports + made here = transmitted by ports, or dropped there + dropped here.

/// Why the switch drops a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Cause {
    /// It is too short for a MAC header.
    Malformed,
    /// Its source is no station's address.
    Source,
    /// It is for bridges only: flow control, LACP, LLDP.
    LinkLocal,
    /// Its VLAN is not allowed at the port that it came by, or at the one that it is for.
    Vlan,
    /// A flow says so.
    Flow,
    /// More came than policing lets in.
    Policed,
    /// More came than storm control lets be flooded.
    Storm,
    /// It is for a station at the port that it came by, or at one of the same horizon.
    SamePort,
    /// No port is there that it could go to.
    NoPort,
    /// It is longer than the MTU of the port that it is for, or has no room for the tag that it would leave with.
    TooLarge,
    /// A checksum or segments were left to others to do, and cannot be done.
    Offload,
    /// The worker that has the port that it is for does not keep up.
    Busy,
    /// A tunnel's packet is from a host, or of a network, that no tunnel is for.
    TunnelUnknown,
    /// A tunnel's packet has no header, or carries no frame.
    TunnelMalformed,
    /// A tunnel's packet has met congestion, and what it carries cannot say so (RFC 6040).
    TunnelCongestion,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 15] = [
        Cause::Malformed,
        Cause::Source,
        Cause::LinkLocal,
        Cause::Vlan,
        Cause::Flow,
        Cause::Policed,
        Cause::Storm,
        Cause::SamePort,
        Cause::NoPort,
        Cause::TooLarge,
        Cause::Offload,
        Cause::Busy,
        Cause::TunnelUnknown,
        Cause::TunnelMalformed,
        Cause::TunnelCongestion,
    ];

    /// What it is called in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Malformed => "malformed_frame",
            Cause::Source => "bad_source",
            Cause::LinkLocal => "link_local",
            Cause::Vlan => "vlan",
            Cause::Flow => "flow",
            Cause::Policed => "policed",
            Cause::Storm => "storm",
            Cause::SamePort => "same_port",
            Cause::NoPort => "no_port",
            Cause::TooLarge => "too_large",
            Cause::Offload => "offload_failed",
            Cause::Busy => "busy",
            Cause::TunnelUnknown => "tunnel_unknown",
            Cause::TunnelMalformed => "tunnel_malformed",
            Cause::TunnelCongestion => "tunnel_congestion",
        }
    }
}

/// Of one port and one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets that came by the port and that the switch looked at.
    pub entered: u64,
    /// Packets more than came: copies for further ports and mirrors, segments, answers.
    pub made: u64,
    /// Frames that went to all ports of their VLAN.
    pub flooded: u64,
    /// Stations that were not learnt: there were too many.
    pub unlearnt: u64,
    drops: [u64; Cause::ALL.len()],
}

impl Tally {
    #[inline]
    pub(crate) fn drop(&mut self, cause: Cause, packets: u64) {
        self.drops[cause as usize] += packets;
    }

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

    /// Adds another one's figures.
    pub fn add(&mut self, other: &Tally) {
        self.entered += other.entered;
        self.made += other.made;
        self.flooded += other.flooded;
        self.unlearnt += other.unlearnt;
        for (drops, more) in self.drops.iter_mut().zip(other.drops) {
            *drops += more;
        }
    }
}

/// Of one flow and one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hits {
    /// Frames that were the flow's.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Turns: looks at all its ports.
    pub turns: u64,
    /// Turns that found packets.
    pub busy_turns: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// What its thread has used of processors.
    pub processor_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_cause_of_a_drop() {
        let text = include_str!("../../../docs/switch.md");
        let of_ports = millrace_port::Cause::ALL.map(|cause| (cause.name(), "port"));
        let of_switch = Cause::ALL.map(|cause| (cause.name(), "switch"));
        let missing = of_ports.iter().chain(&of_switch);
        let missing =
            missing.filter(|(name, at)| !text.contains(&format!("\n| `{name}` | {at} |")));
        assert_eq!(missing.collect::<Vec<_>>(), [] as [&(&str, &str); 0]);
    }
}
