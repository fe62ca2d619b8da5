//! Sizes and times of a demonstration, and the store that it is about.

use super::figures::{Round, Speed};
use super::picture::{self, Caption};
use super::scratch::{Scratch, Undo};
use crate::error::{LabError, TrialError};
use crate::terminal;
use crate::trace::{self, Trace};
use crate::verbs::daemon;
use coulter_attach_suite::nbd_client::Client;
use coulter_check::Severity;
use coulter_cli::format_store::{self, Target};
use coulter_cli::interrupt::Interrupt;
use coulter_cli::new_store::Shape;
use coulter_cli::output::Output;
use coulter_cli::verbs::check;
use coulter_cli::via::ViaChoice;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::launch;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::status::{Facts, Status};
use coulter_net::nbd::{Address, ClientOptions};
use coulter_terminal::Size;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Shortest turn that is worth measuring, and the one that is aimed at.
const TURN: Duration = Duration::from_secs(3);

/// Room of file-system metadata, files that are fsynced, and the load during the crash.
const EXTRA: u64 = 320 << 20;

const SEGMENT_SIZE: u64 = 32 << 20;

/// How long writing the store's file once may take, on a slow disk.
const WRITING_ONCE: Duration = Duration::from_secs(8);
/// Bytes that are written between two looks at the clock that say something.
const SYNCED_SIZE: usize = 64 << 20;

/// What is to be done, and how much of it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Bytes written to on either side.
    pub(crate) size: u64,
    /// Length of one turn.
    pub(crate) turn: Duration,
    /// Turns of each side.
    pub(crate) turns: u32,
    /// Bytes of the store.
    pub(crate) store_size: u64,
    /// Whether somebody wants an end.
    pub(crate) interrupt: Interrupt,
}

impl Plan {
    /// Takes `seconds` of measuring per side apart into turns, and sizes the store so that it has
    /// the usual spare space.
    pub(crate) fn new(size: u64, seconds: u64, interrupt: Interrupt) -> Plan {
        let turns = (seconds / TURN.as_secs()).clamp(2, 10) as u32;
        let volume = size + size / 16 + EXTRA;
        let store_size = (volume * 6 / 5).next_multiple_of(SEGMENT_SIZE) + 16 * SEGMENT_SIZE;
        let turn = Duration::from_secs(seconds) / turns;
        Plan { size, turn, turns, store_size, interrupt }
    }

    /// Bytes that both sides and their surroundings need on the disk.
    pub(crate) fn room(&self) -> u64 {
        self.store_size * 2 + (64 << 20)
    }

    /// Makes the store.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn make_store(&self, scratch: &Scratch) -> Result<PathBuf, LabError> {
        let shape = Shape {
            size: None,
            store_size: Some(Size(self.store_size)),
            segment_size: Some(Size(SEGMENT_SIZE)),
            spare: None,
            page_size: None,
            reclaim: None,
            label: "demo".to_owned(),
            sparse: false,
            capacity: None,
            touched_limit: None,
            address_space: None,
        };
        let path = scratch.path("demo.store");
        write_once(&path, self.store_size, &self.interrupt)
            .map_err(|source| LabError::io("write", &path, source))?;
        self.interrupt.check()?;
        let target = Target::prepare(&path, &shape, true)?;
        format_store::format(target, &shape, None)?;
        Ok(path)
    }
}

impl Plan {
    /// Draws the picture, of both ratios and of what was recorded.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn draw(
        &self,
        trace: &Trace,
        entry: &Entry,
        setting: &str,
        baseline: &'static str,
        (held_back, straight): (&Speed, &Speed),
        picture: &Output,
    ) -> Result<(), LabError> {
        let caption = Caption {
            volume_size: entry.volume_size_bytes,
            store_size: self.store_size,
            setting: setting.to_owned(),
            baseline,
            held_back: held_back.ratio,
            straight: straight.ratio,
        };
        Ok(picture.write(picture::draw(trace, &caption).as_bytes())?)
    }
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Without Coulter.
    Plain,
    /// With it.
    Coulter,
}

impl Plan {
    /// Has `measure` measure both sides, each first as often as the other, so that neither gains
    /// from what the machine does over time.
    ///
    /// # Errors
    /// As `measure`.
    pub(crate) fn take_turns(
        &self,
        turns: u32,
        mut measure: impl FnMut(Which) -> Result<f64, LabError>,
    ) -> Result<Speed, LabError> {
        let mut rounds = Vec::new();
        for turn in 0..turns {
            let round = if turn % 2 == 0 {
                let baseline_iops = measure(Which::Plain)?;
                Round { baseline_iops, coulter_iops: measure(Which::Coulter)? }
            } else {
                let coulter_iops = measure(Which::Coulter)?;
                Round { baseline_iops: measure(Which::Plain)?, coulter_iops }
            };
            announce(&format!(
                "  turn {} of {turns}: plain {:.0}, coulter {:.0} IOPS",
                turn + 1,
                round.baseline_iops,
                round.coulter_iops
            ));
            rounds.push(round);
        }
        Ok(Speed::of(rounds))
    }
}

/// Writes zeros to a new file, as far as [`WRITING_ONCE`] suffices. The file of the other side is
/// written once before it is measured; so is this one then, and neither side waits for the file
/// system below to find blocks, which a disk has from the start.
fn write_once(path: &Path, size: u64, interrupt: &Interrupt) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let begin = Instant::now();
    let mut file = File::create_new(path)?;
    let (mut written, mut unsynced) = (0, 0);
    while written < size && begin.elapsed() < WRITING_ONCE && !interrupt.is_raised() {
        let piece = &zeros[..zeros.len().min((size - written) as usize)];
        file.write_all(piece)?;
        written += piece.len() as u64;
        unsynced += piece.len();
        // So that the clock sees the disk and not the page cache.
        if unsynced >= SYNCED_SIZE {
            file.sync_data()?;
            unsynced = 0;
        }
    }
    file.sync_data()
}

/// Attaches the store, and notes how to take that back.
///
/// # Errors
/// As `attach`.
pub(crate) fn attach(
    scratch: &mut Scratch,
    store: &Path,
    via: ViaChoice,
) -> Result<Entry, LabError> {
    let entry = launch::launch(scratch.state(), daemon::words(store, via))?;
    scratch.note(Undo::Daemon(entry.process));
    Ok(entry)
}

/// Asks the daemon to record from now on.
///
/// # Errors
/// When it does not answer.
pub(crate) fn start_trace(scratch: &Scratch, entry: &Entry) -> Result<(), LabError> {
    let words = vec![trace::START.to_owned()];
    control::ask(scratch.state(), entry, &Request::Command { words })?;
    Ok(())
}

/// What the daemon has recorded.
///
/// # Errors
/// When it does not answer, or what it wrote cannot be read.
pub(crate) fn take_trace(scratch: &Scratch, entry: &Entry) -> Result<Trace, LabError> {
    let path = scratch.path("trace.csv");
    let words = vec![trace::WRITE.to_owned(), path.display().to_string()];
    control::ask(scratch.state(), entry, &Request::Command { words })?;
    Trace::read(&path).map_err(|source| LabError::io("read the trace", &path, source))
}

/// What the daemon says of itself.
///
/// # Errors
/// When it does not answer.
pub(crate) fn status(scratch: &Scratch, entry: &Entry) -> Result<Status, LabError> {
    match control::ask(scratch.state(), entry, &Request::Status)? {
        Reply::Status(facts) => match *facts {
            Facts::Volume(status) => Ok(status),
            Facts::Other(_) => Err(failed("asking for the status", "it is no volume")),
        },
        other => Err(failed("asking for the status", format!("the answer is {other:?}"))),
    }
}

/// Whether a check of the store, with all data, finds nothing wrong. What it finds is told.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_sound(store: &Path) -> Result<bool, LabError> {
    announce("the store checked, with all data");
    let report = check::check(store, None, true)?;
    let wrong = report.findings.iter().filter(|finding| finding.severity() != Severity::Info);
    wrong.for_each(|finding| terminal::note(&check::line(finding)));
    Ok(report.is_sound() && report.complete)
}

/// A step that did not give what it must.
pub(crate) fn failed(step: &'static str, reason: impl Into<String>) -> LabError {
    TrialError::DemoFailed { step, reason: reason.into() }.into()
}

/// A client of the NBD server that `entry`'s daemon has started in the state directory.
pub(crate) fn connect(state: &StateDirectory, entry: &Entry) -> Result<Client, LabError> {
    let address = Address::Unix(state.file(&entry.name, "nbd"));
    Client::connect(&address, &ClientOptions::default())
        .map_err(|error| failed("connecting to the volume", error.to_string()))
}

/// Says what is done now.
pub(crate) fn announce(text: &str) {
    terminal::note(&format!("· {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turns_add_up_to_the_seconds() {
        for (seconds, turns) in [(1, 2), (5, 2), (12, 4), (30, 10), (3600, 10)] {
            let plan = Plan::new(1 << 30, seconds, Interrupt::default());
            assert_eq!(plan.turns, turns, "{seconds}");
            assert_eq!((plan.turn * plan.turns).as_secs_f64().round() as u64, seconds);
        }
    }

    #[test]
    fn the_store_has_room_for_the_data_and_its_spare() {
        for size in [1 << 20, 1 << 30, 1 << 40] {
            let plan = Plan::new(size, 12, Interrupt::default());
            assert!(plan.store_size / 6 * 5 > size + EXTRA);
            assert_eq!(plan.store_size % SEGMENT_SIZE, 0);
        }
    }
}
