//! Plain tables: columns as wide as their widest cell, two spaces apart, no lines.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these columns; the headings become its first row.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()],
        }
    }

    /// Adds a row. Missing cells stay empty.
    ///
    /// # Panics
    /// `cells` has more cells than there are columns.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert!(cells.len() <= self.columns.len(), "more cells than columns: {cells:?}");
        self.rows.push(cells);
    }

    /// Renders the table; lines have no trailing spaces.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(|c| width(c).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                let gap = if i == 0 { "" } else { "  " };
                let width = widths[i];
                line += &match self.columns[i] {
                    Align::Left => format!("{gap}{cell:<width$}"),
                    Align::Right => format!("{gap}{cell:>width$}"),
                };
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("name", Align::Left), ("rate", Align::Right), ("note", Align::Left)]);
        table.row(["plc1", "50 Mbit/s", "late"]);
        table.row(["a-long-name", "1 bit/s"]);
        let expected = "\
name              rate  note
plc1         50 Mbit/s  late
a-long-name    1 bit/s
";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn width_is_counted_in_characters() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left)]);
        table.row(["é█", "x"]);
        assert_eq!(table.render(), "a   b\né█  x\n");
    }
}
