//! Ethernet: addresses, and the header with at most one VLAN tag (IEEE 802.3, 802.1Q).

use std::fmt;
use std::str::FromStr;

/// IPv4.
pub(crate) const IPV4: u16 = 0x0800;
/// Address resolution.
pub(crate) const ARP: u16 = 0x0806;
/// IPv6.
pub(crate) const IPV6: u16 = 0x86dd;
/// A tag.
pub(crate) const VLAN: u16 = 0x8100;
/// Of a tag, the VLAN's number.
pub(crate) const VLAN_MASK: u16 = 0x0fff;

/// Bytes of a header without a tag.
pub(crate) const HEADER_BYTES: usize = 14;
/// Bytes of one with a tag.
pub(crate) const TAGGED_BYTES: usize = 18;

/// An address of a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Everybody's.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it is a group's.
    #[inline]
    #[must_use]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// One that nobody else has, by chance, and that is always the same for a name.
    #[must_use]
    pub fn of_name(name: &str) -> Mac {
        // FNV-1a, whose result is the same in every version.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let [.., a, b, c, d, e] = hash.to_be_bytes();
        // Locally administered, and a single station's.
        Mac([0x02, a, b, c, d, e])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let bytes = text.split(':').map(|part| match part.len() {
            // A sign would be taken for a digit's place.
            2 if part.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                u8::from_str_radix(part, 16).ok()
            }
            _ => None,
        });
        let bytes: Option<Vec<u8>> = bytes.collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Mac)
            .ok_or_else(|| format!("{text:?} is no MAC address such as 02:00:00:00:00:01"))
    }
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
    /// Its VLAN; a tag that says none has only a priority.
    pub(crate) vlan: Option<u16>,
    /// What it has: [`IPV4`] or another.
    pub(crate) kind: u16,
    /// Bytes of the header.
    pub(crate) bytes: usize,
}

impl Frame {
    /// The header that bytes begin with. None: there are too few.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Option<Frame> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, k0, k1] = header;
        let mut frame = Frame {
            destination: Mac([d0, d1, d2, d3, d4, d5]),
            source: Mac([s0, s1, s2, s3, s4, s5]),
            vlan: None,
            kind: u16::from_be_bytes([k0, k1]),
            bytes: HEADER_BYTES,
        };
        if frame.kind == VLAN {
            let (&[t0, t1, k0, k1], _) = rest.split_first_chunk::<4>()?;
            let vlan = u16::from_be_bytes([t0, t1]) & VLAN_MASK;
            frame.vlan = (vlan != 0).then_some(vlan);
            frame.kind = u16::from_be_bytes([k0, k1]);
            frame.bytes = TAGGED_BYTES;
        }
        Some(frame)
    }

    /// Writes it, for which there is room; returns how many bytes it took.
    #[inline]
    pub(crate) fn emit(
        to: &mut [u8],
        destination: Mac,
        source: Mac,
        vlan: Option<u16>,
        kind: u16,
    ) -> usize {
        to[..6].copy_from_slice(&destination.0);
        to[6..12].copy_from_slice(&source.0);
        match vlan {
            None => {
                to[12..14].copy_from_slice(&kind.to_be_bytes());
                HEADER_BYTES
            }
            Some(vlan) => {
                to[12..14].copy_from_slice(&VLAN.to_be_bytes());
                to[14..16].copy_from_slice(&vlan.to_be_bytes());
                to[16..18].copy_from_slice(&kind.to_be_bytes());
                TAGGED_BYTES
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_parsed_as_it_was_written() {
        let (destination, source) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        for vlan in [None, Some(1), Some(4094)] {
            let mut bytes = [0; TAGGED_BYTES];
            let taken = Frame::emit(&mut bytes, destination, source, vlan, IPV6);
            let frame = Frame::parse(&bytes[..taken]).unwrap();
            assert_eq!(
                frame,
                Frame {
                    destination,
                    source,
                    vlan,
                    kind: IPV6,
                    bytes: taken
                }
            );
            for short in 0..taken {
                assert_eq!(Frame::parse(&bytes[..short]), None);
            }
        }
        let mut bytes = [0; TAGGED_BYTES];
        Frame::emit(&mut bytes, destination, source, Some(0x2000), IPV4);
        assert_eq!(Frame::parse(&bytes).unwrap().vlan, None, "a priority only");
    }

    #[test]
    fn addresses_are_read_as_they_are_said() {
        let mac = Mac([2, 0x10, 0xff, 0, 9, 0xab]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:1",
            "02:00:00:00:00:+1",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
        let (one, other) = (Mac::of_name("n3"), Mac::of_name("n6"));
        assert!(one != other && !one.is_group() && one == Mac::of_name("n3"));
    }
}
