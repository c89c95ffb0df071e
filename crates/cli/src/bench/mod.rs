//! `millrace bench`: every road measured side by side.

mod compare;
mod list;
mod report;
mod run;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Measure how containers can talk on this machine: the kernel's roads, Unix sockets and Millrace, side by side.
///
/// A road is a way for the bytes of two programs. A scenario is a pair of programs, and what is varied about them. The suite sets the roads
/// up in namespaces of its own, runs the programs on them in turn, and keeps every figure with the commands that made it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  millrace bench list                       suites, scenarios and roads, and what is missing here
  millrace bench run --quick                a first look, in a few minutes
  millrace bench run containers             a suite: scenarios with the roads for them
  millrace bench run redis --roads bridge,millrace-bridge
                                            one scenario on two roads
  millrace bench report DIR                 the page of a run, made anew
  millrace bench compare before after       what has become faster or slower between two runs
  millrace bench compare --build-a ../before --build-b . redis
                                            the same of two builds, measured now and in turns";

#[derive(Debug, Subcommand)]
enum Command {
    List(list::ListArguments),
    Run(run::RunArguments),
    Report(report::ReportArguments),
    Compare(compare::CompareArguments),
}

/// The command.
pub(crate) fn run(arguments: &BenchArguments) -> Result<u8> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
    }
}
