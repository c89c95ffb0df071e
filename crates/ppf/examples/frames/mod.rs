//! Frames that the examples send.

use std::net::Ipv4Addr;

use millrace_ppf::Mac;

/// The function's addresses.
pub(crate) const RADIO: [u8; 4] = [192, 0, 2, 1];
pub(crate) const CORE: [u8; 4] = [198, 51, 100, 1];
/// Bytes of a user's packet: a frame in a tunnel has 90 then.
pub(crate) const INNER_BYTES: usize = 40;

fn sum(header: &mut [u8]) {
    let mut sum: u32 = 0;
    for pair in header.chunks_exact(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// A packet.
pub(crate) fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    header[2..4].copy_from_slice(&(20 + body.len() as u16).to_be_bytes());
    header.extend_from_slice(&from.octets());
    header.extend_from_slice(&to.octets());
    sum(&mut header);
    [&header[..], body].concat()
}

/// A frame to the port of this name, from the station at .9 of its network.
pub(crate) fn frame(to: &str, packet: &[u8]) -> Vec<u8> {
    [
        &Mac::of_name(to).0[..],
        &[2, 0, 0, 0, 0, 9],
        &[8, 0],
        packet,
    ]
    .concat()
}

/// A packet with a message, from the station at .9.
pub(crate) fn in_tunnel(to: [u8; 4], teid: u32, body: &[u8]) -> Vec<u8> {
    let mut udp = vec![8, 104, 8, 104, 0, 0, 0, 0, 0x30, 255];
    udp[4..6].copy_from_slice(&(16 + body.len() as u16).to_be_bytes());
    udp.extend_from_slice(&(body.len() as u16).to_be_bytes());
    udp.extend_from_slice(&teid.to_be_bytes());
    udp.extend_from_slice(body);
    let [a, b, c, _] = to;
    ipv4([a, b, c, 9].into(), to.into(), 17, &udp)
}

/// A user's address.
pub(crate) fn user(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + number)
}
