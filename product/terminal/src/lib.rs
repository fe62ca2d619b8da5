//! How Coulter's programs speak: plain facts on standard output, everything else on standard error.
//!
//! The crate knows how things are said and nothing of what is said: a [`Report`] is an error in
//! words, a [`Table`] is rows of text, a [`Size`] is bytes as people write them.
//!
//! Colours and progress bars appear only on a terminal; `NO_COLOR` switches colours off.

mod report;
mod reports;
mod size;
mod table;

pub use report::{Report, fault, help_on, reason_of, usage};
pub use size::{Size, SizeError};
pub use table::Table;

use anstyle::{AnsiColor, Style};
pub use indicatif::ProgressBar;
use indicatif::ProgressStyle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Standard output takes no more.
#[derive(Debug)]
pub struct OutputError(pub io::Error);

impl Display for OutputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write to standard output: {}", reason_of(&self.0))
    }
}

impl std::error::Error for OutputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Errors.
const RED: Style = AnsiColor::Red.on_default().bold();
/// Advice.
const CYAN: Style = AnsiColor::Cyan.on_default().bold();
/// Headings of tables.
pub const BOLD: Style = Style::new().bold();
/// Good news.
pub const GREEN: Style = AnsiColor::Green.on_default().bold();
/// Bad news.
pub const BAD: Style = RED;

/// Tells an error on standard error.
pub fn print_error(report: &Report) {
    let Report { what, why, help, .. } = report;
    // A closed standard error leaves nobody to tell; the exit code still says it.
    let mut err = anstream::stderr().lock();
    let _ = writeln!(err, "{RED}error:{RED:#} {}", told(what));
    if let Some(why) = why {
        // The words of another program have lines, and nothing but a line can begin at the margin.
        let lines: Vec<String> = why.lines().map(told).collect();
        let _ = writeln!(err, "  {BOLD}why:{BOLD:#} {}", lines.join("\n       "));
    }
    if let Some(help) = help {
        let _ = writeln!(err, "  {CYAN}do:{CYAN:#}  {}", told(help));
    }
}

/// Tells what happens now, for a person who waits; not part of any result.
pub fn note(text: &str) {
    let _ = writeln!(anstream::stderr(), "{}", line(text));
}

/// A path as part of a line: a control character in it, which could end the line or move the cursor,
/// is shown by its escape.
pub fn path(path: &Path) -> String {
    line(&path.to_string_lossy())
}

/// A text on one line, without the numbers that the system has for its errors: see [`path`].
fn told(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        plain += rest.strip_prefix(')').unwrap_or(rest);
    }
    line(&plain)
}

/// A text on one line: see [`path`].
pub fn line(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// A path as a word of a command that a person may paste into a shell: quoted if it has to be.
pub fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    // An option would begin so.
    if text.starts_with('-') { quoted(&format!("./{text}")) } else { quoted(&text) }
}

/// Any word of such a command, an option with its value too.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if text.chars().any(char::is_control) {
        let text = text.replace('\\', "\\\\").replace('\'', "\\'");
        let escaped = |c: char| match c {
            '\n' => "\\n".to_owned(),
            '\t' => "\\t".to_owned(),
            c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        };
        return format!("$'{}'", text.chars().map(escaped).collect::<String>());
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Prints a line of a result.
///
/// # Errors
/// When standard output does not take it, a closed pipe excepted.
pub fn print(text: &str) -> Result<(), OutputError> {
    tolerate_closed_pipe(writeln!(anstream::stdout(), "{text}"))
}

/// Prints a value as JSON, indented.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<(), OutputError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| output_failed(e.into()))?;
    print(&text)
}

/// Prints a value as JSON on one line.
///
/// # Errors
/// As [`print()`].
pub fn print_json_line(value: &impl Serialize) -> Result<(), OutputError> {
    let text = serde_json::to_string(value).map_err(|e| output_failed(e.into()))?;
    print(&text)
}

/// Rows that are printed one by one, as lines or as a JSON array, so that there may be any number
/// of them.
pub struct Rows<R> {
    out: BufWriter<anstream::Stdout>,
    json: bool,
    count: u64,
    result: io::Result<()>,
    rows: PhantomData<fn(&R)>,
}

impl<R: Serialize + Display> Rows<R> {
    /// No rows yet.
    pub fn new(json: bool) -> Rows<R> {
        let out = BufWriter::new(anstream::stdout());
        Rows { out, json, count: 0, result: Ok(()), rows: PhantomData }
    }

    /// Prints a row; breaks when there is nobody who takes it.
    pub fn show(&mut self, row: &R) -> ControlFlow<()> {
        self.result = self.write(row);
        self.count += 1;
        if self.result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn write(&mut self, row: &R) -> io::Result<()> {
        if !self.json {
            return writeln!(self.out, "{row}");
        }
        let separator = if self.count == 0 { "[\n " } else { ",\n " };
        write!(self.out, "{separator}{}", serde_json::to_string(row)?)
    }

    /// Ends the array and empties the buffer.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn finish(mut self) -> Result<(), OutputError> {
        let end = match (self.json, self.count) {
            (false, _) => "",
            (true, 0) => "[]\n",
            (true, _) => "\n]\n",
        };
        let written = self.result.and_then(|()| self.out.write_all(end.as_bytes()));
        tolerate_closed_pipe(written.and_then(|()| self.out.flush()))
    }
}

/// Whoever reads our output may stop reading, as `head` does.
fn tolerate_closed_pipe(result: io::Result<()>) -> Result<(), OutputError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(output_failed),
    }
}

fn output_failed(source: io::Error) -> OutputError {
    OutputError(source)
}

/// Waits; less long, and `true`, if whoever reads standard output stops reading.
pub fn reader_leaves_within(duration: Duration) -> bool {
    leaves_within(io::stdout().as_fd(), duration)
}

fn leaves_within(output: BorrowedFd<'_>, duration: Duration) -> bool {
    let deadline = Instant::now() + duration;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Nothing is asked for: the kernel always tells of a reader that has gone.
        let mut sources = [PollFd::new(&output, PollFlags::empty())];
        match poll(&mut sources, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(Errno::INTR) => std::thread::sleep(left.min(Duration::from_millis(1))),
            Ok(_) => return true,
            Err(_) => {
                std::thread::sleep(left);
                return false;
            }
        }
    }
}

/// Whether standard output is a terminal that can be drawn on.
pub fn can_draw() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// A bar of bytes: how many, of how many, how fast, and the time left.
const BYTES: &str = "{msg:<20} {wide_bar:.cyan/dim} {binary_bytes} of {binary_total_bytes}, \
                     {binary_bytes_per_sec}, {eta} left";
/// The same of what is counted otherwise.
const COUNT: &str =
    "{msg:<28} {wide_bar:.cyan/dim} {human_pos} of {human_len}, {per_sec}, {eta} left";

/// A bar that shows how many of `total` bytes are done; hidden unless standard error is a terminal.
pub fn progress(label: &str, total: u64) -> ProgressBar {
    bar(label, total, BYTES)
}

/// The same of anything that is no bytes.
pub fn progress_of_count(label: &str, total: u64) -> ProgressBar {
    bar(label, total, COUNT)
}

fn bar(label: &str, total: u64, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("the template is one");
    ProgressBar::new(total).with_style(style).with_message(label.to_owned())
}

/// Bytes that were read so far, and how fast, where the total is unknown; hidden unless standard
/// error is a terminal.
pub fn progress_of_reads(label: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{spinner} {msg}: {binary_bytes} read, {binary_bytes_per_sec}, for {elapsed}";
    let style = ProgressStyle::with_template(template).expect("the template is one");
    ProgressBar::no_length().with_style(style).with_message(label.to_owned())
}

/// A sign of life for work of unknown length; hidden unless standard error is a terminal.
pub fn spinner(label: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(label.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_command_is_what_a_shell_takes_for_it() {
        let cases = [
            ("/srv/data-1", "/srv/data-1"),
            ("/srv/日本", "/srv/日本"),
            ("/srv/my data", "'/srv/my data'"),
            ("/srv/a'b$c", r"'/srv/a'\''b$c'"),
            ("/srv/a\nb", r"$'/srv/a\nb'"),
            ("", "''"),
        ];
        for (path, expected) in cases {
            assert_eq!(word(Path::new(path)), expected);
        }
    }

    #[test]
    fn a_reader_that_leaves_ends_the_wait() {
        let (reader, writer) = io::pipe().expect("there can be a pipe");
        assert!(!leaves_within(writer.as_fd(), Duration::from_millis(20)));
        drop(reader);
        let begin = Instant::now();
        assert!(leaves_within(writer.as_fd(), Duration::from_secs(60)));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_path_is_on_one_line_and_else_as_it_is() {
        let hostile = Path::new("/a b/\u{fc}\\\nfast  64 MiB\r\u{1b}[2J");
        assert_eq!(path(hostile), "/a b/\u{fc}\\\\nfast  64 MiB\\r\\u{1b}[2J");
    }

    #[test]
    fn a_word_comes_back_from_a_shell_as_the_path_that_it_was() {
        assert_eq!(word(Path::new("/srv/日本-1.img")), "/srv/日本-1.img");
        assert_eq!(word(Path::new("/srv/my data")), "'/srv/my data'");
        for text in
            ["a b", "it's", "-x", "a\nb", "a\t'\\ü\u{1b}b", "$HOME", "a*", "~", "a;b", "x@y"]
        {
            let script = format!("printf %s {}", word(Path::new(text)));
            let said = std::process::Command::new("bash").args(["-c", &script]).output();
            let said = said.expect("bash can be run").stdout;
            let said = String::from_utf8(said).expect("it is text");
            assert_eq!(said.trim_start_matches("./"), text, "{script}");
        }
    }

    #[test]
    fn a_bar_shows_bytes_rate_and_time_left() {
        let words = [
            (BYTES, ["binary_bytes}", "binary_bytes_per_sec", "eta"]),
            (COUNT, ["human_pos", "per_sec", "eta"]),
        ];
        for (template, keys) in words {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
            keys.iter().for_each(|key| assert!(template.contains(key), "{template}"));
        }
    }

    #[test]
    fn errors_of_the_system_lose_their_numbers_wherever_they_stand() {
        let text =
            "no handles (Operation not supported (os error 95)), or: No such file (os error 2)";
        assert_eq!(told(text), "no handles (Operation not supported), or: No such file");
        assert_eq!(told("as it is"), "as it is");
    }

    #[test]
    fn a_file_has_no_reader_that_could_leave() {
        let file = tempfile::tempfile().expect("a temporary file can be made");
        let begin = Instant::now();
        assert!(!leaves_within(file.as_fd(), Duration::from_millis(20)));
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }
}
