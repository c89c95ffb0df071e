//! Where the agent and the library are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_agent::{Answerer, AskError, ROOT_SOCKET, StatusReport, own_directory, socket_in};
use nix::unistd::geteuid;

/// The variable that names the agent's socket.
pub(crate) const AGENT_VARIABLE: &str = "MILLRACE_AGENT";
/// The variable that names the library.
const LIBRARY_VARIABLE: &str = "MILLRACE_LIBRARY";
/// The library's file.
const LIBRARY_NAME: &str = "libmillrace_preload.so";
/// This program for containers: linked statically.
const STATIC_NAME: &str = "millrace-static";
/// How long a program that is to start waits for the answer of an agent that listens.
pub(crate) const PATIENCE_OF_PROGRAMS: Duration = Duration::from_millis(500);
/// The same of a user who asks: the machine may be busy.
pub(crate) const PATIENCE_OF_USERS: Duration = Duration::from_secs(5);

/// The socket of this user's own agent.
pub(crate) fn own_socket() -> PathBuf {
    let runtime_directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    socket_in(&own_directory(
        geteuid().as_raw(),
        runtime_directory.as_deref(),
    ))
}

/// The sockets at which an agent may be: the one that the environment names, or else root's, then the user's own.
pub(crate) fn candidates() -> Vec<PathBuf> {
    match named_socket() {
        Some(path) => vec![path],
        None if geteuid().is_root() => vec![own_socket()],
        None => vec![PathBuf::from(ROOT_SOCKET), own_socket()],
    }
}

/// The socket that the environment names.
pub(crate) fn named_socket() -> Option<PathBuf> {
    std::env::var_os(AGENT_VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// An agent that answers.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) socket: PathBuf,
    pub(crate) status: StatusReport,
    pub(crate) answerer: Answerer,
}

/// The first agent that answers, or why the others do not.
pub(crate) fn agent() -> Result<Found, Vec<(PathBuf, AskError)>> {
    first_answer(millrace_agent::status, PATIENCE_OF_USERS)
}

/// As [`agent`]; it is asked to stay until this process has ended.
pub(crate) fn agent_to_stay(patience: Duration) -> Result<Found, Vec<(PathBuf, AskError)>> {
    first_answer(millrace_agent::status_and_stay, patience)
}

type Ask = fn(&Path, Duration) -> Result<(StatusReport, Answerer), AskError>;

fn first_answer(ask: Ask, patience: Duration) -> Result<Found, Vec<(PathBuf, AskError)>> {
    let mut errors = Vec::new();
    for socket in candidates() {
        match ask(&socket, patience) {
            Ok((status, answerer)) => {
                return Ok(Found {
                    socket,
                    status,
                    answerer,
                });
            }
            Err(error) => errors.push((socket, error)),
        }
    }
    Err(errors)
}

/// Why no agent was found, in one line.
pub(crate) fn explain(errors: &[(PathBuf, AskError)]) -> String {
    let each = errors
        .iter()
        .map(|(socket, error)| format!("{}: {error}", socket.display()));
    each.collect::<Vec<_>>().join("; ")
}

/// The library, or the places where it is not.
pub(crate) fn library() -> Result<PathBuf, Vec<PathBuf>> {
    let named = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty());
    let executable = std::env::current_exe().ok();
    find_library(
        named.as_deref(),
        executable.as_deref().and_then(Path::parent),
    )
}

/// The library of another such program, or the places where it is not.
pub(crate) fn library_of(program: &Path) -> Result<PathBuf, Vec<PathBuf>> {
    find_library(None, program.parent())
}

/// This program for containers, or the places where it is not. Another than a static one would, as a hook, let an image choose
/// what its loader loads.
pub(crate) fn program_for_containers() -> Result<PathBuf, Vec<PathBuf>> {
    let executable = std::env::current_exe().map_err(|_| Vec::new())?;
    if cfg!(feature = "static") {
        return Ok(executable);
    }
    let places = executable
        .parent()
        .map_or_else(Vec::new, |directory| places(directory, STATIC_NAME));
    let found = places.iter().find(|place| place.is_file()).cloned();
    found.ok_or(places)
}

/// Where a file of ours is: beside the program, or installed.
fn places(directory: &Path, name: &str) -> Vec<PathBuf> {
    let installed = directory
        .parent()
        .map(|prefix| prefix.join("lib/millrace").join(name));
    std::iter::once(directory.join(name))
        .chain(installed)
        .collect()
}

fn find_library(named: Option<&OsStr>, directory: Option<&Path>) -> Result<PathBuf, Vec<PathBuf>> {
    let places = match (named, directory) {
        (Some(path), _) => vec![PathBuf::from(path)],
        (None, Some(directory)) => places(directory, LIBRARY_NAME),
        (None, None) => Vec::new(),
    };
    // The program that is started may be in another directory, or go to one.
    match places
        .iter()
        .find(|place| place.is_file())
        .and_then(|place| std::path::absolute(place).ok())
    {
        Some(place) => Ok(place),
        None => Err(places),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_beside_the_program_or_installed_or_named() {
        let prefix = tempfile::tempdir().unwrap();
        let bin = prefix.path().join("bin");
        let installed = prefix.path().join("lib/millrace").join(LIBRARY_NAME);
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(installed.parent().unwrap()).unwrap();
        assert_eq!(find_library(None, Some(&bin)).unwrap_err().len(), 2);

        std::fs::write(&installed, "").unwrap();
        assert_eq!(find_library(None, Some(&bin)).unwrap(), installed);
        let beside = bin.join(LIBRARY_NAME);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(find_library(None, Some(&bin)).unwrap(), beside);

        assert_eq!(
            find_library(Some(installed.as_os_str()), Some(&bin)).unwrap(),
            installed
        );
        assert!(find_library(Some(OsStr::new("/nowhere")), Some(&bin)).is_err());
    }
}
