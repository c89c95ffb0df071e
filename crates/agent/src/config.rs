//! The agent's configuration: one plain struct, read from a TOML file, validated once, then immutable.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use millrace_shm::segment::{RING_BYTES_MAX, RING_BYTES_MIN, is_ring_size};
use serde::Deserialize;

use crate::channels::ChannelRule;
use crate::policy::JoinConfig;

/// Longest time that an end may spin. More would burn a processor for sleeping peers.
const SPIN_US_MAX: u32 = 10_000;

/// What the agent is told. `crates/agent/agent.toml` documents every field with its default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Spin budget of an end that waits, in microseconds.
    pub spin_us: u32,
    /// Size of a ring after its first growth, for messages that the segment's small rings are too small for.
    pub ring_bytes: u32,
    /// Size of a ring after its second growth, for bulk.
    pub bulk_ring_bytes: u32,
    /// Calls on a connection after which it is offered.
    pub offer_after_calls: u32,
    /// Bytes on a connection after which it is offered.
    pub offer_after_bytes: u32,
    /// Names of the only programs to accelerate; empty means all.
    pub include: Vec<String>,
    /// Names of programs never to accelerate.
    pub exclude: Vec<String>,
    /// `ADDRESS:PORT`, or the absolute path of a unix socket.
    pub metrics: Option<String>,
    /// Who may be joined with whom.
    pub join: JoinConfig,
    /// Who may take part in which channels: the first that fits a name counts.
    pub channel: Vec<ChannelRule>,
    /// Limits.
    pub quota: QuotaConfig,
}

/// What one tenant may take: a pod or a container, or a user of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaConfig {
    /// Programs of one tenant that may be connected at a time.
    pub clients_per_tenant: u32,
    /// Offers of one program that may wait.
    pub offers_per_client: u32,
    /// Offers of all programs of one tenant.
    pub offers_per_tenant: u32,
    /// Ends of one program that may be on the ring.
    pub ends_per_client: u32,
    /// Ends of one tenant's programs that may be on the ring.
    pub ends_per_tenant: u32,
    /// Bytes of segments that one tenant pays for.
    pub bytes_per_tenant: u64,
    /// Bytes of pools and links of channels that one tenant pays for.
    pub channel_bytes_per_tenant: u64,
    /// Links that one participant of a channel may have.
    pub channel_links_per_participant: u32,
    /// Bytes of all segments, pools and links; `None`: a quarter of the memory there is.
    pub bytes_total: Option<u64>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            spin_us: 50,
            ring_bytes: 65_536,
            bulk_ring_bytes: 2 << 20,
            offer_after_calls: 12,
            offer_after_bytes: 65_536,
            include: Vec::new(),
            exclude: Vec::new(),
            metrics: None,
            join: JoinConfig::default(),
            channel: Vec::new(),
            quota: QuotaConfig::default(),
        }
    }
}

impl Default for QuotaConfig {
    fn default() -> QuotaConfig {
        QuotaConfig {
            clients_per_tenant: 4096,
            offers_per_client: 16_384,
            offers_per_tenant: 65_536,
            ends_per_client: 16_384,
            ends_per_tenant: 65_536,
            bytes_per_tenant: 2 << 30,
            channel_bytes_per_tenant: 1 << 30,
            channel_links_per_participant: 512,
            bytes_total: None,
        }
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// It cannot be read.
    Read(PathBuf, io::Error),
    /// It is not TOML, or has a field that does not exist.
    Syntax(PathBuf, toml::de::Error),
    /// A field has a value that makes no sense; the text says which and what would.
    Value(PathBuf, String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Read(path, error) => write!(
                f,
                "cannot read the configuration {}: {error}",
                path.display()
            ),
            ConfigError::Syntax(path, error) => {
                write!(
                    f,
                    "the configuration {} is not right: {}",
                    path.display(),
                    error.to_string().trim_end()
                )
            }
            ConfigError::Value(path, what) => write!(
                f,
                "the configuration {} is not right: {what}",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// When the file cannot be read or says something that makes no sense.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read(path.to_owned(), error))?;
        let config: Config =
            toml::from_str(&text).map_err(|error| ConfigError::Syntax(path.to_owned(), error))?;
        config
            .validate()
            .map_err(|what| ConfigError::Value(path.to_owned(), what))?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), String> {
        for (name, bytes) in [
            ("ring_bytes", self.ring_bytes),
            ("bulk_ring_bytes", self.bulk_ring_bytes),
        ] {
            if !is_ring_size(bytes) {
                let wanted = format!("a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX}");
                return Err(format!("{name} is {bytes}; it must be {wanted}"));
            }
        }
        if self.bulk_ring_bytes < self.ring_bytes {
            return Err(format!(
                "bulk_ring_bytes is {}; it must be at least ring_bytes, which is {}",
                self.bulk_ring_bytes, self.ring_bytes
            ));
        }
        if self.spin_us > SPIN_US_MAX {
            return Err(format!(
                "spin_us is {}; it must be at most {SPIN_US_MAX}",
                self.spin_us
            ));
        }
        if let Some(metrics) = &self.metrics
            && !metrics.starts_with('/')
            && metrics.parse::<std::net::SocketAddr>().is_err()
        {
            let wanted = "an address with a port, as 127.0.0.1:9464, or an absolute path";
            return Err(format!("metrics is {metrics:?}; it must be {wanted}"));
        }
        self.join.validate()?;
        self.channel.iter().try_for_each(ChannelRule::validate)
    }

    /// Whether a program that goes by these names is to be accelerated.
    #[must_use]
    pub fn admits(&self, names: &[&str]) -> bool {
        let listed = |list: &[String]| list.iter().any(|entry| names.contains(&entry.as_str()));
        (self.include.is_empty() || listed(&self.include)) && !listed(&self.exclude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.validate()?;
        Ok(config)
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        assert_eq!(parse(include_str!("../agent.toml")), Ok(Config::default()));
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn nonsense_is_refused_with_the_field_s_name() {
        let cases = [
            ("ring_bytes = 1000", "ring_bytes"),
            ("bulk_ring_bytes = 4096", "bulk_ring_bytes"),
            ("spin_us = 1000000", "spin_us"),
            ("spinus = 1", "spinus"),
            ("metrics = \"here\"", "metrics"),
            ("[quota]\nends = 1", "ends"),
            ("[[channel]]\nsend = [\"*\"]", "name"),
            ("[[channel]]\nname = \"x\"\nsend = [\"core/lb\"]", "core/lb"),
            ("[[channel]]\nname = \"x\"\nsends = []", "sends"),
        ];
        for (text, field) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(field), "{text}: {error}");
        }
    }

    #[test]
    fn exclude_wins_over_include() {
        let config =
            parse("include = [\"redis-server\", \"nginx\"]\nexclude = [\"nginx\"]").unwrap();
        assert!(config.admits(&["redis-server", "redis"]));
        assert!(!config.admits(&["nginx"]));
        assert!(!config.admits(&["curl"]));
        assert!(Config::default().admits(&["curl"]));
    }
}
