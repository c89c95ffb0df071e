//! What the screen of `millrace top` looks like, and what its keys do. No I/O of its own.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::channels::{self, ChannelRow};
use super::rates::{Row, Sort, View};
use super::terminal::{Wish, common, scrolled};
use crate::listing::Filter;
use crate::table::{human_seconds, human_short};

/// From this width on, numbers and ages are shown; from the next, addresses, too.
const WIDE: u16 = 100;
const WIDEST: u16 = 150;

/// What the user has chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    pub(super) words: String,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) paused: bool,
    /// The filter as it is being typed.
    typed: Option<String>,
    /// The first line that is shown.
    top: usize,
}

impl Choice {
    pub(super) fn new(words: &[String], sort: Sort, reversed: bool) -> Choice {
        Choice {
            words: words.join(" "),
            sort,
            reversed,
            ..Choice::default()
        }
    }

    pub(super) fn filter(&self) -> Filter {
        Filter::new(std::slice::from_ref(&self.words))
    }

    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Wish {
        if let Some(wish) = common(key) {
            return wish;
        }
        match self.typed.take() {
            Some(typed) => self.handle_typing(typed, key.code),
            None => self.handle_command(key.code),
        }
    }

    fn handle_typing(&mut self, mut typed: String, key: KeyCode) -> Wish {
        match key {
            KeyCode::Enter => {
                self.words = typed;
                self.top = 0;
                return Wish::Arrange;
            }
            KeyCode::Esc => return Wish::Draw,
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Char(letter) if !letter.is_control() => typed.push(letter),
            _ => {}
        }
        self.typed = Some(typed);
        Wish::Draw
    }

    fn handle_command(&mut self, key: KeyCode) -> Wish {
        let sort = match key {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('/') => {
                self.typed = Some(self.words.clone());
                return Wish::Draw;
            }
            KeyCode::Esc => {
                self.words.clear();
                return Wish::Arrange;
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                return Wish::Arrange;
            }
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Wish::Draw;
            }
            KeyCode::Char('s') => self.sort.next(),
            KeyCode::Char('b') => Sort::Bytes,
            KeyCode::Char('m') => Sort::Messages,
            KeyCode::Char('g') => Sort::Ring,
            KeyCode::Char('a') => Sort::Age,
            KeyCode::Char('n') => Sort::Name,
            KeyCode::Char('w') => Sort::Why,
            other => {
                self.top = scrolled(self.top, other);
                return Wish::Draw;
            }
        };
        self.sort = sort;
        Wish::Arrange
    }
}

/// Draws everything. `trouble`: why there is no newer report.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    (view, channels): (&View, &[ChannelRow]),
    choice: &mut Choice,
    trouble: Option<&str>,
) {
    let parts = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(channels::height(channels.len(), frame.area().height)),
        Constraint::Length(1),
    ]);
    let [head, body, below, foot] = parts.areas(frame.area());
    frame.render_widget(Paragraph::new(summary(view, choice, trouble)), head);
    // A heading takes the first line.
    let room = usize::from(body.height.saturating_sub(1));
    choice.top = choice.top.min(view.rows.len().saturating_sub(room));
    let shown = view.rows.iter().skip(choice.top).take(room);
    draw_table(frame, body, shown);
    channels::draw(frame, below, channels);
    frame.render_widget(Paragraph::new(help(choice)), foot);
}

fn summary(view: &View, choice: &Choice, trouble: Option<&str>) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let share = (u128::from(view.flow.ring_bytes) * 100).checked_div(view.flow.bytes.into());
    let counts = format!(
        "  {} of {} connections, {} on the ring  {}B/s  {} msg/s  {} by the ring",
        view.rows.len(),
        view.all,
        view.on_ring,
        human_short(view.flow.bytes),
        human_short(view.flow.messages),
        share.map_or("-".to_owned(), |share| format!("{share}%")),
    );
    let order = if choice.reversed { " reversed" } else { "" };
    let mut state = format!("sorted by {}{order}", choice.sort.name());
    if !choice.words.is_empty() {
        state.push_str(&format!(", only {}", choice.words));
    }
    if view.truncated {
        state.push_str(", there are more than are listed");
    }
    let mut second = vec![Span::raw(state)];
    if choice.paused {
        second.push(Span::styled("  paused", bold));
    }
    if let Some(trouble) = trouble {
        let alarm = bold.fg(Color::Red);
        second.push(Span::styled(format!("  {trouble}"), alarm));
    }
    vec![
        Line::from(vec![Span::styled("millrace", bold), Span::raw(counts)]),
        Line::from(second),
    ]
}

fn help(choice: &Choice) -> Line<'static> {
    match &choice.typed {
        Some(typed) => Line::from(format!("only: {typed}_   (Enter, Esc)")),
        None => Line::styled(
            "q quit  / filter  Esc all  s sort (b m g a n w)  r reverse  p pause  \u{2191}\u{2193} scroll",
            Style::new().add_modifier(Modifier::DIM),
        ),
    }
}

/// A column: its heading, its width, whether it holds numbers, and how it is filled.
type Column = (&'static str, Constraint, bool, fn(&Row) -> String);

fn columns(width: u16) -> Vec<Column> {
    let number = |width| Constraint::Length(width);
    let mut columns: Vec<Column> = Vec::new();
    let id: fn(&Row) -> String = |row| row.id.map_or("-".to_owned(), |id| id.to_string());
    if width >= WIDE {
        columns.push(("ID", number(6), true, id));
    }
    columns.push(("CONNECTED", Constraint::Fill(1), false, |row| {
        row.client.clone()
    }));
    if width >= WIDEST {
        columns.push(("ADDRESS", Constraint::Fill(1), false, |row| {
            row.client_address.clone()
        }));
    }
    columns.push(("ACCEPTED", Constraint::Fill(1), false, |row| {
        row.server.clone()
    }));
    if width >= WIDEST {
        columns.push(("ADDRESS", Constraint::Fill(1), false, |row| {
            row.server_address.clone()
        }));
    }
    columns.extend::<[Column; 7]>([
        ("SENT/s", number(6), true, |row| human_short(row.sent.bytes)),
        ("MSG/s", number(5), true, |row| {
            human_short(row.sent.messages)
        }),
        ("RECV/s", number(6), true, |row| {
            human_short(row.received.bytes)
        }),
        ("MSG/s", number(5), true, |row| {
            human_short(row.received.messages)
        }),
        ("RING", number(4), true, |row| {
            row.ring.map_or("-".to_owned(), |share| format!("{share}%"))
        }),
        ("ROAD", number(6), false, |row| row.road.clone()),
        (
            "WHY",
            number(if width >= WIDE { 20 } else { 15 }),
            false,
            |row| row.why.clone(),
        ),
    ]);
    if width >= WIDE {
        columns.push(("AGE", number(6), true, |row| human_seconds(row.age_s)));
    }
    columns
}

/// Characters that each column of names has.
fn name_width(columns: &[Column], width: u16) -> usize {
    let fixed = |column: &Column| match column.1 {
        Constraint::Length(length) => Some(usize::from(length)),
        _ => None,
    };
    let taken: usize = columns.iter().filter_map(fixed).sum::<usize>() + columns.len() - 1;
    let names = columns.iter().filter(|it| fixed(it).is_none()).count();
    usize::from(width).saturating_sub(taken) / names.max(1)
}

/// Takes from a name, not from the process number or port behind it.
fn shorten(text: &str, width: usize) -> String {
    let (name, number) = text
        .rfind(['/', ':'])
        .map_or((text, ""), |at| text.split_at(at));
    let room = width.saturating_sub(number.len() + 1);
    if text.len() <= width || room == 0 {
        return text.to_owned();
    }
    let kept: String = name.chars().take(room).collect();
    format!("{kept}~{number}")
}

fn draw_table<'a>(frame: &mut Frame<'_>, area: Rect, rows: impl Iterator<Item = &'a Row>) {
    let columns = columns(area.width);
    let names = name_width(&columns, area.width);
    let cell = |text: String, numeric: bool| {
        let alignment = if numeric {
            Alignment::Right
        } else {
            Alignment::Left
        };
        Cell::from(Line::from(text).alignment(alignment))
    };
    let heading = columns
        .iter()
        .map(|(name, _, numeric, _)| cell((*name).to_owned(), *numeric));
    let lines = rows.map(|row| {
        let cells = columns.iter().map(|(_, width, numeric, fill)| {
            let text = fill(row);
            match width {
                Constraint::Length(_) => cell(text, *numeric),
                _ => cell(shorten(&text, names), *numeric),
            }
        });
        let color = if row.road == "shm" {
            Color::Green
        } else {
            Color::Reset
        };
        TableRow::new(cells).style(Style::new().fg(color))
    });
    let widths = columns.iter().map(|(_, width, ..)| *width);
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
    let table = Table::new(lines, widths)
        .header(TableRow::new(heading).style(bold))
        .column_spacing(1);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyModifiers;

    use super::*;
    use crate::top::rates::{Rates, tests::report};

    fn text(width: u16, height: u16, choice: &mut Choice) -> Vec<String> {
        let mut rates = Rates::default();
        rates.update(report(0, &[0; 40]));
        let counts: Vec<u64> = (0..40).map(|index| 5_000_000 * index).collect();
        rates.update(report(1_000_000_000, &counts));
        let view = rates.view(&choice.filter(), choice.sort, choice.reversed);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, (&view, &[]), choice, None))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        cells
            .chunks(usize::from(width))
            .map(|line| {
                line.iter()
                    .map(ratatui::buffer::Cell::symbol)
                    .collect::<String>()
            })
            .map(|line: String| line.trim_end().to_owned())
            .collect()
    }

    fn press(choice: &mut Choice, keys: &str) -> Wish {
        let mut wish = Wish::Draw;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                letter => KeyCode::Char(letter),
            };
            wish = choice.handle_key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        wish
    }

    #[test]
    fn everything_that_matters_fits_on_the_smallest_screen() {
        let lines = text(80, 24, &mut Choice::default());
        assert_eq!(lines.len(), 24);
        assert!(lines[0].starts_with("millrace  40 of 40 connections, 40 on the ring"));
        for heading in [
            "CONNECTED",
            "ACCEPTED",
            "SENT/s",
            "RECV/s",
            "RING",
            "ROAD",
            "WHY",
        ] {
            assert!(lines[2].contains(heading), "{}", lines[2]);
        }
        assert!(lines[3].contains("client/10"), "{}", lines[3]);
        assert!(lines[3].contains("186M"), "{}", lines[3]);
        assert!(lines[23].starts_with("q quit"), "{}", lines[23]);
    }

    #[test]
    fn a_wide_screen_shows_addresses_and_a_tiny_one_does_not_fail() {
        let lines = text(180, 30, &mut Choice::default());
        assert!(lines[3].contains("127.0.0.1:6379"), "{}", lines[3]);
        for (width, height) in [(1, 1), (10, 2), (79, 3), (400, 100)] {
            text(width, height, &mut Choice::default());
        }
    }

    #[test]
    fn keys_choose_order_and_lines() {
        let mut choice = Choice::default();
        assert_eq!(press(&mut choice, "m"), Wish::Arrange);
        assert_eq!(choice.sort, Sort::Messages);
        assert_eq!(press(&mut choice, "s"), Wish::Arrange);
        assert_eq!(
            (choice.sort, press(&mut choice, "r")),
            (Sort::Ring, Wish::Arrange)
        );
        assert!(choice.reversed);
        assert_eq!(press(&mut choice, "/x\u{8}7q"), Wish::Draw);
        assert!(text(80, 24, &mut choice)[23].starts_with("only: 7q_"));
        assert_eq!(press(&mut choice, "\u{8}\n"), Wish::Arrange);
        let lines = text(80, 24, &mut choice);
        assert!(lines[0].contains("1 of 40 connections"), "{}", lines[0]);
        assert!(
            lines[1].contains("sorted by ring reversed, only 7"),
            "{}",
            lines[1]
        );
        assert_eq!(press(&mut choice, "\u{1b}"), Wish::Arrange);
        assert_eq!(choice.words, "");
        assert_eq!(press(&mut choice, "q"), Wish::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(choice.handle_key(interrupt), Wish::Quit);
    }

    #[test]
    fn a_name_is_shortened_before_its_number() {
        assert_eq!(shorten("redis-benchmark/4711", 12), "redis-~/4711");
        assert_eq!(shorten("redis/4711", 12), "redis/4711");
        assert_eq!(shorten("[2001:db8::1]:6379", 12), "[2001:~:6379");
        assert_eq!(shorten("-", 0), "-");
    }

    #[test]
    fn scrolling_stops_at_both_ends() {
        let mut choice = Choice::default();
        choice.handle_key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        let lines = text(80, 24, &mut choice);
        assert_eq!(choice.top, 20);
        assert!(lines[22].contains(" 0 "), "{}", lines[22]);
        press(&mut choice, &"k".repeat(30));
        assert_eq!(choice.top, 0);
    }
}
