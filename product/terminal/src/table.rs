//! Text in columns, as wide as they need to be.

use crate::{BOLD, line};
use std::fmt;

/// A heading and rows of cells.
#[derive(Debug)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new(heading: &[&str]) -> Table {
        Table { heading: heading.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.heading.len(), "a row has as many cells as the heading");
        // A cell may hold a name that another user has chosen.
        self.rows.push(cells.iter().map(|cell| line(cell)).collect());
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[column]);
        cells.chain([&self.heading[column]]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    fn line(&self, cells: &[String]) -> String {
        let padded: Vec<String> = cells
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:<width$}", width = self.width(column)))
            .collect();
        padded.join("  ").trim_end().to_owned()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{BOLD}{}{BOLD:#}", self.line(&self.heading))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", self.line(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["A", "LONG", "B"]);
        table.row(&["wide one".to_owned(), "x".to_owned(), "ü".to_owned()]);
        let text = anstream::adapter::strip_str(&table.to_string()).to_string();
        assert_eq!(text, "A         LONG  B\nwide one  x     ü\n");
    }

    #[test]
    fn a_cell_neither_ends_its_line_nor_steers_the_terminal() {
        let mut table = Table::new(&["NAME"]);
        table.row(&["a\n\u{1b}[31mb".to_owned()]);
        let text = table.to_string();
        assert!(text.ends_with("\na\\n\\u{1b}[31mb\n"), "{text:?}");
    }
}
