//! virtio 1.2, as far as network devices need it: features, rings of both kinds, and the header before each packet.
//!
//! Facts from the specification "Virtual I/O Device (VIRTIO) Version 1.2" of OASIS: chapters 2.7 (split virtqueues), 2.8 (packed
//! virtqueues), and 5.1 (network device). The *driver* owns the memory and gives buffers; the *device* uses them. Everything is little
//! endian, as the machines are that Millrace runs on.
//!
//! A split ring has three areas. The driver puts the number of a chain's first descriptor in the available ring, and raises `index`; the
//! device puts it in the used ring, with how many bytes it wrote. Both indices run freely in 16 bits:
//!
//! ```text
//!   descriptors        address u64 | length u32 | flags u16 | next u16            (16 bytes each)
//!   available          flags u16 | index u16 | number u16 … | used_event u16
//!   used               flags u16 | index u16 | (number u32 | length u32) … | available_event u16
//! ```
//!
//! A packed ring is one area that both write, and 4 bytes for each side that say when it wants to be notified. A descriptor is available
//! when its flag AVAIL is the driver's wrap counter and USED is not, and used when both are the device's wrap counter:
//!
//! ```text
//!   descriptors        address u64 | length u32 | id u16 | flags u16              (16 bytes each)
//!   event suppression  offset and wrap u16 | flags u16
//! ```

/// Features: checksums that the driver leaves to the device.
pub const NET_CSUM: u64 = 1 << 0;
/// Checksums that the device leaves to the driver.
pub const NET_GUEST_CSUM: u64 = 1 << 1;
/// Segments of TCP in IPv4 that the device leaves to the driver to cut, if ever.
pub const NET_GUEST_TSO4: u64 = 1 << 7;
/// Of TCP in IPv6.
pub const NET_GUEST_TSO6: u64 = 1 << 8;
/// Either with CWR.
pub const NET_GUEST_ECN: u64 = 1 << 9;
/// Segments of TCP in IPv4 that the driver leaves to the device to cut.
pub const NET_HOST_TSO4: u64 = 1 << 11;
/// Of TCP in IPv6.
pub const NET_HOST_TSO6: u64 = 1 << 12;
/// Either with CWR.
pub const NET_HOST_ECN: u64 = 1 << 13;
/// A packet to the driver may take several of its chains.
pub const NET_MRG_RXBUF: u64 = 1 << 15;
/// There are several pairs of queues.
pub const NET_MQ: u64 = 1 << 22;
/// UDP datagrams in IPv4 that the device leaves to the driver to cut.
pub const NET_GUEST_USO4: u64 = 1 << 54;
/// In IPv6.
pub const NET_GUEST_USO6: u64 = 1 << 55;
/// UDP datagrams that the driver leaves to the device to cut.
pub const NET_HOST_USO: u64 = 1 << 56;
/// Any division of a packet into descriptors is right, with drivers older than 1.0 as well.
pub const ANY_LAYOUT: u64 = 1 << 27;
/// A descriptor may be a table of descriptors.
pub const RING_INDIRECT_DESC: u64 = 1 << 28;
/// Each side says at which index it wants to be notified.
pub const RING_EVENT_IDX: u64 = 1 << 29;
/// The device is one of virtio 1.0 or later.
pub const VERSION_1: u64 = 1 << 32;
/// Rings are packed ones.
pub const RING_PACKED: u64 = 1 << 34;
/// Buffers are used in the order that they were made available in.
pub const IN_ORDER: u64 = 1 << 35;

/// In a descriptor's flags: the chain goes on.
pub const DESC_NEXT: u16 = 1;
/// The buffer is for the device to write.
pub const DESC_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
/// Packed: the driver's wrap counter.
pub const DESC_AVAIL: u16 = 1 << 7;
/// Packed: the device's wrap counter.
pub const DESC_USED: u16 = 1 << 15;

/// Bytes of a descriptor of either kind.
pub const DESCRIPTOR_BYTES: usize = 16;
/// The largest ring of either kind.
pub const RING_SIZE_MAX: u16 = 1 << 15;

/// Split: where the index of the available and of the used ring is, in bytes from its start. Flags are before it.
pub const RING_INDEX: usize = 2;
/// Split: where the entries begin.
pub const RING_ENTRIES: usize = 4;
/// Split: in flags, the other side need not notify.
pub const RING_NO_NOTIFY: u16 = 1;

/// Packed: in event flags, notify always.
pub const EVENT_ENABLE: u16 = 0;
/// Packed: in event flags, never notify.
pub const EVENT_DISABLE: u16 = 1;
/// Packed: in event flags, notify at the descriptor that the other half names; only with [`RING_EVENT_IDX`].
pub const EVENT_DESCRIPTOR: u16 = 2;
/// Packed: bytes of an event suppression structure.
pub const EVENT_BYTES: usize = 4;
/// Packed: where a side's wrap counter is in a position of 16 bits.
pub const WRAP: u16 = 1 << 15;

/// Bytes of a split ring's available area with so many entries.
#[must_use]
pub const fn available_bytes(size: u16) -> usize {
    RING_ENTRIES + 2 * size as usize + 2
}

/// Bytes of a split ring's used area with so many entries.
#[must_use]
pub const fn used_bytes(size: u16) -> usize {
    RING_ENTRIES + 8 * size as usize + 2
}

/// Whether an index has passed an event's in going from `old` to `new`, all in 16 bits (2.7.7.2).
#[must_use]
#[inline]
pub const fn has_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A descriptor of a ring of either kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Where the buffer begins in the driver's memory.
    pub address: u64,
    /// Its bytes.
    pub length: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// Split: the next descriptor's number, if there is one. Packed: the buffer's id.
    pub link: u16,
}

impl Descriptor {
    /// From a split ring's two words.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    pub const fn parse_split(words: [u64; 2]) -> Descriptor {
        Descriptor {
            address: words[0],
            length: words[1] as u32,
            flags: (words[1] >> 32) as u16,
            link: (words[1] >> 48) as u16,
        }
    }

    /// For a split ring.
    #[must_use]
    #[inline]
    pub const fn emit_split(self) -> [u64; 2] {
        let low = self.length as u64 | (self.flags as u64) << 32;
        [self.address, low | (self.link as u64) << 48]
    }

    /// From a packed ring's two words.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    pub const fn parse_packed(words: [u64; 2]) -> Descriptor {
        Descriptor {
            address: words[0],
            length: words[1] as u32,
            flags: (words[1] >> 48) as u16,
            link: (words[1] >> 32) as u16,
        }
    }

    /// For a packed ring.
    #[must_use]
    #[inline]
    pub const fn emit_packed(self) -> [u64; 2] {
        let low = self.length as u64 | (self.link as u64) << 32;
        [self.address, low | (self.flags as u64) << 48]
    }
}

/// In [`NetHeader::flags`]: the checksum is to be completed.
pub const NET_HDR_NEEDS_CSUM: u8 = 1;
/// In [`NetHeader::flags`]: the checksum is right.
pub const NET_HDR_DATA_VALID: u8 = 2;
/// In [`NetHeader::segment_kind`]: nothing is to be cut.
pub const NET_HDR_GSO_NONE: u8 = 0;
/// TCP in IPv4.
pub const NET_HDR_GSO_TCPV4: u8 = 1;
/// TCP in IPv6.
pub const NET_HDR_GSO_TCPV6: u8 = 4;
/// UDP, of either.
pub const NET_HDR_GSO_UDP_L4: u8 = 5;
/// Beside TCP: with CWR.
pub const NET_HDR_GSO_ECN: u8 = 0x80;

/// Bytes of a header with the count of buffers, which is the one of virtio 1.0 and later.
pub const NET_HEADER_BYTES: usize = 12;
/// Bytes of a header before 1.0, without [`NET_MRG_RXBUF`].
pub const NET_HEADER_LEGACY_BYTES: usize = 10;

/// What is before each packet (5.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetHeader {
    /// `NET_HDR_NEEDS_CSUM`, `NET_HDR_DATA_VALID`.
    pub flags: u8,
    /// `NET_HDR_GSO_*`.
    pub segment_kind: u8,
    /// Bytes of headers: a hint.
    pub header_bytes: u16,
    /// Payload bytes of each segment.
    pub segment_bytes: u16,
    /// Where summing begins.
    pub checksum_start: u16,
    /// Where the sum belongs, from there.
    pub checksum_offset: u16,
    /// Chains that the packet takes; only to the driver.
    pub buffers: u16,
}

impl NetHeader {
    /// Any bytes are a header; what it says is to be checked.
    #[must_use]
    #[inline]
    pub const fn parse(bytes: [u8; NET_HEADER_BYTES]) -> NetHeader {
        let [flags, kind, h0, h1, s0, s1, c0, c1, o0, o1, b0, b1] = bytes;
        NetHeader {
            flags,
            segment_kind: kind,
            header_bytes: u16::from_le_bytes([h0, h1]),
            segment_bytes: u16::from_le_bytes([s0, s1]),
            checksum_start: u16::from_le_bytes([c0, c1]),
            checksum_offset: u16::from_le_bytes([o0, o1]),
            buffers: u16::from_le_bytes([b0, b1]),
        }
    }

    /// As it lies before the packet.
    #[must_use]
    #[inline]
    pub const fn emit(self) -> [u8; NET_HEADER_BYTES] {
        let [h0, h1] = self.header_bytes.to_le_bytes();
        let [s0, s1] = self.segment_bytes.to_le_bytes();
        let [c0, c1] = self.checksum_start.to_le_bytes();
        let [o0, o1] = self.checksum_offset.to_le_bytes();
        let [b0, b1] = self.buffers.to_le_bytes();
        let (flags, kind) = (self.flags, self.segment_kind);
        [flags, kind, h0, h1, s0, s1, c0, c1, o0, o1, b0, b1]
    }
}

#[cfg(test)]
mod tests;
