//! Tables that a terminal and a Markdown reader both show well.

/// Lines of cells as a Markdown table, the columns padded. The first line has the titles.
pub fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, &width) in line.iter().zip(&widths) {
            text.push_str(&format!("| {cell:<width$} "));
        }
        text.push_str("|\n");
        if number == 0 {
            widths
                .iter()
                .for_each(|width| text.push_str(&format!("|{}", "-".repeat(width + 2))));
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_by_characters() {
        let lines = [["a", "b"], ["µs", "1"]].map(|line| line.map(str::to_owned).to_vec());
        assert_eq!(table(&lines), "| a  | b |\n|----|---|\n| µs | 1 |\n");
    }
}
