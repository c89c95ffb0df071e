//! Flows: which frames, and where to.

use std::net::IpAddr;

use serde::Deserialize;

use super::{check_name, port::check_vlan};
use crate::address::Mac;
use crate::flow::{Field, Match};
use crate::parse::{TYPE_IPV4, TYPE_IPV6};

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowConfig {
    /// Its name.
    pub name: String,
    /// Of two flows that a frame is of, the one with the higher number counts.
    #[serde(default = "priority")]
    pub priority: u32,
    /// The port that frames come from; any, when there is none.
    #[serde(rename = "in")]
    pub from: Option<String>,
    /// The ports that they go to.
    #[serde(default)]
    pub out: Vec<String>,
    /// They are dropped.
    #[serde(default)]
    pub drop: bool,
    /// Which frames; all, when there is nothing.
    #[serde(default, rename = "match")]
    pub wanted: MatchConfig,
}

fn priority() -> u32 {
    100
}

/// Which frames. A field with `/MASK` asks for those bits only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MatchConfig {
    /// MAC address that it is from.
    pub eth_src: Option<String>,
    /// MAC address that it is for.
    pub eth_dst: Option<String>,
    /// Type, behind tags: `ipv4`, `ipv6`, `arp`, or a number.
    pub eth_type: Option<Text>,
    /// VLAN of the tag; 0: without a tag.
    pub vlan: Option<u16>,
    /// Priority in the tag.
    pub vlan_priority: Option<u8>,
    /// Address that it is from, with `/BITS` or `/MASK`.
    pub ip_src: Option<String>,
    /// Address that it is for.
    pub ip_dst: Option<String>,
    /// Protocol: `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, or a number.
    pub ip_proto: Option<Text>,
    /// The six bits of DSCP.
    pub ip_dscp: Option<u8>,
    /// Port that it is from, of TCP, UDP or SCTP.
    pub src_port: Option<Text>,
    /// Port that it is for.
    pub dst_port: Option<Text>,
}

/// A number, or a text that says one: `80`, `"0x50"`, `"0x1000/0xf000"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// A number.
    Number(u32),
    /// A name, or a number with a mask.
    Word(String),
}

impl Text {
    fn as_string(&self) -> String {
        match self {
            Text::Number(number) => number.to_string(),
            Text::Word(word) => word.clone(),
        }
    }
}

impl FlowConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        check_name("flow", &self.name)?;
        if self.drop != self.out.is_empty() {
            return Err(format!(
                "flow {:?}: give out = [\"PORT\", …], or drop = true",
                self.name
            ));
        }
        self.matching().map(drop)
    }

    /// Which frames.
    pub(crate) fn matching(&self) -> Result<Match, String> {
        let named = |what: String| format!("flow {:?}: {what}", self.name);
        self.wanted.compile().map_err(named)
    }
}

impl MatchConfig {
    /// What is asked for, as `field=value`.
    pub(crate) fn fields(&self) -> Vec<String> {
        let text = |text: &Option<Text>| text.as_ref().map(Text::as_string);
        let number = |number: Option<u16>| number.map(|number| number.to_string());
        let fields = [
            ("eth_src", self.eth_src.clone()),
            ("eth_dst", self.eth_dst.clone()),
            ("eth_type", text(&self.eth_type)),
            ("vlan", number(self.vlan)),
            ("vlan_priority", number(self.vlan_priority.map(u16::from))),
            ("ip_src", self.ip_src.clone()),
            ("ip_dst", self.ip_dst.clone()),
            ("ip_proto", text(&self.ip_proto)),
            ("ip_dscp", number(self.ip_dscp.map(u16::from))),
            ("src_port", text(&self.src_port)),
            ("dst_port", text(&self.dst_port)),
        ];
        let given = fields.into_iter();
        given
            .filter_map(|(name, value)| Some(format!("{name}={}", value?)))
            .collect()
    }

    fn compile(&self) -> Result<Match, String> {
        let mut wanted = Match::ALL;
        let macs = [
            ("eth_src", &self.eth_src, Field::EthernetSource),
            ("eth_dst", &self.eth_dst, Field::EthernetDestination),
        ];
        for (name, text, field) in macs {
            if let Some(text) = text {
                let (value, mask) = mac(text).map_err(|what| format!("match.{name}: {what}"))?;
                wanted.and(field, value.0.into(), mask.0.into());
            }
        }
        if let Some(vlan) = self.vlan {
            if vlan != 0 {
                check_vlan(vlan).map_err(|what| format!("match.vlan: {what}"))?;
            }
            wanted.and_vlan(vlan);
        }
        if let Some(priority) = self.vlan_priority {
            if priority > 7 {
                return Err("match.vlan_priority is from 0 to 7".to_owned());
            }
            wanted.and_priority(priority);
        }
        let family = self.add_addresses(&mut wanted)?;
        self.add_numbers(&mut wanted, family)?;
        Ok(wanted)
    }

    /// Returns the type that the addresses are of.
    fn add_addresses(&self, wanted: &mut Match) -> Result<Option<u16>, String> {
        let mut family = None;
        let addresses = [
            ("ip_src", &self.ip_src, Field::IpSource),
            ("ip_dst", &self.ip_dst, Field::IpDestination),
        ];
        for (name, text, field) in addresses {
            let Some(text) = text else { continue };
            let (address, mask) = address(text).map_err(|what| format!("match.{name}: {what}"))?;
            let (ether_type, value) = match address {
                IpAddr::V4(address) => (TYPE_IPV4, u128::from(address.to_bits())),
                IpAddr::V6(address) => (TYPE_IPV6, address.to_bits()),
            };
            if family.is_some_and(|family| family != ether_type) {
                return Err("match.ip_src and match.ip_dst are of two families".to_owned());
            }
            family = Some(ether_type);
            wanted.and(field, value, mask);
        }
        Ok(family)
    }

    fn add_numbers(&self, wanted: &mut Match, family: Option<u16>) -> Result<(), String> {
        let numbers: [(&str, &Option<Text>, Field, u32, Names); 4] = [
            ("eth_type", &self.eth_type, Field::EtherType, 0xffff, TYPES),
            ("ip_proto", &self.ip_proto, Field::Protocol, 0xff, PROTOCOLS),
            ("src_port", &self.src_port, Field::SourcePort, 0xffff, &[]),
            (
                "dst_port",
                &self.dst_port,
                Field::DestinationPort,
                0xffff,
                &[],
            ),
        ];
        for (name, text, field, most, names) in numbers {
            let Some(text) = text else { continue };
            let (value, mask) = number(&text.as_string(), most, names)
                .map_err(|what| format!("match.{name}: {what}"))?;
            if field == Field::EtherType
                && family.is_some_and(|family| u32::from(family) != value & mask)
            {
                return Err("match.eth_type is not that of the addresses".to_owned());
            }
            wanted.and(field, value.into(), mask.into());
        }
        if let (Some(family), None) = (family, &self.eth_type) {
            wanted.and(Field::EtherType, family.into(), 0xffff);
        }
        if let Some(dscp) = self.ip_dscp {
            if dscp > 63 {
                return Err("match.ip_dscp is from 0 to 63".to_owned());
            }
            wanted.and(Field::TrafficClass, u128::from(dscp) << 2, 0xfc);
        }
        Ok(())
    }
}

type Names = &'static [(&'static str, u32)];
const TYPES: Names = &[("ipv4", 0x0800), ("ipv6", 0x86dd), ("arp", 0x0806)];
const PROTOCOLS: Names = &[
    ("tcp", 6),
    ("udp", 17),
    ("sctp", 132),
    ("icmp", 1),
    ("icmpv6", 58),
];

fn mac(text: &str) -> Result<(Mac, Mac), String> {
    match text.split_once('/') {
        Some((value, mask)) => Ok((value.parse()?, mask.parse()?)),
        None => Ok((text.parse()?, Mac::BROADCAST)),
    }
}

/// An address and the bits of it that count.
fn address(text: &str) -> Result<(IpAddr, u128), String> {
    let wrong = || format!("{text:?} is not ADDRESS, ADDRESS/BITS or ADDRESS/MASK");
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (value, Some(mask)),
        None => (text, None),
    };
    let value: IpAddr = value.parse().map_err(|_| wrong())?;
    let width: u32 = if value.is_ipv4() { 32 } else { 128 };
    let all = u128::MAX >> (128 - width);
    let Some(mask) = mask else {
        return Ok((value, all));
    };
    if let Ok(bits) = mask.parse::<u32>() {
        return match bits {
            0 => Ok((value, 0)),
            bits if bits <= width => Ok((value, all >> (width - bits) << (width - bits))),
            _ => Err(wrong()),
        };
    }
    match (value, mask.parse().map_err(|_| wrong())?) {
        (IpAddr::V4(_), IpAddr::V4(mask)) => Ok((value, mask.to_bits().into())),
        (IpAddr::V6(_), IpAddr::V6(mask)) => Ok((value, mask.to_bits())),
        _ => Err(wrong()),
    }
}

/// A number with a mask, or a name of one.
fn number(text: &str, most: u32, names: Names) -> Result<(u32, u32), String> {
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == text) {
        return Ok((*value, most));
    }
    let read = |text: &str| {
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let parsed = parsed.ok().filter(|number| *number <= most);
        parsed.ok_or_else(|| {
            let names: String = names.iter().map(|(name, _)| format!("{name}, ")).collect();
            format!("{text:?} is not {names}a number from 0 to {most}, or NUMBER/MASK")
        })
    };
    match text.split_once('/') {
        Some((value, mask)) => Ok((read(value)?, read(mask)?)),
        None => Ok((read(text)?, most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(text: &str) -> Result<Match, String> {
        super::super::parse::<MatchConfig>(text)?.compile()
    }

    #[test]
    fn the_same_said_differently_is_the_same() {
        let same = [
            ("ip_proto = \"tcp\"", "ip_proto = 6"),
            ("dst_port = 80", "dst_port = \"0x50\""),
            ("dst_port = \"80/0xfff0\"", "dst_port = \"0x50/65520\""),
            ("ip_src = \"10.1.2.3/8\"", "ip_src = \"10.0.0.0/255.0.0.0\""),
            ("ip_dst = \"fd00::1\"", "ip_dst = \"fd00::1/128\""),
            ("eth_type = \"arp\"", "eth_type = \"0x806\""),
            (
                "ip_src = \"10.0.0.1\"",
                "ip_src = \"10.0.0.1\"\neth_type = \"ipv4\"",
            ),
        ];
        for (one, other) in same {
            assert_eq!(compile(one), compile(other), "{one}");
            assert!(
                compile(one).is_ok() && compile(one) != Ok(Match::ALL),
                "{one}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_field_s_name() {
        for wrong in [
            "eth_src = \"1\"",
            "ip_proto = \"tpc\"",
            "ip_src = \"10.0.0.0/33\"",
            "ip_dst = \"10.0.0.0/ffff::\"",
            "dst_port = 65536",
            "vlan = 4095",
            "vlan_priority = 8",
            "ip_dscp = 64",
            "eth_typ = 1",
        ] {
            let field = wrong.split(' ').next().unwrap();
            let error = compile(wrong).unwrap_err();
            assert!(error.contains(field), "{wrong}: {error}");
        }
        assert!(compile("ip_src = \"10.0.0.1\"\nip_dst = \"::1\"").is_err());
        assert!(compile("ip_src = \"10.0.0.1\"\neth_type = \"ipv6\"").is_err());
    }
}
