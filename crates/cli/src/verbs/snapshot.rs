//! `coulter snapshot`: states of a copy that are kept.

use super::restore::CopyName;
use crate::error::{CliError, CopyError};
use crate::terminal::{self, BOLD};
use clap::{Args, Subcommand};
use coulter_daemon::replication;
use coulter_object::layout::VolumeRecord;
use coulter_object::layout::pins::CloneLine;
use coulter_object::publish::Briefly;
use coulter_object::{ReplicaError, history, lineage, rollback, snapshot};
use coulter_terminal::Size;
use serde::Serialize;

/// Attempts to make a snapshot: a busy host may delete meanwhile what one needs.
const ATTEMPTS: usize = 20;

/// Create, list or delete snapshots of a copy, or roll back to one.
///
/// A snapshot keeps the newest commit of the copy. It costs the space of data that is overwritten
/// later. The volume stays in use meanwhile. `coulter restore URL@NAME` restores it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter snapshot create s3://bucket/vol@monday
  coulter snapshot list s3://bucket/vol
  coulter snapshot delete s3://bucket/vol@monday
  coulter snapshot rollback s3://bucket/vol@monday")]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Create a snapshot of the newest state
    Create {
        /// Copy and name
        #[arg(value_name = "URL@NAME", value_parser = CopyName::parse)]
        copy: CopyName,
    },
    /// List the snapshots
    List {
        /// Copy
        #[arg(value_name = "URL", value_parser = CopyName::parse)]
        copy: CopyName,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a snapshot; its objects are deleted at the next garbage collection
    Delete {
        /// Copy and name
        #[arg(value_name = "URL@NAME", value_parser = CopyName::parse)]
        copy: CopyName,
    },
    /// Make a snapshot the newest state; what was written since is given up
    ///
    /// Keep the newest state first with `snapshot create`, if it may be needed. A store that was shipped to
    /// the copy is refused as its replica afterwards; `coulter restore URL FILE --take-over` goes on from
    /// the snapshot. The command is refused while the host that has the volume may be writing to it:
    /// its process runs on this host, or it is another host.
    Rollback {
        /// Copy and name
        #[arg(value_name = "URL@NAME", value_parser = CopyName::parse)]
        copy: CopyName,
        /// Fence the host that has the volume, whether it still runs or not
        #[arg(long)]
        take_over: bool,
    },
}

/// A snapshot as `list --json` shows it.
#[derive(Serialize)]
struct Row {
    name: String,
    commit: String,
    time: u64,
    stored_bytes: u64,
}

impl Snapshot {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match &self.action {
            Action::Create { copy } => create(copy),
            Action::List { copy, json } => list(copy, *json),
            Action::Rollback { copy, take_over } => roll_back(copy, *take_over),
            Action::Delete { copy } => {
                let name = name_of(copy)?;
                let bucket = copy.open()?;
                let is_there = |line: &CloneLine| lineage::is_there(&copy.url, line, &Briefly);
                snapshot::delete_unless_cloned(&*bucket, name, &is_there, &Briefly)
                    .map_err(|error| copy.failed("delete the snapshot", error))?;
                terminal::print(&format!("{BOLD}{copy}{BOLD:#} is given up"))
            }
        }
    }
}

fn name_of(copy: &CopyName) -> Result<&str, CliError> {
    let name = copy.snapshot.as_deref();
    Ok(name.ok_or_else(|| CopyError::NoName { url: copy.to_string() })?)
}

fn create(copy: &CopyName) -> Result<(), CliError> {
    let name = name_of(copy)?;
    let bucket = copy.open()?;
    let mut attempt = 1;
    let pin = loop {
        match snapshot::create(&*bucket, name, replication::seconds_since_1970(), &Briefly) {
            Err(ReplicaError::Collected | ReplicaError::Missing(_)) if attempt < ATTEMPTS => {
                attempt += 1
            }
            made => break made.map_err(|error| copy.failed("make the snapshot", error))?,
        }
    };
    terminal::print(&format!("{BOLD}{copy}{BOLD:#} keeps commit {}", pin.commit))
}

fn roll_back(copy: &CopyName, take_over: bool) -> Result<(), CliError> {
    let name = name_of(copy)?;
    let bucket = copy.open()?;
    let (owner, seen) = (replication::owner(), replication::seconds_since_1970());
    let may_fence = |record: &VolumeRecord| take_over || replication::has_ended(&record.owner);
    let done = rollback::rollback(&*bucket, name, &owner, seen, &may_fence, &Briefly)
        .map_err(|error| copy.failed("roll back to", error))?;
    let (kept, given_up, url) = (done.pin.commit, done.given_up, &copy.url);
    terminal::print(&format!(
        "{BOLD}{copy}{BOLD:#} is the newest state: commit {kept} instead of {given_up}"
    ))?;
    terminal::print(&format!("To go on from it: coulter restore {url} FILE --take-over"))
}

fn list(copy: &CopyName, json: bool) -> Result<(), CliError> {
    let bucket = copy.open()?;
    let failed = |error| copy.failed("list the snapshots of", error);
    let (record, _) = history::record(&*bucket, &Briefly).map_err(failed)?;
    let (pins, _) = snapshot::pins(&*bucket, &record, &Briefly).map_err(failed)?;
    let mut rows = Vec::new();
    for pin in pins.pins {
        let manifest =
            history::manifest(&*bucket, &record, pin.manifest, &Briefly).map_err(failed)?;
        let (commit, time) = (pin.commit.to_string(), pin.time);
        rows.push(Row { name: pin.name, commit, time, stored_bytes: manifest.pieces.total() });
    }
    if json {
        return terminal::print_json(&rows);
    }
    if rows.is_empty() {
        return terminal::print("No snapshots.");
    }
    for Row { name, commit, time, stored_bytes } in rows {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(time);
        let time = humantime::format_rfc3339_seconds(time);
        terminal::print(&format!(
            "{BOLD}{name}{BOLD:#}  {time}, commit {commit}, {}",
            Size(stored_bytes)
        ))?;
    }
    Ok(())
}
