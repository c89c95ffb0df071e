//! Addresses of stations.

use std::fmt;
use std::str::FromStr;

/// A MAC address: the low 48 bits, the first byte highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub u64);

impl Mac {
    /// Everybody.
    pub const BROADCAST: Mac = Mac(0xffff_ffff_ffff);
    /// What bridges keep to themselves (IEEE 802.1Q, table 8-1): the last four bits count.
    const LINK_LOCAL: u64 = 0x0180_c200_0000;

    /// Flow control between two ends of one link (IEEE 802.3, annex 31B): no bridge hears it.
    pub const PAUSE: Mac = Mac(Mac::LINK_LOCAL + 1);

    /// Of the first six bytes; there are as many.
    #[must_use]
    #[inline]
    pub fn read(bytes: &[u8; 6]) -> Mac {
        let [a, b, c, d, e, f] = *bytes;
        Mac(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; 6] {
        let [_, _, bytes @ ..] = self.0.to_be_bytes();
        bytes
    }

    /// Whether it is of a group of stations, or of all.
    #[must_use]
    #[inline]
    pub fn is_group(self) -> bool {
        self.0 >> 40 & 1 == 1
    }

    /// Whether a station can have it.
    #[must_use]
    #[inline]
    pub fn is_station(self) -> bool {
        self.0 != 0 && !self.is_group()
    }

    /// Whether a bridge does not forward what goes there. As Linux's bridge without a spanning tree does, what spanning trees say is
    /// forwarded, so that bridges behind the switch see a loop.
    #[must_use]
    #[inline]
    pub fn is_link_local(self) -> bool {
        self.0 & !0xf == Mac::LINK_LOCAL && self.0 != Mac::LINK_LOCAL
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let wrong = || format!("{text:?} is not a MAC address, as 02:00:00:00:00:01");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| matches!(part.len(), 1 | 2));
            let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
            *byte = value.ok_or_else(wrong)?;
        }
        match parts.next() {
            None => Ok(Mac::read(&bytes)),
            Some(_) => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mac: Mac = "02:0:00:aB:cd:Ef".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:00:ab:cd:ef");
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "02-00-00-00-00-00",
            "002:00:00:00:00:0",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn kinds_of_addresses() {
        let of = |text: &str| text.parse::<Mac>().unwrap();
        assert!(Mac::BROADCAST.is_group() && !Mac::BROADCAST.is_station());
        assert!(of("01:00:5e:00:00:01").is_group());
        assert!(of("02:00:00:00:00:01").is_station() && !Mac(0).is_station());
        assert!(of("01:80:c2:00:00:0e").is_link_local());
        assert!(!of("01:80:c2:00:00:00").is_link_local());
        assert!(!of("01:80:c2:00:00:10").is_link_local());
    }
}
