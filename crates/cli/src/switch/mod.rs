//! `millrace switch`: runs the switch, and asks and changes one that runs.

mod show;
mod top;
mod words;

use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueHint};
use millrace_switch::{
    AskError, Config, ConfigError, Handed, Options, Request, Server, Switch, SwitchReport,
    ask_with, own_socket,
};
use serde_json::{Value, json};

use crate::agent::LogLevel;
use crate::service::Service;

/// Switch packets between containers, and between hosts.
///
/// A switch joins ports: memif, as DPDK's net_memif and VPP speak it; vhost-user, as guests and DPDK's virtio-user do; rings, for programs
/// with channels; interfaces of the kernel, its own (TAP) or a device's (AF_XDP); captures; and tunnels to other hosts (VXLAN). It learns
/// which station is where, keeps VLANs apart, and does what flows say. `millrace switch run` runs one; the other commands show and change
/// it while it works, without a packet lost on other ports. They find it by its control socket, which only its own user and root may use.
/// What is changed so is not written to the configuration file.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SwitchArguments {
    /// The switch's control socket. Otherwise what MILLRACE_SWITCH names, or else switch.sock beside the agent's socket.
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    control: Option<PathBuf>,
    /// The number of the user whose switch it is, when that is neither you nor root: an answer of anybody else's is not believed.
    #[arg(long, global = true, value_name = "UID")]
    user: Option<u32>,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  millrace switch run --config switch.toml
  millrace switch show                                      ports, how they are, who is there
  millrace switch add-port web memif path=/run/web.sock     a port more; DPDK: --vdev net_memif0,socket=/run/web.sock,socket-abstract=no
  millrace switch add-port db memif path=/run/db.sock role=client vlan.access=10
  millrace switch add-port worker ring name=switch/worker   a program with channels; the agent says who may
  millrace switch add-port host-b vxlan local=192.0.2.1 remote=192.0.2.2 vni=100
  millrace switch add-port nic af_xdp interface=eth1 --open opened here, and handed over to a switch without capabilities
  millrace switch flow add ssh priority=200 ip_proto=tcp dst_port=22 out=db
  millrace switch flow add straight in=web out=db           all of one port to another, and nothing is looked at
  millrace switch stats                                     packets, bytes, and what was dropped and why
  millrace switch top                                       the same, live, with rates
  millrace switch mirror add look /tmp/look.pcapng ports=web
  millrace switch mac                                       which stations are at which port

Environment:
  MILLRACE_SWITCH     the control socket, when --control is not given

Exit status: 0; 1 when no switch answers, or it does not do what it is asked to: nothing has changed then.";

const SERVICE: Service = Service {
    variable: "MILLRACE_SWITCH",
    own_socket,
};

#[derive(Debug, Subcommand)]
enum Command {
    Run(RunArguments),
    Show(ShowArguments),
    Stats(StatsArguments),
    Top(top::TopArguments),
    Mac(MacArguments),
    AddPort(AddPortArguments),
    DelPort(DelArguments),
    Flow(FlowArguments),
    Mirror(MirrorArguments),
}

/// Run a switch, in the foreground with logs.
///
/// Everything in the configuration is checked and opened before the first packet passes. One thread for each processor that it names serves
/// the ports, and sleeps when there is nothing to do: an idle switch uses no processor. No privilege is needed, unless for paths and ports
/// that are the user's to open.
#[derive(Debug, Args)]
#[command(
    after_help = "Configuration: share/doc/millrace/switch.toml documents every line with its default, and has examples.

Signals: SIGTERM, SIGINT and SIGHUP stop it cleanly."
)]
struct RunArguments {
    /// What to run: ports, flows, mirrors. Without a file there is nothing, until it is added.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Only say whether the file is right, one thing beside another, and open nothing of it.
    #[arg(long)]
    check: bool,
    /// What to log.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LogLevel,
}

/// Show ports: of which kind, on which worker, whether packets pass, VLANs, stations, packets.
#[derive(Debug, Args)]
struct ShowArguments {
    /// All that the switch says of itself, for programs.
    #[arg(long)]
    json: bool,
}

/// Show what passed by each port, and what was dropped and why.
///
/// RX and TX are what the port received and transmitted. MADE are packets more than came: copies for further ports and mirrors, segments,
/// answers. FLOODED frames went to all ports. DROPS are all that were dropped, WHY is which cause had how many, and where: receive and
/// transmit are by the port, switch by the switch. Over all ports RX and MADE together are TX and DROPS, but for what was dropped when it
/// was received.
#[derive(Debug, Args)]
struct StatsArguments {
    /// The same, for programs, of these ports.
    #[arg(long)]
    json: bool,
    /// Only these ports.
    #[arg(value_name = "PORT")]
    ports: Vec<String>,
}

/// Show which stations are at which port, or forget them.
#[derive(Debug, Args)]
struct MacArguments {
    /// The same, for programs.
    #[arg(long)]
    json: bool,
    /// Forget all.
    #[arg(long)]
    flush: bool,
}

/// Add a port.
///
/// KEY=VALUE are as in the configuration file: those of the kind without its name before them (path=/run/a.sock), and those of all ports
/// (vlan.access=10, vlan.trunk=10,20, mtu=1500, police.packets=100000, storm.broadcast=100, worker=0).
#[derive(Debug, Args)]
#[command(after_help = "Kinds and their keys:
  memif        path, role=server|client, id, secret, queues, ring_size, buffer_bytes, socket_mode, accept_unsealed
  vhost_user   path, role=server|client, queues, offloads, socket_mode, accept_unsealed
  virtio_user  path, role=server|client, queues, ring_size, buffer_bytes, offloads, socket_mode
  ring         name, side=first|second, agent, slots, pool_bytes
  tap          interface, queues, offloads
  af_xdp       interface, first_queue, queues, take=all|type/N|proto/N|udp/PORT|tcp/PORT|vni/N[,…], ring_size
  pcap         read=FILE or write=FILE, stamps=true
  vxlan        local, remote, vni or vnis.VLAN=VNI, port, source_ports

With --open the interface of a tap or af_xdp port is opened by this command, with its capabilities and in its network namespace, and
handed over: the switch needs none, and may be in another namespace. The interface is let go of with the port, and with the switch.")]
struct AddPortArguments {
    /// Its name.
    name: String,
    /// What it is of: memif, vhost_user, virtio_user, ring, tap, af_xdp, pcap or vxlan.
    kind: String,
    /// How it is to be.
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
    /// Open the interface here and hand it over, for a switch without the right to.
    #[arg(long)]
    open: bool,
    /// Say that it is done, for programs.
    #[arg(long)]
    json: bool,
}

/// Take a port away.
#[derive(Debug, Args)]
struct DelArguments {
    /// Its name.
    name: String,
    /// Say that it is done, for programs.
    #[arg(long)]
    json: bool,
}

/// Add, take away and list flows: frames that go where somebody says.
#[derive(Debug, Args)]
struct FlowArguments {
    #[command(subcommand)]
    command: FlowCommand,
}

#[derive(Debug, Subcommand)]
enum FlowCommand {
    /// Add a flow: which frames, and where they go.
    #[command(after_help = "Keys:
  priority          of two flows that a frame is of, the higher counts; 100
  in=PORT           the port that frames come from; any
  out=PORT[,PORT…]  where they go, or the word drop
  eth_src eth_dst eth_type vlan vlan_priority ip_src ip_dst ip_proto ip_dscp src_port dst_port
                    which frames; VALUE/MASK asks for some bits; vlan=0: without a tag

Examples:
  millrace switch flow add to-db in=web ip_dst=10.0.0.0/8 ip_proto=tcp dst_port=5432 out=db
  millrace switch flow add no-telnet priority=500 ip_proto=tcp dst_port=23 drop")]
    Add(AddFlowArguments),
    /// Take a flow away.
    Del(DelArguments),
    /// List flows, the highest priority first, and how many frames were of each.
    List(ShowArguments),
}

#[derive(Debug, Args)]
struct AddFlowArguments {
    /// Its name.
    name: String,
    /// Which frames, and where to.
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
    /// Say that it is done, for programs.
    #[arg(long)]
    json: bool,
}

/// Add, end and list mirrors: copies of what passes, in a file for Wireshark.
#[derive(Debug, Args)]
struct MirrorArguments {
    #[command(subcommand)]
    command: MirrorCommand,
}

#[derive(Debug, Subcommand)]
enum MirrorCommand {
    /// Begin a mirror: ports=PORT[,PORT…] says of which ports, otherwise of all; direction=in, out or both.
    Add(AddMirrorArguments),
    /// End a mirror. Its file is whole then.
    Del(DelArguments),
    /// List mirrors, and how many copies each has written.
    List(ShowArguments),
}

#[derive(Debug, Args)]
struct AddMirrorArguments {
    /// Its name.
    name: String,
    /// Where copies go: pcapng or, when the name ends in .pcap, pcap. It is replaced.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Of what.
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
    /// Say that it is done, for programs.
    #[arg(long)]
    json: bool,
}

/// Runs a switch, or asks one.
pub(crate) fn run(arguments: &SwitchArguments) -> anyhow::Result<u8> {
    match &arguments.command {
        Command::Run(run) => return serve(run, arguments.control.as_deref()),
        Command::Show(show) => report(arguments, show.json, show::all)?,
        Command::Stats(stats) => {
            let report = known(look(arguments)?, &stats.ports)?;
            if stats.json {
                say(&serde_json::to_string(&report.ports)?)?;
            } else {
                print(&show::stats(&report, is_terminal()))?;
            }
        }
        Command::Top(top) => return top::run(arguments, top),
        Command::Mac(mac) => stations(arguments, mac)?,
        Command::AddPort(add) => add_port(arguments, add)?,
        Command::DelPort(DelArguments { name, json }) => {
            let name = name.clone();
            change(arguments, &Request::RemovePort { name }, *json)?;
        }
        Command::Flow(flow) => match &flow.command {
            FlowCommand::Add(add) => {
                let toml = words::flow(&add.name, &add.words)?;
                change(arguments, &Request::AddFlow { toml }, add.json)?;
            }
            FlowCommand::Del(DelArguments { name, json }) => {
                let name = name.clone();
                change(arguments, &Request::RemoveFlow { name }, *json)?;
            }
            FlowCommand::List(list) => report(arguments, list.json, show::flows)?,
        },
        Command::Mirror(mirror) => match &mirror.command {
            MirrorCommand::Add(add) => {
                // The switch may be in another directory.
                let file = std::path::absolute(&add.file).context("the file's path")?;
                let toml = words::mirror(&add.name, &file, &add.words)?;
                change(arguments, &Request::AddMirror { toml }, add.json)?;
            }
            MirrorCommand::Del(DelArguments { name, json }) => {
                let name = name.clone();
                change(arguments, &Request::RemoveMirror { name }, *json)?;
            }
            MirrorCommand::List(list) => report(arguments, list.json, show::mirrors)?,
        },
    }
    Ok(0)
}

fn serve(arguments: &RunArguments, control: Option<&Path>) -> anyhow::Result<u8> {
    let config = match &arguments.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    if arguments.check {
        let file = arguments.config.clone().unwrap_or_default();
        Switch::rehearse(&config).map_err(|what| ConfigError::Wrong(file, what))?;
        return Ok(0);
    }
    let (control, stop) = SERVICE.begin(control, config.control.as_deref(), arguments.log)?;
    Server::start(Options { control, config }, stop.as_fd())?.serve()?;
    Ok(0)
}

fn add_port(arguments: &SwitchArguments, add: &AddPortArguments) -> anyhow::Result<()> {
    let toml = words::port(&add.name, &add.kind, &add.words)?;
    let handed = match add.open {
        true => open(arguments, &toml)?,
        false => Handed::default(),
    };
    let ifindex = handed.ifindex;
    let request = Request::AddPort { toml, ifindex };
    asked_with(arguments, &request, &handed.as_fds())?;
    done(add.json)
}

/// Opens what a port is of. Before, the switch is asked what it would say: a program that comes and goes costs the interface packets.
fn open(arguments: &SwitchArguments, toml: &str) -> anyhow::Result<Handed> {
    let config = Config::parse(&format!("[[port]]\n{toml}")).map_err(anyhow::Error::msg)?;
    let port = config.port.first().context("a port is one")?;
    let name = &port.name;
    if look(arguments)?.ports.iter().any(|one| one.name == *name) {
        anyhow::bail!("port {name:?}: there is one of that name");
    }
    Handed::open(port).map_err(anyhow::Error::msg)
}

fn asked(arguments: &SwitchArguments, request: &Request) -> anyhow::Result<Value> {
    asked_with(arguments, request, &[])
}

fn asked_with(
    arguments: &SwitchArguments,
    request: &Request,
    handed: &[BorrowedFd<'_>],
) -> anyhow::Result<Value> {
    let path = arguments
        .control
        .clone()
        .unwrap_or_else(|| SERVICE.usual_control());
    match ask_with(&path, request, handed, arguments.user) {
        Err(AskError::Stranger(uid)) => Err(anyhow::anyhow!(
            "{}; --user {uid} says that it is meant",
            AskError::Stranger(uid)
        )),
        answer => Ok(answer?),
    }
}

fn look(arguments: &SwitchArguments) -> anyhow::Result<SwitchReport> {
    let value = asked(arguments, &Request::Report)?;
    serde_json::from_value(value).context("the switch's answer is not understood")
}

/// Only the ports of these names, or all.
fn known(mut report: SwitchReport, names: &[String]) -> anyhow::Result<SwitchReport> {
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

fn report(
    arguments: &SwitchArguments,
    json: bool,
    shown: fn(&SwitchReport, bool) -> String,
) -> anyhow::Result<()> {
    if json {
        return say(&asked(arguments, &Request::Report)?.to_string());
    }
    print(&shown(&look(arguments)?, is_terminal()))
}

fn stations(arguments: &SwitchArguments, mac: &MacArguments) -> anyhow::Result<()> {
    if mac.flush {
        return change(arguments, &Request::ForgetStations, mac.json);
    }
    let value = asked(arguments, &Request::Stations)?;
    if mac.json {
        return say(&value.to_string());
    }
    let stations: Vec<_> =
        serde_json::from_value(value).context("the switch's answer is not understood")?;
    print(&show::stations(&stations, is_terminal()))
}

fn change(arguments: &SwitchArguments, request: &Request, json: bool) -> anyhow::Result<()> {
    asked(arguments, request)?;
    done(json)
}

fn done(json: bool) -> anyhow::Result<()> {
    if json {
        say(&json!({ "done": true }).to_string())?;
    }
    Ok(())
}

fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

fn say(line: &str) -> anyhow::Result<()> {
    print(&format!("{line}\n"))
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
