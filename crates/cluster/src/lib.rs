//! What Millrace says to the API server of a Kubernetes cluster: the admission webhook, by which a pod with the label `millrace.dev/socket`
//! gets the device request without a change of its containers; and events on pods whose connections cannot be accelerated.
//!
//! A program of its own, because what it takes to speak with an API server (TLS, certificates) is to be in no program that has rights on a
//! node. The webhook never keeps a pod from starting. In reading order:
//!
//! - `events`: what a node's agent knows of its pods; `api`: the API server;
//! - `pod`: what becomes of a pod; `review`: the question and the answer about it;
//! - `server`: HTTP over TLS; `guests`: what each address may take of it;
//! - `certificates`: what clients trust; `keeper`: where it is kept, and when it is renewed;
//! - `run`: starts and stops either.

#![forbid(unsafe_code)]

mod api;
mod certificates;
mod events;
mod guests;
mod keeper;
mod pod;
#[cfg(test)]
mod pod_tests;
mod review;
mod run;
mod server;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

/// What Millrace says to the API server of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = "millrace-cluster", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The directory with the token of the pod's account.
    #[arg(
        long,
        global = true,
        value_name = "DIRECTORY",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount"
    )]
    account: PathBuf,
    /// Log more: why connections end, too.
    #[arg(long, global = true)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Gives pods Millrace by a label.
    ///
    /// A mutating admission webhook (deploy/kubernetes/webhook runs it): pods with the label millrace.dev/socket get a device request. It
    /// makes its certificates itself, keeps them in a Secret that all replicas share, puts their authorities into its
    /// MutatingWebhookConfiguration, and renews them when two thirds of their life are over. While it does not answer, pods start as if
    /// there was no label.
    #[command(after_help = WEBHOOK_HELP)]
    Webhook(Webhook),
    /// Writes events on the pods of this node whose connections cannot be accelerated, and why.
    ///
    /// Runs beside the agent (deploy/kubernetes does that), which it asks for its connections. What passes by itself, and what is usual, as
    /// a connection to a pod without Millrace, is no event. `kubectl describe pod` shows events; docs/reasons.md says what they mean.
    Events(Events),
}

#[derive(Debug, Args)]
struct Webhook {
    /// Where it listens.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// The Service in front of it, whose name certificates have.
    #[arg(long, value_name = "NAME", default_value = "millrace-admission")]
    service: String,
    /// The Secret for certificates, in the same namespace. It is there already, and may be empty.
    #[arg(long, value_name = "NAME", default_value = "millrace-admission")]
    secret: String,
    /// The MutatingWebhookConfiguration that leads to the Service.
    #[arg(long, value_name = "NAME", default_value = "millrace-admission")]
    configuration: String,
    /// The namespace of the Service and of the Secret; that of the pod where it is not said.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Seconds that a certificate is valid; it is renewed after two thirds of them.
    #[arg(long, value_name = "SECONDS", default_value_t = 90 * 24 * 3600, value_parser = clap::value_parser!(u64).range(3..=315_360_000))]
    lifetime: u64,
    /// Seconds between two looks at the Secret and at the configuration.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    period: u64,
}

#[derive(Debug, Args)]
struct Events {
    /// The agent's socket, of its own pod or machine: at that of containers it tells of nobody else's connections.
    #[arg(long, value_name = "PATH", default_value = "/run/millrace/agent.sock")]
    agent: PathBuf,
    /// The name of this node, as events show it.
    #[arg(long, value_name = "NAME", env = "NODE_NAME", default_value = "")]
    node: String,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    period: u64,
}

const WEBHOOK_HELP: &str = "Labels and annotations of pods:
  millrace.dev/socket: \"true\"        each container asks for millrace.dev/socket: 1
  millrace.dev/socket: variable      for millrace.dev/socket-variable: 1, for images with musl (Alpine)
  millrace.dev/containers: \"a,b\"     an annotation: these containers only

Containers that ask already for either stay as they are. Of the init containers, sidecars (restartPolicy: Always) get it.

Signals: SIGTERM stops it cleanly within 5 s, SIGINT at once. Exit status: 0; 1 when it cannot go on, which is then said.";

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
    let outcome = match arguments.command {
        Command::Webhook(webhook) => run::webhook(&run::Settings {
            listen: webhook.listen,
            account: arguments.account,
            namespace: webhook.namespace,
            service: webhook.service,
            secret: webhook.secret,
            configuration: webhook.configuration,
            lifetime: Duration::from_secs(webhook.lifetime),
            period: Duration::from_secs(webhook.period),
        }),
        Command::Events(events) => run::events(
            &arguments.account,
            events.agent,
            events.node,
            Duration::from_secs(events.period),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}
