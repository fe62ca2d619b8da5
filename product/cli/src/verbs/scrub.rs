//! `coulter scrub`: every block of an attached volume is read and compared, while it is in use.

use crate::error::{CliError, DaemonError, DoorError, Error, StateError};
use crate::interrupt::Interrupt;
use crate::terminal::{self, BAD, GREEN};
use clap::Args;
use coulter::scrub::ScrubRate;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::scrub::{ScrubAction, ScrubFacts, Stage};
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_terminal::Size;
use std::path::Path;
use std::time::Duration;

/// How often it is looked how far the scrub is.
const PAUSE: Duration = Duration::from_millis(200);

/// Read every block of an attached volume in use and compare its checksum.
///
/// Data and metadata are read at a limited rate, behind the host's requests. Metadata with another copy is
/// rewritten; damaged data is reported with its address. The daemon does the work and this command waits: an
/// interrupted command leaves the scrub running. A scrub survives a restart and a crash of the daemon, and continues
/// when the store is attached again. The exit code is 1 if there is damage that was not repaired.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter scrub disk                       scrub and wait for the end
  coulter scrub disk --rate 100M           at 100 MiB/s
  coulter scrub disk --background          start it and return
  coulter scrub disk --status              how far it is, and what it found
  coulter scrub disk --stop                stop; the next `coulter scrub disk` continues")]
pub(crate) struct Scrub {
    /// Name, store or device of the volume
    #[arg(value_name = "NAME")]
    pub(crate) volume: String,

    /// Bytes per second to read at most, from 1M to 1T, or none [default: 32M]
    #[arg(long, value_name = "SIZE", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<ScrubRate>,

    /// Start again from the beginning instead of continuing a stopped scrub
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    pub(crate) restart: bool,

    /// Return at once; the scrub goes on in the daemon
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    pub(crate) background: bool,

    /// Show how far the latest scrub is and what it found
    #[arg(long, conflicts_with_all = ["rate", "stop"])]
    pub(crate) status: bool,

    /// Stop the scrub where it is
    #[arg(long, conflicts_with = "rate")]
    pub(crate) stop: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Scrub {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let entry = state.find(&self.volume).map_err(|error| self.not_attached(error))?;
        let rate = self.rate.map(|rate| rate.bytes_per_second().unwrap_or(0));
        let action = match (self.status, self.stop) {
            (true, _) => ScrubAction::Tell,
            (_, true) => ScrubAction::Stop,
            _ => ScrubAction::Start { rate, anew: self.restart },
        };
        let waits = matches!(action, ScrubAction::Start { .. }) && !self.background;
        // Before the first thread: an interrupt ends the wait, and leaves the scrub alone.
        let interrupt = if waits { Some(Interrupt::take_over()?) } else { None };
        let mut facts = ask(state, &entry, action)?;
        if let Some(interrupt) = interrupt {
            facts = wait(state, &entry, facts, ScrubAction::Tell, &interrupt)?;
        }
        if self.json {
            terminal::print_json(&facts)?;
        } else {
            print_damage(&facts)?;
            terminal::print(&facts.to_string())?;
        }
        refuse_damaged(&entry, &facts)
    }
}

impl Scrub {
    /// A store without a daemon is read by `check`.
    fn not_attached(&self, error: Error) -> CliError {
        let path = Path::new(&self.volume);
        if !matches!(error, Error::State(StateError::NotAttached { .. }))
            || !path.exists()
            || path.is_dir()
        {
            return error.into();
        }
        DoorError::ScrubDetached { path: path.to_owned() }.into()
    }
}

/// Asks the daemon of `entry` for a scrub.
///
/// # Errors
/// The daemon's own, and when it does not answer.
pub(crate) fn ask(
    state: &StateDirectory,
    entry: &Entry,
    action: ScrubAction,
) -> Result<ScrubFacts, CliError> {
    match control::ask(state, entry, &Request::Scrub { action })? {
        Reply::Scrub(facts) => Ok(*facts),
        _ => Err(DaemonError::silent(entry).into()),
    }
}

/// Waits for the end of a scrub that `tell` tells of, showing on a terminal how far it is.
///
/// # Errors
/// When the daemon ends, or the user wants an end.
pub(crate) fn wait(
    state: &StateDirectory,
    entry: &Entry,
    mut facts: ScrubFacts,
    tell: ScrubAction,
    interrupt: &Interrupt,
) -> Result<ScrubFacts, CliError> {
    let bar = terminal::progress(&format!("scrubbing {}", entry.name), facts.volume_size_bytes);
    while facts.state == Stage::Running {
        bar.set_position(facts.position_bytes);
        interrupt.sleep(PAUSE)?;
        facts = ask(state, entry, tell)?;
    }
    bar.finish_and_clear();
    Ok(facts)
}

/// One line for each place that is damaged.
///
/// # Errors
/// When nobody takes the output.
pub(crate) fn print_damage(facts: &ScrubFacts) -> Result<(), CliError> {
    for damage in &facts.damage {
        let (word, style) = if damage.repaired { ("repaired", GREEN) } else { ("damaged", BAD) };
        terminal::print(&format!("{style}{word}{style:#}: {damage}"))?;
    }
    Ok(())
}

/// That nothing is damaged but what was repaired.
///
/// # Errors
/// [`DaemonError::ScrubFoundDamage`].
pub(crate) fn refuse_damaged(entry: &Entry, facts: &ScrubFacts) -> Result<(), CliError> {
    if !facts.is_damaged() {
        return Ok(());
    }
    let metadata = facts.metadata_damaged.saturating_sub(facts.metadata_repaired);
    let (name, damaged_bytes) = (entry.name.clone(), facts.damaged_bytes);
    Err(DaemonError::ScrubFoundDamage { name, damaged_bytes, metadata }.into())
}

fn parse_rate(text: &str) -> Result<ScrubRate, String> {
    if text == "none" {
        return Ok(ScrubRate::NONE);
    }
    let Size(bytes) =
        text.parse().map_err(|error: coulter_terminal::SizeError| error.to_string())?;
    ScrubRate::limited_to(bytes).map_err(|error| error.to_string())
}
