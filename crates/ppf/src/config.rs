//! What a function is told: a TOML file, checked before anything is done. `crates/ppf/ppf.toml` documents every field with its default.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use millrace_sched::placement::Machine;
use millrace_switch::{
    AfXdpConfig, MemifConfig, PcapConfig, RingConfig, TapConfig, VhostUserConfig, VirtioUserConfig,
};
use serde::Deserialize;

use crate::bearer::Side;
use crate::ethernet::Mac;
use crate::node::Interface;
use crate::route::Prefix;
pub use settings::{HoldConfig, ReassemblyConfig, SupervisionConfig};

mod settings;

/// Longest time that a worker may look for packets before it sleeps.
const SPIN_US_MAX: u32 = 10_000;
/// How long packets may wait, in microseconds.
const LATENCY_US: RangeInclusive<u32> = 10..=1_000_000;
/// Each worker has parcels for packets that it hands over to others, and knows all users and peers.
const WORKERS_MAX: usize = 16;
const PORTS_MAX: usize = 64;
/// Addresses of a port, and networks behind it: each is looked at for packets whose way is not known yet.
const ADDRESSES_MAX: usize = 16;
const ROUTES_MAX: usize = 64;
/// Bytes of a packet that leaves a port, at most and at least (RFC 8200, 5, with a tunnel's headers).
const MTU_MAX: usize = 65_535;
const MTU_MIN: usize = 576;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Processors, with one worker each; empty: one worker, on whichever processor.
    pub processors: Vec<usize>,
    /// So many workers, each on a processor that is chosen here, and is in `processors` then.
    workers: Option<usize>,
    /// How long a worker looks for packets before it sleeps, in microseconds.
    pub spin_us: u32,
    /// How long packets may wait for a worker, in microseconds: as many are active as the load and this need. None: all are.
    pub latency_us: Option<u32>,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// `ADDRESS:PORT` of the loopback interface, where it is asked as by the control socket.
    pub http: Option<SocketAddr>,
    /// The directory that bearers are kept in. Otherwise they are gone with the process.
    pub store: Option<PathBuf>,
    /// Outer packets that come in parts.
    pub reassembly: ReassemblyConfig,
    /// Error indications and lists of extension headers that are sent in a second, and as many of ICMP, at most.
    pub errors_per_second: u32,
    /// In whose name users are told that a packet is too long; otherwise in that of an address of the function's.
    pub gateway_v4: Option<Ipv4Addr>,
    /// The same in IPv6.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Whether peers are asked if they live, and how.
    pub supervision: Option<SupervisionConfig>,
    /// What paused bearers hold.
    pub hold: HoldConfig,
    /// Ports.
    pub port: Vec<PortConfig>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            processors: Vec::new(),
            workers: None,
            spin_us: 50,
            latency_us: None,
            control: None,
            http: None,
            store: None,
            reassembly: ReassemblyConfig::default(),
            errors_per_second: crate::function::ERRORS_PER_SECOND,
            gateway_v4: None,
            gateway_v6: None,
            supervision: None,
            hold: HoldConfig::default(),
            port: Vec::new(),
        }
    }
}

/// Which side, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SideName {
    Core,
    Radio,
}

/// A way that a gateway knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteConfig {
    /// The network.
    to: Prefix,
    /// The gateway, which is of one of the port's networks.
    via: IpAddr,
}

/// A port: what it is of, which side is there, and what the function is there. Exactly one of the kinds is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its name.
    pub name: String,
    side: SideName,
    memif: Option<MemifConfig>,
    vhost_user: Option<VhostUserConfig>,
    virtio_user: Option<VirtioUserConfig>,
    ring: Option<RingConfig>,
    tap: Option<TapConfig>,
    af_xdp: Option<AfXdpConfig>,
    pcap: Option<PcapConfig>,
    /// The number of the worker that has it. Otherwise the one with the fewest ports.
    pub worker: Option<usize>,
    mac: Option<String>,
    vlan: Option<u16>,
    addresses: Vec<Prefix>,
    #[serde(default)]
    routes: Vec<RouteConfig>,
    #[serde(default = "mtu")]
    mtu: usize,
    #[serde(default)]
    udp_zero_checksum: bool,
}

fn mtu() -> usize {
    1500
}

/// Why a configuration file cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// It cannot be read.
    Read(PathBuf, io::Error),
    /// It is not right; the text says where, and what would be.
    Wrong(PathBuf, String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Read(path, error) => write!(
                f,
                "cannot read the configuration {}: {error}",
                path.display()
            ),
            ConfigError::Wrong(path, what) => {
                write!(
                    f,
                    "the configuration {} is not right: {what}",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// When the file cannot be read or says something that makes no sense.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read(path.to_owned(), error))?;
        Config::parse(&text).map_err(|what| ConfigError::Wrong(path.to_owned(), what))
    }

    /// The same of a text.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Config, String> {
        let mut config: Config =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        config.choose_processors(|workers| Machine::detect().choose(workers, None))?;
        config.check()?;
        Ok(config)
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.processors.len().max(1)
    }

    fn choose_processors(&mut self, choose: impl Fn(usize) -> Vec<usize>) -> Result<(), String> {
        let Some(workers) = self.workers else {
            return Ok(());
        };
        if !self.processors.is_empty() {
            return Err(
                "workers chooses processors, and processors names them: one of both".into(),
            );
        }
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(format!(
                "workers is {workers}; it must be from 1 to {WORKERS_MAX}"
            ));
        }
        self.processors = choose(workers);
        let found = self.processors.len();
        if found < workers {
            return Err(format!(
                "workers is {workers}, and there are {found} processors that this program may use"
            ));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let workers = self.processors.len();
        if workers > WORKERS_MAX {
            return Err(format!(
                "processors has {workers} entries; there can be at most {WORKERS_MAX}"
            ));
        }
        let mut processors = self.processors.clone();
        processors.sort_unstable();
        if let Some(twice) = processors.windows(2).find(|pair| pair[0] == pair[1]) {
            let processor = twice[0];
            return Err(format!(
                "processors has {processor} twice; one worker runs on each"
            ));
        }
        if self.spin_us > SPIN_US_MAX {
            let spin = self.spin_us;
            return Err(format!(
                "spin_us is {spin}; it must be at most {SPIN_US_MAX}"
            ));
        }
        if let Some(latency) = self.latency_us.filter(|us| !LATENCY_US.contains(us)) {
            return Err(format!(
                "latency_us is {latency}; it must be from {} to {}",
                LATENCY_US.start(),
                LATENCY_US.end()
            ));
        }
        if let Some(http) = self.http.filter(|http| !http.ip().is_loopback()) {
            return Err(format!(
                "http is {http}: whoever can ask can change everything, so that it is an address of the loopback interface"
            ));
        }
        self.reassembly.check()?;
        self.check_settings()?;
        if self.port.is_empty() || self.port.len() > PORTS_MAX {
            let count = self.port.len();
            return Err(format!(
                "there are {count} ports; there can be 1 to {PORTS_MAX}"
            ));
        }
        let mut names = std::collections::HashSet::new();
        for port in &self.port {
            port.check(self.workers())?;
            if !names.insert(&port.name) {
                return Err(format!("port {:?}: there are two of that name", port.name));
            }
        }
        Ok(())
    }
}

impl PortConfig {
    fn check(&self, workers: usize) -> Result<(), String> {
        let named = |what: String| Err(format!("port {:?}: {what}", self.name));
        self.opened().check()?;
        if self.worker.is_some_and(|worker| worker >= workers) {
            return named(format!("worker is from 0 to {}", workers - 1));
        }
        if let Some(mac) = &self.mac {
            let mac: Mac = mac
                .parse()
                .map_err(|what| format!("port {:?}: {what}", self.name))?;
            if mac.is_group() {
                return named(format!("{mac} is a group's address"));
            }
        }
        if self.vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan)) {
            return named("vlan is from 1 to 4094".to_owned());
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return named(format!("mtu is from {MTU_MIN} to {MTU_MAX}"));
        }
        if self.addresses.is_empty() || self.addresses.len() > ADDRESSES_MAX {
            return named(format!("addresses has 1 to {ADDRESSES_MAX} entries"));
        }
        for own in &self.addresses {
            if own.address.is_unspecified() || own.address.is_multicast() {
                return named(format!("{own} is nobody's address"));
            }
        }
        if self.routes.len() > ROUTES_MAX {
            return named(format!("routes has at most {ROUTES_MAX} entries"));
        }
        for route in &self.routes {
            if !self.addresses.iter().any(|own| own.has(route.via)) {
                let via = route.via;
                return named(format!("the gateway {via} is of none of its networks"));
            }
            if route.to.address.is_ipv4() != route.via.is_ipv4() {
                return named(format!("{} and its gateway are of two families", route.to));
            }
        }
        Ok(())
    }

    /// Which side is there.
    fn on(&self) -> Side {
        match self.side {
            SideName::Core => Side::Core,
            SideName::Radio => Side::Radio,
        }
    }

    /// As the function sees it. It has been checked.
    #[must_use]
    pub fn interface(&self) -> Interface {
        let mac = self.mac.as_ref().and_then(|mac| mac.parse().ok());
        Interface {
            name: self.name.clone(),
            side: self.on(),
            mac: mac.unwrap_or_else(|| Mac::of_name(&self.name)),
            vlan: self.vlan,
            addresses: self.addresses.clone(),
            routes: self.routes.iter().map(|one| (one.to, one.via)).collect(),
            mtu: self.mtu,
            udp_zero: self.udp_zero_checksum,
        }
    }

    /// What it is of. The function does nobody's checksums and segments, so that peers are told to do so themselves.
    pub(crate) fn opened(&self) -> millrace_switch::PortConfig {
        let mut port = millrace_switch::PortConfig {
            name: self.name.clone(),
            memif: self.memif.clone(),
            vhost_user: self.vhost_user.clone(),
            virtio_user: self.virtio_user.clone(),
            ring: self.ring.clone(),
            tap: self.tap.clone(),
            af_xdp: self.af_xdp.clone(),
            pcap: self.pcap.clone(),
            vxlan: None,
            worker: None,
            vlan: None,
            mtu: None,
            container: false,
            mac_limit: None,
            horizon: None,
            storm: millrace_switch::StormConfig::default(),
            police: millrace_switch::PoliceConfig::default(),
        };
        if let Some(one) = &mut port.vhost_user {
            one.offloads = false;
        }
        if let Some(one) = &mut port.virtio_user {
            one.offloads = false;
        }
        if let Some(one) = &mut port.tap {
            one.offloads = false;
        }
        port
    }

    /// A word for what it is of.
    pub(crate) fn kind(&self) -> &'static str {
        let given = [
            (self.memif.is_some(), "memif"),
            (self.vhost_user.is_some(), "vhost_user"),
            (self.virtio_user.is_some(), "virtio_user"),
            (self.ring.is_some(), "ring"),
            (self.tap.is_some(), "tap"),
            (self.af_xdp.is_some(), "af_xdp"),
            (self.pcap.is_some(), "pcap"),
        ];
        let given = given.iter().find(|(is_given, _)| *is_given);
        given.map_or("none", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests;
