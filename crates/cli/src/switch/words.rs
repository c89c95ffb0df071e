//! `KEY=VALUE` of the command line, as the configuration file would have it.

use std::path::Path;

use anyhow::{Context, bail};
use millrace_switch::KINDS;

/// Keys of all ports, whatever their kind.
const OF_PORTS: [&str; 8] = [
    "worker",
    "container",
    "vlan",
    "mtu",
    "mac_limit",
    "horizon",
    "storm",
    "police",
];
/// Keys of flows that do not say which frames.
const OF_FLOWS: [&str; 4] = ["priority", "in", "out", "drop"];
/// Keys whose values are lists.
const LISTS: [&str; 4] = ["out", "ports", "vlan.trunk", "af_xdp.take"];

/// A port.
pub(crate) fn port(name: &str, kind: &str, words: &[String]) -> anyhow::Result<String> {
    if !KINDS.contains(&kind) {
        bail!(
            "{kind:?} is no kind of port: there are {}",
            KINDS.join(", ")
        );
    }
    let mut toml = line("name", &text(name));
    let mut has_own = false;
    for word in words {
        let (key, value) = pair(word)?;
        let first = key.split('.').next().unwrap_or_default();
        let is_common = OF_PORTS.contains(&first);
        has_own |= !is_common;
        let key = if is_common {
            key
        } else {
            format!("{kind}.{key}")
        };
        let value = match key.as_str() {
            // The switch may be in another directory.
            "pcap.read" | "pcap.write" if !value.starts_with(['"', '\'']) => {
                let path = std::path::absolute(value).context("the file's path")?;
                text(&path.to_string_lossy())
            }
            _ => literal(&key, value),
        };
        toml.push_str(&line(&key, &value));
    }
    if !has_own {
        toml.push_str(&line(kind, "{}"));
    }
    Ok(toml)
}

/// A flow.
pub(crate) fn flow(name: &str, words: &[String]) -> anyhow::Result<String> {
    let mut toml = line("name", &text(name));
    for word in words {
        if word == "drop" {
            toml.push_str("drop = true\n");
            continue;
        }
        let (key, value) = pair(word)?;
        let is_own = OF_FLOWS.contains(&key.as_str());
        let value = match key.as_str() {
            // Names, whatever they look like.
            "in" => text(value),
            _ => literal(&key, value),
        };
        let key = if is_own { key } else { format!("match.{key}") };
        toml.push_str(&line(&key, &value));
    }
    Ok(toml)
}

/// A mirror.
pub(crate) fn mirror(name: &str, file: &Path, words: &[String]) -> anyhow::Result<String> {
    let Some(file) = file.to_str() else {
        bail!("the file's path is not UTF-8");
    };
    let mut toml = line("name", &text(name)) + &line("file", &text(file));
    for word in words {
        let (key, value) = pair(word)?;
        toml.push_str(&line(&key, &literal(&key, value)));
    }
    Ok(toml)
}

fn line(key: &str, value: &str) -> String {
    format!("{key} = {value}\n")
}

fn pair(word: &str) -> anyhow::Result<(String, &str)> {
    let Some((key, value)) = word.split_once('=') else {
        bail!("{word:?} is not KEY=VALUE");
    };
    let is_key = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    if !key.split('.').all(is_key) || value.is_empty() {
        bail!("{word:?} is not KEY=VALUE");
    }
    Ok((key.replace('-', "_"), value))
}

/// A value as TOML has it: numbers, lists, tables and what is in quotes as they are, anything else as text.
fn literal(key: &str, value: &str) -> String {
    let is_list = LISTS.contains(&key);
    if value.starts_with(['[', '{', '"', '\'']) {
        return value.to_owned();
    }
    if is_list {
        let is_names = key != "vlan.trunk";
        let items = value.split(',').map(str::trim);
        let items = items.map(|item| if is_names { text(item) } else { scalar(item) });
        return format!("[{}]", items.collect::<Vec<_>>().join(", "));
    }
    scalar(value)
}

fn scalar(value: &str) -> String {
    let number = value.replace('_', "");
    let is_number = number.parse::<u64>().is_ok()
        || number
            .strip_prefix("0x")
            .is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok())
        || number
            .strip_prefix("0o")
            .is_some_and(|digits| u64::from_str_radix(digits, 8).is_ok());
    if is_number || matches!(value, "true" | "false") {
        return value.to_owned();
    }
    text(value)
}

/// Text as TOML has it, which JSON has alike.
fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_port_is_as_in_the_file() {
        let toml = port(
            "web",
            "memif",
            &words(&[
                "path=/run/a b.sock",
                "ring-size=512",
                "vlan.trunk=10,20",
                "mtu=9000",
            ]),
        );
        let expected = "name = \"web\"\nmemif.path = \"/run/a b.sock\"\nmemif.ring_size = 512\n\
                        vlan.trunk = [10, 20]\nmtu = 9000\n";
        assert_eq!(toml.unwrap(), expected);
        let config = millrace_switch::Config::parse(&format!("[[port]]\n{expected}")).unwrap();
        assert_eq!(config.port[0].mtu, Some(9000));
        assert_eq!(port("x", "pcap", &[]).unwrap(), "name = \"x\"\npcap = {}\n");
        let toml = port("w", "ring", &words(&["name=switch/w", "side=second"]));
        assert_eq!(
            toml.unwrap(),
            "name = \"w\"\nring.name = \"switch/w\"\nring.side = \"second\"\n"
        );
        let here = std::env::current_dir().unwrap();
        let toml = port("c", "pcap", &words(&["write=look.pcap", "read=/a"])).unwrap();
        let written = here.join("look.pcap").display().to_string();
        assert!(
            toml.contains(&format!("pcap.write = {written:?}\n")),
            "{toml}"
        );
        assert!(toml.contains("pcap.read = \"/a\"\n"), "{toml}");
        assert!(port("x", "veth", &[]).is_err() && port("x", "pcap", &words(&["y"])).is_err());
    }

    #[test]
    fn a_flow_is_as_in_the_file() {
        let given = words(&[
            "in=7",
            "out=db,log",
            "ip_src=10.0.0.0/8",
            "dst_port=80",
            "priority=5",
        ]);
        let toml = flow("f", &given).unwrap();
        let expected = "name = \"f\"\nin = \"7\"\nout = [\"db\", \"log\"]\n\
                        match.ip_src = \"10.0.0.0/8\"\nmatch.dst_port = 80\npriority = 5\n";
        assert_eq!(toml, expected);
        assert!(millrace_switch::Config::parse(&format!("[[flow]]\n{toml}")).is_ok());
        assert_eq!(
            flow("f", &words(&["drop"])).unwrap(),
            "name = \"f\"\ndrop = true\n"
        );
        for wrong in ["out", "=x", "a b=1", "x=", "a..b=1", "a\n=1"] {
            assert!(flow("f", &words(&[wrong])).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_value_cannot_become_another_line() {
        let toml = flow("f", &words(&["ip_src=1\ndrop = true"])).unwrap();
        assert_eq!(toml, "name = \"f\"\nmatch.ip_src = \"1\\ndrop = true\"\n");
    }
}
