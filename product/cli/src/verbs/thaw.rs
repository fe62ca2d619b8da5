//! `coulter thaw` (hidden): the process that freezes a file system for `snapshot create --freeze`, and thaws it again
//! whatever becomes of the command that started it.
//!
//! ```text
//! guard:   freezes, prints `frozen`
//! command: makes the snapshot, closes the guard's standard input
//! guard:   thaws, prints `thawed`, ends
//! ```
//! The end of its standard input is also what it sees of a command that was killed. It waits for that until its time is
//! over, thaws all the same then, and prints `late`. Signals that end a command do not end it. If the guard itself is
//! killed, the command sees the end of the guard's standard output and thaws.

use crate::error::CliError;
use crate::terminal;
use clap::Args;
use coulter_system::freeze::Freezer;
use coulter_system::raw;
use coulter_system::readiness::{PollFlags, is_ready_within};
use rustix::process::Signal;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Freeze a file system until standard input ends (used by `snapshot create --freeze`).
#[derive(Debug, Args)]
pub(crate) struct Thaw {
    /// Directory of it
    directory: PathBuf,

    /// Milliseconds for which it may stay frozen
    #[arg(long)]
    within: u64,
}

impl Thaw {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        raw::block(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE])
            .map_err(|source| CliError::io("block", "signals".as_ref(), source))?;
        let freezer = Freezer::open(&self.directory).and_then(|freezer| {
            freezer.freeze()?;
            Ok(freezer)
        });
        let freezer = match freezer {
            Ok(freezer) => freezer,
            Err(error) => {
                return terminal::print(&format!("error {}", error.raw_os_error().unwrap_or(0)));
            }
        };
        // Nothing may keep it from thawing, not even a command that takes no words.
        let told = terminal::print("frozen");
        let in_time = told.is_ok() && ends_within(Duration::from_millis(self.within));
        let thawed = freezer.thaw();
        terminal::print(match (in_time, thawed) {
            (true, Ok(())) => "thawed",
            // Or somebody else has thawed it before.
            _ => "late",
        })
    }
}

/// Whether standard input ends within a time. What stands in it is not read.
fn ends_within(time: Duration) -> bool {
    let (input, until) = (io::stdin(), Instant::now() + time);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match is_ready_within(&input, PollFlags::IN, left) {
            Ok(ends) => return ends,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
}
