//! What a packet leaves to whoever sends it on: a checksum to complete, and segments to be cut.

use crate::port::SHORTEST;

/// Where the first tag is, if there is one.
const TAG_AT: usize = 12;
/// A tag of a VLAN.
const TAG_BYTES: usize = 4;
/// Types of tags: a customer's, and a provider's (IEEE 802.1Q).
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// What is known of a packet's checksum, of TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// As it lies in the packet.
    #[default]
    Unknown,
    /// Right: whoever handed the packet over has looked, or vouches for it.
    Verified,
    /// To be completed: the ones' complement of the sum of all bytes from `start` to the packet's end belongs at `start + offset`, where
    /// the sum of the pseudo-header lies so far. Such a packet has not met a wire yet, and is right until then.
    Partial {
        /// Where summing begins, in bytes from the packet's first.
        start: u16,
        /// Where the sum belongs, in bytes from there.
        offset: u16,
    },
}

/// What a packet is to be cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// TCP segments in IPv4.
    Tcp4,
    /// TCP segments in IPv6.
    Tcp6,
    /// UDP datagrams, each with a header of its own. Not fragments of one.
    Udp,
}

/// A packet that is longer than a wire takes, and how to cut it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Into what.
    pub kind: SegmentKind,
    /// Whether TCP's CWR is set: in the first segment only.
    pub has_ecn: bool,
    /// Payload bytes of each segment but the last.
    pub bytes: u16,
    /// Bytes of headers before the payload, as the packet's sender says: a hint, which may be 0.
    pub header_bytes: u16,
}

/// What a virtio-net header says of a packet. Nothing, for most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// Of its checksum.
    pub checksum: Checksum,
    /// Of segments to be cut. Their checksums are to be completed as well: `checksum` says so.
    pub segment: Option<Segment>,
}

impl Offload {
    /// Nothing.
    pub const NONE: Offload = Offload {
        checksum: Checksum::Unknown,
        segment: None,
    };

    /// Whether there is work for whoever sends the packet on.
    #[must_use]
    #[inline]
    pub fn is_work(&self) -> bool {
        self.segment.is_some() || matches!(self.checksum, Checksum::Partial { .. })
    }

    /// Whether a packet of so many bytes can have it: the checksum lies inside and not in the MAC header, and what is to be cut has a
    /// checksum to complete, and segments of at least a byte. What a peer says is asked this before it gets into a burst.
    #[must_use]
    pub fn fits(&self, packet_bytes: usize) -> bool {
        let partial = match self.checksum {
            Checksum::Partial { start, offset } => {
                let end = usize::from(start) + usize::from(offset) + 2;
                if u32::from(start) < SHORTEST || end > packet_bytes {
                    return false;
                }
                true
            }
            Checksum::Unknown | Checksum::Verified => false,
        };
        let cut = |segment: Segment| {
            partial && segment.bytes > 0 && usize::from(segment.header_bytes) <= packet_bytes
        };
        self.segment.is_none_or(cut)
    }

    /// Whether a frame that begins with these bytes can have it: what is summed, and so the sum as well, lies behind all tags. One that is
    /// written to a tag takes the frame to another VLAN.
    #[must_use]
    pub fn spares_tags(&self, head: &[u8]) -> bool {
        let Checksum::Partial { start, .. } = self.checksum else {
            return true;
        };
        let mut at = TAG_AT;
        while let Some(ether_type) = head.get(at..at + 2)
            && TAGS.iter().any(|tag| tag == ether_type)
        {
            at += TAG_BYTES;
        }
        usize::from(start) >= at + 2
    }
}

/// Which work a port's peer takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// Checksums to complete.
    pub checksum: bool,
    /// Segments of TCP in IPv4 to cut.
    pub tso4: bool,
    /// Segments of TCP in IPv6 to cut.
    pub tso6: bool,
    /// Either with CWR.
    pub ecn: bool,
    /// Datagrams of UDP to cut.
    pub uso: bool,
}

impl Offloads {
    /// Whether a packet with this can be handed over as it is.
    #[must_use]
    #[inline]
    pub fn takes(&self, offload: &Offload) -> bool {
        let segment = offload.segment.is_none_or(|segment| {
            (self.ecn || !segment.has_ecn)
                && match segment.kind {
                    SegmentKind::Tcp4 => self.tso4,
                    SegmentKind::Tcp6 => self.tso6,
                    SegmentKind::Udp => self.uso,
                }
        });
        segment && (self.checksum || !matches!(offload.checksum, Checksum::Partial { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial(start: u16, offset: u16) -> Offload {
        Offload {
            checksum: Checksum::Partial { start, offset },
            segment: None,
        }
    }

    fn cut(kind: SegmentKind, has_ecn: bool) -> Offload {
        Offload {
            segment: Some(Segment {
                kind,
                has_ecn,
                bytes: 1460,
                header_bytes: 54,
            }),
            ..partial(34, 16)
        }
    }

    #[test]
    fn what_lies_outside_of_the_packet_does_not_fit() {
        assert!(Offload::NONE.fits(0));
        assert!(partial(34, 16).fits(52));
        assert!(!partial(34, 16).fits(51));
        assert!(!partial(u16::MAX, u16::MAX).fits(65_535));
        assert!(partial(14, 0).fits(60) && !partial(13, 0).fits(60));
        assert!(!partial(0, 34).fits(60));
        assert!(cut(SegmentKind::Tcp4, false).fits(9000));
        let mut wrong = cut(SegmentKind::Tcp4, false);
        wrong.checksum = Checksum::Verified;
        assert!(!wrong.fits(9000));
        let mut wrong = cut(SegmentKind::Tcp4, false);
        wrong.segment = wrong.segment.map(|segment| Segment {
            bytes: 0,
            ..segment
        });
        assert!(!wrong.fits(9000));
    }

    #[test]
    fn a_checksum_is_behind_all_tags() {
        let (customer, provider, other) = ([0x81, 0, 0, 10], [0x88, 0xa8, 0, 10], [8, 0, 0, 10]);
        for (types, first) in [
            (vec![other], 14),
            (vec![customer, other], 18),
            (vec![provider, customer, other], 22),
            (vec![customer; 5], 34),
        ] {
            let head = [vec![0; TAG_AT], types.concat()].concat();
            assert!(partial(first, 0).spares_tags(&head), "{head:?}");
            assert!(!partial(first - 1, 0).spares_tags(&head), "{head:?}");
            assert!(!partial(0, first).spares_tags(&head), "{head:?}");
            assert!(Offload::NONE.spares_tags(&head));
        }
    }

    #[test]
    fn a_port_takes_what_its_peer_can_do() {
        let none = Offloads::default();
        let verified = Offload {
            checksum: Checksum::Verified,
            segment: None,
        };
        assert!(none.takes(&Offload::NONE) && none.takes(&verified));
        assert!(!none.takes(&partial(34, 16)));
        let some = Offloads {
            checksum: true,
            tso4: true,
            ..none
        };
        assert!(some.takes(&partial(34, 16)) && some.takes(&cut(SegmentKind::Tcp4, false)));
        assert!(!some.takes(&cut(SegmentKind::Tcp4, true)));
        assert!(!some.takes(&cut(SegmentKind::Tcp6, false)));
        assert!(!some.takes(&cut(SegmentKind::Udp, false)));
    }
}
