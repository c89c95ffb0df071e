//! What containers may have by a device.

use std::path::PathBuf;

use serde::Deserialize;
use toml::{Table, Value};

use super::PortConfig;

/// Kinds of port that a container can be given: those with a socket that the switch listens at.
const KINDS: [&str; 2] = ["memif", "vhost_user"];
/// What is not the configuration's to say: where the socket is follows from the container, and the switch listens.
const KEPT: [&str; 2] = ["path", "role"];
/// Ports of one container by one device, at most.
const PORTS_MAX: u32 = 16;
/// Letters of a device's name: it is a part of a socket's path, which has 107 bytes.
const NAME_BYTES_MAX: usize = 16;
/// The socket is in a directory that nobody but the container has, whoever it is in there.
const SOCKET_MODE: u32 = 0o666;

/// Ports that a container gets which asks for the CDI device `millrace.dev/packet=NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Table")]
pub struct DeviceConfig {
    /// The device's name.
    pub name: String,
    /// How many ports a container gets.
    pub ports: u32,
    /// How many containers may have it at a time.
    pub containers: Option<u32>,
    /// How each port is, but for its name and its socket.
    port: PortConfig,
}

impl TryFrom<Table> for DeviceConfig {
    type Error = String;

    fn try_from(mut table: Table) -> Result<DeviceConfig, String> {
        let Some(Value::String(name)) = table.remove("name") else {
            return Err("a device has a name".to_owned());
        };
        check_device_name(&name)?;
        let named = |what: String| format!("device {name:?}: {what}");
        let ports = number(&mut table, "ports").map_err(named)?.unwrap_or(1);
        if ports > PORTS_MAX {
            return Err(named(format!("ports is from 1 to {PORTS_MAX}")));
        }
        let containers = number(&mut table, "containers").map_err(named)?;
        let none = || named(format!("give one of {}", KINDS.join(", ")));
        let kind = KINDS.into_iter().find(|kind| table.contains_key(*kind));
        let kind = kind.ok_or_else(none)?;
        let own = table.get_mut(kind).and_then(Value::as_table_mut);
        let own = own.ok_or_else(none)?;
        if let Some(key) = KEPT.into_iter().find(|key| own.contains_key(*key)) {
            return Err(named(format!(
                "{kind}.{key} is not to be said: each container has its own socket, and the switch listens"
            )));
        }
        own.insert("path".to_owned(), Value::String("/".to_owned()));
        let mode = Value::Integer(SOCKET_MODE.into());
        own.entry("socket_mode").or_insert(mode);
        table.insert("name".to_owned(), Value::String("device".to_owned()));
        table.entry("container").or_insert(Value::Boolean(true));
        let port = table.try_into::<PortConfig>();
        let port = port.map_err(|error| named(error.to_string().trim_end().to_owned()))?;
        port.check().map_err(named)?;
        Ok(DeviceConfig {
            name,
            ports,
            containers,
            port,
        })
    }
}

impl DeviceConfig {
    /// A port of a container's.
    pub(crate) fn port(&self, name: String, socket: PathBuf) -> PortConfig {
        let mut port = self.port.clone();
        port.name = name;
        if let Some(memif) = &mut port.memif {
            memif.path = socket;
        } else if let Some(vhost_user) = &mut port.vhost_user {
            vhost_user.path = socket;
        }
        port
    }

    /// As the ports' kind is called.
    pub(crate) fn kind(&self) -> &'static str {
        if self.port.memif.is_some() {
            KINDS[0]
        } else {
            KINDS[1]
        }
    }

    /// What a container is told of its ports beside where they are: an interface's number and secret, the MTU.
    pub(crate) fn facts(&self) -> (Option<u32>, Option<&str>, Option<u16>) {
        let memif = self.port.memif.as_ref();
        let secret = memif.and_then(|memif| memif.secret.as_deref());
        (memif.map(|memif| memif.id), secret, self.port.mtu)
    }
}

/// A number from 1 on.
fn number(table: &mut Table, key: &str) -> Result<Option<u32>, String> {
    let Some(value) = table.remove(key) else {
        return Ok(None);
    };
    let number = value
        .as_integer()
        .and_then(|number| u32::try_from(number).ok());
    match number {
        Some(number) if number > 0 => Ok(Some(number)),
        _ => Err(format!("{key} is a number from 1 on")),
    }
}

/// Names of devices are those of CDI, of Kubernetes' resources, and of environment variables at once.
///
/// # Errors
/// What a name has to be.
pub fn check_device_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_good = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.starts_with(is_plain)
        && name.ends_with(is_plain)
        && name.chars().all(|c| is_plain(c) || c == '-');
    if !is_good {
        return Err(format!(
            "device {name:?}: a name has 1 to {NAME_BYTES_MAX} small letters and digits, and - between them"
        ));
    }
    Ok(())
}
