//! Figures as text, a line each: what, how much, and a remark. It has no heading, and is part of a report
//! that may go into a file: tables on a terminal are `coulter-terminal`'s.

use std::fmt::Write;

/// Named figures.
#[derive(Default)]
pub(crate) struct Figures {
    rows: Vec<(String, String, String)>,
}

impl Figures {
    /// Adds a line: name, figure, and a remark which may be empty.
    pub(crate) fn row(
        &mut self,
        name: &str,
        figure: impl Into<String>,
        remark: impl Into<String>,
    ) -> &mut Figures {
        self.rows.push((name.to_string(), figure.into(), remark.into()));
        self
    }

    /// The text, figures aligned to the right.
    pub(crate) fn text(&self) -> String {
        let width = |of: fn(&(String, String, String)) -> &String| {
            self.rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0)
        };
        let (names, figures) = (width(|row| &row.0), width(|row| &row.1));
        let mut text = String::new();
        for (name, figure, remark) in &self.rows {
            let line = format!("{name:names$}  {figure:>figures$}  {remark}");
            writeln!(text, "{}", line.trim_end()).expect("a string takes all text");
        }
        text
    }
}

/// A number per second, in thousands or millions.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second >= 1e6 {
        format!("{:.2} M/s", per_second / 1e6)
    } else if per_second >= 1e3 {
        format!("{:.1} k/s", per_second / 1e3)
    } else {
        format!("{per_second:.1} /s")
    }
}

/// A share, in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}

/// Bytes, in binary units.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (name, shift) in units {
        if bytes >= 1 << shift {
            return format!("{:.1} {name}", bytes as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_aligned_and_lines_end_without_blanks() {
        let mut table = Figures::default();
        table.row("a", "1", "").row("longer", "22.5", "a remark");
        assert_eq!(table.text(), "a          1\nlonger  22.5  a remark\n");
    }

    #[test]
    fn units_suit_the_size() {
        assert_eq!(rate(1_234_567.0), "1.23 M/s");
        assert_eq!(rate(1234.0), "1.2 k/s");
        assert_eq!(rate(12.0), "12.0 /s");
        assert_eq!(percent(0.0123), "1.230 %");
        assert_eq!([bytes(512), bytes(1 << 20), bytes(3 << 29)], ["512 B", "1.0 MiB", "1.5 GiB"]);
    }
}
