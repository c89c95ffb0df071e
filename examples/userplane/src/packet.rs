//! What is in a message: a tag, and behind it an IPv4 packet as it is on the wire (RFC 791). Here are the few of its fields that matter.

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 40;
/// Bytes of an IPv4 header without options.
const IPV4_BYTES: usize = 20;
const UDP: u8 = 17;
const TTL_AT: usize = 8;
const CHECKSUM_AT: usize = 10;

/// What the stages say of a packet. As bytes: these fields in order, little-endian.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Which run of which balancer.
    pub(crate) run: u64,
    /// The hash of its flow.
    pub(crate) flow: u64,
    /// Its number in its flow.
    pub(crate) sequence: u64,
    /// When the balancer sent it.
    pub(crate) sent_ns: u64,
    /// Which worker forwarded it.
    pub(crate) worker: u32,
    /// Its time to live as the balancer read it.
    pub(crate) ttl: u8,
    /// Another worker may have forwarded it already.
    pub(crate) is_redelivered: bool,
}

impl Tag {
    pub(crate) fn emit(&self, bytes: &mut [u8]) {
        let words = [self.run, self.flow, self.sequence, self.sent_ns];
        for (word, place) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..36].copy_from_slice(&self.worker.to_le_bytes());
        bytes[36..TAG_BYTES].copy_from_slice(&[self.ttl, u8::from(self.is_redelivered), 0, 0]);
    }

    /// `None`: there are too few bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Tag> {
        let bytes = bytes.get(..TAG_BYTES)?;
        let word = |at: usize| {
            let word = bytes[at..at + 8].try_into();
            word.map_or(0, u64::from_le_bytes)
        };
        Some(Tag {
            run: word(0),
            flow: word(8),
            sequence: word(16),
            sent_ns: word(24),
            worker: (word(32) & 0xffff_ffff) as u32,
            ttl: bytes[36],
            is_redelivered: bytes[37] != 0,
        })
    }
}

/// Why a packet cannot be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is no IPv4 packet, or its header is damaged.
    Damaged,
    /// Its time to live is over.
    Expired,
}

/// The header's length, of a packet whose header is whole and has the right checksum.
fn header_bytes(packet: &[u8]) -> Option<usize> {
    let first = *packet.first()?;
    let bytes = usize::from(first & 15) * 4;
    let is_header = first >> 4 == 4 && bytes >= IPV4_BYTES && packet.len() >= bytes;
    (is_header && sum(0, &packet[..bytes]) == 0xffff).then_some(bytes)
}

/// The hash of a packet's flow: addresses, protocol, and ports where there are some. FNV-1a.
pub(crate) fn flow(packet: &[u8]) -> Option<u64> {
    let header = header_bytes(packet)?;
    let ports = packet.get(header..header + 4).unwrap_or_default();
    let parts = [&packet[9..10], &packet[12..20], ports];
    let hash = parts
        .iter()
        .copied()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    Some(hash)
}

pub(crate) fn ttl(packet: &[u8]) -> u8 {
    packet.get(TTL_AT).copied().unwrap_or_default()
}

/// What each router does: one hop less to live, and a header whose checksum is right again (RFC 1624).
pub(crate) fn forward(packet: &mut [u8]) -> Result<(), Fault> {
    header_bytes(packet).ok_or(Fault::Damaged)?;
    if packet[TTL_AT] <= 1 {
        return Err(Fault::Expired);
    }
    packet[TTL_AT] -= 1;
    let old = u16::from_be_bytes([packet[CHECKSUM_AT], packet[CHECKSUM_AT + 1]]);
    // The sum of the header has become less by one in the upper byte of a word, so its complement is greater by that.
    let new = u32::from(old) + 0x0100;
    let new = (new & 0xffff) + (new >> 16);
    packet[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&(new as u16).to_be_bytes());
    Ok(())
}

/// Whether a packet is whole: its length, its header's checksum, and that of UDP, where there is one.
pub(crate) fn is_whole(packet: &[u8]) -> bool {
    let Some(header) = header_bytes(packet) else {
        return false;
    };
    if usize::from(u16::from_be_bytes([packet[2], packet[3]])) != packet.len() {
        return false;
    }
    let body = &packet[header..];
    if packet[9] != UDP || body.len() < 8 || body[6..8] == [0, 0] {
        return true;
    }
    udp_sum(packet, body) == 0xffff
}

/// The sum that UDP's checksum is made of: over a pseudo-header, and header and payload (RFC 768).
fn udp_sum(packet: &[u8], body: &[u8]) -> u32 {
    let addresses = sum(0, &packet[12..20]);
    sum(addresses + u32::from(UDP) + body.len() as u32, body)
}

/// Adds 16-bit words with end-around carry.
fn sum(start: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or_default();
        u64::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut total = u64::from(start) + words.sum::<u64>();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u32
}

/// A UDP packet with this payload.
pub(crate) fn udp(source: ([u8; 4], u16), target: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| (bytes as u16).to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(length(IPV4_BYTES + 8 + payload.len()));
    packet.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
    packet.extend(source.0);
    packet.extend(target.0);
    let checksum = !(sum(0, &packet) as u16);
    packet[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(source.1.to_be_bytes());
    packet.extend(target.1.to_be_bytes());
    packet.extend(length(8 + payload.len()));
    packet.extend([0, 0]);
    packet.extend(payload);
    let checksum = match !(udp_sum(&packet, &packet[IPV4_BYTES..]) as u16) {
        // Zero means that there is none.
        0 => 0xffff,
        checksum => checksum,
    };
    packet[IPV4_BYTES + 6..IPV4_BYTES + 8].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_as_it_was_written() {
        let tag = Tag {
            run: 1,
            flow: u64::MAX - 1,
            sequence: 3 << 40,
            sent_ns: 4,
            worker: u32::MAX,
            ttl: 64,
            is_redelivered: true,
        };
        let mut bytes = [0; TAG_BYTES];
        tag.emit(&mut bytes);
        assert_eq!(Tag::parse(&bytes), Some(tag));
        assert_eq!(Tag::parse(&bytes[1..]), None);
    }

    #[test]
    fn a_packet_is_whole_until_its_last_hop_or_a_byte_is_changed() {
        let from = ([10, 0, 0, 1], 5000);
        let mut packet = udp(from, ([10, 1, 0, 1], 2152), b"odd");
        let flow_before = flow(&packet);
        for hop in (1..64).rev() {
            assert!(is_whole(&packet));
            forward(&mut packet).unwrap();
            assert_eq!(ttl(&packet), hop);
        }
        assert_eq!(forward(&mut packet), Err(Fault::Expired));
        assert!(is_whole(&packet) && flow(&packet) == flow_before);
        for at in 0..packet.len() {
            let mut damaged = packet.clone();
            damaged[at] ^= 0x10;
            assert!(!is_whole(&damaged), "{at}");
        }
        assert!(!is_whole(&packet[..packet.len() - 1]) && !is_whole(&[]));
        assert_eq!(forward(&mut packet[..19]), Err(Fault::Damaged));
    }

    #[test]
    fn flows_differ_by_any_part() {
        let flow_of = |source, target| flow(&udp(source, target, b"x"));
        let (a, b) = (([10, 0, 0, 1], 1), ([10, 0, 0, 2], 2));
        let flows = [
            flow_of(a, b),
            flow_of(b, a),
            flow_of((a.0, 3), b),
            flow_of(a, (b.0, 3)),
        ];
        assert!(flows.iter().all(Option::is_some));
        assert!((1..4).all(|n| !flows[..n].contains(&flows[n])));
    }
}
