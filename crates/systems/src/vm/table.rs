//! What came of a run, for a person and for the documentation.

use super::campaign::Report;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Between these two the documentation has the table.
const MARKS: [&str; 2] = ["<!-- from `make vm` -->\n", "<!-- end of `make vm` -->\n"];

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

/// The table of the documentation: scenarios by kernels.
pub fn table(reports: &[Report]) -> String {
    let mut kernels: Vec<&str> = reports.iter().map(|report| report.release.as_str()).collect();
    kernels.dedup();
    let mut scenarios: Vec<&str> = Vec::new();
    for report in reports {
        if !scenarios.contains(&report.scenario) {
            scenarios.push(report.scenario);
        }
    }
    let mut text = format!("| scenario | {} |\n", kernels.join(" | "));
    text.push_str(&format!("|---|{}\n", "---|".repeat(kernels.len())));
    for scenario in scenarios {
        let cells = kernels.iter().map(|kernel| {
            let mine = |report: &&Report| report.scenario == scenario && report.release == *kernel;
            reports.iter().find(mine).map_or("–".to_owned(), cell)
        });
        let _ = writeln!(text, "| {scenario} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text
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

/// Puts the table into a document, between its marks.
///
/// # Errors
/// When the document cannot be read or written, or has no marks.
pub fn write_table(document: &Path, table: &str) -> io::Result<()> {
    let text = std::fs::read_to_string(document)?;
    let no_marks = || io::Error::other("it has no place for the table of `make vm`");
    let (before, rest) = text.split_once(MARKS[0]).ok_or_else(no_marks)?;
    let (_, after) = rest.split_once(MARKS[1]).ok_or_else(no_marks)?;
    std::fs::write(document, [before, MARKS[0], table, MARKS[1], after].concat())
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
        let reports = [
            report("a", "6.1", None),
            report("a", "6.12", Some("x".into())),
            report("b", "6.12", None),
        ];
        let expected = "| scenario | 6.1 | 6.12 |\n|---|---|---|\n\
                        | a | 2 s; ratio 1.50; kills 3 | **failed** |\n| b | – | 2 s; ratio 1.50; kills 3 |\n";
        assert_eq!(table(&reports), expected);
    }

    #[test]
    fn a_table_replaces_the_one_before() {
        let file = std::env::temp_dir().join(format!("table-{}.md", std::process::id()));
        let document = format!("above\n{}old\n{}below\n", MARKS[0], MARKS[1]);
        std::fs::write(&file, document).expect("it is writable");
        write_table(&file, "new\n").expect("it has marks");
        let text = std::fs::read_to_string(&file).expect("it is there");
        std::fs::write(&file, "no marks").expect("it is writable");
        assert!(write_table(&file, "new\n").is_err());
        std::fs::remove_file(&file).expect("it is there");
        assert_eq!(text, format!("above\n{}new\n{}below\n", MARKS[0], MARKS[1]));
    }
}
