//! Ports, and mirrors.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::check_name;
use crate::bucket::{BURST_MAX, Rate};
use crate::vlan::Membership;

/// VXLAN's port (RFC 7348).
const VXLAN_PORT: u16 = 4789;
/// A VXLAN's number has 24 bits.
const VNI_MAX: u32 = (1 << 24) - 1;
/// UDP ports of one tunnel end, over which flows are spread.
const SOURCE_PORTS_MAX: u16 = 256;

/// A port: what it is of, and how it is treated. Exactly one of the kinds is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its name.
    pub name: String,
    /// Kind: memif.
    pub memif: Option<MemifConfig>,
    /// Kind: a capture.
    pub pcap: Option<PcapConfig>,
    /// Kind: a tunnel to another host.
    pub vxlan: Option<VxlanConfig>,
    /// The number of the worker that has it. Otherwise the one with the fewest ports.
    pub worker: Option<usize>,
    /// VLANs. Otherwise frames pass as they are.
    pub vlan: Option<VlanConfig>,
    /// Bytes of a packet of the Internet, at most. Otherwise as many as the port takes.
    pub mtu: Option<u16>,
    /// Stations that are learnt at it, at most. 0: none is learnt, and what is for them goes everywhere.
    pub mac_limit: Option<u32>,
    /// Ports of one group do not forward to each other: a split horizon.
    pub horizon: Option<u16>,
    /// What may be flooded.
    #[serde(default)]
    pub storm: StormConfig,
    /// What may enter.
    #[serde(default)]
    pub police: PoliceConfig,
}

/// A memif.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemifConfig {
    /// The server's socket.
    pub path: PathBuf,
    /// Which end.
    #[serde(default)]
    pub role: MemifRole,
    /// The interface's number.
    #[serde(default)]
    pub id: u32,
    /// What a server asks for, and a client says.
    pub secret: Option<String>,
    /// Queues each way, at most.
    pub queues: Option<u16>,
    /// Client: descriptors of a ring, a power of two.
    pub ring_size: Option<u32>,
    /// Client: bytes of each buffer.
    pub buffer_bytes: Option<u32>,
    /// Server: permissions of the socket.
    pub socket_mode: Option<u32>,
    /// Server: take memory that the client could take away. For clients that are trusted.
    #[serde(default)]
    pub accept_unsealed: bool,
}

/// An end of a memif.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemifRole {
    /// Listens.
    #[default]
    Server,
    /// Connects, and has the memory.
    Client,
}

/// A capture.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapConfig {
    /// Packets come from this file.
    pub read: Option<PathBuf>,
    /// Packets go to this file, which is replaced.
    pub write: Option<PathBuf>,
    /// Read as fast as it was captured, and not at full speed.
    #[serde(default)]
    pub stamps: bool,
}

/// A tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VxlanConfig {
    /// This host's address.
    pub local: IpAddr,
    /// The other host's.
    pub remote: IpAddr,
    /// The UDP port of both.
    #[serde(default = "vxlan_port")]
    pub port: u16,
    /// The network, when it is one.
    pub vni: Option<u32>,
    /// Networks by VLAN, when there are several: what is in the VLAN has no tag in the tunnel.
    #[serde(default)]
    pub vnis: BTreeMap<String, u32>,
    /// UDP ports that flows are spread over.
    #[serde(default = "source_ports")]
    pub source_ports: u16,
}

fn vxlan_port() -> u16 {
    VXLAN_PORT
}

fn source_ports() -> u16 {
    16
}

/// VLANs of a port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VlanConfig {
    /// The only one, without tags.
    pub access: Option<u16>,
    /// Those with tags.
    pub trunk: Option<Vec<u16>>,
    /// Of a trunk, the one without tags.
    pub native: Option<u16>,
}

/// Frames in a second that may be flooded, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StormConfig {
    /// To everybody.
    pub broadcast: Option<u64>,
    /// To a group.
    pub multicast: Option<u64>,
    /// To a station that is not known.
    pub unknown: Option<u64>,
}

/// What may enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoliceConfig {
    /// Packets in a second.
    pub packets: Option<u64>,
    /// Packets at once after a pause.
    pub packets_burst: Option<u64>,
    /// Bytes in a second.
    pub bytes: Option<u64>,
    /// Bytes at once after a pause.
    pub bytes_burst: Option<u64>,
}

/// A mirror: copies of what enters and leaves ports, in a file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// Its name.
    pub name: String,
    /// The file, pcapng or, when it ends in `.pcap`, pcap. It is replaced.
    pub file: PathBuf,
    /// Names of ports; all, when there are none.
    #[serde(default)]
    pub ports: Vec<String>,
    /// What is copied.
    #[serde(default)]
    pub direction: Direction,
}

/// Of a port, what enters the switch by it or leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// What enters.
    In,
    /// What leaves.
    Out,
    /// Both.
    #[default]
    Both,
}

/// What a port is of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind<'a> {
    Memif(&'a MemifConfig),
    Pcap(&'a PcapConfig),
    Vxlan(&'a VxlanConfig),
}

impl Kind<'_> {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Memif(_) => "memif",
            Kind::Pcap(_) => "pcap",
            Kind::Vxlan(_) => "vxlan",
        }
    }
}

/// Names of the kinds: of the fields of [`PortConfig`] that say one.
pub const KINDS: [&str; 3] = ["memif", "pcap", "vxlan"];

impl PortConfig {
    /// What it is of. It has been checked.
    pub(crate) fn kind(&self) -> Result<Kind<'_>, String> {
        let given = [
            self.memif.as_ref().map(Kind::Memif),
            self.pcap.as_ref().map(Kind::Pcap),
            self.vxlan.as_ref().map(Kind::Vxlan),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(kind), None) => Ok(kind),
            _ => Err(format!(
                "port {:?}: give one of {}",
                self.name,
                KINDS.join(", ")
            )),
        }
    }

    /// Checks what can be seen in it alone.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_name("port", &self.name)?;
        let named = |what: String| format!("port {:?}: {what}", self.name);
        match self.kind()? {
            Kind::Pcap(pcap) => pcap.check().map_err(named)?,
            Kind::Vxlan(vxlan) => vxlan.check().map_err(named)?,
            Kind::Memif(memif) => memif.check().map_err(named)?,
        }
        if self.mtu.is_some_and(|mtu| mtu < 68) {
            return Err(named("mtu must be at least 68".to_owned()));
        }
        if let Some(vlan) = &self.vlan {
            vlan.check().map_err(named)?;
        }
        if self.vlan.is_some() && self.vxlan.as_ref().is_some_and(|one| !one.vnis.is_empty()) {
            return Err(named(
                "vxlan.vnis says which VLANs there are; leave vlan out".to_owned(),
            ));
        }
        self.police.check().map_err(named)?;
        for rate in [
            self.storm.broadcast,
            self.storm.multicast,
            self.storm.unknown,
        ] {
            if rate.is_some_and(|rate| !(1..=BURST_MAX).contains(&rate)) {
                return Err(named(format!("storm rates are from 1 to {BURST_MAX}")));
            }
        }
        Ok(())
    }

    /// Its VLANs.
    pub(crate) fn membership(&self) -> Membership {
        if let Some(vxlan) = &self.vxlan
            && !vxlan.vnis.is_empty()
        {
            let vlans: Vec<u16> = vxlan.networks().into_iter().map(|pair| pair.0).collect();
            return Membership::trunk(&vlans, None);
        }
        match &self.vlan {
            None => Membership::transparent(),
            Some(vlan) => match (vlan.access, &vlan.trunk) {
                (Some(access), _) => Membership::access(access),
                (None, trunk) => {
                    Membership::trunk(trunk.as_deref().unwrap_or_default(), vlan.native)
                }
            },
        }
    }
}

impl MemifConfig {
    fn check(&self) -> Result<(), String> {
        if self.ring_size.is_some_and(|size| !size.is_power_of_two()) {
            return Err("memif.ring_size must be a power of two".to_owned());
        }
        if !self.path.is_absolute() {
            return Err(format!(
                "memif.path is {}; it must be absolute",
                self.path.display()
            ));
        }
        Ok(())
    }
}

impl PcapConfig {
    fn check(&self) -> Result<(), String> {
        match (&self.read, &self.write) {
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err("pcap: give read or write".to_owned()),
        }
    }
}

impl VxlanConfig {
    fn check(&self) -> Result<(), String> {
        if self.local.is_ipv4() != self.remote.is_ipv4() {
            return Err("vxlan: local and remote must be of one family".to_owned());
        }
        if self.local.is_unspecified() || self.remote.is_unspecified() || self.remote.is_multicast()
        {
            return Err("vxlan: local and remote are addresses of one host each".to_owned());
        }
        if !(1..=SOURCE_PORTS_MAX).contains(&self.source_ports) || self.port == 0 {
            return Err(format!(
                "vxlan: source_ports is from 1 to {SOURCE_PORTS_MAX}, and port is not 0"
            ));
        }
        match (self.vni, self.vnis.is_empty()) {
            (Some(vni), true) => check_vni(vni),
            (None, false) => self.vnis.iter().try_for_each(|(vlan, vni)| {
                let number = vlan.parse().map_err(|_| wrong_vlan(vlan))?;
                check_vlan(number).and_then(|()| check_vni(*vni))
            }),
            _ => Err("vxlan: give vni, or vnis = { VLAN = VNI, … }".to_owned()),
        }
    }

    /// Networks by VLAN.
    pub(crate) fn networks(&self) -> Vec<(u16, u32)> {
        let pairs = self.vnis.iter();
        pairs
            .filter_map(|(vlan, vni)| Some((vlan.parse().ok()?, *vni)))
            .collect()
    }
}

fn check_vni(vni: u32) -> Result<(), String> {
    if vni > VNI_MAX {
        return Err(format!("vxlan: VNI {vni} is above {VNI_MAX}"));
    }
    Ok(())
}

fn wrong_vlan(vlan: &str) -> String {
    format!("{vlan:?} is no VLAN; they are numbers from 1 to 4094")
}

pub(super) fn check_vlan(vlan: u16) -> Result<(), String> {
    if !(1..=4094).contains(&vlan) {
        return Err(wrong_vlan(&vlan.to_string()));
    }
    Ok(())
}

impl VlanConfig {
    fn check(&self) -> Result<(), String> {
        match (self.access, &self.trunk, self.native) {
            (Some(_), None, None) | (None, Some(_), _) => {}
            _ => return Err("vlan: give access, or trunk with or without native".to_owned()),
        }
        let trunk = self.trunk.iter().flatten().copied();
        trunk
            .chain(self.access)
            .chain(self.native)
            .try_for_each(check_vlan)
    }
}

impl PoliceConfig {
    fn check(&self) -> Result<(), String> {
        let pairs = [
            ("packets", self.packets, self.packets_burst),
            ("bytes", self.bytes, self.bytes_burst),
        ];
        for (name, rate, burst) in pairs {
            if rate.is_none() && burst.is_some() {
                return Err(format!("police.{name}_burst goes with police.{name}"));
            }
            if rate == Some(0) || burst.is_some_and(|burst| !(1..=BURST_MAX).contains(&burst)) {
                return Err(format!(
                    "police.{name} is at least 1, and its burst from 1 to {BURST_MAX}"
                ));
            }
        }
        Ok(())
    }

    /// Of packets, and of bytes. Without a burst it is what comes in 10 ms: 32 packets at least, or the longest packet.
    pub(crate) fn rates(&self) -> [Option<Rate>; 2] {
        let of = |rate: Option<u64>, burst: Option<u64>, least: u64| {
            rate.map(|per_second| Rate {
                per_second,
                burst: burst.unwrap_or((per_second / 100).clamp(least, BURST_MAX)),
            })
        };
        let longest = millrace_port::PACKET_BYTES_MAX as u64;
        [
            of(self.packets, self.packets_burst, 32),
            of(self.bytes, self.bytes_burst, longest),
        ]
    }
}

impl StormConfig {
    /// Of broadcast, multicast and unknown stations: a tenth of a second's at once.
    pub(crate) fn rates(&self) -> [Option<Rate>; 3] {
        [self.broadcast, self.multicast, self.unknown].map(|rate| {
            rate.map(|per_second| Rate {
                per_second,
                burst: (per_second / 10).max(1),
            })
        })
    }
}

impl MirrorConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        check_name("mirror", &self.name)
    }
}
