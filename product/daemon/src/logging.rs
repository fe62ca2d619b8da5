//! The daemon's log: one line per event, `time level target: words key=value …`, or with
//! `--log-format json` an object of the same: `time`, `level`, `target`, `message` and the keys.
//!
//! It goes to standard error in the foreground, else to a file in the state directory and to the
//! journal. The file is cut in two when it grows past `LOG_SIZE_MAX`, so that a long life cannot
//! fill `/run`, and goes with a daemon that ends in order and had nothing to say that is worse than
//! usual. Of a standard error that takes nothing (a pipe that nobody reads, a terminal that was
//! stopped) lines are lost, and later counted: a volume does not wait for whoever reads of it.
//! `COULTER_LOG` sets the level: error, warn, info (the default), debug or trace.

use crate::error::Error;
use crate::journal::{self, Journal};
use crate::life::state::StateDirectory;
use coulter_system::readiness::{PollFlags, is_ready_within};
use coulter_terminal as terminal;
use log::kv::{self, Key, Value, VisitSource};
use log::{LevelFilter, Log, Metadata, Record};
use rustix::stdio::dup2_stderr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes after which a log file becomes `NAME.log.1` and a new one is begun.
const LOG_SIZE_MAX: u64 = 1 << 20;

/// What sets the level.
const LEVEL_VARIABLE: &str = "COULTER_LOG";

/// What tells a daemon the format of its log.
pub const FORMAT_VARIABLE: &str = "COULTER_LOG_FORMAT";

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Words for people, with `key=value` behind them.
    #[default]
    Text,
    /// An object for programs.
    Json,
}

impl Format {
    /// Each by its name.
    pub const NAMED: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];

    /// That of the environment; text if it names none.
    pub fn of_environment() -> Format {
        let word = std::env::var(FORMAT_VARIABLE).unwrap_or_default();
        let named = Format::NAMED.into_iter().find(|(name, _)| *name == word);
        if named.is_none() && !word.is_empty() {
            terminal::note(&format!(
                "{FORMAT_VARIABLE} is '{word}', which is neither text nor json: the log is text"
            ));
        }
        named.map_or(Format::Text, |(_, format)| format)
    }

    /// As it is written behind `--log-format`.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
        }
    }
}

/// How long a line waits for standard error to take it. While lines are lost, the next do not wait.
const PATIENCE: Duration = Duration::from_millis(100);

static LOGGER: Logger = Logger { destination: Mutex::new(Destination::StandardError { lost: 0 }) };
static FORMAT: OnceLock<Format> = OnceLock::new();

enum Destination {
    StandardError { lost: u64 },
    File(LogFile),
}

/// A log file.
struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    journal: Option<Journal>,
    /// Whether it holds more than the usual course of one life.
    is_eventful: bool,
}

struct Logger {
    destination: Mutex<Destination>,
}

/// Starts logging to standard error.
pub fn start(default: LevelFilter, format: Format) {
    let _ = FORMAT.set(format);
    log::set_max_level(chosen_level().unwrap_or(default));
    // Fails only when a logger is set already, and this is the only place that sets one.
    let _ = log::set_logger(&LOGGER);
    if let Some(word) = std::env::var_os(LEVEL_VARIABLE).filter(|_| chosen_level().is_none()) {
        let word = word.to_string_lossy();
        log::warn!("{LEVEL_VARIABLE}={word} is no level: error, warn, info, debug, trace or off");
    }
}

/// The format of this process's log.
pub fn format() -> Format {
    FORMAT.get().copied().unwrap_or_default()
}

fn chosen_level() -> Option<LevelFilter> {
    std::env::var(LEVEL_VARIABLE).ok()?.parse().ok()
}

/// From now on logs to the file of `volume` and to the journal, what a daemon has to say in the
/// usual course of things included, and sends to the file what a panic prints.
///
/// # Errors
/// When the file cannot be opened.
pub fn move_to_file(state: &StateDirectory, volume: &str) -> Result<(), Error> {
    let path = state.file(volume, "log");
    let failed = |source| Error::io("write the log", &path, source);
    let file = open(&path).map_err(failed)?;
    dup2_stderr(&file).map_err(|errno| failed(errno.into()))?;
    let size = file.metadata().map_err(failed)?.len();
    let mut destination = LOGGER.destination.lock().unwrap_or_else(PoisonError::into_inner);
    let journal = Journal::find(Path::new(journal::SOCKET), volume);
    let is_eventful = size > 0;
    *destination = Destination::File(LogFile { path, file, size, journal, is_eventful });
    log::set_max_level(chosen_level().unwrap_or(LevelFilter::Info));
    Ok(())
}

/// Removes the log file of this process, unless it tells of something.
pub(crate) fn remove_if_uneventful() {
    let destination = LOGGER.destination.lock().unwrap_or_else(PoisonError::into_inner);
    if let Destination::File(LogFile { path, is_eventful: false, .. }) = &*destination {
        // That it stays does no harm.
        let _ = fs::remove_file(path);
    }
}

fn open(path: &Path) -> io::Result<File> {
    // A link would lead to a file that is no log of ours.
    let flags = libc::O_NOFOLLOW;
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)
}

impl Destination {
    fn write(&mut self, line: &str, record: &Record<'_>) -> io::Result<()> {
        match self {
            Destination::File(file) => file.write(line, record),
            Destination::StandardError { lost } => write_or_lose(line, lost),
        }
    }
}

impl LogFile {
    fn write(&mut self, line: &str, record: &Record<'_>) -> io::Result<()> {
        self.is_eventful |= record.level() <= log::Level::Warn;
        if let Some(journal) = &self.journal {
            journal.tell(record);
        }
        if self.size + line.len() as u64 > LOG_SIZE_MAX {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            fs::rename(&self.path, old)?;
            self.is_eventful = true;
            self.file = open(&self.path)?;
            dup2_stderr(&self.file)?;
            self.size = 0;
        }
        assert!(line.ends_with('\n'), "a line has an end");
        self.file.write_all(line.as_bytes())?;
        self.size += line.len() as u64;
        let size_max = LOG_SIZE_MAX.max(line.len() as u64);
        assert!(self.size <= size_max, "a log that fills its disk");
        Ok(())
    }
}

/// Writes `line` to standard error if that does not block, and counts it among the lost if it does.
fn write_or_lose(line: &str, lost: &mut u64) -> io::Result<()> {
    let stderr = io::stderr();
    let patience = if *lost == 0 { PATIENCE } else { Duration::ZERO };
    if !takes(&stderr, patience) {
        *lost += 1;
        return Ok(());
    }
    let mut text = String::new();
    if *lost > 0 {
        let message = "standard error took nothing for a while, and lines were lost";
        let pairs = [("lost", Value::from(std::mem::take(lost)))];
        let mut record = Record::builder();
        record.level(log::Level::Warn).target(module_path!()).key_values(&pairs);
        text = self::line(format(), &now(), &record.args(format_args!("{message}")).build());
    }
    text += line;
    // What is writable takes so much at once; a longer line is cut where it would block.
    let mut pieces = text.as_bytes().chunks(libc::PIPE_BUF);
    let first = pieces.next().unwrap_or_default();
    stderr.lock().write_all(first)?;
    for piece in pieces {
        if !takes(&stderr, patience) {
            *lost += 1;
            return Ok(());
        }
        stderr.lock().write_all(piece)?;
    }
    Ok(())
}

/// Whether `stderr` takes some bytes within `patience`, or fails at once.
fn takes(stderr: &io::Stderr, patience: Duration) -> bool {
    // What cannot be polled is written to as ever.
    is_ready_within(stderr, PollFlags::OUT, patience).unwrap_or(true)
}

fn now() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    timestamp(time.as_secs(), time.subsec_millis())
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = line(format(), &now(), record);
        let mut destination = self.destination.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written must not stop a volume that can.
        let _ = destination.write(&line, record);
    }

    fn flush(&self) {}
}

/// One line of the log, its end included.
fn line(format: Format, time: &str, record: &Record<'_>) -> String {
    let (level, target, message) = (record.level(), record.target(), record.args());
    match format {
        Format::Text => {
            let mut line = format!("{time} {level:<5} {target}: {message}");
            // A string takes all text.
            let _ = record.key_values().visit(&mut Words(&mut line));
            line + "\n"
        }
        Format::Json => {
            let mut fields = serde_json::Map::new();
            fields.insert("time".into(), time.into());
            fields.insert("level".into(), level.as_str().to_lowercase().into());
            fields.insert("target".into(), target.into());
            fields.insert("message".into(), message.to_string().into());
            let _ = record.key_values().visit(&mut Fields(&mut fields));
            serde_json::Value::Object(fields).to_string() + "\n"
        }
    }
}

/// Keys and values as ` key=value`.
pub(crate) struct Words<'a>(pub(crate) &'a mut String);

impl<'kvs> VisitSource<'kvs> for Words<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        *self.0 += &format!(" {key}={value}");
        Ok(())
    }
}

/// Keys and values as fields of an object. Those of every line keep their meaning.
struct Fields<'a>(&'a mut serde_json::Map<String, serde_json::Value>);

impl<'kvs> VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        let value = match (value.to_bool(), value.to_u64(), value.to_i64()) {
            (Some(truth), _, _) => truth.into(),
            (_, Some(number), _) => number.into(),
            (_, _, Some(number)) => number.into(),
            _ => value.to_string().into(),
        };
        self.0.entry(key.as_str()).or_insert(value);
        Ok(())
    }
}

/// `2026-11-20T19:03:16.042Z`, from seconds since 1970.
fn timestamp(seconds: u64, milliseconds: u32) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days counted from 0000-03-01, so that the leap day ends a year (Howard Hinnant's
    // `civil_from_days`).
    let shifted = days + 719_468;
    assert!(milliseconds < 1000, "more milliseconds than a second has");
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    assert!((1..=12).contains(&month) && (1..=31).contains(&day), "no day of a calendar");
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving(format: Format) -> String {
        let pairs: [(&str, kv::Value<'_>); 3] =
            [("name", "a \"b\"\n".into()), ("pid", 17.into()), ("level", "none".into())];
        let mut line_of_it = String::new();
        let mut record = Record::builder();
        record.level(log::Level::Info).target("coulter::daemon").key_values(&pairs);
        let mut told = |record: &Record<'_>| line_of_it = line(format, "T", record);
        told(&record.args(format_args!("serving")).build());
        line_of_it
    }

    #[test]
    fn a_line_is_words_or_an_object() {
        let text = serving(Format::Text);
        assert!(text.starts_with("T INFO  coulter::daemon: serving name=a"), "{text}");
        assert!(text.contains(" pid=17 "), "{text}");
        let json = serving(Format::Json);
        assert_eq!(json.lines().count(), 1, "{json}");
        let object: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        assert_eq!(object["message"], "serving");
        assert_eq!(object["name"], "a \"b\"\n");
        assert_eq!(object["pid"], 17);
        assert_eq!(object["level"], "info", "a key does not replace what every line has");
    }

    #[test]
    fn a_log_is_not_written_through_a_link() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let (file, link) = (directory.path().join("theirs"), directory.path().join("a.log"));
        fs::write(&file, b"theirs").expect("the directory is writable");
        std::os::unix::fs::symlink(&file, &link).expect("the directory is writable");
        open(&link).expect_err("it is a link");
        open(&directory.path().join("b.log")).expect("the directory is writable");
    }

    #[test]
    fn times_are_utc_dates() {
        assert_eq!(timestamp(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(951_827_696, 7), "2000-02-29T12:34:56.007Z");
        assert_eq!(timestamp(1_735_689_599, 999), "2024-12-31T23:59:59.999Z");
        assert_eq!(timestamp(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }
}
