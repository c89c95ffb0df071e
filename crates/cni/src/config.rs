//! What the runtime says: a network's configuration, and for whom.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Code, Error};
use crate::result::Interface;

/// Versions of the specification that are spoken, the oldest first.
pub(crate) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The one that answers are of when none can be told.
const VERSION: &str = "1.1.0";
/// Where ports' sockets and what is written of them are.
const DIRECTORY: &str = "/var/lib/millrace/cni";
/// Bytes of an interface's name, at most.
const INTERFACE_BYTES_MAX: usize = 15;

/// A network's configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    pub(crate) cni_version: String,
    pub(crate) name: String,
    /// The switch's control socket. Otherwise root's own.
    pub(crate) switch: Option<PathBuf>,
    /// Of which kind ports are.
    #[serde(default)]
    pub(crate) port: Kind,
    /// The name of a TAP interface, where it is not `CNI_IFNAME`, which a plugin before this one may have used.
    pub(crate) interface: Option<String>,
    /// Where sockets are, each in a directory `NETWORK/CONTAINER/INTERFACE` below this, and what is written of all.
    #[serde(default = "directory")]
    pub(crate) directory: PathBuf,
    /// The user and the group that sockets are for are not the plugin's business; these are their permissions.
    pub(crate) socket_mode: Option<u32>,
    /// The VLAN that pods are in.
    pub(crate) vlan: Option<u16>,
    /// Bytes of a packet of the Internet, at most.
    pub(crate) mtu: Option<u16>,
    /// Further settings of the switch's port, as its configuration file has them.
    #[serde(default)]
    pub(crate) settings: serde_json::Map<String, Value>,
    pub(crate) ipam: Option<Ipam>,
    /// What plugins before this one have made.
    pub(crate) prev_result: Option<Value>,
    #[serde(default)]
    pub(crate) runtime_config: RuntimeConfig,
    /// GC: those that still are.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub(crate) valid_attachments: Option<Vec<Attached>>,
}

/// Who gives addresses.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Ipam {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
}

/// What the runtime was told of the pod.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct RuntimeConfig {
    pub(crate) mac: Option<String>,
}

/// A container's interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attached {
    #[serde(rename = "containerID")]
    pub(crate) container: String,
    pub(crate) ifname: String,
}

/// Kinds of port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The pod's program connects to a socket, and makes the memory.
    #[default]
    Memif,
    /// The pod's program, or a virtual machine's monitor, connects to a socket: a virtio-net front end.
    VhostUser,
    /// An interface in the pod's network namespace: the kernel's stack.
    Tap,
}

impl Kind {
    /// As the switch calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Memif => "memif",
            Kind::VhostUser => "vhost_user",
            Kind::Tap => "tap",
        }
    }

    /// Whether the pod's program finds a socket.
    pub(crate) fn has_socket(self) -> bool {
        self != Kind::Tap
    }
}

fn directory() -> PathBuf {
    DIRECTORY.into()
}

/// The version that an answer to this configuration is of.
pub(crate) fn version_of(input: &[u8]) -> String {
    let value: Option<Value> = serde_json::from_slice(input).ok();
    let said = value.and_then(|value| Some(value.get("cniVersion")?.as_str()?.to_owned()));
    let known = said.filter(|said| VERSIONS.contains(&said.as_str()));
    known.unwrap_or_else(|| VERSION.to_owned())
}

impl Config {
    pub(crate) fn parse(input: &[u8]) -> Result<Config, Error> {
        let wrong = |error| {
            Error::new(
                Code::Decode,
                "the network's configuration is not right",
                error,
            )
        };
        let config: Config = serde_json::from_slice(input).map_err(wrong)?;
        if !VERSIONS.contains(&config.cni_version.as_str()) {
            return Err(Error::new(
                Code::Version,
                format!("version {} is not spoken here", config.cni_version),
                format!("spoken are {}", VERSIONS.join(", ")),
            ));
        }
        let invalid = |what: String| Err(Error::new(Code::Config, what, ""));
        if !is_identifier(&config.name) {
            return invalid(format!(
                "{:?} is no name of a network: letters, digits, and behind the first also . _ -",
                config.name
            ));
        }
        if !config.directory.is_absolute() {
            return invalid(format!(
                "the directory {} is no absolute path",
                config.directory.display()
            ));
        }
        if let Some(mac) = &config.runtime_config.mac
            && !is_mac(mac)
        {
            return invalid(format!("{mac:?} is no MAC address"));
        }
        match &config.interface {
            Some(_) if config.port != Kind::Tap => {
                invalid("only a port of kind tap has an interface to name".to_owned())
            }
            Some(name) if !is_interface(name) => {
                invalid(format!("{name:?} is no name of an interface"))
            }
            _ => Ok(config),
        }
    }

    /// What the interface is called in the pod whose runtime asks for `ifname`.
    pub(crate) fn interface_of<'a>(&'a self, ifname: &'a str) -> &'a str {
        self.interface.as_deref().unwrap_or(ifname)
    }

    /// Interfaces that there are already.
    pub(crate) fn earlier_interfaces(&self) -> Vec<Interface> {
        let interfaces = self
            .prev_result
            .as_ref()
            .and_then(|it| it.get("interfaces"));
        interfaces
            .and_then(|it| serde_json::from_value(it.clone()).ok())
            .unwrap_or_default()
    }
}

/// Names of networks and containers (specification, section 1 and "Parameters").
pub(crate) fn is_identifier(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric();
    name.starts_with(is_plain) && name.chars().all(|c| is_plain(c) || "._-".contains(c))
}

/// Names of interfaces, as the kernel has them.
pub(crate) fn is_interface(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= INTERFACE_BYTES_MAX
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control())
}

fn is_mac(text: &str) -> bool {
    parse_mac(text).is_some()
}

/// Six bytes.
pub(crate) fn parse_mac(text: &str) -> Option<Vec<u8>> {
    let byte = |part: &str| {
        let number = u8::from_str_radix(part, 16).ok();
        number.filter(|_| part.len() == 2)
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    bytes.filter(|bytes| bytes.len() == 6)
}
