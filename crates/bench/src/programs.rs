//! Where the programs of scenarios are.

use std::path::{Path, PathBuf};

/// Looks in PATH, in the directories of system programs, and in those of PostgreSQL's versions.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    if let Ok(versions) = Path::new("/usr/lib/postgresql").read_dir() {
        places.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|program| program.is_file())
}

/// The program that a command line starts.
#[must_use]
pub fn program_of(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}
