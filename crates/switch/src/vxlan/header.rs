//! VXLAN's header (RFC 7348, section 5).

/// Flags, three bytes of nothing, the network's number, and a byte of nothing.
pub(super) const BYTES: usize = 8;
/// The network's number counts.
const FLAG_NETWORK: u8 = 0x08;

/// Bytes that a tunnel adds to a packet of the Internet: the outer headers, and the inner MAC header.
pub(crate) fn overhead(is_ipv4: bool) -> usize {
    let internet = if is_ipv4 { 20 } else { 40 };
    internet + 8 + BYTES + crate::parse::HEADER_BYTES
}

/// The network that a datagram is of. None: it has no header, or says no network. What is reserved is not looked at.
pub(super) fn parse(bytes: &[u8]) -> Option<u32> {
    let [flags, _, _, _, a, b, c, _] = bytes.first_chunk::<BYTES>()?;
    (flags & FLAG_NETWORK != 0).then_some(u32::from_be_bytes([0, *a, *b, *c]))
}

/// Puts a header at the beginning of a buffer.
pub(super) fn emit(vni: u32, bytes: &mut [u8]) {
    let [_, a, b, c] = vni.to_be_bytes();
    bytes[..BYTES].copy_from_slice(&[FLAG_NETWORK, 0, 0, 0, a, b, c, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = [0xff; 10];
        emit(0x12_3456, &mut bytes);
        assert_eq!(bytes, [8, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0xff, 0xff]);
        assert_eq!(parse(&bytes), Some(0x12_3456));
        bytes[1..4].fill(0xff);
        assert_eq!(parse(&bytes), Some(0x12_3456));
        bytes[0] = 0xf7;
        assert_eq!(parse(&bytes), None);
        assert_eq!(parse(&bytes[..7]), None);
    }
}
