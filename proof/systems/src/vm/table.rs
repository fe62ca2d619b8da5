//! What came of a run, for a person and for the documentation.

use super::campaign::Report;
use super::scenario::SCENARIOS;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Between these two the documentation has the table.
const MARKS: [&str; 2] = ["<!-- from `make vm` -->\n", "<!-- end of `make vm` -->\n"];

/// The cell of what was never run on a kernel.
const NOT_RUN: &str = "–";

/// One line for a report.
pub fn summary(report: &Report) -> String {
    let outcome = if report.failure.is_some() { "FAILED" } else { "ok" };
    let mut line = format!(
        "{:<28} Linux {:<24} {outcome:<6} {:>6.1} s",
        report.scenario, report.release, report.seconds
    );
    for (name, value) in &report.figures {
        let _ = write!(line, "  {name} {}", figure(*value));
    }
    line
}

/// Scenarios by kernels, as the documentation shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Table {
    kernels: Vec<String>,
    /// A scenario, and a cell for each kernel.
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// Reads what [`Table::text`] wrote; lines of another kind are passed over.
    fn parse(text: &str) -> Table {
        let mut lines = text.lines().filter_map(|line| {
            let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
            Some(cells.split(" | ").map(str::to_owned).collect::<Vec<String>>())
        });
        let kernels = lines.next().unwrap_or_default().into_iter().skip(1).collect::<Vec<String>>();
        let rows = lines.filter_map(|mut cells| {
            let scenario = (cells.len() == kernels.len() + 1).then(|| cells.remove(0))?;
            Some((scenario, cells))
        });
        Table { rows: rows.collect(), kernels }
    }

    /// Puts in what ran. What did not run this time stays as it was.
    fn merge(&mut self, reports: &[Report]) {
        for report in reports {
            let found = self.kernels.iter().position(|kernel| *kernel == report.release);
            let column = found.unwrap_or_else(|| {
                self.kernels.push(report.release.clone());
                self.rows.iter_mut().for_each(|(_, cells)| cells.push(NOT_RUN.to_owned()));
                self.kernels.len() - 1
            });
            let found = self.rows.iter().position(|(scenario, _)| scenario == report.scenario);
            let row = found.unwrap_or_else(|| {
                let cells = vec![NOT_RUN.to_owned(); self.kernels.len()];
                self.rows.push((report.scenario.to_owned(), cells));
                self.rows.len() - 1
            });
            self.rows[row].1[column] = cell(report);
        }
    }

    /// Rows in the order in which scenarios are run; those that there are no more go.
    fn sort(&mut self, scenarios: &[&str]) {
        let place = |name: &str| scenarios.iter().position(|scenario| *scenario == name);
        self.rows.retain(|(scenario, _)| place(scenario).is_some());
        self.rows.sort_by_key(|(scenario, _)| place(scenario));
    }

    fn text(&self) -> String {
        let mut text = format!("| scenario | {} |\n", self.kernels.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(self.kernels.len()));
        for (scenario, cells) in &self.rows {
            let _ = writeln!(text, "| {scenario} | {} |", cells.join(" | "));
        }
        text
    }
}

/// A count as it is, a ratio with two places.
fn figure(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn cell(report: &Report) -> String {
    if report.failure.is_some() {
        return "**failed**".to_owned();
    }
    let figures = report.figures.iter().map(|(name, value)| format!("; {name} {}", figure(*value)));
    format!("{:.0} s{}", report.seconds, figures.collect::<String>())
}

/// Puts what ran into the table of a document, between its marks. Cells of what did not run this
/// time stay.
///
/// # Errors
/// When the document cannot be read or written, or has no marks.
pub fn write_table(document: &Path, reports: &[Report]) -> io::Result<()> {
    let text = std::fs::read_to_string(document)?;
    let no_marks = || io::Error::other("it has no place for the table of `make vm`");
    let (before, rest) = text.split_once(MARKS[0]).ok_or_else(no_marks)?;
    let (old, after) = rest.split_once(MARKS[1]).ok_or_else(no_marks)?;
    let mut table = Table::parse(old);
    table.merge(reports);
    table.sort(&SCENARIOS.iter().map(|scenario| scenario.name).collect::<Vec<_>>());
    std::fs::write(document, [before, MARKS[0], &table.text(), MARKS[1], after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(scenario: &'static str, release: &str, failure: Option<String>) -> Report {
        let (kernel, release) = ("6.12", release.to_owned());
        let figures = vec![("ratio".to_owned(), 1.5), ("kills".to_owned(), 3.0)];
        Report { scenario, kernel, release, seconds: 2.4, figures, failure }
    }

    #[test]
    fn the_table_has_a_row_for_each_scenario_and_a_column_for_each_kernel() {
        let mut table = Table::default();
        table.merge(&[
            report("a", "6.1", None),
            report("a", "6.12", Some("x".into())),
            report("b", "6.12", None),
        ]);
        let expected = "| scenario | 6.1 | 6.12 |\n|---|---|---|\n\
                        | a | 2 s; ratio 1.50; kills 3 | **failed** |\n| b | – | 2 s; ratio 1.50; kills 3 |\n";
        assert_eq!(table.text(), expected);
        assert_eq!(Table::parse(expected), table);
    }

    #[test]
    fn what_did_not_run_stays_and_what_is_no_more_goes() {
        let mut table = Table::default();
        table.merge(&[report("b", "6.1", None), report("gone", "6.1", None)]);
        table.merge(&[report("a", "6.1", None), report("b", "6.12", Some("x".into()))]);
        table.sort(&["a", "b"]);
        let expected = "| scenario | 6.1 | 6.12 |\n|---|---|---|\n\
                        | a | 2 s; ratio 1.50; kills 3 | – |\n\
                        | b | 2 s; ratio 1.50; kills 3 | **failed** |\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn a_table_is_written_between_its_marks() {
        let file = std::env::temp_dir().join(format!("table-{}.md", std::process::id()));
        let document = format!("above\n{}| scenario | 6.1 |\n{}below\n", MARKS[0], MARKS[1]);
        std::fs::write(&file, document).expect("it is writable");
        let name = SCENARIOS[0].name;
        write_table(&file, &[report(name, "6.1", Some("x".into()))]).expect("it has marks");
        let text = std::fs::read_to_string(&file).expect("it is there");
        std::fs::write(&file, "no marks").expect("it is writable");
        assert!(write_table(&file, &[]).is_err());
        std::fs::remove_file(&file).expect("it is there");
        let table = format!("| scenario | 6.1 |\n|---|---|\n| {name} | **failed** |\n");
        assert_eq!(text, format!("above\n{}{table}{}below\n", MARKS[0], MARKS[1]));
    }
}
