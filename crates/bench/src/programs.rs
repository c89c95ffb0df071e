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

/// Of command lines, the first whose program is not here: the program, and what brings it on Debian. The name of the package stands beside
/// a command where it is not that of the program. What begins with a word of the suite's own is ours.
pub fn missing<'a>(
    commands: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Option<(&'a str, &'a str)> {
    commands.into_iter().find_map(|(command, package)| {
        let program = program_of(command);
        let is_ours = program.starts_with('{');
        (!is_ours && find_program(program).is_none()).then(|| (program, package.unwrap_or(program)))
    })
}

/// The program that a command line starts.
#[must_use]
pub fn program_of(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}
