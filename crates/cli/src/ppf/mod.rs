//! `millrace ppf`: runs the packet processing function, and asks and changes one that runs.

mod bulk;
mod observe;
mod show;
mod top;
mod ue;
mod words;

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueHint};
use millrace_ppf::{Client, Config, NeighbourReport, Options, Server, StatusReport, own_socket};
use serde_json::Value;

use crate::agent::LogLevel;
use crate::service::Service;

/// Process packets of a 5G user plane: GTP-U tunnels between two sides, and between tunnels and a data network.
///
/// The function has ports by side, core and radio: memif, as DPDK's net_memif and VPP speak it; vhost-user; rings; interfaces of the
/// kernel, its own (TAP) or a device's (AF_XDP); captures. It has addresses there, finds stations by ARP and neighbour discovery, and takes
/// messages of GTP-U to where bearers say. `millrace ppf run` runs one; the other commands show and change it while packets pass. They find
/// it by its control socket, which only its own user and root may use, and which programs ask by HTTP: docs/ppf.md.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PpfArguments {
    /// The function's control socket. Otherwise what MILLRACE_PPF names, or else ppf.sock beside the agent's socket.
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    control: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  millrace ppf run ppf.toml
  millrace ppf bearer add core=192.0.2.10/4711 radio=198.51.100.20/815     between two tunnels, each an address and its TEID
  millrace ppf bearer add core.user=10.45.0.7 radio=198.51.100.20/816      between a tunnel and the data network, of this user
  millrace ppf bearer set 513 core=192.0.2.10/4711 radio=198.51.100.21/99 gates=core
  millrace ppf bearer load bearers.csv                                     as many as there are
  millrace ppf show                                                        ports, how they are, and how many bearers there are
  millrace ppf stats                                                       packets, bytes, and what was dropped and why
  millrace ppf top                                                         the same, live, with rates
  millrace ppf events --follow                                             what it meets, as it comes
  millrace ppf paths                                                       which peers answer
  millrace ppf graph -w graph.svg                                          what workers hand to each other, as a picture
  millrace ppf trace 513 -w bearer.pcapng                                  a bearer's frames, for Wireshark

Environment:
  MILLRACE_PPF        the control socket, when --control is not given

Exit status: 0; 1 when no function answers, or it does not do what it is asked to. Nothing has changed then, but for what `bearer load` and
`bearer remove` say that they have done.";

const DELIVERY: &str =
    "Where delivery is followed (follows_delivery, TS 38.425): NEXT is the number that the next packet has, MISSING how many before
it did not come, SENT and CAME are delivery statuses. What came last says how many bytes are WANTED, with what RATE in a second, and which
PDCP numbers were TRANSMITTED and DELIVERED; LOST are all that were said to be.";

const SERVICE: Service = Service {
    variable: "MILLRACE_PPF",
    own_socket,
};

#[derive(Debug, Subcommand)]
enum Command {
    Run(RunArguments),
    Show(ShowArguments),
    Stats(StatsArguments),
    Top(top::TopArguments),
    Neighbours(ShowArguments),
    Paths(observe::PathsArguments),
    Events(observe::EventsArguments),
    Trace(observe::TraceArguments),
    Graph(observe::GraphArguments),
    Bearer(BearerArguments),
    Ue(ue::UeArguments),
}

/// Run a function, in the foreground with logs.
///
/// Everything in the configuration is checked and opened, and bearers that are kept are taken in, before the first packet passes. One
/// thread for each processor that it names serves the ports, and sleeps when there is nothing to do.
#[derive(Debug, Args)]
#[command(
    after_help = "Configuration: share/doc/millrace/ppf.toml documents every line with its default.

Signals: SIGTERM, SIGINT and SIGHUP stop it cleanly."
)]
struct RunArguments {
    /// What to run.
    #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    config: PathBuf,
    /// Only say whether the file is right.
    #[arg(long)]
    check: bool,
    /// What to log.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LogLevel,
}

/// Show it: ports with their sides and addresses, or stations.
#[derive(Debug, Args)]
struct ShowArguments {
    /// The same, for programs.
    #[arg(long)]
    json: bool,
}

/// Show what passed by each port, and what was dropped and why.
///
/// RX and TX are what the port received and transmitted. MADE are questions and answers of the function's own, and CONSUMED what was for
/// itself. DROPS are all that were dropped, WHY is which cause had how many, and where: receive and transmit are by the port, link by what
/// is around messages. Messages that the function dropped are below, by the side that they came from.
#[derive(Debug, Args)]
struct StatsArguments {
    /// The same, for programs.
    #[arg(long)]
    json: bool,
    /// Only these ports.
    #[arg(value_name = "PORT")]
    ports: Vec<String>,
}

/// Add, show, change and remove bearers.
#[derive(Debug, Args)]
struct BearerArguments {
    #[command(subcommand)]
    command: BearerCommand,
}

#[derive(Debug, Subcommand)]
enum BearerCommand {
    /// Add a bearer: its far ends on both sides.
    #[command(after_help = words::KEYS)]
    Add(AddArguments),
    /// Have a bearer be otherwise from now on: all of it, as if it was added. Its number and its tunnels' numbers stay.
    #[command(after_help = words::KEYS)]
    Set(SetArguments),
    /// Show a bearer, what passed by it, and, where that is followed, what became of its packets on the radio.
    #[command(after_help = DELIVERY)]
    Show(OneArguments),
    /// List bearers, and what passed by each.
    List(ListArguments),
    /// Remove bearers, and show what passed by each.
    Remove(RemoveArguments),
    /// Add as many bearers as a file has, or change those that are there.
    #[command(after_help = bulk::FORMATS)]
    Load(LoadArguments),
}

#[derive(Debug, Args)]
struct AddArguments {
    /// How it is to be.
    #[arg(value_name = "KEY=VALUE", required = true)]
    words: Vec<String>,
    /// The bearer, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SetArguments {
    /// Its number.
    id: u32,
    /// How it is to be.
    #[arg(value_name = "KEY=VALUE", required = true)]
    words: Vec<String>,
    /// Send so many end markers to where a tunnel led until now, behind its last packet.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=8))]
    end_markers: u32,
    /// The bearer, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct OneArguments {
    /// Its number.
    id: u32,
    /// The same, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ListArguments {
    /// A page as the function gives it, for programs.
    #[arg(long)]
    json: bool,
    /// Begin at this place: what `next` of the page before says.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u32,
    /// So many, at most.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, Args)]
struct RemoveArguments {
    /// Their numbers.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<u32>,
    /// Those that there were, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct LoadArguments {
    /// JSON lines, or CSV when its name ends in .csv; - is standard input.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Lines that have an id change that bearer, as `set` does; the others are added.
    #[arg(long)]
    change: bool,
    /// How many were added, changed and refused, and their numbers, for programs.
    #[arg(long)]
    json: bool,
}

/// Runs a function, or asks one.
pub(crate) fn run(arguments: &PpfArguments) -> anyhow::Result<u8> {
    let control = arguments.control.as_deref();
    match &arguments.command {
        Command::Run(run) => return serve(run, control),
        Command::Show(show) => {
            let said = get(control, "/v1/status")?;
            tell(&said, show.json, show::ports)?;
        }
        Command::Stats(stats) => {
            let said = get(control, "/v1/status")?;
            if stats.json && stats.ports.is_empty() {
                print(&[&said[..], b"\n"].concat())?;
            } else {
                let report = known(parsed(&said)?, &stats.ports)?;
                if stats.json {
                    print(format!("{}\n", serde_json::to_string(&report)?).as_bytes())?;
                } else {
                    print(show::stats(&report, is_terminal()).as_bytes())?;
                }
            }
        }
        Command::Neighbours(show) => {
            let said = get(control, "/v1/neighbours")?;
            let shown =
                |report: &Vec<NeighbourReport>, terminal| show::neighbours(report, terminal);
            tell(&said, show.json, shown)?;
        }
        Command::Top(top) => return top::run(control, top),
        Command::Paths(paths) => observe::paths(control, paths)?,
        Command::Events(events) => observe::events(control, events)?,
        Command::Trace(trace) => observe::trace(control, trace)?,
        Command::Graph(graph) => observe::graph(control, graph)?,
        Command::Bearer(bearer) => return bearers(control, &bearer.command),
        Command::Ue(arguments) => ue::run(control, arguments)?,
    }
    Ok(0)
}

fn bearers(control: Option<&Path>, command: &BearerCommand) -> anyhow::Result<u8> {
    match command {
        BearerCommand::Add(add) => {
            let spec = serde_json::to_vec(&words::bearer(&add.words)?)?;
            let said = client(control)?.ask("POST", "/v1/bearers", JSON, &spec)?;
            tell(&said, add.json, show::bearer)?;
        }
        BearerCommand::Set(set) => {
            let spec = serde_json::to_vec(&words::bearer(&set.words)?)?;
            let target = format!("/v1/bearers/{}?end_markers={}", set.id, set.end_markers);
            let said = client(control)?.ask("PUT", &target, JSON, &spec)?;
            tell(&said, set.json, show::bearer)?;
        }
        BearerCommand::Show(show) => {
            let said = get(control, &format!("/v1/bearers/{}", show.id))?;
            tell(&said, show.json, show::bearer)?;
        }
        BearerCommand::List(list) => {
            let target = format!("/v1/bearers?from={}&limit={}", list.from, list.limit);
            tell(&get(control, &target)?, list.json, show::page)?;
        }
        BearerCommand::Remove(remove) => {
            let ids = serde_json::json!({ "ids": remove.ids }).to_string();
            let said = client(control)?.ask("POST", "/v1/bearers/remove", JSON, ids.as_bytes())?;
            tell(&said, remove.json, show::page)?;
            let gone: Value = parsed(&said)?;
            let gone = gone["bearers"].as_array().map_or(0, Vec::len);
            anyhow::ensure!(
                gone == remove.ids.len(),
                "{gone} of {} bearers were there",
                remove.ids.len()
            );
        }
        BearerCommand::Load(load) => return bulk::load(control, load),
    }
    Ok(0)
}

const JSON: &str = "application/json";

fn serve(arguments: &RunArguments, control: Option<&Path>) -> anyhow::Result<u8> {
    let config = Config::load(&arguments.config)?;
    if arguments.check {
        return Ok(0);
    }
    let (control, stop) = SERVICE.begin(control, config.control.as_deref(), arguments.log)?;
    Server::start(&Options { control, config })?.serve(stop.as_fd())?;
    Ok(0)
}

fn client(control: Option<&Path>) -> anyhow::Result<Client> {
    let path = control.map_or_else(|| SERVICE.usual_control(), Path::to_owned);
    Ok(Client::connect(&path)?)
}

fn get(control: Option<&Path>, target: &str) -> anyhow::Result<Vec<u8>> {
    Ok(client(control)?.ask("GET", target, "", &[])?)
}

fn parsed<T: serde::de::DeserializeOwned>(said: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(said).context("the function's answer is not understood")
}

/// Prints what was answered, as it is or as people read it.
fn tell<T: serde::de::DeserializeOwned>(
    said: &[u8],
    json: bool,
    shown: impl Fn(&T, bool) -> String,
) -> anyhow::Result<()> {
    if json {
        return print(&[said, b"\n"].concat());
    }
    print(shown(&parsed(said)?, is_terminal()).as_bytes())
}

/// Only the ports of these names, or all.
fn known(mut report: StatusReport, names: &[String]) -> anyhow::Result<StatusReport> {
    for name in names {
        if !report.ports.iter().any(|port| port.name == *name) {
            anyhow::bail!("there is no port {name:?}");
        }
    }
    if !names.is_empty() {
        report.ports.retain(|port| names.contains(&port.name));
    }
    Ok(report)
}

fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

fn print(bytes: &[u8]) -> anyhow::Result<()> {
    std::io::stdout().lock().write_all(bytes)?;
    Ok(())
}
