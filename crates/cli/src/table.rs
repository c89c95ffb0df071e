//! Text in columns.

use std::fmt::Write;

/// Lines of cells, the first of which is the heading.
#[derive(Debug)]
pub(crate) struct Table {
    lines: Vec<Vec<String>>,
    /// Columns whose cells end at the same place.
    numeric: Vec<usize>,
}

impl Table {
    pub(crate) fn new(heading: &[&str], numeric: &[usize]) -> Table {
        Table {
            lines: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()],
            numeric: numeric.to_vec(),
        }
    }

    pub(crate) fn push(&mut self, cells: Vec<String>) {
        self.lines.push(cells);
    }

    /// Everything, two spaces between columns. `styled`: for a terminal, with the heading in bold.
    pub(crate) fn render(&self, styled: bool) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| {
            self.lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(String::len)
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (index, line) in self.lines.iter().enumerate() {
            let mut row = String::new();
            for (column, cell) in line.iter().enumerate() {
                let width = widths[column];
                let _ = if self.numeric.contains(&column) {
                    write!(row, "{cell:>width$}  ")
                } else {
                    write!(row, "{cell:width$}  ")
                };
            }
            let row = row.trim_end();
            let _ = if styled && index == 0 {
                writeln!(text, "\x1b[1m{row}\x1b[0m")
            } else {
                writeln!(text, "{row}")
            };
        }
        text
    }
}

/// 1536 as "1.5 KiB".
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// 1536 as "1.5K": never more than five characters, below a quintillion.
pub(crate) fn human_short(count: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if count < 1000 {
        return count.to_string();
    }
    let mut value = count as f64;
    let mut unit = ' ';
    for next in UNITS {
        if value < 999.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value < 9.95 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.0}{unit}")
    }
}

/// 75 seconds as "1m15s".
pub(crate) fn human_seconds(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let mut table = Table::new(&["NAME", "COUNT", "WHY"], &[1]);
        table.push(vec!["a".into(), "1000".into(), String::new()]);
        table.push(vec!["longer".into(), "7".into(), "x".into()]);
        assert_eq!(
            table.render(false),
            "NAME    COUNT  WHY\na        1000\nlonger      7  x\n"
        );
    }

    #[test]
    fn numbers_are_for_humans() {
        let bytes: Vec<String> = [0, 1023, 1536, 5 << 20, u64::MAX].map(human_bytes).into();
        assert_eq!(
            bytes,
            ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "16384.0 PiB"]
        );
        let short: Vec<String> = [0, 999, 1000, 1536, 20 << 10, 1_023_000, 5 << 20, u64::MAX]
            .map(human_short)
            .into();
        let expected = ["0", "999", "1.0K", "1.5K", "20K", "999K", "5.0M", "16E"];
        assert_eq!(short, expected);
        let seconds: Vec<String> = [9, 75, 3700, 200_000].map(human_seconds).into();
        assert_eq!(seconds, ["9s", "1m15s", "1h01m", "2d07h"]);
    }
}
