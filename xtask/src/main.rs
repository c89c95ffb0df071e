//! The project's own commands, by `cargo xtask COMMAND`. Not part of what is installed.

#![forbid(unsafe_code)]

mod bench;
mod coverage;
mod demo;
mod packages;
mod sbom;
mod suites;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lexopt::prelude::Value;
use millrace_bench::{process, sys};

const USAGE: &str = "\
cargo xtask COMMAND

  demo            real programs on both roads in turn, one table, under five minutes
  bench-sockets   every claim with its bar; keeps results, and makes the documents (--help)
  test            the test suites, in seeded samples; `test --all` in full
  coverage        which calls have run on the ring; writes docs/coverage.md
  sbom            what the agent's image is made of, as CycloneDX
  tidy            the house rules that no other tool checks";

fn main() -> ExitCode {
    let outcome = run();
    // Whatever happened, nothing that was started here stays behind.
    match (outcome, process::end_descendants()) {
        (Ok(()), left) if left.is_empty() => ExitCode::SUCCESS,
        (Ok(()), left) => {
            eprintln!("error: these processes were left behind, and are killed now:");
            for line in left {
                eprintln!("  {line}");
            }
            ExitCode::FAILURE
        }
        (Err(error), _) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = lexopt::Parser::from_env();
    let Some(Value(command)) = arguments.next()? else {
        bail!("no command\n\n{USAGE}")
    };
    let command = command.to_str().context("a command is a word")?;
    sys::catch_interrupts();
    sys::adopt_orphans();
    if let Some(package) = std::env::var_os("CARGO_MANIFEST_DIR") {
        std::env::set_current_dir(std::path::Path::new(&package).join(".."))?;
    }
    match command {
        "demo" => demo::command(&mut arguments),
        "bench-sockets" => bench::command(&mut arguments),
        "test" => suites::command(&mut arguments),
        "coverage" => coverage::command(&mut arguments),
        "sbom" => sbom::command(&mut arguments),
        "tidy" => tidy::command(&mut arguments),
        other => bail!("there is no command {other}\n\n{USAGE}"),
    }
}
