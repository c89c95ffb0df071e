//! `millrace top`: what `millrace ps` shows, live, with rates.

mod channels;
mod rates;
mod screen;
mod terminal;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;

use crate::ps::{self, FILTERS};
use crate::table::{Table, human_seconds};
use channels::ChannelRates;
use rates::{Rates, Row, Sort, View};
use screen::Choice;

/// A screen must not stand still for long when the agent does.
const PATIENCE: Duration = Duration::from_secs(2);

/// Watch the connections of programs that run under Millrace: rates, roads and reasons, every second.
///
/// SENT/s and RECV/s are bytes per second, MSG/s messages per second, as the end on the left sees them: the one that connected,
/// where that is known. RING is the share of these bytes that took shared memory. ROAD and WHY are as in `millrace ps`.
/// Channels have a table of their own below, where there are any: what is sent in them, which is more than once what is published
/// where several receive it.
/// Where the output is no terminal, or with --count, tables are printed one after the other.
#[derive(Debug, Args)]
#[command(after_help = KEYS)]
pub(crate) struct TopArguments {
    /// Print one table, after one interval, and end.
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print so many tables and end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// What comes first.
    #[arg(long, value_enum, default_value = "bytes")]
    sort: Sort,
    /// The last comes first.
    #[arg(long)]
    reverse: bool,
    /// Only connections that all these words fit.
    #[arg(value_name = "FILTER", help = "Only connections that all these words fit", long_help = FILTERS)]
    filter: Vec<String>,
}

const KEYS: &str = "Keys:
  q, Ctrl-C        quit
  /                filter: words as on the command line; Enter takes them, Esc does not
  Esc              no filter
  s                sort by the next of: bytes, messages, ring, age, name, why (or b, m, g, a, n, w)
  r                reverse the order
  p, space         pause
  arrows, j, k     scroll; also Page Up, Page Down, Home, End

Exit status: 0; 1 when no agent answers at the start.";

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("use a number from 0.1 to 3600".to_owned()),
    }
}

/// Shows connections until the user has seen enough.
pub(crate) fn run(arguments: &TopArguments) -> anyhow::Result<u8> {
    let mut watch = Watch {
        rates: Rates::default(),
        channels: ChannelRates::default(),
        choice: Choice::new(&arguments.filter, arguments.sort, arguments.reverse),
    };
    // An agent that is not there at all is said at once, in plain text.
    watch.look()?;
    let count = if arguments.once {
        Some(1)
    } else {
        arguments.count
    };
    let interactive = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if interactive && count.is_none() {
        terminal::show(&mut watch, arguments.interval)
    } else {
        print(&mut watch, arguments.interval, count.unwrap_or(u64::MAX))
    }
}

/// What is watched, and how.
struct Watch {
    rates: Rates,
    channels: ChannelRates,
    choice: Choice,
}

impl Watch {
    /// Takes a new report in.
    fn look(&mut self) -> anyhow::Result<()> {
        let found = ps::find_agent()?;
        let report = millrace_agent::connections(&found.socket, PATIENCE)?;
        // An agent that is older than channels has none.
        let channels = millrace_agent::channels(&found.socket, PATIENCE).unwrap_or_default();
        self.channels.update(&channels);
        self.rates.update(report);
        Ok(())
    }

    fn view(&self) -> View {
        let Choice { sort, reversed, .. } = self.choice;
        self.rates.view(&self.choice.filter(), sort, reversed)
    }
}

fn print(watch: &mut Watch, interval: Duration, count: u64) -> anyhow::Result<u8> {
    let mut due = Instant::now();
    for number in 0..count {
        due += interval;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        watch.look()?;
        let mut text = render(&watch.view()) + &channels::render(watch.channels.rows());
        if number > 0 {
            text.insert(0, '\n');
        }
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(0)
}

/// A table for files and other programs: plain numbers.
fn render(view: &View) -> String {
    let heading = [
        "ID",
        "CONNECTED",
        "ADDRESS",
        "ACCEPTED",
        "ADDRESS",
        "SENT/s",
        "MSG/s",
        "RECV/s",
        "MSG/s",
        "RING",
        "ROAD",
        "WHY",
        "AGE",
    ];
    let mut table = Table::new(&heading, &[0, 5, 6, 7, 8, 9, 12]);
    for row in &view.rows {
        table.push(cells(row));
    }
    table.render(false)
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.id.map_or("-".to_owned(), |id| id.to_string()),
        row.client.clone(),
        row.client_address.clone(),
        row.server.clone(),
        row.server_address.clone(),
        row.sent.bytes.to_string(),
        row.sent.messages.to_string(),
        row.received.bytes.to_string(),
        row.received.messages.to_string(),
        row.ring.map_or("-".to_owned(), |share| format!("{share}%")),
        row.road.clone(),
        row.why.clone(),
        human_seconds(row.age_s),
    ]
}
