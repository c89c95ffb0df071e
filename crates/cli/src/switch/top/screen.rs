//! What `millrace switch top` looks like, on a screen and as text, and what its keys do. No I/O of its own.

use ratatui::Frame;

use super::rates::{FlowRow, PortRow, View};
use crate::table::{human_seconds, human_short};
use crate::top::board::{self, Choice, Column, Part, workers_part};

const PORTS: [Column; 9] = [
    ("PORT", 0, false),
    ("KIND", 11, false),
    ("WORKER", 6, true),
    ("RX/s", 5, true),
    ("RXB/s", 5, true),
    ("TX/s", 5, true),
    ("TXB/s", 5, true),
    ("DROPS/s", 7, true),
    ("WHY", 0, false),
];
const TUNNELS: [Column; 10] = [
    ("TUNNEL", 0, false),
    ("VLAN", 10, false),
    ("MTU", 5, true),
    ("STATIONS", 8, true),
    ("RX/s", 5, true),
    ("RXB/s", 5, true),
    ("TX/s", 5, true),
    ("TXB/s", 5, true),
    ("DROPS/s", 7, true),
    ("WHY", 0, false),
];
const FLOWS: [Column; 7] = [
    ("FLOW", 0, false),
    ("PRIORITY", 8, true),
    ("IN", 10, false),
    ("MATCH", 0, false),
    ("OUT", 10, false),
    ("PKT/s", 5, true),
    ("BYTES/s", 7, true),
];
fn joined(names: &[String], none: &str) -> String {
    match names {
        [] => none.to_owned(),
        names => names.join(","),
    }
}

fn port_cells(port: &PortRow, number: fn(u64) -> String) -> Vec<String> {
    let names = [
        port.name.clone(),
        port.kind.clone(),
        port.worker.to_string(),
    ];
    let cells = names.into_iter().chain(port.rates.cells(number));
    cells.chain([port.rates.why(&port.state)]).collect()
}

fn tunnel_cells(port: &PortRow, number: fn(u64) -> String) -> Vec<String> {
    let mtu = port.mtu.map_or("-".to_owned(), |mtu| mtu.to_string());
    let names = [
        port.name.clone(),
        port.vlan.clone(),
        mtu,
        number(port.stations),
    ];
    let cells = names.into_iter().chain(port.rates.cells(number));
    cells.chain([port.rates.why(&port.state)]).collect()
}

fn flow_cells(flow: &FlowRow, number: fn(u64) -> String) -> Vec<String> {
    vec![
        flow.name.clone(),
        flow.priority.to_string(),
        flow.from.clone().unwrap_or_else(|| "any".to_owned()),
        joined(&flow.wanted, "-"),
        joined(&flow.out, "drop"),
        number(flow.rate.packets),
        number(flow.rate.bytes),
    ]
}

/// Ports, tunnels, flows and workers. Those that there are none of have no lines.
fn parts(view: &View, number: fn(u64) -> String) -> Vec<Part> {
    let (tunnels, ports): (Vec<&PortRow>, Vec<&PortRow>) =
        view.ports.iter().partition(|port| port.is_tunnel());
    let ports = ports.into_iter().map(|port| port_cells(port, number));
    let tunnels = tunnels.into_iter().map(|port| tunnel_cells(port, number));
    let flows = view.flows.iter().map(|flow| flow_cells(flow, number));
    vec![
        Part {
            columns: &PORTS,
            lines: ports.collect(),
        },
        Part {
            columns: &TUNNELS,
            lines: tunnels.collect(),
        },
        Part {
            columns: &FLOWS,
            lines: flows.collect(),
        },
        workers_part(&view.workers, number),
    ]
}

/// Tables for files and other programs: plain numbers.
pub(super) fn render(view: &View) -> String {
    board::render(parts(view, |count| count.to_string()))
}

/// Draws everything. `trouble`: why there is no newer report.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, choice: &mut Choice, trouble: Option<&str>) {
    let heading = (format!("switch/{}", view.pid), summary(view));
    board::draw(frame, heading, parts(view, human_short), choice, trouble);
}

fn summary(view: &View) -> String {
    let sum = |count: fn(&PortRow) -> u64| {
        let counts = view.ports.iter().map(count);
        human_short(counts.fold(0, u64::saturating_add))
    };
    let connected = view.ports.iter().filter(|port| port.state == "connected");
    format!(
        "  {} ports, {} connected  RX {} packets/s  TX {}  dropped {}  {} of {} stations  up {}",
        view.ports.len(),
        connected.count(),
        sum(|port| port.rates.received.packets),
        sum(|port| port.rates.transmitted.packets),
        sum(|port| port.rates.dropped()),
        view.stations,
        view.stations_max,
        human_seconds(view.uptime_s)
    )
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::rates::{Rates, tests::report};
    use super::*;
    use crate::top::board::Sort;
    use crate::top::terminal::Wish;

    fn view(ports: usize) -> View {
        let mut rates = Rates::default();
        rates.update(report(0, ports, 0));
        rates.update(report(1, ports, 5_000_000));
        rates.view(&[], &Choice::new(Sort::Packets, false))
    }

    fn text(width: u16, height: u16, choice: &mut Choice) -> Vec<String> {
        let view = view(40);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, &view, choice, Some("gone")))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        let lines = cells.chunks(usize::from(width)).map(|line| {
            let line = line.iter().map(ratatui::buffer::Cell::symbol);
            line.collect::<String>().trim_end().to_owned()
        });
        lines.collect()
    }

    fn press(choice: &mut Choice, keys: &str) -> Wish {
        let mut wish = Wish::Draw;
        for letter in keys.chars() {
            let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
            wish = choice.handle_key(key);
        }
        wish
    }

    #[test]
    fn everything_that_matters_fits_on_the_smallest_screen() {
        let lines = text(80, 24, &mut Choice::default());
        assert!(
            lines[0].starts_with("switch/77  41 ports, 41 connected"),
            "{}",
            lines[0]
        );
        assert!(lines[1].ends_with("gone"), "{}", lines[1]);
        let shown = lines.join("\n");
        for heading in [
            "PORT", "RX/s", "DROPS/s", "WHY", "TUNNEL", "MTU", "FLOW", "MATCH", "WORKER", "USED",
        ] {
            assert!(shown.contains(heading), "{heading}: {shown}");
        }
        assert!(
            lines[3].starts_with("a39") && lines[3].contains("186M"),
            "{}",
            lines[3]
        );
        for found in ["host", "1450", "straight", "ip_proto=6", "25.0%"] {
            assert!(shown.contains(found), "{found}: {shown}");
        }
        assert!(lines[23].starts_with("q quit"), "{}", lines[23]);
        for (width, height) in [(1, 1), (10, 2), (79, 3), (400, 100)] {
            text(width, height, &mut Choice::default());
        }
    }

    #[test]
    fn keys_choose_order_and_lines() {
        let mut choice = Choice::default();
        assert_eq!(press(&mut choice, "d"), Wish::Arrange);
        assert_eq!(
            (choice.sort, press(&mut choice, "s")),
            (Sort::Drops, Wish::Arrange)
        );
        assert_eq!(
            (choice.sort, press(&mut choice, "r")),
            (Sort::Name, Wish::Arrange)
        );
        assert_eq!(press(&mut choice, "pjj"), Wish::Draw);
        assert!(choice.reversed && choice.paused);
        let lines = text(80, 24, &mut choice);
        assert!(
            lines[1].starts_with("sorted by name reversed  paused"),
            "{}",
            lines[1]
        );
        assert!(lines[3].starts_with("a37"), "{}", lines[3]);
        assert_eq!(press(&mut choice, "q"), Wish::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(choice.handle_key(interrupt), Wish::Quit);
    }

    #[test]
    fn text_has_plain_numbers_and_no_table_of_nothing() {
        let text = render(&view(2));
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0][..4], ["PORT", "KIND", "WORKER", "RX/s"]);
        let second = [
            "a1",
            "memif",
            "0",
            "5000000",
            "500000000",
            "5000000",
            "500000000",
            "500000",
        ];
        assert_eq!(lines[1][..8], second);
        assert_eq!(lines[1][8], "switch/policed=500000");
        for heading in ["\n\nTUNNEL", "\n\nFLOW", "\n\nWORKER"] {
            assert!(text.contains(heading), "{heading}: {text}");
        }
        let mut few = view(1);
        few.flows.clear();
        few.ports[0].state = "connecting: the peer has gone".to_owned();
        few.ports.truncate(1);
        let text = render(&few);
        assert!(
            !text.contains("FLOW") && text.matches("\n\n").count() == 1,
            "{text}"
        );
        assert!(text.contains("connecting: the peer has gone"), "{text}");
    }
}
