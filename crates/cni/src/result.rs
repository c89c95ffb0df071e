//! What the runtime is told when something was done: section 5 of the specification, "Success".

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::{Code, Error};

/// An interface. `mtu` and `socketPath` are of version 1.1.0 on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Interface {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) mac: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) sandbox: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) socket_path: String,
    /// What others have said of it.
    #[serde(flatten)]
    pub(crate) rest: Map<String, Value>,
}

/// The result of ADD: what plugins before this one have made, this one's interface, and the addresses of its IPAM plugin.
pub(crate) fn of_add(
    config: &Config,
    mut interface: Interface,
    addresses: Option<Value>,
) -> Result<String, Error> {
    let mut result = match &config.prev_result {
        Some(Value::Object(earlier)) => earlier.clone(),
        _ => Map::new(),
    };
    if config.cni_version != "1.1.0" {
        interface.mtu = None;
    }
    let number = append(&mut result, "interfaces", vec![json!(interface)])?;
    if let Some(Value::Object(mut given)) = addresses {
        let mut ips = list(&mut given, "ips")?;
        for ip in &mut ips {
            let Value::Object(ip) = ip else {
                return Err(not_right("ips"));
            };
            ip.insert("interface".to_owned(), json!(number));
            note_version(config, ip);
        }
        append(&mut result, "ips", ips)?;
        let routes = list(&mut given, "routes")?;
        append(&mut result, "routes", routes)?;
        if let Some(dns) = given.remove("dns") {
            result.entry("dns").or_insert(dns);
        }
    }
    result.insert("cniVersion".to_owned(), json!(config.cni_version));
    Ok(Value::Object(result).to_string())
}

/// Before 1.0.0 addresses said of which version of the Internet's protocol they are.
fn note_version(config: &Config, ip: &mut Map<String, Value>) {
    if config.cni_version.starts_with("0.") && !ip.contains_key("version") {
        let address = ip.get("address").and_then(Value::as_str);
        let address = address.and_then(|it| it.split('/').next()?.parse().ok());
        let version = match address {
            Some(IpAddr::V6(_)) => "6",
            _ => "4",
        };
        ip.insert("version".to_owned(), json!(version));
    }
}

fn not_right(what: &str) -> Error {
    Error::new(
        Code::Decode,
        format!("an earlier result's {what} are not right"),
        "",
    )
}

fn list(from: &mut Map<String, Value>, name: &str) -> Result<Vec<Value>, Error> {
    match from.remove(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(not_right(name)),
    }
}

/// Adds to a list; returns how many it had before.
fn append(result: &mut Map<String, Value>, name: &str, more: Vec<Value>) -> Result<usize, Error> {
    let mut all = list(result, name)?;
    let before = all.len();
    all.extend(more);
    if !all.is_empty() {
        result.insert(name.to_owned(), Value::Array(all));
    }
    Ok(before)
}
