//! Where an agent may be, for programs that do not say.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// The socket of root's agent.
const ROOT_SOCKET: &str = "/run/millrace/agent.sock";

/// The sockets to look at, in turn.
pub(crate) fn agent_sockets() -> Vec<PathBuf> {
    sockets(
        std::env::var_os("MILLRACE_AGENT"),
        geteuid().as_raw(),
        std::env::var_os("XDG_RUNTIME_DIR"),
    )
}

/// As the agent and `millrace run` have them: what is named, and else root's, then the user's own.
fn sockets(
    named: Option<OsString>,
    user: u32,
    runtime_directory: Option<OsString>,
) -> Vec<PathBuf> {
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }
    let mut sockets = vec![PathBuf::from(ROOT_SOCKET)];
    if user != 0 {
        let runtime_directory = runtime_directory.as_deref().map(Path::new);
        let own = match runtime_directory.filter(|path| path.is_absolute()) {
            Some(path) => path.join("millrace"),
            None => PathBuf::from(format!("/tmp/millrace-{user}")),
        };
        sockets.push(own.join("agent.sock"));
    }
    sockets
}

#[cfg(test)]
mod tests {
    use super::{ROOT_SOCKET, sockets};
    use std::path::Path;

    #[test]
    fn the_agent_is_looked_for_where_it_listens() {
        for (named, user, runtime_directory, wanted) in [
            (Some("/a/b"), 7, Some("/run/user/7"), &["/a/b"] as &[&str]),
            (Some(""), 0, Some("/run/user/0"), &[ROOT_SOCKET]),
            (
                None,
                7,
                Some("/run/user/7"),
                &[ROOT_SOCKET, "/run/user/7/millrace/agent.sock"],
            ),
            (None, 7, None, &[ROOT_SOCKET, "/tmp/millrace-7/agent.sock"]),
            (
                None,
                7,
                Some("relative"),
                &[ROOT_SOCKET, "/tmp/millrace-7/agent.sock"],
            ),
        ] {
            let found = sockets(
                named.map(Into::into),
                user,
                runtime_directory.map(Into::into),
            );
            let wanted: Vec<&Path> = wanted.iter().map(Path::new).collect();
            assert_eq!(found, wanted);
        }
    }
}
