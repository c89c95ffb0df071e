//! `millrace switch top`: what a switch does, live.

mod rates;
mod screen;

use clap::Args;
use ratatui::Frame;

use super::SwitchArguments;
use crate::top::board::Choice;
use crate::top::ports::{self, Device, KEYS, PortsArguments};
use rates::{Rates, View};

/// Watch what passes by each port, and what is dropped and why; tunnels, flows, and how much the workers have to do; every second.
///
/// RX and TX are packets per second that a port received and transmitted, RXB and TXB their bytes. DROPS are per second, too, and WHY says
/// which cause had how many of them and where, or why no packets pass. Of workers, USED is what its thread used of a processor, BUSY the
/// share of its looks at all ports that found packets.
/// Where the output is no terminal, or with --count or --json, tables or lines are printed one after the other.
#[derive(Debug, Args)]
#[command(after_help = KEYS)]
pub(super) struct TopArguments {
    #[command(flatten)]
    ports: PortsArguments,
}

/// A switch that is watched.
struct Watched<'a> {
    switch: &'a SwitchArguments,
    rates: Rates,
}

/// Shows a switch until the user has seen enough.
pub(super) fn run(switch: &SwitchArguments, top: &TopArguments) -> anyhow::Result<u8> {
    let rates = Rates::default();
    ports::run(Watched { switch, rates }, &top.ports)
}

impl Device for Watched<'_> {
    type View = View;

    fn look(&mut self, must_be: &[String]) -> anyhow::Result<()> {
        let report = super::look(self.switch)?;
        super::known(report.clone(), must_be)?;
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
