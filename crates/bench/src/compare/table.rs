//! Text in columns, in three forms.

use std::fmt::Write;

/// Lines of cells below a heading.
#[derive(Debug)]
pub(super) struct Table {
    heading: Vec<String>,
    /// Columns of figures, whose cells end at the same place.
    figures: &'static [usize],
    lines: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(heading: Vec<String>, figures: &'static [usize]) -> Table {
        Table {
            heading,
            figures,
            lines: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.lines.push(cells);
    }

    /// For a terminal: columns two blanks apart.
    pub(super) fn text(&self) -> String {
        let lines = || std::iter::once(&self.heading).chain(&self.lines);
        let width = |column: usize| {
            let cells = lines().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let mut text = String::new();
        for line in lines() {
            let mut row = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let _ = if self.figures.contains(&column) {
                    write!(row, "{cell:>width$}  ")
                } else {
                    write!(row, "{cell:width$}  ")
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }

    /// As GitHub and others read it.
    pub(super) fn markdown(&self) -> String {
        let row = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = |column| {
            if self.figures.contains(&column) {
                "---:"
            } else {
                "---"
            }
        };
        let rules: Vec<&str> = (0..self.heading.len()).map(rule).collect();
        let lines = self.lines.iter().map(|line| row(line));
        format!(
            "{}|{}|\n{}",
            row(&self.heading),
            rules.join("|"),
            lines.collect::<String>()
        )
    }

    /// As RFC 4180 has it, but for the ends of lines, which are those of the system.
    pub(super) fn csv(&self) -> String {
        let cell = |text: &String| {
            if text.contains(['"', ',', '\n', '\r']) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.clone()
            }
        };
        let lines = std::iter::once(&self.heading).chain(&self.lines);
        lines
            .map(|line| line.iter().map(cell).collect::<Vec<_>>().join(",") + "\n")
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["name", "time", "why"].map(str::to_owned).to_vec(), &[1]);
        table.push(["a", "12.0 µs", ""].map(str::to_owned).to_vec());
        table.push(["a|b", "7 ms", "\"x\", y"].map(str::to_owned).to_vec());
        table
    }

    #[test]
    fn columns_are_aligned_by_characters_and_lines_have_no_tail() {
        assert_eq!(
            table().text(),
            "name     time  why\na     12.0 µs\na|b      7 ms  \"x\", y\n"
        );
    }

    #[test]
    fn markdown_keeps_its_columns_whatever_is_in_them() {
        assert_eq!(
            table().markdown(),
            "| name | time | why |\n|---|---:|---|\n| a | 12.0 µs |  |\n| a\\|b | 7 ms | \"x\", y |\n"
        );
    }

    #[test]
    fn csv_quotes_what_would_split_a_cell() {
        assert_eq!(
            table().csv(),
            "name,time,why\na,12.0 µs,\na|b,7 ms,\"\"\"x\"\", y\"\n"
        );
    }
}
