//! Which way leads to an address: networks that are at a port, and those behind a gateway.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bearer::Side;

/// A network: the first bits of addresses. As an interface's it has the whole address before the slash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    /// An address of it.
    pub address: IpAddr,
    /// How many bits all of its addresses share.
    pub bits: u8,
}

impl Prefix {
    /// Whether an address is of it.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Prefix, String> {
        let wrong = || format!("{text:?} is no network such as 192.0.2.1/24 or 2001:db8::1/64");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match bits <= most {
            true => Ok(Prefix { address, bits }),
            false => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Prefix, String> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> String {
        prefix.to_string()
    }
}

/// A way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) side: Side,
    pub(crate) to: Prefix,
    /// By which port.
    pub(crate) port: u16,
    /// To which station first; none: those of the network are stations of the port's link.
    pub(crate) via: Option<IpAddr>,
}

/// All ways, the narrowest network first. There are few, so that looking through them is fast.
#[derive(Debug, Default)]
pub(crate) struct Routes(Vec<Route>);

impl Routes {
    pub(crate) fn new(mut routes: Vec<Route>) -> Routes {
        // Stable: of two alike, the first that was configured counts.
        routes.sort_by_key(|route| std::cmp::Reverse(route.to.bits));
        Routes(routes)
    }

    /// By which port of a side an address is reached, and which station is the next.
    #[inline]
    pub(crate) fn find(&self, side: Side, address: IpAddr) -> Option<(u16, IpAddr)> {
        let mut routes = self.0.iter();
        let route = routes.find(|route| route.side == side && route.to.has(address))?;
        Some((route.port, route.via.unwrap_or(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_has_the_addresses_that_share_its_bits() {
        let one = prefix("192.0.2.129/25");
        assert!(one.has(address("192.0.2.200")) && !one.has(address("192.0.2.1")));
        assert!(prefix("0.0.0.0/0").has(address("8.8.8.8")));
        assert!(!prefix("0.0.0.0/0").has(address("::1")));
        assert!(prefix("2001:db8::/32").has(address("2001:db8:1::")));
        assert!(prefix("::1/128").has(address("::1")) && !prefix("::1/128").has(address("::2")));
        for wrong in ["192.0.2.1", "192.0.2.1/33", "::/129", "a/8", "192.0.2.1/-1"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
        assert_eq!(one.to_string(), "192.0.2.129/25");
    }

    #[test]
    fn the_narrowest_network_of_the_side_counts() {
        let route = |side, to: &str, port, via: Option<&str>| Route {
            side,
            to: prefix(to),
            port,
            via: via.map(address),
        };
        let routes = Routes::new(vec![
            route(Side::Core, "0.0.0.0/0", 0, Some("192.0.2.254")),
            route(Side::Core, "192.0.2.1/24", 0, None),
            route(Side::Core, "192.0.2.64/26", 2, None),
            route(Side::Radio, "198.51.100.1/24", 1, None),
        ]);
        let find = |side, to: &str| routes.find(side, address(to));
        let found = |port, to: &str| Some((port, address(to)));
        assert_eq!(find(Side::Core, "192.0.2.7"), found(0, "192.0.2.7"));
        assert_eq!(find(Side::Core, "192.0.2.70"), found(2, "192.0.2.70"));
        assert_eq!(find(Side::Core, "198.51.100.7"), found(0, "192.0.2.254"));
        assert_eq!(find(Side::Radio, "198.51.100.7"), found(1, "198.51.100.7"));
        assert_eq!(find(Side::Radio, "192.0.2.7"), None);
        assert_eq!(find(Side::Core, "::1"), None);
    }
}
