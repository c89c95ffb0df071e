//! Kinds of port, as the configuration has them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use millrace_port::af_xdp::Take;
use serde::Deserialize;

use super::port::{check_vlan, wrong_vlan};

/// VXLAN's port (RFC 7348).
const VXLAN_PORT: u16 = 4789;
/// A VXLAN's number has 24 bits.
const VNI_MAX: u32 = (1 << 24) - 1;
/// UDP ports of one tunnel end, over which flows are spread.
const SOURCE_PORTS_MAX: u16 = 256;
/// A ring is two channels, `NAME/1` and `NAME/2`, whose names have 64 bytes at most.
const RING_NAME_MAX: usize = 62;
/// What a channel can have: messages that are outstanding, and bytes of its pool.
const RING_SLOTS_MAX: u32 = 32_768;
const RING_POOL_STEP: u64 = 65_536;
const RING_POOL_MAX: u64 = 4 << 30;

/// A memif.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemifConfig {
    /// The server's socket.
    pub path: PathBuf,
    /// Which end.
    #[serde(default)]
    pub role: Role,
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
    /// Server: Bytes of the client's memory, at most.
    pub memory_bytes_max: Option<u64>,
    /// Server: take memory that the client could take away. For clients that are trusted.
    #[serde(default)]
    pub accept_unsealed: bool,
}

/// Who listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Listens.
    #[default]
    Server,
    /// Connects. Of a memif it has the memory.
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

/// A virtio-net back end: a guest of QEMU's, or a container with DPDK's virtio-user, is at the other end.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostUserConfig {
    /// The socket.
    pub path: PathBuf,
    /// Which end listens.
    #[serde(default)]
    pub role: Role,
    /// Queues each way, at most.
    pub queues: Option<u16>,
    /// Whether checksums and segments may be left to do, each way.
    #[serde(default = "yes")]
    pub offloads: bool,
    /// Permissions of the socket.
    pub socket_mode: Option<u32>,
    /// Bytes of the peer's memory, at most.
    pub memory_bytes_max: Option<u64>,
    /// Take memory that the peer could take away. For peers that are trusted: DPDK and most QEMUs have no other.
    #[serde(default)]
    pub accept_unsealed: bool,
}

/// A virtio-net front end: at the other end is a switch that is a back end.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VirtioUserConfig {
    /// The socket.
    pub path: PathBuf,
    /// Which end listens.
    #[serde(default)]
    pub role: Role,
    /// Queues each way, at most.
    pub queues: Option<u16>,
    /// Descriptors of a ring, a power of two.
    pub ring_size: Option<u16>,
    /// Bytes of each buffer.
    pub buffer_bytes: Option<u32>,
    /// Whether checksums and segments may be left to do, each way.
    #[serde(default = "yes")]
    pub offloads: bool,
    /// Permissions of the socket.
    pub socket_mode: Option<u32>,
}

/// A TAP interface: the kernel's stack is at the other end.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapConfig {
    /// Its name.
    pub interface: String,
    /// Queues each way.
    pub queues: Option<u16>,
    /// Whether the kernel may leave checksums and segments to do.
    #[serde(default = "yes")]
    pub offloads: bool,
}

/// Queues of a kernel interface, by AF_XDP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfXdpConfig {
    /// Its name.
    pub interface: String,
    /// The first queue.
    #[serde(default)]
    pub first_queue: u32,
    /// How many.
    pub queues: Option<u32>,
    /// What is taken, and what not is left to the kernel: `all`, `type/NUMBER`, `proto/NUMBER`, `udp/PORT`, `tcp/PORT`, `vni/NUMBER`.
    #[serde(default = "all")]
    pub take: Vec<String>,
    /// Packets each way, of each queue: a power of two.
    pub ring_size: Option<u32>,
}

/// A ring: a program of a container's, by channels of the agent's. Packets lie in the memory of whoever sends them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingConfig {
    /// Its name, which the program gives as well.
    pub name: String,
    /// Which side is the switch's. The program is the other.
    #[serde(default)]
    pub side: RingSide,
    /// The agent's socket, if it is not where it always is.
    pub agent: Option<PathBuf>,
    /// Packets that the switch has sent and the program has not given back, at most: a power of two.
    pub slots: Option<u32>,
    /// Memory for those: a multiple of 65 536.
    pub pool_bytes: Option<u64>,
}

/// One of the two sides of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingSide {
    /// The one.
    #[default]
    First,
    /// The other.
    Second,
}

fn yes() -> bool {
    true
}

fn all() -> Vec<String> {
    vec!["all".to_owned()]
}

/// What a port is of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind<'a> {
    Memif(&'a MemifConfig),
    VhostUser(&'a VhostUserConfig),
    VirtioUser(&'a VirtioUserConfig),
    Ring(&'a RingConfig),
    Tap(&'a TapConfig),
    AfXdp(&'a AfXdpConfig),
    Pcap(&'a PcapConfig),
    Vxlan(&'a VxlanConfig),
}

impl Kind<'_> {
    /// Checks what can be seen in it alone.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Kind::Memif(one) => one.check(),
            Kind::VhostUser(one) => one.check(),
            Kind::VirtioUser(one) => one.check(),
            Kind::Ring(one) => one.check(),
            Kind::Tap(one) => interface("tap", &one.interface),
            Kind::AfXdp(one) => one.check(),
            Kind::Pcap(one) => one.check(),
            Kind::Vxlan(one) => one.check(),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Memif(_) => "memif",
            Kind::VhostUser(_) => "vhost_user",
            Kind::VirtioUser(_) => "virtio_user",
            Kind::Ring(_) => "ring",
            Kind::Tap(_) => "tap",
            Kind::AfXdp(_) => "af_xdp",
            Kind::Pcap(_) => "pcap",
            Kind::Vxlan(_) => "vxlan",
        }
    }
}

/// Names of the kinds: of the fields of [`super::PortConfig`] that say one.
pub const KINDS: [&str; 8] = [
    "memif",
    "vhost_user",
    "virtio_user",
    "ring",
    "tap",
    "af_xdp",
    "pcap",
    "vxlan",
];

impl MemifConfig {
    fn check(&self) -> Result<(), String> {
        if self.ring_size.is_some_and(|size| !size.is_power_of_two()) {
            return Err("memif.ring_size must be a power of two".to_owned());
        }
        some_memory("memif", self.memory_bytes_max)?;
        absolute("memif", &self.path)
    }
}

impl VhostUserConfig {
    fn check(&self) -> Result<(), String> {
        some_memory("vhost_user", self.memory_bytes_max)?;
        absolute("vhost_user", &self.path)
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

impl VirtioUserConfig {
    fn check(&self) -> Result<(), String> {
        if self.ring_size.is_some_and(|size| !size.is_power_of_two()) {
            return Err("virtio_user.ring_size must be a power of two".to_owned());
        }
        absolute("virtio_user", &self.path)
    }
}

impl RingConfig {
    fn check(&self) -> Result<(), String> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
        let begins = self.name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || self.name.len() > RING_NAME_MAX || !self.name.chars().all(is_good) {
            return Err(format!(
                "ring.name is {:?}; it has 1 to {RING_NAME_MAX} letters, digits, or any of . _ / -, the first a letter or digit",
                self.name
            ));
        }
        let slots = self.slots.unwrap_or(RING_SLOTS_MAX);
        if !slots.is_power_of_two() || !(2..=RING_SLOTS_MAX).contains(&slots) {
            return Err(format!(
                "ring.slots must be a power of two from 2 to {RING_SLOTS_MAX}"
            ));
        }
        let bytes = self.pool_bytes.unwrap_or(RING_POOL_STEP);
        if !bytes.is_multiple_of(RING_POOL_STEP) || !(1..=RING_POOL_MAX).contains(&bytes) {
            return Err(format!(
                "ring.pool_bytes must be a multiple of {RING_POOL_STEP} up to {RING_POOL_MAX}"
            ));
        }
        match &self.agent {
            Some(agent) if !agent.is_absolute() => Err(format!(
                "ring.agent is {}; it must be absolute",
                agent.display()
            )),
            _ => Ok(()),
        }
    }
}

impl AfXdpConfig {
    fn check(&self) -> Result<(), String> {
        interface("af_xdp", &self.interface)?;
        self.takes().map(drop)
    }

    /// What is taken.
    pub(crate) fn takes(&self) -> Result<Vec<Take>, String> {
        self.take.iter().map(|text| take(text)).collect()
    }
}

fn take(text: &str) -> Result<Take, String> {
    let wrong = || {
        format!(
            "af_xdp.take has {text:?}; there are all, type/NUMBER, proto/NUMBER, udp/PORT, tcp/PORT and vni/NUMBER"
        )
    };
    if text == "all" {
        return Ok(Take::All);
    }
    let (kind, number) = text.split_once('/').ok_or_else(wrong)?;
    let number: u32 = match number.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    }
    .map_err(|_| wrong())?;
    let half = || u16::try_from(number).map_err(|_| wrong());
    match kind {
        "type" => half().map(Take::EtherType),
        "udp" => half().map(Take::UdpPort),
        "tcp" => half().map(Take::TcpPort),
        "proto" => u8::try_from(number)
            .map(Take::Protocol)
            .map_err(|_| wrong()),
        "vni" if number <= VNI_MAX => Ok(Take::Vni(number)),
        _ => Err(wrong()),
    }
}

fn some_memory(kind: &str, most: Option<u64>) -> Result<(), String> {
    if most == Some(0) {
        return Err(format!("{kind}.memory_bytes_max is at least 1"));
    }
    Ok(())
}

fn absolute(kind: &str, path: &Path) -> Result<(), String> {
    if !path.is_absolute() {
        return Err(format!(
            "{kind}.path is {}; it must be absolute",
            path.display()
        ));
    }
    Ok(())
}

fn interface(kind: &str, name: &str) -> Result<(), String> {
    if !(1..=15).contains(&name.len()) {
        return Err(format!(
            "{kind}.interface is {name:?}; it has 1 to 15 bytes"
        ));
    }
    Ok(())
}
