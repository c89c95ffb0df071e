//! The header before each packet, and what it says of the packet.

use millrace_wire::virtio::{
    NET_CSUM, NET_GUEST_CSUM, NET_GUEST_ECN, NET_GUEST_TSO4, NET_GUEST_TSO6, NET_GUEST_USO4,
    NET_GUEST_USO6, NET_HDR_DATA_VALID, NET_HDR_GSO_ECN, NET_HDR_GSO_NONE, NET_HDR_GSO_TCPV4,
    NET_HDR_GSO_TCPV6, NET_HDR_GSO_UDP_L4, NET_HDR_NEEDS_CSUM, NET_HEADER_BYTES,
    NET_HEADER_LEGACY_BYTES, NET_HOST_ECN, NET_HOST_TSO4, NET_HOST_TSO6, NET_HOST_USO,
    NET_MRG_RXBUF, NetHeader, VERSION_1,
};

use crate::memory::{Memory, Place};
use crate::offload::{Checksum, Offload, Offloads, Segment, SegmentKind};

/// What a driver may leave to the device to do.
pub(crate) const HOST_OFFLOADS: u64 =
    NET_CSUM | NET_HOST_TSO4 | NET_HOST_TSO6 | NET_HOST_ECN | NET_HOST_USO;

/// What a device may leave to the driver.
pub(crate) const GUEST_OFFLOADS: u64 = NET_GUEST_CSUM
    | NET_GUEST_TSO4
    | NET_GUEST_TSO6
    | NET_GUEST_ECN
    | NET_GUEST_USO4
    | NET_GUEST_USO6;

/// Which of the first are on.
pub(crate) fn host_offloads(features: u64) -> Offloads {
    let has = |feature| features & feature == feature;
    Offloads {
        checksum: has(NET_CSUM),
        tso4: has(NET_HOST_TSO4),
        tso6: has(NET_HOST_TSO6),
        ecn: has(NET_HOST_ECN),
        uso: has(NET_HOST_USO),
    }
}

/// Which of the second.
pub(crate) fn guest_offloads(features: u64) -> Offloads {
    let has = |feature| features & feature == feature;
    Offloads {
        checksum: has(NET_GUEST_CSUM),
        tso4: has(NET_GUEST_TSO4),
        tso6: has(NET_GUEST_TSO6),
        ecn: has(NET_GUEST_ECN),
        uso: has(NET_GUEST_USO4 | NET_GUEST_USO6),
    }
}

/// How long the header is.
pub(crate) fn header_bytes(features: u64) -> u32 {
    if features & (VERSION_1 | NET_MRG_RXBUF) != 0 {
        NET_HEADER_BYTES as u32
    } else {
        NET_HEADER_LEGACY_BYTES as u32
    }
}

/// The header of so many bytes that a place begins with.
#[inline]
pub(crate) fn read(memory: &Memory, place: Place, bytes: u32) -> [u8; NET_HEADER_BYTES] {
    if bytes as usize == NET_HEADER_BYTES {
        return memory.read_array(place);
    }
    let mut header = [0; NET_HEADER_BYTES];
    let legacy: [u8; NET_HEADER_LEGACY_BYTES] = memory.read_array(place);
    header[..NET_HEADER_LEGACY_BYTES].copy_from_slice(&legacy);
    header
}

/// Writes it there.
#[inline]
pub(crate) fn write(memory: &Memory, place: Place, header: [u8; NET_HEADER_BYTES], bytes: u32) {
    if bytes as usize == NET_HEADER_BYTES {
        memory.write(place, &header);
    } else {
        memory.write(place, &header[..NET_HEADER_LEGACY_BYTES]);
    }
}

/// What a header says of a packet of so many bytes. None: what was not agreed on, or cannot be.
pub(crate) fn parse(header: NetHeader, packet_bytes: usize, agreed: Offloads) -> Option<Offload> {
    let checksum = if header.flags & NET_HDR_NEEDS_CSUM != 0 {
        Checksum::Partial {
            start: header.checksum_start,
            offset: header.checksum_offset,
        }
    } else if header.flags & NET_HDR_DATA_VALID != 0 {
        Checksum::Verified
    } else {
        Checksum::Unknown
    };
    let kind = match header.segment_kind & !NET_HDR_GSO_ECN {
        NET_HDR_GSO_NONE => None,
        NET_HDR_GSO_TCPV4 => Some(SegmentKind::Tcp4),
        NET_HDR_GSO_TCPV6 => Some(SegmentKind::Tcp6),
        NET_HDR_GSO_UDP_L4 => Some(SegmentKind::Udp),
        _ => return None,
    };
    let segment = kind.map(|kind| Segment {
        kind,
        has_ecn: header.segment_kind & NET_HDR_GSO_ECN != 0,
        bytes: header.segment_bytes,
        header_bytes: header.header_bytes,
    });
    let offload = Offload { checksum, segment };
    (offload.fits(packet_bytes) && agreed.takes(&offload)).then_some(offload)
}

/// The same, where perhaps nothing was agreed on: nothing is said then, as in most headers.
#[inline]
pub(crate) fn offload(
    header: [u8; NET_HEADER_BYTES],
    packet_bytes: u64,
    agreed: Option<Offloads>,
) -> Option<Offload> {
    match agreed {
        Some(agreed) if header[0] != 0 || header[1] != 0 => {
            parse(NetHeader::parse(header), packet_bytes as usize, agreed)
        }
        _ => Some(Offload::NONE),
    }
}

/// The header that says so. The peer has agreed on it.
pub(crate) fn emit(offload: Offload, buffers: u16) -> NetHeader {
    let mut header = NetHeader {
        buffers,
        ..NetHeader::default()
    };
    match offload.checksum {
        Checksum::Unknown => {}
        Checksum::Verified => header.flags = NET_HDR_DATA_VALID,
        Checksum::Partial { start, offset } => {
            header.flags = NET_HDR_NEEDS_CSUM;
            header.checksum_start = start;
            header.checksum_offset = offset;
        }
    }
    if let Some(segment) = offload.segment {
        header.segment_kind = match segment.kind {
            SegmentKind::Tcp4 => NET_HDR_GSO_TCPV4,
            SegmentKind::Tcp6 => NET_HDR_GSO_TCPV6,
            SegmentKind::Udp => NET_HDR_GSO_UDP_L4,
        };
        if segment.has_ecn {
            header.segment_kind |= NET_HDR_GSO_ECN;
        }
        header.segment_bytes = segment.bytes;
        header.header_bytes = segment.header_bytes;
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Offloads = Offloads {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso: true,
    };

    #[test]
    fn parsing_what_was_emitted_is_the_identity() {
        let partial = Checksum::Partial {
            start: 34,
            offset: 16,
        };
        let mut offloads = vec![Offload::NONE];
        for checksum in [partial, Checksum::Verified] {
            offloads.push(Offload {
                checksum,
                segment: None,
            });
        }
        for kind in [SegmentKind::Tcp4, SegmentKind::Tcp6, SegmentKind::Udp] {
            for has_ecn in [false, true] {
                offloads.push(Offload {
                    checksum: partial,
                    segment: Some(Segment {
                        kind,
                        has_ecn,
                        bytes: 1448,
                        header_bytes: 66,
                    }),
                });
            }
        }
        for offload in offloads {
            let header = NetHeader::parse(emit(offload, 3).emit());
            assert_eq!(header.buffers, 3);
            assert_eq!(parse(header, 9000, ALL), Some(offload));
        }
    }

    #[test]
    fn what_was_not_agreed_on_or_cannot_be_is_refused() {
        let header = NetHeader {
            flags: NET_HDR_NEEDS_CSUM,
            segment_kind: NET_HDR_GSO_TCPV4,
            header_bytes: 54,
            segment_bytes: 1000,
            checksum_start: 34,
            checksum_offset: 16,
            buffers: 0,
        };
        assert!(parse(header, 9000, ALL).is_some());
        assert_eq!(parse(header, 9000, Offloads { tso4: false, ..ALL }), None);
        assert_eq!(parse(header, 50, ALL), None);
        for segment_kind in [2, 3, 6, 0x7f] {
            let header = NetHeader {
                segment_kind,
                ..header
            };
            assert_eq!(parse(header, 9000, ALL), None);
        }
        assert_eq!(parse(NetHeader { flags: 0, ..header }, 9000, ALL), None);
    }
}
