//! The `millrace` command. One file per subcommand; `locate` finds the agent and the library for all of them.
//!
//! The process does not begin in Rust's own start-up code, because that changes the disposition of SIGPIPE, which
//! the program that `millrace run` becomes must inherit as it was.

#![cfg_attr(not(test), no_main)]
#![cfg_attr(
    test,
    allow(dead_code, reason = "the test harness has a beginning of its own")
)]

mod agent;
mod background;
mod bench;
mod doctor;
mod dump;
#[allow(dead_code, reason = "for `millrace cdi install`")]
mod images;
mod listing;
mod load;
mod locate;
mod ps;
mod run;
mod sys;
mod table;
mod top;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

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
  millrace dump redis -w redis.pcapng       what passes in shared memory, for Wireshark
  millrace bench run --quick                how the roads of this machine compare
  millrace doctor                           what prevents acceleration here, and what to do about it
  millrace load redis 127.0.0.1:6379        how fast a server is, and how late its answers

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
    Dump(dump::DumpArguments),
    Doctor(doctor::DoctorArguments),
    Bench(bench::BenchArguments),
    Load(load::LoadArguments),
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
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Load(arguments) => load::run(arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("millrace: {error:#}");
            1
        }
    }
}
