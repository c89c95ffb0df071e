//! What a switch is told: plain structs, read from a TOML file or from the command line, and checked before anything is done.
//!
//! `crates/switch/switch.toml` documents every field with its default.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use device::{DeviceConfig, check_device_name};
pub use flow::{FlowConfig, MatchConfig, Text};
pub(crate) use kinds::Kind;
pub use kinds::{
    AfXdpConfig, KINDS, MemifConfig, PcapConfig, RingConfig, RingSide, Role, TapConfig,
    VhostUserConfig, VirtioUserConfig, VxlanConfig,
};
pub use port::{Direction, MirrorConfig, PoliceConfig, PortConfig, StormConfig, VlanConfig};

mod device;
mod flow;
mod kinds;
mod port;

/// Longest time that a worker may look for packets before it sleeps.
const SPIN_US_MAX: u32 = 10_000;
/// Workers are told of each other by a lane each way.
pub(crate) const WORKERS_MAX: usize = 16;
/// Ports, mirrors and tunnels together.
pub(crate) const PORTS_MAX: usize = 4096;
/// Flows together.
pub(crate) const FLOWS_MAX: usize = 16_384;
const STATIONS_MAX: usize = 4 << 20;

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Processors, with one worker each; empty: one worker, on whichever processor.
    pub processors: Vec<usize>,
    /// How long a worker looks for packets before it sleeps, in microseconds.
    pub spin_us: u32,
    /// `ADDRESS:PORT`, or the absolute path of a unix socket.
    pub metrics: Option<String>,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// What is learnt of stations.
    pub mac: MacConfig,
    /// Ports.
    pub port: Vec<PortConfig>,
    /// Flows.
    pub flow: Vec<FlowConfig>,
    /// Mirrors.
    pub mirror: Vec<MirrorConfig>,
    /// What containers may have by a device.
    pub device: Vec<DeviceConfig>,
}

/// What is learnt of stations.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MacConfig {
    /// Stations in all.
    pub entries: usize,
    /// What was not heard of for so many seconds is forgotten.
    pub age_s: u64,
}

impl Default for MacConfig {
    fn default() -> MacConfig {
        MacConfig {
            entries: 65_536,
            age_s: 300,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            processors: Vec::new(),
            spin_us: 50,
            metrics: None,
            control: None,
            mac: MacConfig::default(),
            port: Vec::new(),
            flow: Vec::new(),
            mirror: Vec::new(),
            device: Vec::new(),
        }
    }
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
        let config: Config = parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// What can be said without looking at one thing beside another: the switch does that when it takes them in.
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
            return Err(format!(
                "spin_us is {}; it must be at most {SPIN_US_MAX}",
                self.spin_us
            ));
        }
        if !(1..=STATIONS_MAX).contains(&self.mac.entries) {
            let entries = self.mac.entries;
            return Err(format!(
                "mac.entries is {entries}; it must be from 1 to {STATIONS_MAX}"
            ));
        }
        if !(1..=1_000_000).contains(&self.mac.age_s) {
            let age = self.mac.age_s;
            return Err(format!("mac.age_s is {age}; it must be from 1 to 1000000"));
        }
        if let Some(metrics) = &self.metrics
            && !metrics.starts_with('/')
            && metrics.parse::<std::net::SocketAddr>().is_err()
        {
            let wanted = "an address with a port, as 127.0.0.1:9465, or an absolute path";
            return Err(format!("metrics is {metrics:?}; it must be {wanted}"));
        }
        self.port.iter().try_for_each(PortConfig::check)?;
        self.mirror.iter().try_for_each(MirrorConfig::check)?;
        let devices = self.device.iter().map(|device| device.name.as_str());
        let mut devices: Vec<&str> = devices.collect();
        devices.sort_unstable();
        if let Some(twice) = devices.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("device {:?}: there are two of that name", twice[0]));
        }
        self.flow.iter().try_for_each(FlowConfig::check)
    }
}

/// A part of a configuration, from TOML.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
}

/// A name of a port, a flow or a mirror: what fits into a word of the command line, and a label of a metric.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_./@".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        return Err(format!(
            "{what} {name:?}: a name has 1 to 64 letters, digits, and any of - _ . / @"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
