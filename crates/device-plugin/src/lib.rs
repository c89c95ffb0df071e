//! Kubernetes' device plugin: pods ask for `millrace.dev/socket`, or for `millrace.dev/packet` where a switch runs, and the kubelet has the
//! container runtime give them the CDI device.
//!
//! A program of its own, because what it needs to speak with a kubelet (gRPC) is more than all of the `millrace` program, which goes
//! into every container. In reading order:
//!
//! - `resources`: what pods can ask for; `packets`: what of that the node's switch has;
//! - `run`: starts, stops, and watches over what follows;
//! - `place`: the plugin's socket in the kubelet's directory; `kubelet`: registration there;
//! - `service`: the answers to the kubelet; `interface`: its messages;
//! - `health`: whether the agent answers.

#![forbid(unsafe_code)]

mod health;
mod interface;
mod kubelet;
mod packets;
mod place;
mod resources;
mod run;
mod service;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

/// Gives the pods of this Kubernetes node Millrace, by a device request.
///
/// Runs on every node beside the agent (deploy/kubernetes does that). It registers with the kubelet, again whenever the kubelet starts
/// again. A pod that asks for one of the resources gets the CDI device, which `millrace cdi install` has made known to the container
/// runtime. Nothing is used up: the number of devices only limits how many containers of a node may ask.
///
/// While the agent does not answer, devices are reported as unhealthy: running pods go on, on the kernel's road where need be, and no new
/// pod that asks comes to this node.
#[derive(Debug, Parser)]
#[command(name = "millrace-device-plugin", version, after_help = HELP, max_term_width = 100)]
struct Arguments {
    /// The kubelet's directory for device plugins.
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    kubelet: PathBuf,
    /// The socket of the agent that serves containers.
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/lib/millrace/agent.sock"
    )]
    agent: PathBuf,
    /// The control socket of the node's switch. What it has for containers can be asked for while it answers.
    #[arg(long, value_name = "PATH", default_value = "/run/millrace/switch.sock")]
    switch: PathBuf,
    /// How many containers of this node may ask for a resource at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    count: u32,
    /// Seconds without an answer from the agent, or the switch, before devices are unhealthy: longer than a new version takes to start.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,
    /// Log more: what the kubelet asks, too.
    #[arg(long)]
    verbose: bool,
}

const HELP: &str = "Resources:
  millrace.dev/socket             the CDI device millrace.dev/socket=all: programs with glibc are accelerated
  millrace.dev/socket-variable    millrace.dev/socket=variable: images with musl (Alpine); sets LD_PRELOAD
  millrace.dev/packet             millrace.dev/packet=default: ports of the node's switch, where it has a device of that name
  millrace.dev/packet-NAME        millrace.dev/packet=NAME: the same of its other devices

In a pod's specification:
  containers:
  - name: cache
    image: redis
    resources: {limits: {millrace.dev/socket: 1}}

Signals: SIGTERM and SIGINT stop it cleanly. Exit status: 0; 1 when it cannot go on, which is then said.";

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let level = if arguments.verbose {
        LevelFilter::DEBUG
    } else {
        LevelFilter::INFO
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // Said on standard error, too: a disk that is full, or a reader that has gone, would end the program by a panic.
        .log_internal_errors(false)
        .init();
    let settings = run::Settings {
        kubelet: arguments.kubelet,
        agent: arguments.agent,
        switch: arguments.switch,
        count: arguments.count,
        patience: Duration::from_secs(arguments.patience),
    };
    match run::until_signal(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-device-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
