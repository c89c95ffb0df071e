//! `millrace top`: what `millrace ps` shows, live, with rates.

pub(crate) mod board;
mod channels;
pub(crate) mod ports;
mod rates;
mod screen;
pub(crate) mod terminal;

use std::time::Duration;

use clap::Args;
use ratatui::Frame;
use ratatui::crossterm::event::KeyEvent;

use crate::ps::{self, FILTERS};
use crate::table::{Table, human_seconds};
use channels::ChannelRates;
use rates::{Rates, Row, Sort, View};
use screen::Choice;
use terminal::{Live, Pace, Wish};

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
    #[command(flatten)]
    pace: Pace,
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

/// Shows connections until the user has seen enough.
pub(crate) fn run(arguments: &TopArguments) -> anyhow::Result<u8> {
    let mut watch = Watch {
        rates: Rates::default(),
        channels: ChannelRates::default(),
        choice: Choice::new(&arguments.filter, arguments.sort, arguments.reverse),
        view: View::default(),
        is_first: true,
    };
    terminal::watch(&mut watch, &arguments.pace, false)
}

/// What is watched, and how.
struct Watch {
    rates: Rates,
    channels: ChannelRates,
    choice: Choice,
    view: View,
    /// No text was printed so far.
    is_first: bool,
}

impl Live for Watch {
    fn look(&mut self) -> anyhow::Result<()> {
        let found = ps::find_agent()?;
        let report = millrace_agent::connections(&found.socket, PATIENCE)?;
        // An agent that is older than channels has none.
        let channels = millrace_agent::channels(&found.socket, PATIENCE).unwrap_or_default();
        self.channels.update(&channels);
        self.rates.update(report);
        Ok(())
    }

    fn arrange(&mut self) {
        let Choice { sort, reversed, .. } = self.choice;
        self.view = self.rates.view(&self.choice.filter(), sort, reversed);
    }

    fn is_paused(&self) -> bool {
        self.choice.paused
    }

    fn draw(&mut self, frame: &mut Frame<'_>, trouble: Option<&str>) {
        let channels = self.channels.rows();
        screen::draw(frame, (&self.view, channels), &mut self.choice, trouble);
    }

    fn handle_key(&mut self, key: KeyEvent) -> Wish {
        self.choice.handle_key(key)
    }

    fn text(&mut self) -> anyhow::Result<String> {
        let mut text = render(&self.view) + &channels::render(self.channels.rows());
        if !std::mem::take(&mut self.is_first) {
            text.insert(0, '\n');
        }
        Ok(text)
    }
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
