//! `millrace ppf top`: what the function does, live.

mod rates;
mod screen;

use std::path::Path;

use clap::Args;
use ratatui::Frame;

use crate::top::board::Choice;
use crate::top::ports::{self, Device, KEYS, PortsArguments};
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
    ports: PortsArguments,
}

/// A function that is watched.
struct Watched<'a> {
    control: Option<&'a Path>,
    rates: Rates,
}

/// Shows a function until the user has seen enough.
pub(super) fn run(control: Option<&Path>, top: &TopArguments) -> anyhow::Result<u8> {
    let rates = Rates::default();
    ports::run(Watched { control, rates }, &top.ports)
}

impl Device for Watched<'_> {
    type View = View;

    fn look(&mut self, must_be: &[String]) -> anyhow::Result<()> {
        let report: millrace_ppf::StatusReport =
            super::parsed(&super::get(self.control, "/v1/status")?)?;
        super::known(report.clone(), must_be)?;
        // Rates of a part of what passed would be wrong, and so would those that follow.
        anyhow::ensure!(
            report.unanswered.is_empty(),
            "workers {:?} have not answered in time",
            report.unanswered
        );
        self.rates.update(report);
        Ok(())
    }

    fn view(&self, ports: &[String], choice: &Choice) -> View {
        self.rates.view(ports, choice)
    }

    fn draw(frame: &mut Frame<'_>, view: &View, choice: &mut Choice, trouble: Option<&str>) {
        screen::draw(frame, view, choice, trouble);
    }

    fn render(view: &View) -> String {
        screen::render(view)
    }

    fn json(view: &View) -> serde_json::Value {
        view.json()
    }
}
