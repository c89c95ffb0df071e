//! `millrace agent`: the daemon, in the foreground with logs, or in the background.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use millrace_agent::{Agent, CONTAINERS_DIRECTORY, Config, Options, ROOT_SOCKET, socket_in};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{geteuid, setsid};
use tracing_subscriber::filter::LevelFilter;

use crate::{background, locate};

/// Introduce programs to each other: the daemon that `millrace run` needs, one per machine or per user.
///
/// Root's agent listens at /run/millrace/agent.sock and serves every user and every container that the socket is mounted
/// into. A user's own agent listens at $XDG_RUNTIME_DIR/millrace/agent.sock, or /tmp/millrace-UID/agent.sock, and
/// serves that user. It may stop and start at any time: connections go on without it, and new ones are accelerated again when it is back.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AgentArguments {
    /// Listen here. Otherwise at the socket that MILLRACE_AGENT names, or else at the usual one.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen also in this directory, which is mounted into containers; `millrace cdi install` makes it. Root's agent does so without
    /// being told where the usual one, /var/lib/millrace, is there.
    #[arg(long, value_name = "DIRECTORY")]
    containers: Option<PathBuf>,
    /// Read this configuration instead of the usual one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Go to the background, and leave when the last program has gone.
    #[arg(long)]
    background: bool,
    /// What to log.
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "info",
        conflicts_with = "background"
    )]
    log: LogLevel,
    /// Start none: say by the exit status whether the one at the socket answers.
    #[arg(long, conflicts_with_all = ["containers", "config", "background", "log"])]
    probe: bool,
    #[arg(long, hide = true)]
    detached: bool,
}

const EXAMPLES: &str = "Examples:
  sudo millrace agent                       for everybody on this machine
  millrace agent --log debug                your own, saying what it does
  sudo millrace agent --containers /srv/mr  for containers that have that directory
  millrace agent --config agent.toml        with quotas, metrics for Prometheus, programs left out
  millrace agent --probe                    whether it answers, for what watches over it

Configuration: /etc/millrace/agent.toml for root, $XDG_CONFIG_HOME/millrace/agent.toml or ~/.config/millrace/agent.toml for
others. All of it is optional.

Environment:
  MILLRACE_AGENT      where to listen, when --socket is not given

Signals: SIGTERM, SIGINT and SIGHUP stop it cleanly.";

/// How much is logged.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// Runs the agent, or starts it in the background.
pub(crate) fn run(arguments: &AgentArguments) -> anyhow::Result<u8> {
    let socket = match &arguments.socket {
        Some(path) => std::path::absolute(path).context("the socket's path is not usable")?,
        None => match locate::named_socket() {
            Some(path) => std::path::absolute(path)
                .context("the socket's path in MILLRACE_AGENT is not usable")?,
            None => locate::own_socket(),
        },
    };
    if arguments.probe {
        millrace_agent::status(&socket, locate::PATIENCE_OF_USERS)
            .with_context(|| socket.display().to_string())?;
        return Ok(0);
    }
    let containers = match &arguments.containers {
        Some(directory) => Some(
            std::path::absolute(directory).context("the directory for containers is not usable")?,
        ),
        None => usual_containers(&socket),
    };
    let config_path = match &arguments.config {
        Some(path) => {
            Some(std::path::absolute(path).context("the configuration's path is not usable")?)
        }
        None => usual_config(),
    };
    if arguments.background && !arguments.detached {
        let mut passed: Vec<OsString> = vec!["--socket".into(), socket.into()];
        if let Some(directory) = &arguments.containers {
            passed.extend(["--containers".into(), directory.into()]);
        }
        if let Some(path) = config_path {
            passed.extend(["--config".into(), path.into()]);
        }
        background::detach(&passed)?;
        return Ok(0);
    }
    let config = match config_path {
        Some(path) => Config::load(&path)?,
        None => Config::default(),
    };
    serve(
        Options {
            socket,
            others: containers
                .iter()
                .map(|directory| socket_in(directory))
                .collect(),
            config,
            background: arguments.detached,
        },
        arguments,
    )?;
    Ok(0)
}

fn serve(options: Options, arguments: &AgentArguments) -> anyhow::Result<()> {
    if arguments.detached {
        // Away from the caller's terminal and its signals. It fails only when it is so already.
        let _ = setsid();
    } else {
        log_to_stderr(arguments.log);
    }
    let stop = stop_signals().context("cannot take signals")?;
    let agent = Agent::start(options, stop.as_fd())?;
    if arguments.detached {
        // Whoever started this hears by the end of its standard error that it listens.
        let null = File::options()
            .write(true)
            .open("/dev/null")
            .context("/dev/null")?;
        nix::unistd::dup2_stderr(&null).context("cannot let go of standard error")?;
    }
    agent.serve()?;
    Ok(())
}

/// Has logs of at least this level on standard error.
pub(crate) fn log_to_stderr(level: LogLevel) {
    let filter = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // Said on standard error, too: a disk that is full, or a reader that has gone, would end the daemon by a panic.
        .log_internal_errors(false)
        .init();
}

/// A port has some five descriptors: the usual limit of 1024 would be reached soon.
pub(crate) fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // It goes on with fewer.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// A descriptor that is readable when a daemon is to stop.
pub(crate) fn stop_signals() -> nix::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    let mut blocked = signals;
    // A log that nobody reads any more must not end the agent.
    blocked.add(Signal::SIGPIPE);
    blocked.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// The directory of containers, for the agent that is everybody's.
fn usual_containers(socket: &Path) -> Option<PathBuf> {
    let directory = PathBuf::from(CONTAINERS_DIRECTORY);
    (socket == Path::new(ROOT_SOCKET) && directory.is_dir()).then_some(directory)
}

/// The configuration file at its usual place, if there is one.
fn usual_config() -> Option<PathBuf> {
    let path = if geteuid().is_root() {
        PathBuf::from("/etc/millrace/agent.toml")
    } else {
        let variable = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let directory = variable("XDG_CONFIG_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".config")))?;
        directory.join("millrace/agent.toml")
    };
    path.exists().then_some(path)
}
