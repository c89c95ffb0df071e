//! A bearer as it is asked for: in JSON, on the command line, and in the store. What it has counted is not in it.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::bearer::{Bearer, Flows, MeterId, Peer, Side, Thresholds};
use crate::mark::Marking;
use crate::meter::Limit;

#[cfg(test)]
mod tests;
mod written;

/// A bearer's far end on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawFarEnd", into = "RawFarEnd")]
pub enum FarEnd {
    /// A tunnel's: its address, and by what number it knows the tunnel.
    Tunnel(IpAddr, u32),
    /// None: packets come and go as they are, and the user has this address; in IPv6 its first 64 bits count.
    User(IpAddr),
}

/// The same as it is written.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawFarEnd {
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    teid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<IpAddr>,
}

impl TryFrom<RawFarEnd> for FarEnd {
    type Error = String;

    fn try_from(raw: RawFarEnd) -> Result<FarEnd, String> {
        let end = match (raw.address, raw.teid, raw.user) {
            (Some(address), Some(teid), None) => FarEnd::Tunnel(address, teid),
            (None, None, Some(user)) => FarEnd::User(user),
            _ => {
                return Err("a far end has an address and a teid, or a user's address".to_owned());
            }
        };
        end.check()?;
        Ok(end)
    }
}

impl From<FarEnd> for RawFarEnd {
    fn from(end: FarEnd) -> RawFarEnd {
        let mut raw = RawFarEnd::default();
        match end {
            FarEnd::Tunnel(address, teid) => {
                (raw.address, raw.teid) = (Some(address), Some(teid));
            }
            FarEnd::User(user) => raw.user = Some(user),
        }
        raw
    }
}

fn check_address(address: IpAddr) -> Result<(), String> {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || is_broadcast {
        return Err(format!("{address} is nobody's address"));
    }
    Ok(())
}

impl FarEnd {
    fn check(self) -> Result<(), String> {
        let (FarEnd::Tunnel(address, _) | FarEnd::User(address)) = self;
        check_address(address)?;
        // TS 29.281, 5.1: messages of no tunnel have it.
        if let FarEnd::Tunnel(_, 0) = self {
            return Err("a tunnel's number is from 1 to 4294967295".to_owned());
        }
        Ok(())
    }

    fn peer(self) -> Peer {
        match self {
            FarEnd::Tunnel(address, teid) => Peer { address, teid },
            FarEnd::User(user) => Peer::plain(user),
        }
    }

    fn of(peer: Peer) -> FarEnd {
        match peer.is_plain() {
            true => FarEnd::User(peer.address),
            false => FarEnd::Tunnel(peer.address, peer.teid),
        }
    }
}

/// Whether packets pass towards either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gates {
    /// Towards the core network.
    pub core: bool,
    /// Towards the radio network.
    pub radio: bool,
}

impl Default for Gates {
    fn default() -> Gates {
        Gates {
            core: true,
            radio: true,
        }
    }
}

/// A paging policy has three bits.
pub(crate) const PPI_MAX: u8 = 7;

/// What is done with what goes towards a side.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Treatment {
    /// Packets are held until this ends.
    #[serde(skip_serializing_if = "is_default")]
    pub paused: bool,
    /// Of which QoS flow packets are.
    #[serde(with = "written::flows", skip_serializing_if = "is_default")]
    pub flow: Flows,
    /// Containers that are written for that flow have users answer with the same QoS (TS 38.415, RQI); towards the radio network only.
    #[serde(skip_serializing_if = "is_default")]
    pub rqi: bool,
    /// They say this paging policy, 0 to 7 (TS 38.415, PPI); towards the radio network only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ppi: Option<u8>,
    /// Which DSCP outer headers have.
    #[serde(with = "written::marking", skip_serializing_if = "is_default")]
    pub dscp: Marking,
    /// How much may pass.
    #[serde(with = "written::limit", skip_serializing_if = "is_default")]
    pub limit: Limit,
}

impl Treatment {
    /// What a container says beside its flow is of those that are written here.
    fn check(&self) -> Result<(), String> {
        if self.ppi.is_some_and(|policy| policy > PPI_MAX) {
            return Err(format!("ppi is from 0 to {PPI_MAX}"));
        }
        let is_said = self.rqi || self.ppi.is_some();
        match self.flow {
            Flows::Set(_) => Ok(()),
            _ if is_said => Err("rqi and ppi are of a flow from 0 to 63, which is missing".into()),
            _ => Ok(()),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What most bearers have not takes no room in those.
fn unless_default<T: Default + PartialEq>(value: T) -> Option<Box<T>> {
    (!is_default(&value)).then(|| Box::new(value))
}

fn boxed<'de, D, T>(from: D) -> Result<Option<Box<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default + PartialEq,
{
    T::deserialize(from).map(unless_default)
}

/// A bearer, as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BearerSpec {
    /// Towards the core network.
    pub core: FarEnd,
    /// Towards the radio network.
    pub radio: FarEnd,
    /// The user's other address, of IPv6, on a side without a tunnel, of which the first 64 bits count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_v6: Option<Ipv6Addr>,
    /// Whether packets pass.
    #[serde(default)]
    pub gates: Gates,
    /// What is done with what goes towards the core network, if it is anything but passed on.
    #[serde(
        default,
        deserialize_with = "boxed",
        skip_serializing_if = "Option::is_none"
    )]
    pub to_core: Option<Box<Treatment>>,
    /// The same towards the radio network.
    #[serde(
        default,
        deserialize_with = "boxed",
        skip_serializing_if = "Option::is_none"
    )]
    pub to_radio: Option<Box<Treatment>>,
    /// When usage is to be reported.
    #[serde(
        default,
        deserialize_with = "boxed",
        skip_serializing_if = "Option::is_none"
    )]
    pub report: Option<Box<Thresholds>>,
    /// Sequence and N-PDU numbers are handed on (TS 29.281, 5.1).
    #[serde(default, skip_serializing_if = "is_default")]
    pub forwards_numbers: bool,
    /// What became of packets on the radio is followed (TS 38.425).
    #[serde(default, skip_serializing_if = "is_default")]
    pub follows_delivery: bool,
    /// The user equipment whose bearers are limited together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ue: Option<u32>,
}

/// What limits all bearers of a user equipment together (UE-AMBR; TS 23.501, 5.7.1.6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UeSpec {
    /// Towards the core network.
    #[serde(with = "written::limit", skip_serializing_if = "is_default")]
    pub to_core: Limit,
    /// Towards the radio network.
    #[serde(with = "written::limit", skip_serializing_if = "is_default")]
    pub to_radio: Limit,
}

impl UeSpec {
    pub(crate) fn limits(&self) -> [Limit; 2] {
        [self.to_core, self.to_radio]
    }

    pub(crate) fn of([to_core, to_radio]: [Limit; 2]) -> UeSpec {
        UeSpec { to_core, to_radio }
    }
}

impl BearerSpec {
    /// One that does nothing but join two far ends.
    #[must_use]
    pub fn new(core: FarEnd, radio: FarEnd) -> BearerSpec {
        BearerSpec {
            core,
            radio,
            user_v6: None,
            gates: Gates::default(),
            to_core: None,
            to_radio: None,
            report: None,
            forwards_numbers: false,
            follows_delivery: false,
            ue: None,
        }
    }

    /// Reads one from JSON.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<BearerSpec, String> {
        let spec: BearerSpec = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        spec.check()?;
        Ok(spec)
    }

    /// Whether it can be a bearer.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), String> {
        let v4_user = match (self.core, self.radio) {
            (FarEnd::User(_), FarEnd::User(_)) => {
                return Err("one side at least has a tunnel".to_owned());
            }
            (FarEnd::User(user), _) | (_, FarEnd::User(user)) => user.is_ipv4(),
            _ => false,
        };
        if let Some(treatment) = &self.to_core
            && (treatment.rqi || treatment.ppi.is_some())
        {
            return Err("rqi and ppi are said towards the radio network only".to_owned());
        }
        self.to_radio.as_deref().map_or(Ok(()), Treatment::check)?;
        match self.user_v6 {
            Some(_) if !v4_user => {
                Err("user_v6 is a second address, of a user with one of IPv4".to_owned())
            }
            Some(user) => check_address(user.into()),
            None => Ok(()),
        }
    }

    /// What a worker makes of it.
    #[must_use]
    pub fn bearer(&self) -> Bearer {
        let mut bearer = Bearer::new(self.core.peer(), self.radio.peer());
        bearer.user_v6 = self.user_v6;
        bearer.gates = [self.gates.core, self.gates.radio];
        for (side, treatment) in Side::BOTH.into_iter().zip([&self.to_core, &self.to_radio]) {
            if let Some(treatment) = treatment {
                let at = side as usize;
                bearer.paused[at] = treatment.paused;
                bearer.flows[at] = treatment.flow.clone();
                bearer.marking[at] = treatment.dscp;
                bearer.limits[at] = treatment.limit;
            }
        }
        if let Some(treatment) = &self.to_radio {
            bearer.reflective = treatment.rqi;
            bearer.paging_policy = treatment.ppi;
        }
        bearer.thresholds = self.report.as_deref().copied().unwrap_or_default();
        bearer.forwards_numbers = self.forwards_numbers;
        bearer.follows_delivery = self.follows_delivery;
        bearer.user = self.ue.map(MeterId);
        bearer
    }

    /// What was asked for, of a bearer.
    #[must_use]
    pub fn of(bearer: &Bearer) -> BearerSpec {
        let treatment = |side: Side| {
            let at = side as usize;
            let is_radio = side == Side::Radio;
            unless_default(Treatment {
                paused: bearer.paused[at],
                flow: bearer.flows[at].clone(),
                rqi: is_radio && bearer.reflective,
                ppi: bearer.paging_policy.filter(|_| is_radio),
                dscp: bearer.marking[at],
                limit: bearer.limits[at],
            })
        };
        BearerSpec {
            core: FarEnd::of(bearer.core),
            radio: FarEnd::of(bearer.radio),
            user_v6: bearer.user_v6,
            gates: Gates {
                core: bearer.gates[Side::Core as usize],
                radio: bearer.gates[Side::Radio as usize],
            },
            to_core: treatment(Side::Core),
            to_radio: treatment(Side::Radio),
            report: unless_default(bearer.thresholds),
            forwards_numbers: bearer.forwards_numbers,
            follows_delivery: bearer.follows_delivery,
            ue: bearer.user.map(|user| user.0),
        }
    }

    /// The user's addresses, with the side that they are on.
    pub(crate) fn users(&self) -> impl Iterator<Item = (Side, IpAddr)> {
        let also = self.user_v6;
        let ends = [(Side::Core, self.core), (Side::Radio, self.radio)];
        ends.into_iter().flat_map(move |(side, end)| {
            let addresses = match end {
                FarEnd::User(user) => [Some(user), also.map(IpAddr::from)],
                FarEnd::Tunnel(..) => [None, None],
            };
            addresses
                .into_iter()
                .flatten()
                .map(move |user| (side, user))
        })
    }
}
