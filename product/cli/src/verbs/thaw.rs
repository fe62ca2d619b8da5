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
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use std::io;
use std::os::fd::AsFd;
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
        let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE];
        let signals: SigSet = signals.into_iter().collect();
        let failed = |source: nix::Error| CliError::io("block", "signals".as_ref(), source.into());
        signals.thread_block().map_err(failed)?;
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
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut sources = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut sources, left) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(nix::Error::EINTR) => {}
            Err(_) => return true,
        }
    }
}
