//! Where the programs of scenarios are.

use std::env;
use std::path::{Path, PathBuf};

/// Channels, and what they are measured against: a program of the project's own that is not built with it, as it has other libraries in it.
pub(crate) const PEERS: &str = "millrace-peers";

/// What the scheduler's hash is measured against: DPDK's, which is in a header, as a program. It is not built with the project either.
pub(crate) const SOFTRSS: &str = "millrace-softrss";

/// A program that is not here, and what brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack<'a> {
    /// As `redis-server`.
    pub program: &'a str,
    /// Where the command is given, as `on Debian`.
    pub place: &'a str,
    /// What is to be done there: `apt install`, `make`.
    pub verb: &'a str,
    /// Of the command, the package or the target.
    pub what: &'a str,
}

/// Looks in PATH, in the directories of system programs, in those of PostgreSQL's versions, and beside this program.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    if let Ok(versions) = Path::new("/usr/lib/postgresql").read_dir() {
        places.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    let own = env::current_exe().ok();
    places.extend(own.and_then(|own| own.parent().map(Path::to_owned)));
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|program| program.is_file())
}

/// Where `millrace-peers` is.
#[must_use]
pub(crate) fn peers() -> Option<PathBuf> {
    find_program(PEERS)
}

/// Whether a program is one that is built in a checkout only, and is no package's.
pub(crate) fn is_peer(name: &str) -> bool {
    [PEERS, SOFTRSS].contains(&name)
}

/// Of command lines, the first whose program is not here. The name of the package stands beside a command where it is not that of the
/// program. What begins with a word of the suite's own is ours, and here, but for the peers of channels.
pub fn missing<'a>(
    commands: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Option<Lack<'a>> {
    commands.into_iter().find_map(|(command, package)| {
        let program = program_of(command);
        if program == "{peers}" {
            return peers().is_none().then_some(Lack {
                program: PEERS,
                place: "in a checkout of Millrace",
                verb: "make",
                what: "peers",
            });
        }
        let is_ours = program.starts_with('{');
        (!is_ours && find_program(program).is_none()).then(|| Lack {
            program,
            place: "on Debian",
            verb: "apt install",
            what: package.unwrap_or(program),
        })
    })
}

/// The program that a command line starts.
#[must_use]
pub fn program_of(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}
