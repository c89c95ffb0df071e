//! What `millrace switch top` and `millrace ppf top` have in common: a screen of ports, in an order of the user's.

use clap::Args;
use ratatui::Frame;
use ratatui::crossterm::event::KeyEvent;

use super::board::{Choice, Sort};
use super::terminal::{self, Live, Pace, Wish};

// Without a description of its own, which would be that of the command.
#[derive(Debug, Args)]
pub(crate) struct PortsArguments {
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

/// What is said behind the options.
pub(crate) const KEYS: &str = "Keys:
  q, Ctrl-C        quit
  s                sort by the next of: packets, bytes, drops, name, nothing (or m, b, d, n)
  r                reverse the order
  p, space         pause
  arrows, j, k     scroll; also Page Up, Page Down, Home, End

Exit status: 0; 1 when nobody answers at the start, or a port is not there.";

/// What has ports.
pub(crate) trait Device {
    /// What is shown of it.
    type View: Default;

    /// Takes a new report in. `must_be`: ports that it has to have.
    fn look(&mut self, must_be: &[String]) -> anyhow::Result<()>;
    /// What is shown of these ports, or of all, in the order of the user's choice.
    fn view(&self, ports: &[String], choice: &Choice) -> Self::View;
    /// Draws it. `trouble`: why there is no newer report.
    fn draw(frame: &mut Frame<'_>, view: &Self::View, choice: &mut Choice, trouble: Option<&str>);
    /// The same as text.
    fn render(view: &Self::View) -> String;
    /// The same for programs.
    fn json(view: &Self::View) -> serde_json::Value;
}

/// What is watched, and how.
struct Watch<'a, D: Device> {
    device: D,
    arguments: &'a PortsArguments,
    choice: Choice,
    view: D::View,
    /// Nothing was printed so far.
    is_first: bool,
    /// All ports that were asked for have been there.
    are_known: bool,
}

/// Shows a device until the user has seen enough.
pub(crate) fn run(device: impl Device, arguments: &PortsArguments) -> anyhow::Result<u8> {
    let mut watch = Watch {
        device,
        arguments,
        choice: Choice::new(arguments.sort, arguments.reverse),
        view: Default::default(),
        is_first: true,
        are_known: false,
    };
    terminal::watch(&mut watch, &arguments.pace, arguments.json)
}

impl<D: Device> Live for Watch<'_, D> {
    fn look(&mut self) -> anyhow::Result<()> {
        // One that is taken away later comes back, perhaps.
        let is_later = std::mem::replace(&mut self.are_known, true);
        let must_be: &[String] = if is_later { &[] } else { &self.arguments.ports };
        self.device.look(must_be)
    }

    fn arrange(&mut self) {
        self.view = self.device.view(&self.arguments.ports, &self.choice);
    }

    fn is_paused(&self) -> bool {
        self.choice.paused
    }

    fn draw(&mut self, frame: &mut Frame<'_>, trouble: Option<&str>) {
        D::draw(frame, &self.view, &mut self.choice, trouble);
    }

    fn handle_key(&mut self, key: KeyEvent) -> Wish {
        self.choice.handle_key(key)
    }

    fn text(&mut self) -> anyhow::Result<String> {
        if self.arguments.json {
            return Ok(format!("{}\n", D::json(&self.view)));
        }
        let mut text = D::render(&self.view);
        if !std::mem::take(&mut self.is_first) {
            text.insert(0, '\n');
        }
        Ok(text)
    }
}
