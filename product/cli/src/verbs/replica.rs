//! `coulter replica`: how a copy stands, and whether all of it is there.

use super::restore::CopyName;
use crate::audibly::Audibly;
use crate::error::{CliError, CopyError};
use crate::terminal::{self, BAD, BOLD, GREEN};
use clap::{Args, Subcommand};
use coulter_object::history::verify::{self, Fault, Report};
use coulter_object::layout::Pin;
use coulter_object::{
    ReplicaError,
    history::{self, snapshot},
};
use coulter_terminal::Size;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

/// Requests at once.
const THREADS: usize = 16;

/// Show how a copy stands, or verify it.
///
/// Both read the copy only. They need neither the store nor a daemon, and the volume may be in use
/// on any host.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter replica status s3://bucket/vol            newest commit, owner, sizes, snapshots
  coulter replica verify s3://bucket/vol            read every object that a state needs")]
pub(crate) struct Replica {
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show the newest commit, the owner, sizes and snapshots
    Status {
        /// Copy
        #[arg(value_name = "URL", value_parser = CopyName::parse_newest)]
        copy: CopyName,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every object that the newest state and the snapshots need, and compare its checksum
    ///
    /// The exit code is 1 if an object is damaged or missing.
    Verify {
        /// Copy
        #[arg(value_name = "URL", value_parser = CopyName::parse_newest)]
        copy: CopyName,
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
}

/// A copy as `status --json` shows it.
#[derive(Serialize)]
struct Facts {
    url: String,
    volume: String,
    commit: String,
    epoch: u64,
    /// The host that had the volume last.
    owner: String,
    /// When the owner opened the volume or stored a manifest, in seconds since 1970.
    seen: u64,
    /// No host can commit: the newest epoch was ended.
    is_ended: bool,
    manifest: Option<String>,
    commits_since_manifest: u64,
    device_bytes: u64,
    /// Bytes of the newest state that objects hold.
    stored_bytes: u64,
    /// Objects that hold them.
    object_count: usize,
    snapshots: Vec<Kept>,
    /// What the bucket's owner has set that harms a copy.
    cautions: Vec<String>,
}

/// A snapshot of it.
#[derive(Serialize)]
struct Kept {
    name: String,
    commit: String,
    time: u64,
}

/// What `verify --json` shows.
#[derive(Serialize)]
struct Verified<'a> {
    url: String,
    is_sound: bool,
    /// `null` if the newest state cannot be told.
    commit: Option<String>,
    snapshot_count: usize,
    object_count: usize,
    bytes: u64,
    faults: Vec<Row<'a>>,
}

/// A damaged or missing object.
#[derive(Serialize)]
struct Row<'a> {
    object: &'a str,
    kind: &'static str,
    reason: String,
    is_newest: bool,
    snapshots: &'a BTreeSet<String>,
}

impl Replica {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match &self.action {
            Action::Status { copy, json } => status(copy, *json),
            Action::Verify { copy, json } => verify(copy, *json),
        }
    }
}

pub(super) fn status(copy: &CopyName, json: bool) -> Result<(), CliError> {
    let bucket = copy.open()?;
    let facts = copy.patiently(|| {
        let (record, _) = history::record(&*bucket, &Audibly)?;
        let mut history = history::start(&*bucket, &record, &Audibly)?;
        let is_ended = history::follow(&*bucket, &record, &mut history, &Audibly)?;
        let (pins, _) = snapshot::pins(&*bucket, &record, &Audibly)?;
        let kept =
            |pin: Pin| Kept { name: pin.name, commit: pin.commit.to_string(), time: pin.time };
        Ok(Facts {
            url: copy.url.to_string(),
            volume: record.volume.to_string(),
            commit: history.newest_commit.to_string(),
            epoch: history.last.epoch,
            owner: record.owner,
            seen: record.seen,
            is_ended,
            manifest: record.manifest.map(|manifest| manifest.name()),
            commits_since_manifest: history.commit_count,
            device_bytes: record.device_size,
            stored_bytes: history.pieces.total(),
            object_count: history.pieces.sources().count(),
            snapshots: pins.pins.into_iter().map(kept).collect(),
            cautions: bucket.cautions(),
        })
    });
    let facts = facts.map_err(|error| copy.failed("read", error))?;
    if json { terminal::print_json(&facts) } else { print_facts(&facts) }
}

fn print_facts(facts: &Facts) -> Result<(), CliError> {
    let time =
        |seconds| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds));
    let Facts { url, commit, owner, epoch, .. } = facts;
    terminal::print(&format!("{BOLD}{url}{BOLD:#}  commit {commit}"))?;
    let ended = if facts.is_ended { ", ended: no host can commit" } else { "" };
    terminal::print(&format!("  epoch {epoch} of {owner}, seen {}{ended}", time(facts.seen)))?;
    terminal::print(&format!(
        "  store of {}, {} stored in {} objects, {} commits since the last manifest",
        Size(facts.device_bytes),
        Size(facts.stored_bytes),
        facts.object_count,
        facts.commits_since_manifest
    ))?;
    for caution in &facts.cautions {
        terminal::print(&format!("  {BAD}caution{BAD:#} {caution}"))?;
    }
    for Kept { name, commit, time: made } in &facts.snapshots {
        let made = time(*made);
        terminal::print(&format!("  snapshot {BOLD}{name}{BOLD:#}  {made}, commit {commit}"))?;
    }
    Ok(())
}

pub(super) fn verify(copy: &CopyName, json: bool) -> Result<(), CliError> {
    let bucket = copy.open()?;
    let bar = terminal::progress_of_count("verifying objects", 1);
    let progress = |done: usize, total: usize| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    };
    let report = verify::verify(&*bucket, THREADS, &Audibly, &progress);
    bar.finish_and_clear();
    let report = report.map_err(|error| copy.failed("verify", error))?;
    if json {
        terminal::print_json(&Verified {
            url: copy.url.to_string(),
            is_sound: report.faults.is_empty(),
            commit: report.newest.map(|commit| commit.to_string()),
            snapshot_count: report.snapshot_count,
            object_count: report.object_count,
            bytes: report.bytes,
            faults: report.faults.iter().map(row).collect(),
        })?;
    } else {
        print_report(&report)?;
    }
    match report.faults.len() {
        0 => Ok(()),
        faults => Err(CopyError::Faulty { url: copy.to_string(), faults }.into()),
    }
}

fn row(fault: &Fault) -> Row<'_> {
    let (kind, reason) = match &fault.error {
        ReplicaError::Missing(_) => ("missing", "it is not there".to_owned()),
        ReplicaError::Damaged(_, corrupt) => ("damaged", corrupt.to_string()),
        other => ("broken", other.to_string()),
    };
    let Fault { object, snapshots, is_newest, .. } = fault;
    Row { object, kind, reason, is_newest: *is_newest, snapshots }
}

fn print_report(report: &Report) -> Result<(), CliError> {
    for fault in &report.faults {
        let Row { object, kind, reason, is_newest, snapshots } = row(fault);
        let newest = is_newest.then(|| "the newest state".to_owned());
        let names = snapshots.iter().map(|name| format!("snapshot '{name}'"));
        let states: Vec<String> = newest.into_iter().chain(names).collect();
        let needs = match states.is_empty() {
            true => String::new(),
            false => format!("; needed by {}", states.join(", ")),
        };
        terminal::print(&format!("{BAD}{kind}{BAD:#}: {object}: {reason}{needs}"))?;
    }
    let Some(commit) = report.newest.filter(|_| report.faults.is_empty()) else { return Ok(()) };
    terminal::print(&format!(
        "{GREEN}sound{GREEN:#}: commit {commit} and {} snapshots, {} objects, {} read",
        report.snapshot_count,
        report.object_count,
        Size(report.bytes)
    ))
}
