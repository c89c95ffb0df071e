//! `millrace ppf top`: what the function does, live.

mod rates;
mod screen;

use std::path::Path;

use clap::Args;
use ratatui::Frame;
use ratatui::crossterm::event::KeyEvent;

use crate::top::board::{Choice, Sort};
use crate::top::terminal::{self, Live, Pace, Wish};
use rates::{Rates, View};

/// Watch what passes by each port, what is dropped and why, bearers, paths, and how much the workers have to do; every second.
///
/// RX and TX are packets per second that a port received and transmitted, RXB and TXB their bytes. DROPS are per second, too, and WHY says
/// which cause had how many of them and where, or why no packets pass. Messages that the function dropped have lines of their own, by the
/// side that they came from, with the clause that demands it. Of workers, USED is what its thread used of a processor, BUSY the share of
/// its looks at all ports that found packets. Where there are several workers, LOAD is the share of a worker's time that packets take,
/// SHARDS what it has of the 1024 that bearers are parted into, GIVEN and TAKEN those that went to other workers and came from them since
/// the function began, and HANDED what it handed over; stages are what was handed over to.
/// Where the output is no terminal, or with --count or --json, tables or lines are printed one after the other.
#[derive(Debug, Args)]
#[command(after_help = KEYS)]
pub(super) struct TopArguments {
    #[command(flatten)]
    pace: Pace,
    /// What comes first.
    #[arg(long, value_enum, default_value = "packets")]
    sort: Sort,
    /// The last comes first.
    #[arg(long)]
    reverse: bool,
    /// A line of JSON for each look, for programs: everything that is counted, per second.
    #[arg(long)]
    json: bool,
    /// Only these ports.
    #[arg(value_name = "PORT")]
    ports: Vec<String>,
}

const KEYS: &str = "Keys:
  q, Ctrl-C        quit
  s                sort by the next of: packets, bytes, drops, name, nothing (or m, b, d, n)
  r                reverse the order
  p, space         pause
  arrows, j, k     scroll; also Page Up, Page Down, Home, End

Exit status: 0; 1 when no function answers at the start, or a port is not there.";

/// What is watched, and how.
struct Watch<'a> {
    control: Option<&'a Path>,
    top: &'a TopArguments,
    rates: Rates,
    choice: Choice,
    view: View,
    /// Nothing was printed so far.
    is_first: bool,
    /// All ports that were asked for have been there.
    are_known: bool,
}

/// Shows a function until the user has seen enough.
pub(super) fn run(control: Option<&Path>, top: &TopArguments) -> anyhow::Result<u8> {
    let mut watch = Watch {
        control,
        top,
        rates: Rates::default(),
        choice: Choice::new(top.sort, top.reverse),
        view: View::default(),
        is_first: true,
        are_known: false,
    };
    terminal::watch(&mut watch, &top.pace, top.json)
}

impl Live for Watch<'_> {
    fn look(&mut self) -> anyhow::Result<()> {
        let report: millrace_ppf::StatusReport =
            super::parsed(&super::get(self.control, "/v1/status")?)?;
        if !std::mem::replace(&mut self.are_known, true) {
            super::known(report.clone(), &self.top.ports)?;
        }
        self.rates.update(report);
        Ok(())
    }

    fn arrange(&mut self) {
        self.view = self.rates.view(&self.top.ports, &self.choice);
    }

    fn is_paused(&self) -> bool {
        self.choice.paused
    }

    fn draw(&mut self, frame: &mut Frame<'_>, trouble: Option<&str>) {
        screen::draw(frame, &self.view, &mut self.choice, trouble);
    }

    fn handle_key(&mut self, key: KeyEvent) -> Wish {
        self.choice.handle_key(key)
    }

    fn text(&mut self) -> anyhow::Result<String> {
        if self.top.json {
            return Ok(format!("{}\n", self.view.json()));
        }
        let mut text = screen::render(&self.view);
        if !std::mem::take(&mut self.is_first) {
            text.insert(0, '\n');
        }
        Ok(text)
    }
}
