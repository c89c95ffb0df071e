//! What `millrace switch` and `millrace ppf` have in common: where their control socket is, and how they begin to serve.

use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::sys::signalfd::SignalFd;
use nix::unistd::geteuid;

use crate::agent::{LogLevel, log_to_stderr, raise_descriptor_limit, stop_signals};

/// A program that runs in the foreground and is asked by a socket.
#[derive(Debug)]
pub(crate) struct Service {
    /// The environment's variable that names the socket.
    pub(crate) variable: &'static str,
    /// Where it is otherwise: of a user, and of that user's runtime directory.
    pub(crate) own_socket: fn(u32, Option<&Path>) -> PathBuf,
}

impl Service {
    /// The control socket where no command and no configuration names one: what the environment says, or else the user's own.
    pub(crate) fn usual_control(&self) -> PathBuf {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(path) = variable(self.variable) {
            return path.into();
        }
        let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
        (self.own_socket)(geteuid().as_raw(), runtime.as_deref())
    }

    /// Begins to serve: with logs, and as many descriptors as are allowed. Returns the control socket's path, and what is readable when
    /// it is to stop.
    ///
    /// # Errors
    /// When signals cannot be taken, or nobody knows the working directory.
    pub(crate) fn begin(
        &self,
        control: Option<&Path>,
        configured: Option<&Path>,
        log: LogLevel,
    ) -> anyhow::Result<(PathBuf, SignalFd)> {
        let named = control.or(configured).map(Path::to_owned);
        let control = std::path::absolute(named.unwrap_or_else(|| self.usual_control()))
            .context("the control socket's path")?;
        log_to_stderr(log);
        raise_descriptor_limit();
        let stop = stop_signals().context("cannot take signals")?;
        Ok((control, stop))
    }
}
