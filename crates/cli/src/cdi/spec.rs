//! The specification: a JSON file by which container engines know a device.
//!
//! Source: Container Device Interface specification 0.3.0 (tags.cncf.io/container-device-interface, SPEC.md), the oldest version that
//! has all that is needed here, so that old engines read it too.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::directory::{Directory, IN_CONTAINER, PACKET_IN_CONTAINER, PROGRAM};
use super::images::preload_path;

/// The file's name, as the specification advises: vendor and class.
pub(super) const FILE_NAME: &str = "millrace.dev-socket.json";
/// That of packet ports.
pub(super) const PACKET_FILE_NAME: &str = "millrace.dev-packet.json";
const KIND: &str = "millrace.dev/socket";
const PACKET_KIND: &str = "millrace.dev/packet";
/// The device for every image.
pub(super) const EVERY: &str = "all";
/// The device that has programs load the library by `LD_PRELOAD`.
const BY_VARIABLE: &str = "variable";

/// Every device, and what it is for.
pub(super) const DEVICES: [(&str, &str); 2] = [
    (
        EVERY,
        "every image; programs with its glibc are accelerated",
    ),
    (
        BY_VARIABLE,
        "images with musl (Alpine), and engines without hooks; sets LD_PRELOAD in place of the image's own",
    ),
];

/// When engines run the program, and the words behind `millrace cdi hook`.
const HOOKS: [(&str, &[&str]); 3] = [
    ("createRuntime", &["label"]),
    ("createContainer", &[]),
    ("poststop", &["unlabel"]),
];

/// A device as container engines name it.
pub(super) fn qualified(device: &str) -> String {
    format!("{KIND}={device}")
}

/// A device of packet ports.
pub(super) fn qualified_packet(device: &str) -> String {
    format!("{PACKET_KIND}={device}")
}

/// Where a container finds the sockets of a device.
pub(super) fn packet_place(device: &str) -> String {
    format!("{PACKET_IN_CONTAINER}/{device}")
}

/// The file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Specification {
    cdi_version: String,
    kind: String,
    devices: Vec<Device>,
    #[serde(default, skip_serializing_if = "Edits::are_none")]
    container_edits: Edits,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Edits {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Mount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<Hook>,
}

impl Edits {
    fn are_none(&self) -> bool {
        *self == Edits::default()
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
}

impl Mount {
    /// A directory of the machine's, read-only.
    fn of(host_path: &Path, container_path: &str) -> Mount {
        Mount {
            host_path: host_path.to_string_lossy().into_owned(),
            container_path: container_path.to_owned(),
            options: ["ro", "nosuid", "nodev", "bind", "rprivate"]
                .map(str::to_owned)
                .to_vec(),
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: String,
    path: String,
    args: Vec<String>,
    env: Vec<String>,
}

impl Hook {
    /// `millrace cdi hook WORDS`, by the directory's own program.
    fn of(directory: &Directory, when: &str, words: &[&str]) -> Hook {
        let words = ["millrace", "cdi", "hook"].iter().chain(words);
        Hook {
            hook_name: when.to_owned(),
            path: directory.0.join(PROGRAM).to_string_lossy().into_owned(),
            args: words.map(|word| (*word).to_owned()).collect(),
            // A hook without an environment of its own gets the image's, from some engines.
            env: vec!["MILLRACE=off".to_owned()],
        }
    }
}

impl Specification {
    /// The one that gives containers this directory.
    pub(super) fn of(directory: &Directory) -> Specification {
        let hook = |(when, words): (&str, &[&str])| Hook::of(directory, when, words);
        let device = |name: &str, container_edits| Device {
            name: name.to_owned(),
            container_edits,
        };
        Specification {
            cdi_version: "0.3.0".to_owned(),
            kind: KIND.to_owned(),
            devices: vec![
                device(
                    EVERY,
                    Edits {
                        hooks: HOOKS.into_iter().map(hook).collect(),
                        ..Edits::default()
                    },
                ),
                device(
                    BY_VARIABLE,
                    Edits {
                        env: vec![format!(
                            "LD_PRELOAD={}",
                            preload_path(Path::new(IN_CONTAINER))
                        )],
                        ..Edits::default()
                    },
                ),
            ],
            container_edits: Edits {
                mounts: vec![Mount::of(&directory.0, IN_CONTAINER)],
                ..Edits::default()
            },
        }
    }

    /// The one of packet ports: devices of these names, by the switch with this control socket. What is mounted is an empty directory, in
    /// whose place the hook puts the container's own.
    pub(super) fn of_packets(
        directory: &Directory,
        switch: &Path,
        names: &[String],
    ) -> Specification {
        let switch = switch.to_string_lossy();
        let device = |name: &String| {
            let place = packet_place(name);
            let words = ["packet", "--device", name, "--switch", &switch];
            Device {
                name: name.clone(),
                container_edits: Edits {
                    env: vec![format!("{}={place}", variable_of(name))],
                    mounts: vec![Mount::of(&directory.packet_place(), &place)],
                    hooks: vec![Hook::of(directory, "createRuntime", &words)],
                },
            }
        };
        Specification {
            cdi_version: "0.3.0".to_owned(),
            kind: PACKET_KIND.to_owned(),
            devices: names.iter().map(device).collect(),
            container_edits: Edits::default(),
        }
    }

    pub(super) fn parse(text: &str) -> anyhow::Result<Specification> {
        let specification: Specification = serde_json::from_str(text)?;
        anyhow::ensure!(
            specification.kind == KIND && !specification.container_edits.mounts.is_empty(),
            "it is of another kind"
        );
        Ok(specification)
    }

    /// One of packet ports.
    pub(super) fn parse_packets(text: &str) -> anyhow::Result<Specification> {
        let specification: Specification = serde_json::from_str(text)?;
        anyhow::ensure!(specification.kind == PACKET_KIND, "it is of another kind");
        Ok(specification)
    }

    /// Names of its devices.
    pub(super) fn names(&self) -> Vec<String> {
        self.devices
            .iter()
            .map(|device| device.name.clone())
            .collect()
    }

    /// Of packet ports: the control socket of their switch.
    pub(super) fn switch(&self) -> Option<&Path> {
        let hook = self.devices.first()?.container_edits.hooks.first()?;
        let at = hook.args.iter().position(|word| word == "--switch")?;
        hook.args.get(at + 1).map(Path::new)
    }

    pub(super) fn to_json(&self) -> String {
        // A struct of strings always can be written.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The directory that containers get.
    pub(super) fn directory(&self) -> Directory {
        let mount = self.container_edits.mounts.first();
        Directory(mount.map_or_else(Default::default, |mount| {
            Path::new(&mount.host_path).to_owned()
        }))
    }
}

/// The variable that says where a device's sockets are.
fn variable_of(device: &str) -> String {
    let name = device.to_ascii_uppercase().replace('-', "_");
    format!("MILLRACE_PACKET_{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_packet_ports_say_where_the_sockets_are_and_who_makes_them() {
        let directory = Directory(Path::new("/srv/mr").to_owned());
        let names = ["fast".to_owned(), "tenant-7".to_owned()];
        let switch = Path::new("/run/switch.sock");
        let written = Specification::of_packets(&directory, switch, &names);
        assert!(!written.to_json().contains("\"containerEdits\": {}"));
        let read = Specification::parse_packets(&written.to_json()).unwrap();
        assert_eq!(read, written);
        assert_eq!(
            (read.names(), read.switch()),
            (names.to_vec(), Some(switch))
        );
        let edits = &read.devices[1].container_edits;
        assert_eq!(
            edits.env,
            ["MILLRACE_PACKET_TENANT_7=/run/millrace-packet/tenant-7"]
        );
        assert_eq!(edits.mounts[0].host_path, "/srv/mr/packet");
        assert_eq!(
            edits.mounts[0].container_path,
            "/run/millrace-packet/tenant-7"
        );
        let hook = &edits.hooks[0];
        assert_eq!(
            (hook.hook_name.as_str(), hook.args[2..].join(" ")),
            (
                "createRuntime",
                "hook packet --device tenant-7 --switch /run/switch.sock".to_owned()
            )
        );
        assert!(Specification::parse(&written.to_json()).is_err());
        assert!(Specification::parse_packets(&Specification::of(&directory).to_json()).is_err());
    }

    #[test]
    fn what_is_written_is_read_again_and_names_its_directory() {
        let directory = Directory(Path::new("/srv/mr").to_owned());
        let written = Specification::of(&directory);
        let read = Specification::parse(&written.to_json()).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.directory().0, directory.0);
        let hooks = read.devices[0].container_edits.hooks.iter();
        let hooks: Vec<String> = hooks
            .map(|hook| format!("{}: {} {}", hook.hook_name, hook.path, hook.args.join(" ")))
            .collect();
        assert_eq!(
            hooks,
            [
                "createRuntime: /srv/mr/millrace millrace cdi hook label",
                "createContainer: /srv/mr/millrace millrace cdi hook",
                "poststop: /srv/mr/millrace millrace cdi hook unlabel",
            ]
        );
        let names: Vec<&str> = read
            .devices
            .iter()
            .map(|device| device.name.as_str())
            .collect();
        assert_eq!(names, DEVICES.map(|(name, _)| name));
        assert!(
            Specification::parse(
                r#"{"cdiVersion":"0.3.0","kind":"a.b/c","devices":[],"containerEdits":{}}"#
            )
            .is_err()
        );
    }
}
