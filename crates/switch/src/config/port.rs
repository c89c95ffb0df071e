//! Ports, and mirrors.

use std::path::PathBuf;

use serde::Deserialize;

use super::check_name;
use super::kinds::{
    AfXdpConfig, KINDS, Kind, MemifConfig, PcapConfig, RingConfig, TapConfig, VhostUserConfig,
    VirtioUserConfig, VxlanConfig,
};
use crate::bucket::{BURST_MAX, Rate};
use crate::vlan::Membership;

/// Stations at a container's port, at most, unless its configuration says otherwise: one of its own, and those of what runs in it (macvlan
/// interfaces, a bridge, virtual routers). It takes 1024 containers together to fill a table of the default size.
const CONTAINER_STATIONS_MAX: u32 = 64;

/// Memory that peers bring, at most, unless the configuration says otherwise: what they have not touched and the switch touches is charged
/// to it. 16 queues each way, with rings of 2048 buffers of 2 KiB, need half of a container's.
const CONTAINER_MEMORY_BYTES_MAX: u64 = 256 << 20;
const MEMIF_MEMORY_BYTES_MAX: u64 = 1 << 30;

/// A port: what it is of, and how it is treated. Exactly one of the kinds is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its name.
    pub name: String,
    /// Kind: memif.
    pub memif: Option<MemifConfig>,
    /// Kind: vhost-user.
    pub vhost_user: Option<VhostUserConfig>,
    /// Kind: virtio-user.
    pub virtio_user: Option<VirtioUserConfig>,
    /// Kind: a ring.
    pub ring: Option<RingConfig>,
    /// Kind: a TAP interface.
    pub tap: Option<TapConfig>,
    /// Kind: queues of a kernel interface.
    pub af_xdp: Option<AfXdpConfig>,
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
    /// Whoever is at the other end is a container, and not trusted: what it may have is less unless it is said.
    #[serde(default)]
    pub container: bool,
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

impl PortConfig {
    /// What it is of. It has been checked.
    pub(crate) fn kind(&self) -> Result<Kind<'_>, String> {
        let given = [
            self.memif.as_ref().map(Kind::Memif),
            self.vhost_user.as_ref().map(Kind::VhostUser),
            self.virtio_user.as_ref().map(Kind::VirtioUser),
            self.ring.as_ref().map(Kind::Ring),
            self.tap.as_ref().map(Kind::Tap),
            self.af_xdp.as_ref().map(Kind::AfXdp),
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
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        check_name("port", &self.name)?;
        let named = |what: String| format!("port {:?}: {what}", self.name);
        self.kind()?.check().map_err(named)?;
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

    /// Stations that are learnt at it, at most.
    pub(crate) fn stations_max(&self) -> u32 {
        let otherwise = if self.container {
            CONTAINER_STATIONS_MAX
        } else {
            u32::MAX
        };
        self.mac_limit.unwrap_or(otherwise)
    }

    /// Bytes of its peer's memory, at most. None: as many as its kind takes, as who may bring memory that is not sealed is trusted, and a
    /// guest is as large as it is.
    pub(crate) fn memory_bytes_max(&self) -> Option<u64> {
        let memif = self.memif.as_ref();
        let memif = memif.map(|one| (one.memory_bytes_max, one.accept_unsealed));
        let vhost_user = self.vhost_user.as_ref();
        let vhost_user = vhost_user.map(|one| (one.memory_bytes_max, one.accept_unsealed));
        let (said, is_trusted) = memif.or(vhost_user)?;
        let otherwise = match (self.container, memif) {
            _ if is_trusted => None,
            (true, _) => Some(CONTAINER_MEMORY_BYTES_MAX),
            (false, Some(_)) => Some(MEMIF_MEMORY_BYTES_MAX),
            (false, None) => None,
        };
        said.or(otherwise)
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

pub(super) fn wrong_vlan(vlan: &str) -> String {
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
