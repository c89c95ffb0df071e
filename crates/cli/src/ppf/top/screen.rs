//! What `millrace ppf top` looks like, on a screen and as text. No I/O of its own.

use ratatui::Frame;

use super::rates::{PortRow, ShareRow, StageRow, View};
use crate::table::{human_seconds, human_short};
use crate::top::board::{self, Choice, Column, Dropped, Part, workers_part};

const PORTS: [Column; 9] = [
    ("PORT", 0, false),
    ("SIDE", 5, false),
    ("WORKER", 6, true),
    ("RX/s", 5, true),
    ("RXB/s", 5, true),
    ("TX/s", 5, true),
    ("TXB/s", 5, true),
    ("DROPS/s", 7, true),
    ("WHY", 0, false),
];
const DROPS: [Column; 4] = [
    ("FROM", 5, false),
    ("DROPPED", 18, false),
    ("DROPS/s", 7, true),
    ("DEMANDED-BY", 0, false),
];
const FUNCTION: [Column; 7] = [
    ("BEARERS", 8, true),
    ("PATHS-UP", 8, true),
    ("PATHS-DOWN", 10, true),
    ("UNKNOWN", 7, true),
    ("HELD", 5, true),
    ("HELD-BYTES", 10, true),
    ("EVENTS/s", 8, true),
];

fn port_cells(port: &PortRow, number: fn(u64) -> String) -> Vec<String> {
    let names = [
        port.name.clone(),
        port.side.clone(),
        port.worker.to_string(),
    ];
    let cells = names.into_iter().chain(port.rates.cells(number));
    cells.chain([port.rates.why(&port.state)]).collect()
}

fn drop_cells(side: &str, drop: &Dropped, number: fn(u64) -> String) -> Vec<String> {
    vec![
        side.to_owned(),
        drop.cause.clone(),
        number(drop.packets),
        drop.clause.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

fn function_cells(view: &View, number: fn(u64) -> String) -> Vec<String> {
    let figures = [
        view.bearers,
        view.paths.up,
        view.paths.down,
        view.paths.unknown,
        view.held.packets,
        view.held.bytes,
        view.events,
    ];
    figures.map(number).into()
}

const SHARES: [Column; 7] = [
    ("WORKER", 6, true),
    ("LOAD", 6, true),
    ("ACTIVE", 6, false),
    ("SHARDS", 6, true),
    ("GIVEN", 6, true),
    ("TAKEN", 6, true),
    ("HANDED/s", 8, true),
];
const STAGES: [Column; 5] = [
    ("STAGE", 0, false),
    ("EVENTS/s", 8, true),
    ("BATCHES/s", 9, true),
    ("COST-NS", 7, true),
    ("WAITING", 7, true),
];

fn share_cells(share: &ShareRow, number: fn(u64) -> String) -> Vec<String> {
    vec![
        share.worker.to_string(),
        format!("{}.{}%", share.load / 10, share.load % 10),
        if share.is_active { "yes" } else { "no" }.to_owned(),
        number(share.shards),
        number(share.given),
        number(share.taken),
        number(share.handed_over),
    ]
}

fn stage_cells(stage: &StageRow, number: fn(u64) -> String) -> Vec<String> {
    let figures = [stage.events, stage.batches, stage.cost_ns, stage.waiting];
    let cells = figures.into_iter().map(number);
    std::iter::once(stage.name.clone()).chain(cells).collect()
}

/// Ports, drops, the function, workers, and what these share. Those that there are none of have no lines.
fn parts(view: &View, number: fn(u64) -> String) -> Vec<Part> {
    let ports = view.ports.iter().map(|port| port_cells(port, number));
    let drops = view.drops.iter();
    let drops = drops.map(|(side, drop)| drop_cells(side, drop, number));
    vec![
        Part {
            columns: &PORTS,
            lines: ports.collect(),
        },
        Part {
            columns: &DROPS,
            lines: drops.collect(),
        },
        Part {
            columns: &FUNCTION,
            lines: vec![function_cells(view, number)],
        },
        workers_part(&view.workers, number),
        Part {
            columns: &SHARES,
            lines: view
                .shares
                .iter()
                .map(|it| share_cells(it, number))
                .collect(),
        },
        Part {
            columns: &STAGES,
            lines: view
                .stages
                .iter()
                .map(|it| stage_cells(it, number))
                .collect(),
        },
    ]
}

/// Tables for files and other programs: plain numbers.
pub(super) fn render(view: &View) -> String {
    board::render(parts(view, |count| count.to_string()))
}

/// Draws everything. `trouble`: why there is no newer report.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, choice: &mut Choice, trouble: Option<&str>) {
    let heading = (format!("ppf/{}", view.pid), summary(view));
    board::draw(frame, heading, parts(view, human_short), choice, trouble);
}

fn summary(view: &View) -> String {
    let sum = |count: fn(&PortRow) -> u64| {
        let counts = view.ports.iter().map(count);
        human_short(counts.fold(0, u64::saturating_add))
    };
    let connected = view.ports.iter().filter(|port| port.state == "connected");
    let dropped = view.drops.iter().map(|(_, drop)| drop.packets);
    format!(
        "  {} ports, {} connected  RX {} packets/s  TX {}  dropped {} and {}  {} bearers  up {}",
        view.ports.len(),
        connected.count(),
        sum(|port| port.rates.received.packets),
        sum(|port| port.rates.transmitted.packets),
        sum(|port| port.rates.dropped()),
        human_short(dropped.fold(0, u64::saturating_add)),
        human_short(view.bearers),
        human_seconds(view.uptime_s)
    )
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::tests::{report, view_of};
    use super::*;

    fn view() -> View {
        view_of(&[report(0, 0), report(1, 5_000_000)], &Choice::default())
    }

    fn text(width: u16, height: u16) -> Vec<String> {
        let view = view();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, &view, &mut Choice::default(), Some("gone")))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        let lines = cells.chunks(usize::from(width)).map(|line| {
            let line = line.iter().map(ratatui::buffer::Cell::symbol);
            line.collect::<String>().trim_end().to_owned()
        });
        lines.collect()
    }

    #[test]
    fn everything_that_matters_fits_on_the_smallest_screen() {
        let lines = text(80, 24);
        assert!(
            lines[0].starts_with("ppf/77  2 ports, 2 connected"),
            "{}",
            lines[0]
        );
        assert!(lines[1].ends_with("gone"), "{}", lines[1]);
        let shown = lines.join("\n");
        for found in [
            "PORT",
            "SIDE",
            "WHY",
            "DROPPED",
            "DEMANDED-BY",
            "BEARERS",
            "PATHS-DOWN",
            "EVENTS/s",
            "WORKER",
            "USED",
            "unknown_teid",
            "TS 29.281, 7.3.1",
            "25.0%",
        ] {
            assert!(shown.contains(found), "{found}: {shown}");
        }
        assert!(lines[3].starts_with("n6"), "{}", lines[3]);
        for (width, height) in [(1, 1), (10, 2), (79, 3), (400, 100)] {
            text(width, height);
        }
    }

    #[test]
    fn text_has_plain_numbers_and_no_table_of_nothing() {
        let text = render(&view());
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0][..4], ["PORT", "SIDE", "WORKER", "RX/s"]);
        assert_eq!(lines[1][..4], ["n6", "core", "0", "10000000"]);
        for heading in ["\n\nFROM", "\n\nBEARERS", "\n\nWORKER"] {
            assert!(text.contains(heading), "{heading}: {text}");
        }
        let mut quiet = view();
        quiet.drops.clear();
        assert!(!render(&quiet).contains("FROM"));
    }
}
