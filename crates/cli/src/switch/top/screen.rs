//! What `millrace switch top` looks like, on a screen and as text, and what its keys do. No I/O of its own.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Grid};

use super::rates::{FlowRow, PortRow, Sort, View, WorkerRow};
use crate::table::{Table, human_seconds, human_short};
use crate::top::terminal::{Wish, common, scrolled};

/// What the user has chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) paused: bool,
    /// The first port that is shown.
    top: usize,
}

impl Choice {
    pub(super) fn new(sort: Sort, reversed: bool) -> Choice {
        Choice {
            sort,
            reversed,
            ..Choice::default()
        }
    }

    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Wish {
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
}

/// A column: its heading, how wide it is on a screen (0: what is left), and whether it holds numbers.
type Column = (&'static str, u16, bool);

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
const WORKERS: [Column; 7] = [
    ("WORKER", 6, true),
    ("PROCESSOR", 9, true),
    ("PORTS", 5, true),
    ("USED", 6, true),
    ("BUSY", 6, true),
    ("TURNS/s", 7, true),
    ("SLEEPS/s", 8, true),
];

/// Why no packets pass, or which causes had how many of those dropped.
fn why(port: &PortRow) -> String {
    let causes = port.drops.iter();
    let causes = causes.map(|drop| format!("{}/{}={}", drop.at, drop.cause, drop.packets));
    let state = (port.state != "connected").then(|| port.state.clone());
    let all: Vec<String> = state.into_iter().chain(causes).collect();
    match all.is_empty() {
        true => "-".to_owned(),
        false => all.join(" "),
    }
}

fn joined(names: &[String], none: &str) -> String {
    match names {
        [] => none.to_owned(),
        names => names.join(","),
    }
}

fn passed(port: &PortRow, number: fn(u64) -> String) -> [String; 5] {
    let figures = [
        port.received.packets,
        port.received.bytes,
        port.transmitted.packets,
        port.transmitted.bytes,
        port.dropped(),
    ];
    figures.map(number)
}

fn port_cells(port: &PortRow, number: fn(u64) -> String) -> Vec<String> {
    let names = [
        port.name.clone(),
        port.kind.clone(),
        port.worker.to_string(),
    ];
    let cells = names.into_iter().chain(passed(port, number));
    cells.chain([why(port)]).collect()
}

fn tunnel_cells(port: &PortRow, number: fn(u64) -> String) -> Vec<String> {
    let mtu = port.mtu.map_or("-".to_owned(), |mtu| mtu.to_string());
    let names = [
        port.name.clone(),
        port.vlan.clone(),
        mtu,
        number(port.stations),
    ];
    let cells = names.into_iter().chain(passed(port, number));
    cells.chain([why(port)]).collect()
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

fn worker_cells(worker: &WorkerRow, number: fn(u64) -> String) -> Vec<String> {
    let percent = |thousandths: Option<u64>| match thousandths {
        Some(share) => format!("{}.{}%", share / 10, share % 10),
        None => "-".to_owned(),
    };
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
}

/// A part of what is shown: columns, and lines of cells.
struct Part {
    columns: &'static [Column],
    lines: Vec<Vec<String>>,
}

/// Ports, tunnels, flows and workers. Those that there are none of have no lines.
fn parts(view: &View, number: fn(u64) -> String) -> [Part; 4] {
    let (tunnels, ports): (Vec<&PortRow>, Vec<&PortRow>) =
        view.ports.iter().partition(|port| port.is_tunnel());
    let ports = ports.into_iter().map(|port| port_cells(port, number));
    let tunnels = tunnels.into_iter().map(|port| tunnel_cells(port, number));
    let flows = view.flows.iter().map(|flow| flow_cells(flow, number));
    let workers = view.workers.iter();
    let workers = workers.map(|worker| worker_cells(worker, number));
    [
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
        Part {
            columns: &WORKERS,
            lines: workers.collect(),
        },
    ]
}

/// Tables for files and other programs: plain numbers.
pub(super) fn render(view: &View) -> String {
    let numeric: [&'static [usize]; 4] = [
        &[2, 3, 4, 5, 6, 7],
        &[2, 3, 4, 5, 6, 7, 8],
        &[1, 5, 6],
        &[0, 1, 2, 3, 4, 5, 6],
    ];
    let shown = parts(view, |count| count.to_string()).into_iter();
    let shown = shown
        .zip(numeric)
        .filter(|(part, _)| !part.lines.is_empty());
    let tables = shown.map(|(part, numeric)| {
        let heading: Vec<&str> = part.columns.iter().map(|column| column.0).collect();
        let mut table = Table::new(&heading, numeric);
        part.lines.into_iter().for_each(|line| table.push(line));
        table.render(false)
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// Draws everything. `trouble`: why there is no newer report.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, choice: &mut Choice, trouble: Option<&str>) {
    let [mut ports, tunnels, flows, workers] = parts(view, human_short);
    let whole = frame.area().height;
    // A heading, and what there is, in a quarter of the screen at most.
    let room = |part: &Part| match u16::try_from(part.lines.len()) {
        Ok(0) => 0,
        Ok(lines) => lines.saturating_add(1).min(whole / 4),
        Err(_) => whole / 4,
    };
    let layout = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(room(&tunnels)),
        Constraint::Length(room(&flows)),
        Constraint::Length(room(&workers)),
        Constraint::Length(1),
    ]);
    let [head, body, second, third, fourth, foot] = layout.areas(frame.area());
    frame.render_widget(Paragraph::new(summary(view, choice, trouble)), head);
    let lines = usize::from(body.height.saturating_sub(1));
    choice.top = choice.top.min(ports.lines.len().saturating_sub(lines));
    ports.lines.drain(..choice.top);
    for (part, area) in [
        (ports, body),
        (tunnels, second),
        (flows, third),
        (workers, fourth),
    ] {
        draw_part(frame, area, part);
    }
    let help = "q quit  s sort (m b d n)  r reverse  p pause  \u{2191}\u{2193} scroll";
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Line::styled(help, dim), foot);
}

fn summary(view: &View, choice: &Choice, trouble: Option<&str>) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let sum = |count: fn(&PortRow) -> u64| {
        let counts = view.ports.iter().map(count);
        human_short(counts.fold(0, u64::saturating_add))
    };
    let connected = view.ports.iter().filter(|port| port.state == "connected");
    let counts = format!(
        "  {} ports, {} connected  RX {} packets/s  TX {}  dropped {}  {} of {} stations  up {}",
        view.ports.len(),
        connected.count(),
        sum(|port| port.received.packets),
        sum(|port| port.transmitted.packets),
        sum(PortRow::dropped),
        view.stations,
        view.stations_max,
        human_seconds(view.uptime_s)
    );
    let order = if choice.reversed { " reversed" } else { "" };
    let mut second = vec![Span::raw(format!(
        "sorted by {}{order}",
        choice.sort.name()
    ))];
    if choice.paused {
        second.push(Span::styled("  paused", bold));
    }
    if let Some(trouble) = trouble {
        second.push(Span::styled(format!("  {trouble}"), bold.fg(Color::Red)));
    }
    let name = format!("switch/{}", view.pid);
    vec![
        Line::from(vec![Span::styled(name, bold), Span::raw(counts)]),
        Line::from(second),
    ]
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

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyModifiers;

    use super::super::rates::{Rates, tests::report};
    use super::*;

    fn view(ports: usize) -> View {
        let mut rates = Rates::default();
        rates.update(report(0, ports, 0));
        rates.update(report(1, ports, 5_000_000));
        rates.view(&[], Sort::Packets, false)
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
