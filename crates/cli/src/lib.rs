//! The `millrace` command. One file per subcommand; `locate` finds the agent and the library for all of them.
//!
//! The process does not begin in Rust's own start-up code, because that changes the disposition of SIGPIPE, which
//! the program that `millrace run` becomes must inherit as it was.

#![cfg_attr(
    test,
    allow(dead_code, reason = "the test harness has a beginning of its own")
)]

#[macro_use]
mod say;

mod agent;
mod background;
mod bench;
mod cdi;
mod channels;
mod doctor;
mod dump;
mod listing;
mod load;
mod locate;
mod manual;
mod ppf;
mod ps;
mod rates;
mod run;
mod service;
mod switch;
mod sys;
mod table;
mod top;

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

/// Faster connections between programs on one machine, without changing the programs.
///
/// Put `millrace run --` in front of two programs that talk TCP with each other on this machine. Their connections stay
/// TCP connections; once a connection has proved busy, its bytes travel through shared memory instead of the kernel's
/// network stack. Whatever cannot be done faithfully there is done by the kernel, as always.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  millrace run -- redis-server              a server, accelerated
  millrace run -- redis-benchmark -q        and its client
  millrace ps                               which connections there are, which road they take, and why
  millrace top                              the same, live, with rates
  millrace channels                         who sends messages to whom by name, of programs written for that
  millrace dump redis -w redis.pcapng       what passes in shared memory, for Wireshark
  millrace bench run --quick                how the roads of this machine compare
  sudo millrace cdi install                 containers get it by --device millrace.dev/socket=all
  millrace doctor                           what prevents acceleration here, and what to do about it
  millrace load redis 127.0.0.1:6379        how fast a server is, and how late its answers
  millrace switch run --config switch.toml  packets between containers and hosts: a switch of memif ports and tunnels
  millrace ppf run ppf.toml                 packets of a 5G user plane: GTP-U tunnels between ports

Environment:
  MILLRACE=off        turns Millrace off for a program and its children
  MILLRACE_AGENT      the agent's socket, where it is not one of the usual ones
  MILLRACE_LIBRARY    the library that programs are given, where it is not beside this program";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArguments),
    Agent(agent::AgentArguments),
    Ps(ps::PsArguments),
    Top(top::TopArguments),
    Channels(channels::ChannelsArguments),
    Dump(dump::DumpArguments),
    Doctor(doctor::DoctorArguments),
    Bench(bench::BenchArguments),
    Cdi(cdi::CdiArguments),
    Completions(manual::CompletionsArguments),
    #[command(hide = true)]
    Manual(manual::ManualArguments),
    Load(load::LoadArguments),
    Switch(switch::SwitchArguments),
    Ppf(ppf::PpfArguments),
}

fn dispatch(arguments: Vec<OsString>) -> u8 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let outcome = match arguments.command {
        Command::Run(arguments) => return run::run(&arguments),
        Command::Agent(arguments) => agent::run(&arguments),
        Command::Ps(arguments) => ps::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Channels(arguments) => channels::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Cdi(arguments) => cdi::run(&arguments),
        Command::Completions(arguments) => manual::complete(&arguments, Arguments::command()),
        Command::Manual(arguments) => manual::write(&arguments, Arguments::command()),
        Command::Load(arguments) => load::run(arguments),
        Command::Switch(arguments) => switch::run(&arguments),
        Command::Ppf(arguments) => ppf::run(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            complain!("millrace: {error:#}");
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a cluster runs of this program, also by the chart.
    const DAEMON_SET: &str = include_str!("../../../deploy/kubernetes/daemon-set.yaml");

    /// The commands of lines that have this, as the program would be started with.
    fn commands(key: &str) -> Vec<String> {
        let lines = DAEMON_SET.lines().filter(|line| line.contains(key));
        let commands = lines.filter_map(|line| Some(line.split_once("command: [")?.1));
        commands
            .filter_map(|rest| Some(rest.split_once(']')?.0.replace(',', "")))
            .filter(|command| command.starts_with("/bin/millrace "))
            .collect()
    }

    #[test]
    fn the_cluster_s_commands_are_ones_that_there_are() {
        let all = commands("command: [");
        assert!(!all.is_empty());
        for command in all {
            let parsed = Arguments::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{command}");
        }
    }

    /// A kubelet that starts a container again runs its hooks, and no init container.
    #[test]
    fn what_the_end_of_an_agent_s_container_takes_its_start_puts_back() {
        assert_eq!(
            commands("preStop:"),
            ["/bin/millrace cdi remove --unless-used"]
        );
        assert_eq!(commands("postStart:"), ["/bin/millrace cdi install"]);
    }

    /// Every pod reaches the metrics, and could keep a probe from them.
    #[test]
    fn probes_ask_where_no_pod_can_be_in_their_way() {
        for probe in ["startupProbe:", "livenessProbe:"] {
            assert_eq!(commands(probe), ["/bin/millrace agent --probe"]);
        }
        assert!(!DAEMON_SET.contains("httpGet"));
    }
}
