//! Why a frame is dropped before a message of it is looked at, or when it is to leave.

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkCause {
    /// Too short for its headers.
    Truncated,
    /// For another station, or from a group.
    Station,
    /// In another VLAN than the port.
    Vlan,
    /// Of a kind that is not for this function (EtherType, or protocol in IP).
    Protocol,
    /// Its IP header cannot be (RFC 791, 3.1; RFC 8200, 3).
    IpHeader,
    /// The IPv4 header's checksum is wrong (RFC 1812, 5.2.2).
    IpChecksum,
    /// A fragment of an outer packet that is not of UDP.
    Fragment,
    /// For an address that is neither ours nor a user's.
    Destination,
    /// UDP says another length than came (RFC 768).
    UdpLength,
    /// The UDP checksum is wrong (RFC 1122, 4.1.3.4).
    UdpChecksum,
    /// UDP in IPv6 without a checksum (RFC 8200, 8.1), and the port is not said to take that (RFC 6935).
    UdpNoChecksum,
    /// For a UDP port at which nobody is.
    UdpPort,
    /// It leaves a checksum or segments to others to do.
    Offload,
    /// ARP or neighbour discovery that cannot be (RFC 826; RFC 4861, 7.1).
    Neighbour,
    /// ICMP that is neither a question nor an answer for us.
    Icmp,
    /// More questions in a second than are answered.
    Answers,
    /// What is in a tunnel whose other side is without tunnels is no IP packet.
    UserPacket,
    /// No way leads to where it is to go.
    NoRoute,
    /// The next station does not say where it is.
    Unresolved,
    /// There are as many neighbours as there can be.
    Neighbours,
    /// It is longer than the port that it is for takes, and may not be cut, or would be too many pieces.
    TooLong,
    /// Its headers are longer than is written.
    Headers,
    /// No room in a burst.
    NoRoom,
    /// For another worker, and all parcels that it could be in are under way.
    Parcels,
    /// For another worker, and the scheduler lets no more of this one's in: the limit on new events.
    NewEvents,
}

impl LinkCause {
    /// All of them.
    pub const ALL: [LinkCause; 25] = [
        LinkCause::Truncated,
        LinkCause::Station,
        LinkCause::Vlan,
        LinkCause::Protocol,
        LinkCause::IpHeader,
        LinkCause::IpChecksum,
        LinkCause::Fragment,
        LinkCause::Destination,
        LinkCause::UdpLength,
        LinkCause::UdpChecksum,
        LinkCause::UdpNoChecksum,
        LinkCause::UdpPort,
        LinkCause::Offload,
        LinkCause::Neighbour,
        LinkCause::Icmp,
        LinkCause::Answers,
        LinkCause::UserPacket,
        LinkCause::NoRoute,
        LinkCause::Unresolved,
        LinkCause::Neighbours,
        LinkCause::TooLong,
        LinkCause::Headers,
        LinkCause::NoRoom,
        LinkCause::Parcels,
        LinkCause::NewEvents,
    ];

    /// What it is called in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LinkCause::Truncated => "truncated",
            LinkCause::Station => "station",
            LinkCause::Vlan => "vlan",
            LinkCause::Protocol => "protocol",
            LinkCause::IpHeader => "ip_header",
            LinkCause::IpChecksum => "ip_checksum",
            LinkCause::Fragment => "fragment",
            LinkCause::Destination => "destination",
            LinkCause::UdpLength => "udp_length",
            LinkCause::UdpChecksum => "udp_checksum",
            LinkCause::UdpNoChecksum => "udp_no_checksum",
            LinkCause::UdpPort => "udp_port",
            LinkCause::Offload => "offload",
            LinkCause::Neighbour => "neighbour",
            LinkCause::Icmp => "icmp",
            LinkCause::Answers => "answers",
            LinkCause::UserPacket => "user_packet",
            LinkCause::NoRoute => "no_route",
            LinkCause::Unresolved => "unresolved",
            LinkCause::Neighbours => "neighbours",
            LinkCause::TooLong => "too_long",
            LinkCause::Headers => "headers",
            LinkCause::NoRoom => "no_room",
            LinkCause::Parcels => "parcels",
            LinkCause::NewEvents => "new_events",
        }
    }
}

/// What became of a port's packets. Over all ports, what was received and made is what was sent, consumed and dropped, here and by
/// [`crate::Cause`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets that came to the function by it.
    pub received: u64,
    /// Packets that were made because of what came by it, or to be sent by it: questions and answers, packets that were put together, and
    /// pieces of one that was cut, but for one of them.
    pub made: u64,
    /// Packets that were meant for this function itself, and are at their end: parts of one that is whole as well.
    pub consumed: u64,
    drops: [u64; LinkCause::ALL.len()],
}

impl LinkCounts {
    /// Counts one that is dropped.
    #[inline]
    pub fn drop(&mut self, cause: LinkCause) {
        self.drops[cause as usize] += 1;
    }

    /// Counts several.
    pub fn drop_many(&mut self, cause: LinkCause, packets: u64) {
        self.drops[cause as usize] += packets;
    }

    /// How many were dropped for a cause.
    #[must_use]
    pub fn dropped(&self, cause: LinkCause) -> u64 {
        self.drops[cause as usize]
    }

    /// Adds what another worker has counted.
    pub fn add(&mut self, other: &LinkCounts) {
        self.received += other.received;
        self.made += other.made;
        self.consumed += other.consumed;
        for (own, more) in self.drops.iter_mut().zip(other.drops) {
            *own += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_counted_at_their_places_and_have_names_of_their_own() {
        let mut names = std::collections::HashSet::new();
        for (place, cause) in LinkCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place);
            assert!(names.insert(cause.name()));
        }
    }
}
