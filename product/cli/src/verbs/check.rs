//! `coulter check`: looks for any fault in a store, without changing it.

use crate::error::{CliError, StoreError};
use crate::interrupt::Interrupt;
use crate::named_store;
use crate::store::{self, LockedBlocks};
use crate::terminal::{self, BAD, BOLD, GREEN};
use crate::verbs::scrub;
use clap::Args;
use coulter::{Degraded, LocalVolume, OpenOptions};
use coulter_check::{Finding, Options, Phase, Progress, Report, Severity};
use coulter_daemon::scrub::ScrubAction;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_terminal::ProgressBar;
use coulter_terminal::Size;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// Bytes of a block.
const BLOCK_SIZE: u64 = coulter::service::BLOCK_SIZE;

/// Check a store for faults, read-only.
///
/// Every structure is decoded and compared with the other structures that describe the same data.
/// A store that was not closed is not a fault; the report says what attaching would replay. The exit
/// code is 1 if there is a fault.
///
/// Of an attached volume the daemon checks what can be checked in use: it compares both copies of what the
/// newest checkpoint lists, its body and the superblocks with their checksums, and with --data every leaf page
/// and every mapped block, as `coulter scrub` does. It does not compare structures with each other.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter check disk.img                   the metadata
  coulter check disk.img --data            and the checksum of every mapped block
  coulter check disk --data                an attached volume, by way of its daemon")]
pub struct Check {
    /// Store to check, or the name or the directory of an attached volume
    #[arg(value_parser = named_store::parser())]
    pub path: PathBuf,

    /// Read every mapped block and compare its checksum
    #[arg(long)]
    pub data: bool,

    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

impl Check {
    pub(crate) fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        let path = store::find(&self.path, state)?;
        let attached = state.and_then(|state| Some((state, state.attached_at(&path)?)));
        if let Some((state, entry)) = attached {
            return self.check_attached(state, &entry);
        }
        let (report, blocks) = checked(&path, state, self.data)?;
        let is_sound = report.is_sound() && report.complete;
        let opening = (!is_sound).then(|| Opening::tried(&report, blocks));
        if self.json {
            terminal::print_json(&Told { report: &report, opening: &opening })?;
        } else {
            self.print(&report)?;
            opening.iter().try_for_each(|opening| terminal::print(&opening.to_string()))?;
        }
        if is_sound {
            return Ok(());
        }
        let (faults, warnings) = (report.counters.faults, report.counters.warnings);
        // Where there is no superblock there is nothing more to be found, nor to be salvaged.
        let complete = report.complete || report.store.is_none();
        Err(StoreError::Faulty { path: self.path.clone(), faults, warnings, complete }.into())
    }

    /// Has the daemon look at what can be compared while the volume is in use.
    fn check_attached(&self, state: &StateDirectory, entry: &Entry) -> Result<(), CliError> {
        let interrupt = Interrupt::take_over()?;
        let (begin, tell) = match self.data {
            true => (ScrubAction::Start { rate: Some(0), anew: true }, ScrubAction::Tell),
            false => (ScrubAction::Metadata, ScrubAction::TellMetadata),
        };
        let begun = scrub::ask(state, entry, begin)?;
        let facts = scrub::wait(state, entry, begun, tell, &interrupt)?;
        if self.json {
            terminal::print_json(&facts)?;
        } else {
            scrub::print_damage(&facts)?;
        }
        scrub::refuse_damaged(entry, &facts)?;
        if self.json {
            return Ok(());
        }
        let compared = Size(facts.checked_bytes + facts.metadata_checked_bytes);
        let what = match self.data {
            true => "data and metadata",
            false => "metadata of the newest checkpoint (--data reads leaf pages and data)",
        };
        terminal::print(&format!(
            "{GREEN}sound{GREEN:#} as far as can be seen in use: {compared} of {what} compared; detach it to compare \
             structures with each other"
        ))
    }

    fn print(&self, report: &Report) -> Result<(), CliError> {
        for finding in &report.findings {
            terminal::print(&line(finding))?;
        }
        if report.findings_omitted > 0 {
            terminal::print(&format!("… and {} more", report.findings_omitted))?;
        }
        if !report.is_sound() || !report.complete {
            return Ok(());
        }
        let counters = &report.counters;
        let data = match self.data {
            true => format!("{} data blocks compared", counters.data_blocks),
            false => "data not read (--data does that)".to_owned(),
        };
        let touched = match &report.store {
            Some(store) if store.root_limit > 0 => format!(
                " ({} of {} stretches of 1 GiB touched)",
                counters.roots_in_use, store.root_limit
            ),
            _ => String::new(),
        };
        terminal::print(&format!(
            "{GREEN}sound{GREEN:#}: {} mapped{touched} in {} of {} segments, {} records, {data}",
            Size(counters.mapped_blocks * BLOCK_SIZE),
            counters.segments_in_use,
            report.store.as_ref().map_or(0, |store| store.segments),
            counters.records,
        ))
    }
}

/// The JSON that is printed.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    report: &'a Report,
    opening: &'a Option<Opening>,
}

/// The outcome of attaching a damaged store.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Opening {
    /// As ever.
    Opens,
    /// Only without writing.
    OpensReadOnly,
    /// All that is in doubt cannot be read.
    OpensDegraded { in_doubt_bytes: u64 },
    /// It is refused.
    Refused { reason: String },
}

impl Opening {
    /// Tries it, without writing.
    fn tried(report: &Report, blocks: LockedBlocks) -> Opening {
        let options = OpenOptions {
            read_only: true,
            degraded: Degraded::ReadOnly,
            read_cache: 0,
            ..OpenOptions::default()
        };
        let only_reads = |finding: &Finding| {
            matches!(finding, Finding::FirstSuperblocksLost { .. } | Finding::NumberSpent { .. })
        };
        match LocalVolume::open(blocks.device, options) {
            Err(error) => Opening::Refused { reason: error.kind.to_string() },
            Ok(volume) => match volume.state().in_doubt_bytes() {
                Some(in_doubt_bytes) => Opening::OpensDegraded { in_doubt_bytes },
                None if report.findings.iter().any(only_reads) => Opening::OpensReadOnly,
                None => Opening::Opens,
            },
        }
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("attaching: ")?;
        match self {
            Opening::Opens => f.write_str("the store opens"),
            Opening::OpensReadOnly => f.write_str("the store opens with `--read-only` alone"),
            Opening::OpensDegraded { in_doubt_bytes: 0 } => {
                f.write_str("the store opens degraded: all data can be read")
            }
            Opening::OpensDegraded { in_doubt_bytes } => write!(
                f,
                "the store opens degraded: {} in doubt give errors, all other data can be read",
                Size(*in_doubt_bytes)
            ),
            Opening::Refused { reason } => write!(f, "the store cannot be opened: {reason}"),
        }
    }
}

/// Checks the store at `path`, showing on a terminal how far it is.
///
/// # Errors
/// When it cannot be opened, or is attached.
pub fn check(path: &Path, state: Option<&StateDirectory>, data: bool) -> Result<Report, CliError> {
    checked(path, state, data).map(|(report, _)| report)
}

/// The same with the store, which is locked yet.
fn checked(
    path: &Path,
    state: Option<&StateDirectory>,
    data: bool,
) -> Result<(Report, LockedBlocks), CliError> {
    let mut blocks = LockedBlocks::open(&store::find(path, state)?, state)?;
    let bar = terminal::progress_of_count("", 1);
    let mut phase = None;
    let mut show = |progress: Progress| advance(&bar, &mut phase, progress);
    let mut options = Options { data, progress: Some(&mut show), ..Options::default() };
    let report = coulter_check::check(&mut blocks.blocks, &mut options);
    bar.finish_and_clear();
    Ok((report, blocks))
}

fn advance(bar: &ProgressBar, phase: &mut Option<Phase>, progress: Progress) {
    if *phase != Some(progress.phase) {
        *phase = Some(progress.phase);
        bar.reset();
        bar.set_length(progress.total);
        let unit = match progress.phase {
            Phase::Metadata => "blocks",
            Phase::Map => "root pages",
            Phase::Log | Phase::Detail => "segments",
        };
        bar.set_message(format!("checking {}, {unit}", progress.phase));
    }
    bar.set_position(progress.done);
}

/// One finding for people.
pub fn line(finding: &Finding) -> String {
    match finding.severity() {
        Severity::Info => format!("info: {finding}"),
        Severity::Warning => format!("{BOLD}warning{BOLD:#}: {finding}"),
        Severity::Fault => format!("{BAD}fault{BAD:#}: {finding}"),
    }
}
