//! Addresses and routes, as results have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Code, Error};

/// An address with the length of its network's prefix, or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) address: IpAddr,
    pub(crate) bits: u8,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) prefix: Prefix,
    pub(crate) gateway: Option<IpAddr>,
}

/// A route by an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: Prefix,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) mtu: Option<u32>,
    pub(crate) advmss: Option<u32>,
    pub(crate) priority: Option<u32>,
    pub(crate) table: Option<u32>,
    pub(crate) scope: Option<u8>,
}

/// All that an interface is to have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Addresses {
    pub(crate) own: Vec<Address>,
    pub(crate) routes: Vec<Route>,
}

#[derive(Deserialize)]
struct Ip {
    address: String,
    gateway: Option<IpAddr>,
    /// Of a result that is whole: whose it is.
    interface: Option<i64>,
}

#[derive(Deserialize)]
struct Told {
    dst: String,
    gw: Option<IpAddr>,
    mtu: Option<u32>,
    advmss: Option<u32>,
    priority: Option<u32>,
    table: Option<u32>,
    scope: Option<u8>,
}

impl FromStr for Prefix {
    type Err = ();

    fn from_str(text: &str) -> Result<Prefix, ()> {
        let (address, bits) = text.split_once('/').ok_or(())?;
        let address: IpAddr = address.parse().map_err(drop)?;
        let bits: u8 = bits.parse().map_err(drop)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return Err(());
        }
        Ok(Prefix { address, bits })
    }
}

impl Prefix {
    /// Without what is behind the prefix.
    pub(crate) fn network(self) -> Prefix {
        let address = match self.address {
            IpAddr::V4(address) => {
                let rest = u32::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                Ipv4Addr::from(u32::from(address) & !rest).into()
            }
            IpAddr::V6(address) => {
                let rest = u128::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                Ipv6Addr::from(u128::from(address) & !rest).into()
            }
        };
        Prefix { address, ..self }
    }
}

impl Route {
    #[cfg(test)]
    pub(crate) fn to(to: Prefix) -> Route {
        Route {
            to,
            gateway: None,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
        }
    }
}

impl Addresses {
    /// What an interface is to have by an IPAM plugin's result. `of`: what a result that is whole says of the interface of this number, and
    /// routes as they are told, of whichever interface.
    pub(crate) fn parse(result: Option<&Value>, of: Option<usize>) -> Result<Addresses, Error> {
        let all: Vec<Ip> = part(result, "ips")?;
        let mut own = Vec::new();
        for ip in all {
            let is_it = |of| {
                ip.interface
                    .is_some_and(|number| usize::try_from(number) == Ok(of))
            };
            if !of.is_none_or(is_it) {
                continue;
            }
            let prefix = prefix(&ip.address)?;
            let gateway = ip.gateway;
            own.push(Address { prefix, gateway });
        }
        let mut routes = Vec::new();
        for told in part::<Told>(result, "routes")? {
            let to = prefix(&told.dst)?.network();
            let is_alike = |address: &&Address| {
                address.prefix.address.is_ipv4() == to.address.is_ipv4()
                    && address.gateway.is_some()
            };
            // A route that says no gateway goes by the address's (specification, section 5).
            let usual = own
                .iter()
                .find(is_alike)
                .and_then(|address| address.gateway);
            let usual = usual.filter(|_| of.is_none());
            routes.push(Route {
                to,
                gateway: told.gw.or(usual),
                mtu: told.mtu,
                advmss: told.advmss,
                priority: told.priority,
                table: told.table,
                scope: told.scope,
            });
        }
        Ok(Addresses { own, routes })
    }
}

fn prefix(text: &str) -> Result<Prefix, Error> {
    let wrong = |()| {
        Error::new(
            Code::Decode,
            format!("{text:?} is no address with a prefix's length"),
            "",
        )
    };
    text.parse().map_err(wrong)
}

fn part<T: serde::de::DeserializeOwned>(
    result: Option<&Value>,
    name: &str,
) -> Result<Vec<T>, Error> {
    match result.and_then(|result| result.get(name)) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => serde_json::from_value(value.clone()).map_err(|error| {
            Error::new(
                Code::Decode,
                format!("a result's {name} are not right"),
                error,
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_route_without_a_gateway_goes_by_the_address_s() {
        let result = json!({
            "ips": [
                { "address": "10.9.0.2/24", "gateway": "10.9.0.1", "interface": 1 },
                { "address": "10.8.0.2/24", "interface": 0 },
                { "address": "fd00::2/64", "gateway": "fd00::1", "interface": 1 },
            ],
            "routes": [
                { "dst": "0.0.0.0/0" }, { "dst": "10.7.1.2/16", "gw": "10.9.0.9", "mtu": 1400 }, { "dst": "::/0" },
            ],
        });
        let found = Addresses::parse(Some(&result), None).unwrap();
        assert_eq!(found.own.len(), 3);
        let gateways = found.routes.iter().map(|route| route.gateway.unwrap());
        let gateways: Vec<IpAddr> = gateways.collect();
        let expected = ["10.9.0.1", "10.9.0.9", "fd00::1"];
        assert_eq!(
            gateways,
            expected.map(|text| text.parse::<IpAddr>().unwrap())
        );
        assert_eq!(found.routes[1].to, "10.7.0.0/16".parse().unwrap());
        let told = Addresses::parse(Some(&result), Some(1)).unwrap();
        assert_eq!((told.own.len(), told.routes[0].gateway), (2, None));
        assert_eq!(Addresses::parse(None, None).unwrap(), Addresses::default());
    }

    #[test]
    fn nonsense_is_told() {
        for text in ["10.0.0.1", "10.0.0.1/33", "fd00::/129", "x/8", "/"] {
            let result = json!({ "ips": [{ "address": text }] });
            assert!(Addresses::parse(Some(&result), None).is_err(), "{text}");
        }
        assert!(Addresses::parse(Some(&json!({ "routes": 1 })), None).is_err());
    }

    #[test]
    fn networks_of_every_length() {
        let network = |text: &str| text.parse::<Prefix>().unwrap().network().address;
        assert_eq!(network("10.9.8.7/32"), IpAddr::from([10, 9, 8, 7]));
        assert_eq!(network("10.9.8.7/0"), IpAddr::from([0, 0, 0, 0]));
        assert_eq!(network("10.9.8.7/20"), IpAddr::from([10, 9, 0, 0]));
        assert_eq!(network("fd00::7/128"), "fd00::7".parse::<IpAddr>().unwrap());
        assert_eq!(network("fd00::7/0"), "::".parse::<IpAddr>().unwrap());
    }
}
