//! The specification: a JSON file by which container engines know a device.
//!
//! Source: Container Device Interface specification 0.3.0 (tags.cncf.io/container-device-interface, SPEC.md), the oldest version that
//! has all that is needed here, so that old engines read it too.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::directory::{Directory, IN_CONTAINER, PROGRAM};
use super::images::preload_path;

/// The file's name, as the specification advises: vendor and class.
pub(super) const FILE_NAME: &str = "millrace.dev-socket.json";
const KIND: &str = "millrace.dev/socket";
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

/// The file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Specification {
    cdi_version: String,
    kind: String,
    devices: Vec<Device>,
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

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: String,
    path: String,
    args: Vec<String>,
    env: Vec<String>,
}

impl Specification {
    /// The one that gives containers this directory.
    pub(super) fn of(directory: &Directory) -> Specification {
        let host_path = directory.0.to_string_lossy().into_owned();
        let program = directory.0.join(PROGRAM).to_string_lossy().into_owned();
        let hook = |(when, words): (&str, &[&str])| Hook {
            hook_name: when.to_owned(),
            path: program.clone(),
            args: ["millrace", "cdi", "hook"]
                .iter()
                .chain(words)
                .map(|word| (*word).to_owned())
                .collect(),
            // A hook without an environment of its own gets the image's, from some engines.
            env: vec!["MILLRACE=off".to_owned()],
        };
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
                mounts: vec![Mount {
                    host_path,
                    container_path: IN_CONTAINER.to_owned(),
                    options: ["ro", "nosuid", "nodev", "bind", "rprivate"]
                        .map(str::to_owned)
                        .to_vec(),
                }],
                ..Edits::default()
            },
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

#[cfg(test)]
mod tests {
    use super::*;

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
