//! The hooks that write a container's labels for the agent, and take them away: rules of channels go by them.
//!
//! OCI runtime specification, `createRuntime` and `poststop` hooks: run in the engine's namespaces, with the engine's rights, and told
//! the container's number and annotations. So what root's engine says comes to be root's file, whatever user namespace the container
//! gets; a `createContainer` hook would be in that namespace already. An engine of a user cannot write there: its containers have no
//! labels. Neither has one that a file could not be written for.
//!
//! A file that stays, since no `poststop` hook ran, is nobody's: no other container gets this number of 256 random bits. It goes with
//! /run.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use millrace_agent::{LABELS_DIRECTORY, Labels, labels_file_in};
use serde_json::Value;

use super::directory::{Directory, make_directories, replace, sweep};
use super::hook::state;

/// Writes the labels of the container that standard input describes. Always 0: the container is to start.
pub(super) fn write() -> u8 {
    if let Err(error) = write_in(Path::new(LABELS_DIRECTORY), &state()) {
        // Engines show it when they are told to log much.
        complain!("millrace: this container has no labels for rules of channels: {error:#}");
    }
    0
}

/// Takes them away.
pub(super) fn remove() -> u8 {
    if let Some(file) = file_of(Path::new(LABELS_DIRECTORY), &parsed(&state())) {
        remove_file(&file);
    }
    0
}

/// Takes those of all containers away. Whether there were any.
pub(super) fn clear(directory: &Path) -> anyhow::Result<bool> {
    match fs::remove_dir_all(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", directory.display())),
    }
}

fn parsed(state: &str) -> Value {
    serde_json::from_str(state).unwrap_or_default()
}

/// `None`: its name is not a number that control groups could show.
fn file_of(directory: &Path, state: &Value) -> Option<PathBuf> {
    labels_file_in(directory, state.get("id")?.as_str()?)
}

fn labels_of(state: &Value) -> Labels {
    let annotations = state.get("annotations").and_then(Value::as_object);
    let texts = annotations.into_iter().flatten();
    Labels::of_annotations(texts.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))))
}

fn write_in(directory: &Path, state: &str) -> anyhow::Result<()> {
    let state = parsed(state);
    let labels = labels_of(&state);
    let Some(file) = file_of(directory, &state) else {
        if labels.is_empty() {
            return Ok(());
        }
        bail!("the engine gave it no number of 64 digits");
    };
    if labels.is_empty() {
        // Of one that was made before by this number.
        remove_file(&file);
        return Ok(());
    }
    make(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Directory(directory.to_owned()).check_safe()?;
    replace(&file, labels.emit().as_bytes(), 0o600)
}

/// For root alone, in a directory for everybody: the agent's.
fn make(directory: &Path) -> io::Result<()> {
    if let Some(above) = directory.parent() {
        make_directories(above)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Whoever may not, has written none.
fn remove_file(file: &Path) {
    sweep(file);
    let _ = fs::remove_file(file);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    const NUMBER: &str = "2f5102ae29a3f18ca9d56498b35440b8d44b2e53c824bb006d3e1a7ab852383e";

    fn described(id: &str, annotations: &str) -> String {
        format!(r#"{{"ociVersion":"1.0.2","id":"{id}","pid":7,"annotations":{annotations}}}"#)
    }

    #[test]
    fn what_root_s_engine_says_comes_to_be_a_file_for_root_alone() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("millrace/labels");
        let told = described(
            NUMBER,
            r#"{"millrace.dev/role":"worker","millrace.dev/n":7,"other":"x"}"#,
        );
        write_in(&directory, &told).unwrap();
        let file = directory.join(NUMBER);
        assert_eq!(fs::read_to_string(&file).unwrap(), "role=worker\n");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
        assert_eq!(mode(directory.parent().unwrap()), 0o755);

        // Made again without labels, it has none.
        write_in(&directory, &described(NUMBER, "{}")).unwrap();
        assert!(!file.exists());
        assert!(clear(&directory).unwrap());
        assert!(!clear(&directory).unwrap());
    }

    #[test]
    fn a_container_without_labels_leaves_no_trace() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("labels");
        for told in [
            "",
            "no state",
            "[]",
            r#"{"id":7,"annotations":[]}"#,
            &described(NUMBER, r#"{"role":"worker"}"#),
            &described("../x", "null"),
        ] {
            write_in(&directory, told).unwrap();
        }
        assert!(!directory.exists());
    }

    #[test]
    fn no_file_is_written_by_another_name_than_a_number() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("labels");
        for id in ["../x", "web", "", &NUMBER[1..], &NUMBER.to_uppercase()] {
            let told = described(id, r#"{"millrace.dev/role":"worker"}"#);
            assert!(write_in(&directory, &told).is_err(), "{id}");
            assert_eq!(file_of(&directory, &parsed(&told)), None, "{id}");
        }
        assert!(!directory.exists());
    }

    #[test]
    fn a_directory_that_others_could_write_to_is_not_written_to() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("labels");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let told = described(NUMBER, r#"{"millrace.dev/role":"worker"}"#);
        assert!(write_in(&directory, &told).is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }
}
