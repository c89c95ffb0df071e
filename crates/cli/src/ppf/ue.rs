//! `millrace ppf ue`: what limits all bearers of a user equipment together.

use std::path::Path;

use clap::{Args, Subcommand};
use millrace_ppf::{UeList, UeReport};
use serde_json::Map;

use super::{JSON, OneArguments, client, get, tell, words};
use crate::table::Table;

const KEYS: &str =
    "Keys, for what goes towards the radio network; to_core has the same towards the core network:
  to_radio.kbit_per_second, to_radio.burst_bytes
  to_radio.packets_per_second, to_radio.burst_packets

Examples:
  millrace ppf ue add to_core.kbit_per_second=20000 to_radio.kbit_per_second=100000
  millrace ppf bearer add core.user=10.45.0.7 radio=198.51.100.20/816 ue=0";

/// Limit all bearers of a user equipment together (UE-AMBR).
#[derive(Debug, Args)]
pub(super) struct UeArguments {
    #[command(subcommand)]
    command: UeCommand,
}

#[derive(Debug, Subcommand)]
enum UeCommand {
    /// Add one: the function says its number, which bearers then name as ue=NUMBER.
    #[command(after_help = KEYS)]
    Add(AddArguments),
    /// Have one be limited otherwise from now on.
    #[command(after_help = KEYS)]
    Set(SetArguments),
    /// Show one.
    Show(OneArguments),
    /// List all.
    List(ListArguments),
    /// Remove one, which no bearer is of.
    Remove(OneArguments),
}

#[derive(Debug, Args)]
struct AddArguments {
    /// How it is to be limited.
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
    /// The same, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SetArguments {
    /// Its number.
    ue: u32,
    #[command(flatten)]
    how: AddArguments,
}

#[derive(Debug, Args)]
struct ListArguments {
    /// A page as the function gives it, for programs.
    #[arg(long)]
    json: bool,
    /// Begin at this number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u32,
    /// So many, at most.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub(super) fn run(control: Option<&Path>, arguments: &UeArguments) -> anyhow::Result<()> {
    let one = |report: &UeReport, terminal| table(std::slice::from_ref(report), terminal);
    match &arguments.command {
        UeCommand::Add(add) => {
            let spec = said(&add.words)?;
            let answer = client(control)?.ask("POST", "/v1/ues", JSON, spec.as_bytes())?;
            tell(&answer, add.json, one)
        }
        UeCommand::Set(set) => {
            let (spec, target) = (said(&set.how.words)?, format!("/v1/ues/{}", set.ue));
            let answer = client(control)?.ask("PUT", &target, JSON, spec.as_bytes())?;
            tell(&answer, set.how.json, one)
        }
        UeCommand::Show(show) => {
            let answer = get(control, &format!("/v1/ues/{}", show.id))?;
            tell(&answer, show.json, one)
        }
        UeCommand::List(list) => {
            let target = format!("/v1/ues?from={}&limit={}", list.from, list.limit);
            tell(&get(control, &target)?, list.json, page)
        }
        UeCommand::Remove(remove) => {
            let target = format!("/v1/ues/{}", remove.id);
            let answer = client(control)?.ask("DELETE", &target, "", &[])?;
            tell(&answer, remove.json, one)
        }
    }
}

/// Words as JSON; the function says what of it cannot be.
fn said(words: &[String]) -> anyhow::Result<String> {
    let mut said = Map::new();
    for word in words {
        words::put_word(&mut said, word)?;
    }
    Ok(serde_json::Value::Object(said).to_string())
}

fn table(ues: &[UeReport], terminal: bool) -> String {
    let heading = [
        "UE",
        "BEARERS",
        "TO-CORE-KBIT/S",
        "PACKETS/S",
        "TO-RADIO-KBIT/S",
        "PACKETS/S",
    ];
    let mut table = Table::new(&heading, &[0, 1, 2, 3, 4, 5]);
    let limit = |limit: u64| match limit {
        0 => "-".to_owned(),
        limit => limit.to_string(),
    };
    for ue in ues {
        let mut line = vec![ue.ue.to_string(), ue.bearers.to_string()];
        for of in [ue.spec.to_core, ue.spec.to_radio] {
            line.push(limit(of.kbit_per_second()));
            line.push(limit(of.packets_per_second.into()));
        }
        table.push(line);
    }
    table.render(terminal)
}

fn page(page: &UeList, terminal: bool) -> String {
    let mut text = table(&page.ues, terminal);
    if let Some(next) = page.next {
        text.push_str(&format!("more: --from {next}\n"));
    }
    text
}
