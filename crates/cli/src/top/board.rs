//! What the screens of programs with ports have in common: rates of ports and workers, tables below each other, and an order that the user
//! chooses. No I/O of its own.

use std::cmp::Ordering;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Grid};
use serde::Serialize;
use serde_json::{Value, json};

use super::terminal::{Wish, common, scrolled};
use crate::rates::per_second;
use crate::table::Table;

/// What ports are ordered by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Packets per second, both ways
    #[default]
    Packets,
    /// Bytes per second, both ways
    Bytes,
    /// Drops per second
    Drops,
    /// Name
    Name,
    /// As they are there
    None,
}

impl Sort {
    pub(crate) const ALL: [Sort; 5] = [
        Sort::Packets,
        Sort::Bytes,
        Sort::Drops,
        Sort::Name,
        Sort::None,
    ];

    pub(crate) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Packets => "packets",
            Sort::Bytes => "bytes",
            Sort::Drops => "drops",
            Sort::Name => "name",
            Sort::None => "nothing",
        }
    }
}

/// What passes in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Rate {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// What a count grows by in a second. One that has gone back does not.
pub(crate) fn rate(now: u64, then: u64, passed_ns: u64) -> u64 {
    per_second(now.saturating_sub(then), passed_ns)
}

/// Packets that were dropped for one cause, or are in a second.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Dropped {
    pub(crate) at: String,
    pub(crate) cause: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clause: Option<String>,
    pub(crate) packets: u64,
}

/// What is dropped in a second, the most frequent cause first.
pub(crate) fn drop_rates(
    now: impl Iterator<Item = Dropped>,
    then: &[Dropped],
    passed_ns: u64,
) -> Vec<Dropped> {
    let drops = now.map(|drop| {
        let is_it = |then: &&Dropped| then.at == drop.at && then.cause == drop.cause;
        // Causes of none are left out of reports.
        let then = then.iter().find(is_it).map_or(0, |then| then.packets);
        Dropped {
            packets: rate(drop.packets, then, passed_ns),
            ..drop
        }
    });
    let mut drops: Vec<Dropped> = drops.filter(|drop| drop.packets > 0).collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    drops
}

/// What passes by a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PortRates {
    pub(crate) received: Rate,
    pub(crate) transmitted: Rate,
    /// Dropped per second, by where and why; the most frequent first.
    pub(crate) drops: Vec<Dropped>,
}

impl PortRates {
    /// Packets dropped in a second.
    pub(crate) fn dropped(&self) -> u64 {
        self.drops.iter().map(|drop| drop.packets).sum()
    }

    fn both(&self, count: fn(Rate) -> u64) -> u64 {
        count(self.received).saturating_add(count(self.transmitted))
    }

    /// Which of two ports comes first, by their names and rates: the most, or the first of the alphabet.
    pub(crate) fn order(
        one: (&str, &PortRates),
        other: (&str, &PortRates),
        sort: Sort,
    ) -> Ordering {
        match sort {
            Sort::Packets => {
                let packets = |rates: &PortRates| rates.both(|rate| rate.packets);
                packets(other.1).cmp(&packets(one.1))
            }
            Sort::Bytes => {
                let bytes = |rates: &PortRates| rates.both(|rate| rate.bytes);
                bytes(other.1).cmp(&bytes(one.1))
            }
            Sort::Drops => other.1.dropped().cmp(&one.1.dropped()),
            Sort::Name => one.0.cmp(other.0),
            Sort::None => Ordering::Equal,
        }
    }

    /// Cells: packets and bytes that were received, those that were transmitted, drops.
    pub(crate) fn cells(&self, number: fn(u64) -> String) -> [String; 5] {
        let figures = [
            self.received.packets,
            self.received.bytes,
            self.transmitted.packets,
            self.transmitted.bytes,
            self.dropped(),
        ];
        figures.map(number)
    }

    /// Why no packets pass, or which causes had how many of those dropped.
    pub(crate) fn why(&self, state: &str) -> String {
        let causes = self.drops.iter();
        let causes = causes.map(|drop| format!("{}/{}={}", drop.at, drop.cause, drop.packets));
        let state = (state != "connected").then(|| state.to_owned());
        let all: Vec<String> = state.into_iter().chain(causes).collect();
        match all.is_empty() {
            true => "-".to_owned(),
            false => all.join(" "),
        }
    }
}

/// What was counted of a worker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WorkerCounts {
    pub(crate) processor: Option<usize>,
    pub(crate) ports: usize,
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    pub(crate) sleeps: u64,
    pub(crate) processor_ns: u64,
}

/// A worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkerRow {
    pub(crate) number: usize,
    pub(crate) processor: Option<usize>,
    pub(crate) ports: usize,
    /// What it uses of a processor, in thousandths. None: that is not known yet.
    pub(crate) used: Option<u64>,
    /// Of its looks at all ports, those that found packets, in thousandths. None: there were none.
    pub(crate) busy: Option<u64>,
    /// Looks per second.
    pub(crate) turns: u64,
    /// How often it goes to sleep in a second.
    pub(crate) sleeps: u64,
}

/// What workers do, by what was counted of them now and then. Those that were not there before do nothing yet.
pub(crate) fn worker_rows(
    now: &[WorkerCounts],
    then: &[WorkerCounts],
    passed_ns: u64,
) -> Vec<WorkerRow> {
    let thousandths = |part: u64, whole: u64| {
        let share = (u128::from(part) * 1000).checked_div(u128::from(whole))?;
        u64::try_from(share).ok()
    };
    let row = |(number, worker): (usize, &WorkerCounts)| {
        let then = then.get(number).unwrap_or(worker);
        let turns = worker.turns.saturating_sub(then.turns);
        let busy = worker.busy_turns.saturating_sub(then.busy_turns);
        let used_ns = worker.processor_ns.saturating_sub(then.processor_ns);
        WorkerRow {
            number,
            processor: worker.processor,
            ports: worker.ports,
            // A program that is older does not say it.
            used: thousandths(used_ns, passed_ns).filter(|_| worker.processor_ns > 0),
            busy: thousandths(busy, turns),
            turns: per_second(turns, passed_ns),
            sleeps: rate(worker.sleeps, then.sleeps, passed_ns),
        }
    };
    now.iter().enumerate().map(row).collect()
}

/// Workers for programs.
pub(crate) fn workers_json(workers: &[WorkerRow]) -> Value {
    let share = |thousandths: Option<u64>| thousandths.map(|share| share as f64 / 1000.0);
    let workers = workers.iter().map(|worker| {
        json!({
            "processor": worker.processor, "ports": worker.ports, "processor_share": share(worker.used),
            "busy_share": share(worker.busy), "turns": worker.turns, "sleeps": worker.sleeps,
        })
    });
    workers.collect()
}

/// A column: its heading, how wide it is on a screen (0: what is left), and whether it holds numbers.
pub(crate) type Column = (&'static str, u16, bool);

/// A part of what is shown: columns, and lines of cells.
pub(crate) struct Part {
    pub(crate) columns: &'static [Column],
    pub(crate) lines: Vec<Vec<String>>,
}

const WORKERS: [Column; 7] = [
    ("WORKER", 6, true),
    ("PROCESSOR", 9, true),
    ("PORTS", 5, true),
    ("USED", 6, true),
    ("BUSY", 6, true),
    ("TURNS/s", 7, true),
    ("SLEEPS/s", 8, true),
];

/// Workers as a part of what is shown.
pub(crate) fn workers_part(workers: &[WorkerRow], number: fn(u64) -> String) -> Part {
    let percent = |thousandths: Option<u64>| match thousandths {
        Some(share) => format!("{}.{}%", share / 10, share % 10),
        None => "-".to_owned(),
    };
    let cells = |worker: &WorkerRow| {
        let processor = worker.processor;
        vec![
            worker.number.to_string(),
            processor.map_or("any".to_owned(), |processor| processor.to_string()),
            worker.ports.to_string(),
            percent(worker.used),
            percent(worker.busy),
            number(worker.turns),
            number(worker.sleeps),
        ]
    };
    Part {
        columns: &WORKERS,
        lines: workers.iter().map(cells).collect(),
    }
}

/// What the user has chosen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    pub(crate) sort: Sort,
    pub(crate) reversed: bool,
    pub(crate) paused: bool,
    /// The first line of the first part that is shown.
    top: usize,
}

impl Choice {
    pub(crate) fn new(sort: Sort, reversed: bool) -> Choice {
        Choice {
            sort,
            reversed,
            ..Choice::default()
        }
    }

    /// An order, or the other way round.
    pub(crate) fn turned(&self, order: Ordering) -> Ordering {
        if self.reversed {
            order.reverse()
        } else {
            order
        }
    }

    pub(crate) fn handle_key(&mut self, key: KeyEvent) -> Wish {
        if let Some(wish) = common(key) {
            return wish;
        }
        self.sort = match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Wish::Draw;
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                return Wish::Arrange;
            }
            KeyCode::Char('s') => self.sort.next(),
            KeyCode::Char('m') => Sort::Packets,
            KeyCode::Char('b') => Sort::Bytes,
            KeyCode::Char('d') => Sort::Drops,
            KeyCode::Char('n') => Sort::Name,
            other => {
                self.top = scrolled(self.top, other);
                return Wish::Draw;
            }
        };
        Wish::Arrange
    }

    /// How it is shown: the order, whether it stands still, and `trouble`, why there is nothing newer.
    fn line(&self, trouble: Option<&str>) -> Line<'static> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let order = if self.reversed { " reversed" } else { "" };
        let mut spans = vec![Span::raw(format!("sorted by {}{order}", self.sort.name()))];
        if self.paused {
            spans.push(Span::styled("  paused", bold));
        }
        if let Some(trouble) = trouble {
            spans.push(Span::styled(format!("  {trouble}"), bold.fg(Color::Red)));
        }
        Line::from(spans)
    }
}

/// Tables for files and other programs, of what there is: plain numbers.
pub(crate) fn render(parts: Vec<Part>) -> String {
    let shown = parts.into_iter().filter(|part| !part.lines.is_empty());
    let tables = shown.map(|part| {
        let heading: Vec<&str> = part.columns.iter().map(|column| column.0).collect();
        let numeric = part.columns.iter().enumerate();
        let numeric = numeric.filter(|(_, column)| column.2);
        let numeric: Vec<usize> = numeric.map(|(number, _)| number).collect();
        let mut table = Table::new(&heading, &numeric);
        part.lines.into_iter().for_each(|line| table.push(line));
        table.render(false)
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// Draws everything: who it is, a summary, the first part, which has what room is left and may be scrolled, and the others, each in a
/// quarter of the screen at most. `trouble`: why there is no newer report.
pub(crate) fn draw(
    frame: &mut Frame<'_>,
    (name, summary): (String, String),
    mut parts: Vec<Part>,
    choice: &mut Choice,
    trouble: Option<&str>,
) {
    let whole = frame.area().height;
    // A heading, and what there is.
    let room = |part: &Part| match u16::try_from(part.lines.len()) {
        Ok(0) => 0,
        Ok(lines) => lines.saturating_add(1).min(whole / 4),
        Err(_) => whole / 4,
    };
    let mut heights = vec![Constraint::Length(2), Constraint::Min(2)];
    heights.extend(
        parts
            .iter()
            .skip(1)
            .map(|part| Constraint::Length(room(part))),
    );
    heights.push(Constraint::Length(1));
    let areas = Layout::vertical(heights).split(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let first = Line::from(vec![Span::styled(name, bold), Span::raw(summary)]);
    let head = Paragraph::new(vec![first, choice.line(trouble)]);
    frame.render_widget(head, areas[0]);
    if let Some(part) = parts.first_mut() {
        let lines = usize::from(areas[1].height.saturating_sub(1));
        choice.top = choice.top.min(part.lines.len().saturating_sub(lines));
        part.lines.drain(..choice.top);
    }
    for (part, area) in parts.into_iter().zip(&areas[1..]) {
        draw_part(frame, *area, part);
    }
    let help = "q quit  s sort (m b d n)  r reverse  p pause  \u{2191}\u{2193} scroll";
    let dim = Style::new().add_modifier(Modifier::DIM);
    if let Some(foot) = areas.last() {
        frame.render_widget(Line::styled(help, dim), *foot);
    }
}

fn draw_part(frame: &mut Frame<'_>, area: Rect, part: Part) {
    let cell = |text: String, column: &Column| {
        let alignment = match column.2 {
            true => Alignment::Right,
            false => Alignment::Left,
        };
        Cell::from(Line::from(text).alignment(alignment))
    };
    let columns = part.columns;
    let line = |cells: Vec<String>| {
        let cells = cells.into_iter().zip(columns);
        Row::new(cells.map(|(text, column)| cell(text, column)))
    };
    let widths = columns.iter().map(|(_, width, _)| match width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(*width),
    });
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
    let heading = line(columns.iter().map(|column| column.0.to_owned()).collect());
    let lines: Vec<Row<'_>> = part.lines.into_iter().map(line).collect();
    let grid = Grid::new(lines, widths).header(heading.style(bold));
    frame.render_widget(grid.column_spacing(1), area);
}
