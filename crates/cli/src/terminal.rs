//! How the program speaks: plain facts on standard output, everything else on standard error.
//!
//! Colours and progress bars appear only on a terminal; `NO_COLOR` switches colours off.

use crate::error::{CliError, Report};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Errors.
const RED: Style = AnsiColor::Red.on_default().bold();
/// Advice.
const CYAN: Style = AnsiColor::Cyan.on_default().bold();
/// Headings of tables.
pub(crate) const BOLD: Style = Style::new().bold();
/// Good news.
pub(crate) const GREEN: Style = AnsiColor::Green.on_default().bold();
/// Bad news.
pub(crate) const BAD: Style = RED;

/// Tells an error on standard error.
pub(crate) fn print_error(report: &Report) {
    let Report { what, why, help, .. } = report;
    // A closed standard error leaves nobody to tell; the exit code still says it.
    let mut err = anstream::stderr().lock();
    let _ = writeln!(err, "{RED}error:{RED:#} {what}");
    if let Some(why) = why {
        let _ = writeln!(err, "  {BOLD}why:{BOLD:#} {why}");
    }
    if let Some(help) = help {
        let _ = writeln!(err, "  {CYAN}do:{CYAN:#}  {help}");
    }
}

/// Tells what happens now, for a person who waits; not part of any result.
pub(crate) fn note(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Prints a line of a result.
///
/// # Errors
/// When standard output does not take it, a closed pipe excepted.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    tolerate_closed_pipe(writeln!(anstream::stdout(), "{text}"))
}

/// Prints a value as JSON, indented.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| output_failed(e.into()))?;
    print(&text)
}

/// Prints a value as JSON on one line.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json_line(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|e| output_failed(e.into()))?;
    print(&text)
}

/// Whoever reads our output may stop reading, as `head` does.
fn tolerate_closed_pipe(result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(output_failed),
    }
}

fn output_failed(source: io::Error) -> CliError {
    CliError::io("write to", "standard output".as_ref(), source)
}

/// A bar that shows how much of `total` is done; hidden unless standard error is a terminal.
pub(crate) fn progress(label: &str, total: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:<28} {wide_bar:.cyan/dim} {percent:>3} % {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(label.to_owned())
}

/// A sign of life for work of unknown length; hidden unless standard error is a terminal.
pub(crate) fn spinner(label: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(label.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
