//! Channels as `millrace top` shows them: one line for each, with rates from two reports. No I/O.

use millrace_agent::ChannelsReport;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets;

use crate::channels::lines;
use crate::rates::LinkRates;
use crate::table::{Table, human_short};

/// One channel. Counts of what has passed are per second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChannelRow {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) senders: usize,
    pub(crate) receivers: usize,
    pub(crate) links: usize,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
    /// Messages that wait now.
    pub(crate) queued: u64,
}

/// The channels of the last report, with their rates.
#[derive(Debug, Default)]
pub(crate) struct ChannelRates {
    links: LinkRates,
    rows: Vec<ChannelRow>,
}

impl ChannelRates {
    /// Takes a report in. The rates of a link that is new are zero.
    pub(crate) fn update(&mut self, report: &ChannelsReport) {
        self.links.update(report);
        self.rows.clear();
        for channel in &report.channels {
            let ends = channel.ends.iter();
            let senders = ends
                .filter(|end| matches!(end.role.as_str(), "publisher" | "client"))
                .count();
            self.rows.push(ChannelRow {
                name: channel.name.clone(),
                kind: channel.kind.clone(),
                senders,
                receivers: channel.ends.len() - senders,
                ..ChannelRow::default()
            });
        }
        for line in lines(report) {
            let place = report
                .channels
                .iter()
                .position(|channel| std::ptr::eq(channel, line.channel));
            let row = place.and_then(|place| self.rows.get_mut(place));
            let (Some(row), Some(_)) = (row, line.link) else {
                continue;
            };
            row.links += 1;
            let rate = self.links.of(&line).unwrap_or_default();
            row.messages = row.messages.saturating_add(rate.messages);
            row.bytes = row.bytes.saturating_add(rate.bytes);
            row.dropped = row.dropped.saturating_add(rate.dropped);
            let queued = line.flow.map_or(0, |flow| flow.queued);
            row.queued = row.queued.saturating_add(queued.into());
        }
        self.rows
            .sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    }

    /// The busiest first.
    pub(crate) fn rows(&self) -> &[ChannelRow] {
        &self.rows
    }
}

/// What the columns are called, and which hold numbers.
pub(crate) const HEADING: [&str; 9] = [
    "CHANNEL",
    "KIND",
    "SENDERS",
    "RECEIVERS",
    "LINKS",
    "MSG/s",
    "BYTES/s",
    "DROPS/s",
    "QUEUED",
];

/// Characters of each on the screen, where numbers have five at most; 0: what is left.
const WIDTHS: [u16; HEADING.len()] = [0, 8, 7, 9, 5, 5, 7, 7, 6];

/// The cells of a line. `number` writes numbers.
pub(crate) fn cells(row: &ChannelRow, number: fn(u64) -> String) -> Vec<String> {
    let counts = [row.senders, row.receivers, row.links].map(|count| number(count as u64));
    let rates = [row.messages, row.bytes, row.dropped, row.queued].map(number);
    let names = [row.name.clone(), row.kind.clone()];
    names.into_iter().chain(counts).chain(rates).collect()
}

/// A table for files and other programs: plain numbers. Nothing where there are no channels.
pub(crate) fn render(rows: &[ChannelRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&HEADING, &[2, 3, 4, 5, 6, 7, 8]);
    for row in rows {
        table.push(cells(row, |count| count.to_string()));
    }
    format!("\n{}", table.render(false))
}

/// Lines for channels: as many as there are, and a heading, in a third of the screen at most.
pub(crate) fn height(count: usize, screen: u16) -> u16 {
    let lines = u16::try_from(count).unwrap_or(u16::MAX);
    match lines {
        0 => 0,
        lines => lines.saturating_add(1).min(screen / 3),
    }
}

/// The busiest channels, and how many more there are.
pub(crate) fn draw(frame: &mut Frame<'_>, area: Rect, rows: &[ChannelRow]) {
    let room = usize::from(area.height.saturating_sub(1));
    let widths = WIDTHS.map(|width| match width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let line = |cells: Vec<String>| {
        let cells = cells.into_iter().enumerate().map(|(index, text)| {
            let alignment = if index < 2 {
                Alignment::Left
            } else {
                Alignment::Right
            };
            widgets::Cell::from(Line::from(text).alignment(alignment))
        });
        widgets::Row::new(cells)
    };
    let mut heading = HEADING.map(str::to_owned).to_vec();
    if rows.len() > room {
        heading[0] = format!("CHANNEL ({room} of {})", rows.len());
    }
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
    let lines = rows
        .iter()
        .take(room)
        .map(|row| line(cells(row, human_short)));
    let table = widgets::Table::new(lines, widths)
        .header(line(heading).style(bold))
        .column_spacing(1);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::news;

    #[test]
    fn rates_are_what_came_between_two_reports() {
        let mut rates = ChannelRates::default();
        rates.update(&news(100, 1_000_000_000));
        assert_eq!(rates.rows()[0].messages, 0);
        rates.update(&news(300, 3_000_000_000));
        let [row] = rates.rows() else {
            panic!("{:?}", rates.rows());
        };
        assert_eq!((row.senders, row.receivers, row.links), (2, 1, 1));
        assert_eq!(
            (row.messages, row.bytes, row.dropped, row.queued),
            (100, 10_000, 0, 3)
        );
        let text = render(rates.rows());
        assert!(
            text.ends_with(
                "news     messages        2          1      1    100    10000        0       3\n"
            ),
            "{text}"
        );
        rates.update(&ChannelsReport::default());
        assert_eq!(render(rates.rows()), "");
    }

    #[test]
    fn the_busiest_have_a_third_of_the_screen_and_the_others_are_counted() {
        use ratatui::{Terminal, backend::TestBackend};
        assert_eq!(
            [height(0, 24), height(3, 24), height(30, 24), height(3, 2)],
            [0, 4, 8, 0]
        );
        let row = |index: u64| ChannelRow {
            name: format!("upf/{index}"),
            kind: "requests".to_owned(),
            messages: 5_000_000,
            ..ChannelRow::default()
        };
        let rows: Vec<ChannelRow> = (0..30).map(row).collect();
        let mut terminal = Terminal::new(TestBackend::new(80, 4)).unwrap();
        terminal
            .draw(|frame| draw(frame, frame.area(), &rows))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        for shown in ["CHANNEL (3 of 30)", "MSG/s", "upf/2", "requests", "4.8M"] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        assert!(!text.contains("upf/3"));
    }

    #[test]
    fn counts_that_go_back_and_clocks_that_stand_still_are_borne() {
        let mut rates = ChannelRates::default();
        for (count, now_ns) in [(u64::MAX / 100, 5), (3, 5), (u64::MAX / 100, 4)] {
            rates.update(&news(count, now_ns));
            assert_eq!((rates.rows()[0].messages, rates.rows()[0].queued), (0, 3));
        }
    }
}
