//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::transport;
use crate::trial::{Trial, Workload};

pub(crate) const HELP: &str = "\
Messages between processes over channels and over what channels are measured against.

  millrace-peers list                              transports, and what each can be asked to do
  millrace-peers all [OPTIONS]                     everything in turns, and a table
  millrace-peers serve PATH [--processor N]        one side of all trials, at a Unix socket
  millrace-peers ask PATH TRANSPORT WORKLOAD [OPTIONS]
                                                   the other side of one trial; prints one line of JSON

Workloads: round-trip, one-way, fan-in, work, waking.

Options of ask, and in brackets what they are otherwise:
  --bytes N         of a message, 64 at least [64]
  --batch N         messages made visible at once [1 for round-trip and waking, else 32]
  --depth N         messages that may be under way [8 for round-trip, else 256]
  --others N        sources of fan-in [8], workers of work [4]
  --interval US     between two messages of waking [1000]
  --time S          what is measured [3], after
  --warm-up S       what is not [0.5]
  --processor N     stays on this one
  --histogram FILE  keeps the latencies, as HdrHistogram's libraries read them

Options of all:
  --transports A,B  only these
  --workloads A,B   only these
  --repeat N        trials of each [5]
  --time S          of a trial [1]
  --pin A,B         processors of the serving and of the asking process [0,1]
  --json            a line for each trial instead of the table
";

/// What is to be done.
pub(crate) enum Command {
    Help,
    Version,
    List,
    Serve {
        path: PathBuf,
        processor: Option<usize>,
    },
    Ask {
        path: PathBuf,
        trial: Trial,
        processor: Option<usize>,
        histogram: Option<PathBuf>,
    },
    All(All),
}

/// What of everything.
#[derive(Debug)]
pub(crate) struct All {
    pub(crate) transports: Vec<String>,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) repeat: usize,
    pub(crate) seconds: f64,
    pub(crate) pin: [usize; 2],
    pub(crate) json: bool,
}

/// Reads the command line.
pub(crate) fn read() -> Result<Command> {
    let mut words = lexopt::Parser::from_env();
    let command = match words.next()? {
        Some(Value(command)) => command.string()?,
        None | Some(Short('h') | Long("help")) => return Ok(Command::Help),
        Some(Short('V') | Long("version")) => return Ok(Command::Version),
        Some(other) => return Err(other.unexpected().into()),
    };
    match command.as_str() {
        "help" => Ok(Command::Help),
        "list" => Ok(Command::List),
        "serve" => serve(words),
        "ask" => ask(words),
        "all" => all(words).map(Command::All),
        other => bail!("there is no command {other}; try --help"),
    }
}

fn serve(mut words: lexopt::Parser) -> Result<Command> {
    let (mut path, mut processor) = (None, None);
    while let Some(word) = words.next()? {
        match word {
            Long("processor") => processor = Some(words.value()?.parse()?),
            Value(value) if path.is_none() => path = Some(PathBuf::from(value)),
            other => return Err(other.unexpected().into()),
        }
    }
    let path = path.context("serve needs a path for its socket")?;
    Ok(Command::Serve { path, processor })
}

fn ask(mut words: lexopt::Parser) -> Result<Command> {
    let mut named = Vec::new();
    let (mut processor, mut histogram) = (None, None);
    let (mut batch, mut others) = (None, None);
    let (mut bytes, mut depth, mut interval_us) = (64, None, 1000);
    let (mut seconds, mut warm_up_seconds) = (3.0, 0.5);
    while let Some(word) = words.next()? {
        match word {
            Long("bytes") => bytes = words.value()?.parse()?,
            Long("batch") => batch = Some(words.value()?.parse()?),
            Long("depth") => depth = Some(words.value()?.parse()?),
            Long("others") => others = Some(words.value()?.parse()?),
            Long("interval") => interval_us = words.value()?.parse()?,
            Long("time") => seconds = words.value()?.parse()?,
            Long("warm-up") => warm_up_seconds = words.value()?.parse()?,
            Long("processor") => processor = Some(words.value()?.parse()?),
            Long("histogram") => histogram = Some(PathBuf::from(words.value()?)),
            Value(value) => named.push(value.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let [path, transport, workload] = named.as_slice() else {
        bail!("ask needs a path, a transport and a workload; try --help");
    };
    let path = PathBuf::from(path);
    let workload = Workload::by_name(workload)?;
    let is_single = matches!(workload, Workload::RoundTrip | Workload::Waking);
    let processes = match workload {
        Workload::FanIn => 8,
        Workload::Work => 4,
        Workload::RoundTrip | Workload::OneWay | Workload::Waking => 1,
    };
    let trial = Trial {
        transport: transport::by_name(transport)?.name.to_owned(),
        workload,
        bytes,
        batch: batch.unwrap_or(if is_single { 1 } else { 32 }),
        depth: depth.unwrap_or(if workload == Workload::RoundTrip {
            8
        } else {
            256
        }),
        others: others.unwrap_or(processes),
        interval_us,
        seconds,
        warm_up_seconds,
        name: format!(
            "peers-{}-{}",
            std::process::id(),
            crate::clock::monotonic_ns()
        ),
        directory: path
            .parent()
            .map_or_else(|| ".".to_owned(), |place| place.display().to_string()),
    };
    Ok(Command::Ask {
        path,
        trial,
        processor,
        histogram,
    })
}

fn all(mut words: lexopt::Parser) -> Result<All> {
    let mut all = All {
        transports: transport::ALL
            .iter()
            .map(|kind| kind.name.to_owned())
            .collect(),
        workloads: Workload::ALL.to_vec(),
        repeat: 5,
        seconds: 1.0,
        pin: [0, 1],
        json: false,
    };
    while let Some(word) = words.next()? {
        match word {
            Long("transports") => {
                all.transports = words
                    .value()?
                    .string()?
                    .split(',')
                    .map(str::to_owned)
                    .collect();
            }
            Long("workloads") => {
                let names = words.value()?.string()?;
                all.workloads = names
                    .split(',')
                    .map(Workload::by_name)
                    .collect::<Result<_>>()?;
            }
            Long("repeat") => all.repeat = words.value()?.parse()?,
            Long("time") => all.seconds = words.value()?.parse()?,
            Long("json") => all.json = true,
            Long("pin") => {
                let named = words.value()?.string()?;
                let pair = named
                    .split_once(',')
                    .context("--pin takes two processors, as 0,1")?;
                all.pin = [pair.0.parse()?, pair.1.parse()?];
            }
            other => return Err(other.unexpected().into()),
        }
    }
    all.transports
        .iter()
        .try_for_each(|name| transport::by_name(name).map(|_| ()))?;
    Ok(all)
}
