//! What is written of a container: in the switch's own directory a file `NAME.json`, and a directory `NAME` with what it has.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::name::container_name;

const ENDING: &str = "json";
/// Of a record that is not whole yet.
const UNFINISHED: &str = "new";
/// Bytes of a record, at most.
const RECORD_BYTES_MAX: u64 = 64 * 1024;

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// As the runtime calls it.
    pub(super) id: String,
    /// Its first process, and when that was started: numbers are used again.
    pub(super) pid: u32,
    pub(super) started: u64,
    /// The devices that it has.
    pub(super) devices: Vec<String>,
}

impl Record {
    /// Written whole or not at all.
    pub(super) fn write(&self, directory: &Path, name: &str) -> io::Result<()> {
        let path = file(directory, name, ENDING);
        let new = file(directory, name, UNFINISHED);
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(&new, &path)
    }
}

fn file(directory: &Path, name: &str, ending: &str) -> PathBuf {
    directory.join(format!("{name}.{ending}"))
}

/// What a container is called, if it has a name that paths can have.
pub(super) fn short(id: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric();
    let is_good = id.starts_with(is_plain) && id.chars().all(|c| is_plain(c) || "-_.".contains(c));
    if !is_good {
        return Err(format!(
            "container {id:?}: a container with ports has a name of letters, digits, -, _ and ."
        ));
    }
    Ok(container_name(id))
}

/// When a process was started, in ticks since the machine was (proc(5), `/proc/PID/stat`).
pub(super) fn started(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may have anything in it; the process's state, the third field, follows.
    let fields = text.rsplit_once(')').map(|pair| pair.1.split_whitespace());
    let started = fields.and_then(|mut fields| fields.nth(22 - 3)?.parse().ok());
    started.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Records that can be read, by name.
pub(super) fn all(directory: &Path) -> io::Result<Vec<(String, Record)>> {
    let read = |name: String| {
        let path = file(directory, &name, ENDING);
        let length = fs::metadata(&path).ok()?.len();
        let text = (length <= RECORD_BYTES_MAX).then(|| fs::read(&path).ok())??;
        let record: Record = serde_json::from_slice(&text).ok()?;
        (short(&record.id).ok()? == name).then_some((name, record))
    };
    Ok(names(directory)?.into_iter().filter_map(read).collect())
}

/// Names of all of which there is anything.
pub(super) fn names(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string() {
            let stem = name.split('.').next().unwrap_or_default();
            names.insert(stem.to_owned());
        }
    }
    names.remove("");
    Ok(names)
}

/// Removes all of one. The record goes last: what it tells of must be gone.
pub(super) fn remove(directory: &Path, name: &str) -> io::Result<()> {
    let is_gone = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    is_gone(fs::remove_dir_all(directory.join(name)))?;
    is_gone(fs::remove_file(file(directory, name, UNFINISHED)))?;
    is_gone(fs::remove_file(file(directory, name, ENDING)))
}
