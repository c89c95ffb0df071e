//! How what is done with packets is written in JSON: types of the function know nothing of that.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bearer::Flows;
use crate::mark::Marking;
use crate::meter::{KBIT_BYTES, Limit};

/// QoS flows and DSCPs have six bits.
const SIX_BITS: u8 = 63;

macro_rules! written {
    ($name:ident, $type:ty, $raw:ty) => {
        pub(super) mod $name {
            use super::*;

            pub(in crate::spec) fn serialize<S: Serializer>(
                value: &$type,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                <$raw>::from(value.clone()).serialize(to)
            }

            pub(in crate::spec) fn deserialize<'de, D: Deserializer<'de>>(
                from: D,
            ) -> Result<$type, D::Error> {
                let raw = <$raw>::deserialize(from)?;
                <$type>::try_from(raw).map_err(serde::de::Error::custom)
            }
        }
    };
}

written!(flows, Flows, RawFlows);
written!(marking, Marking, RawMarking);
written!(limit, Limit, RawLimit);

/// A QoS flow of one's own, a word, or flows by those that packets come with.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "flow is \"kept\", \"removed\", a number from 0 to 63, or an object with such numbers by those that packets come with"
)]
enum RawFlows {
    Number(u8),
    Word(String),
    Map(Pairs),
}

/// As they were written: of two with one name a map would have the last.
struct Pairs(Vec<(String, u8)>);

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(from, flow)| (from, flow)))
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Pairs, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "flows by those that packets come with")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = fields.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(All)
    }
}

impl TryFrom<RawFlows> for Flows {
    type Error = String;

    fn try_from(raw: RawFlows) -> Result<Flows, String> {
        let number = |flow: u8| match flow {
            0..=SIX_BITS => Ok(flow),
            _ => Err(format!(
                "{flow} is no QoS flow: they are from 0 to {SIX_BITS}"
            )),
        };
        Ok(match raw {
            RawFlows::Number(flow) => Flows::Set(number(flow)?),
            RawFlows::Word(word) => match word.as_str() {
                "kept" => Flows::Kept,
                "removed" => Flows::Removed,
                _ => {
                    return Err(format!(
                        "flow is {word:?}: \"kept\", \"removed\" or numbers"
                    ));
                }
            },
            RawFlows::Map(Pairs(pairs)) => {
                let mut map = Box::new([None; 64]);
                for (from, to) in pairs {
                    let from: u8 = from.parse().map_err(|_| format!("{from:?} is no number"))?;
                    let place = &mut map[usize::from(number(from)?)];
                    if place.replace(number(to)?).is_some() {
                        return Err(format!("flow {from} is there twice"));
                    }
                }
                Flows::Mapped(map)
            }
        })
    }
}

impl From<Flows> for RawFlows {
    fn from(flows: Flows) -> RawFlows {
        match flows {
            Flows::Kept => RawFlows::Word("kept".to_owned()),
            Flows::Removed => RawFlows::Word("removed".to_owned()),
            Flows::Set(flow) => RawFlows::Number(flow),
            Flows::Mapped(map) => {
                let pairs = map.iter().enumerate();
                let pairs = pairs.filter_map(|(from, to)| Some((from.to_string(), (*to)?)));
                RawFlows::Map(Pairs(pairs.collect()))
            }
        }
    }
}

/// A DSCP, or the word for the user's packet's.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "dscp is \"copied\" or a number from 0 to 63")]
enum RawMarking {
    Number(u8),
    Word(String),
}

impl TryFrom<RawMarking> for Marking {
    type Error = String;

    fn try_from(raw: RawMarking) -> Result<Marking, String> {
        match raw {
            RawMarking::Number(dscp @ 0..=SIX_BITS) => Ok(Marking::Fixed(dscp)),
            RawMarking::Word(word) if word == "copied" => Ok(Marking::Copied),
            _ => Err("dscp is \"copied\" or a number from 0 to 63".to_owned()),
        }
    }
}

impl From<Marking> for RawMarking {
    fn from(marking: Marking) -> RawMarking {
        match marking {
            Marking::Fixed(dscp) => RawMarking::Number(dscp),
            Marking::Copied => RawMarking::Word("copied".to_owned()),
        }
    }
}

/// A limit as it is written; what is not there is not limited, and bursts are as [`Limit::bytes`] and [`Limit::packets`] have them.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    kbit_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_packets: Option<u32>,
}

impl TryFrom<RawLimit> for Limit {
    type Error = String;

    fn try_from(raw: RawLimit) -> Result<Limit, String> {
        let zero = |name: &str| {
            format!(
                "{name} is at least 1; leave it out where nothing is limited, and shut a gate where nothing passes"
            )
        };
        let mut limit = Limit::default();
        match (raw.kbit_per_second, raw.burst_bytes) {
            (None, None) => {}
            (None, Some(_)) => {
                return Err("burst_bytes is of kbit_per_second, which is missing".to_owned());
            }
            (Some(0), _) => return Err(zero("kbit_per_second")),
            (_, Some(0)) => return Err(zero("burst_bytes")),
            (Some(rate), burst) => {
                let rate = rate
                    .checked_mul(KBIT_BYTES)
                    .ok_or("kbit_per_second is too high")?;
                limit = Limit::bytes(rate);
                limit.burst_bytes = burst.unwrap_or(limit.burst_bytes);
            }
        }
        match (raw.packets_per_second, raw.burst_packets) {
            (None, None) => {}
            (None, Some(_)) => {
                return Err("burst_packets is of packets_per_second, which is missing".to_owned());
            }
            (Some(0), _) => return Err(zero("packets_per_second")),
            (_, Some(0)) => return Err(zero("burst_packets")),
            (Some(rate), burst) => {
                let packets = Limit::packets(rate);
                limit.packets_per_second = rate;
                limit.burst_packets = burst.unwrap_or(packets.burst_packets);
            }
        }
        Ok(limit)
    }
}

impl From<Limit> for RawLimit {
    fn from(limit: Limit) -> RawLimit {
        let bytes = limit.bytes_per_second > 0;
        let packets = limit.packets_per_second > 0;
        RawLimit {
            kbit_per_second: bytes.then_some(limit.kbit_per_second()),
            burst_bytes: bytes.then_some(limit.burst_bytes),
            packets_per_second: packets.then_some(limit.packets_per_second),
            burst_packets: packets.then_some(limit.burst_packets),
        }
    }
}
