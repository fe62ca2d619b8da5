//! `coulter snapshot`: states of a copy that are kept.

mod freezing;

use super::restore::CopyName;
use crate::audibly::Audibly;
use crate::error::{CliError, CopyError};
use crate::interrupt::Interrupt;
use crate::retention::Retention;
use crate::terminal::{self, BOLD};
use clap::{Args, Subcommand};
use coulter_daemon::replication;
use coulter_daemon::state::StateDirectory;
use coulter_object::bucket::Bucket;
use coulter_object::layout::pins::CloneLine;
use coulter_object::layout::{Pin, VolumeRecord};
use coulter_object::{
    ReplicaError,
    history::{self, lineage, rollback, snapshot},
};
use coulter_terminal::Size;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// Attempts to make a snapshot: a busy host may delete meanwhile what one needs.
const ATTEMPTS: usize = 20;

/// With what the names of a schedule's snapshots begin. Others are never pruned.
const SCHEDULED: &str = "auto-";

/// Create, list, prune or delete snapshots of a copy, or roll back to one.
///
/// A snapshot keeps the newest commit of the copy. It costs the space of data that is overwritten
/// later. The volume stays in use meanwhile. `coulter restore URL@NAME` restores it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter snapshot create s3://bucket/vol@monday
  coulter snapshot create s3://bucket/vol@monday --freeze /mnt
  coulter snapshot create s3://bucket/vol --keep hourly=24,daily=7
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
    Create(Create),
    /// Give up snapshots of a schedule that are no longer to be kept
    ///
    /// Only snapshots whose name begins with auto- are given up, as `create --keep` names them, and of these none of
    /// which there is a clone. Hours, days, weeks (from Monday), months and years are those of UTC.
    Prune {
        /// Copy
        #[arg(value_name = "URL", value_parser = CopyName::parse_newest)]
        copy: CopyName,
        /// How many to keep: last, hourly, daily, weekly, monthly or yearly=COUNT, with commas between. Keeps the
        /// newest snapshot of each of the COUNT newest hours, days, … that have one
        #[arg(long, value_name = "KIND=COUNT,…")]
        keep: Retention,
        /// Print what would be given up, and give up nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the snapshots
    List {
        /// Copy
        #[arg(value_name = "URL", value_parser = CopyName::parse_newest)]
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

/// How to create one.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Copy and name; with --keep the name may be left away, and is auto-TIME
    #[arg(value_name = "URL@NAME", value_parser = CopyName::parse)]
    copy: CopyName,

    /// Give up snapshots of a schedule afterwards, as `snapshot prune --keep` does, such as hourly=24,daily=7
    #[arg(long, value_name = "KIND=COUNT,…")]
    keep: Option<Retention>,

    /// Freeze the mounted file system at this directory meanwhile, so that the snapshot needs no replay of a journal.
    /// It must be on a volume that this host ships to the copy
    #[arg(long, value_name = "DIR")]
    freeze: Option<PathBuf>,

    /// Limit of the time for which it is frozen; then it is thawed, and no snapshot is made
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "freeze")]
    #[arg(value_parser = parse_freeze_max)]
    freeze_max: Duration,
}

/// A time for which a file system may be frozen.
fn parse_freeze_max(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let bounds = Duration::from_millis(100)..=Duration::from_secs(300);
    if bounds.contains(&time) { Ok(time) } else { Err("from 100ms to 5min".to_owned()) }
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
    pub(crate) fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        match &self.action {
            Action::Create(create) => create.run(state),
            Action::Prune { copy, keep, dry_run } => prune(copy, keep, *dry_run),
            Action::List { copy, json } => list(copy, *json),
            Action::Rollback { copy, take_over } => roll_back(copy, *take_over),
            Action::Delete { copy } => {
                let name = name_of(copy)?;
                let bucket = copy.open()?;
                give_up(&*bucket, copy, name)
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

impl Create {
    fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        let mut copy = self.copy.clone();
        if copy.snapshot.is_none() && self.keep.is_some() {
            copy.snapshot = Some(scheduled_name(replication::seconds_since_1970()));
        }
        let name = name_of(&copy)?;
        let bucket = copy.open()?;
        let pin = match &self.freeze {
            None => keep_newest(&*bucket, &copy, name)?,
            Some(directory) => {
                let interrupt = Interrupt::take_over()?;
                let within = self.freeze_max;
                let frozen = freezing::freeze(state, &copy.url, directory, within, &interrupt)?;
                let made = keep_newest(&*bucket, &copy, name);
                let thawed = frozen.thaw();
                let pin = made?;
                if let Err(error) = thawed {
                    let _ = give_up(&*bucket, &copy, name);
                    return Err(error);
                }
                pin
            }
        };
        terminal::print(&format!(
            "{BOLD}{copy}{BOLD:#} is the volume as of commit {}",
            pin.commit
        ))?;
        self.keep.map_or(Ok(()), |keep| prune(&CopyName { snapshot: None, ..copy }, &keep, false))
    }
}

/// The name of a schedule's snapshot.
fn scheduled_name(time: u64) -> String {
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time));
    format!("{SCHEDULED}{time}")
}

/// Keeps the newest state. A busy host may delete meanwhile what it needs.
fn keep_newest(bucket: &dyn Bucket, copy: &CopyName, name: &str) -> Result<Pin, CliError> {
    let mut attempt = 1;
    loop {
        match snapshot::create(bucket, name, replication::seconds_since_1970(), &Audibly) {
            Err(ReplicaError::Collected | ReplicaError::Missing(_)) if attempt < ATTEMPTS => {
                attempt += 1
            }
            made => return made.map_err(|error| copy.failed("make the snapshot", error)),
        }
    }
}

fn give_up(bucket: &dyn Bucket, copy: &CopyName, name: &str) -> Result<(), ReplicaError> {
    let is_there = |line: &CloneLine| lineage::is_there(&copy.url, line, &Audibly);
    snapshot::delete_unless_cloned(bucket, name, &is_there, &Audibly)
}

/// Gives up the snapshots of a schedule that `keep` does not keep.
fn prune(copy: &CopyName, keep: &Retention, dry_run: bool) -> Result<(), CliError> {
    let bucket = copy.open()?;
    let failed = |error| copy.failed("prune the snapshots of", error);
    let (record, _) = history::record(&*bucket, &Audibly).map_err(failed)?;
    let (pins, _) = snapshot::pins(&*bucket, &record, &Audibly).map_err(failed)?;
    let mut scheduled = pins.pins;
    scheduled.retain(|pin| pin.name.starts_with(SCHEDULED));
    let times: Vec<u64> = scheduled.iter().map(|pin| pin.time).collect();
    let kept = keep.kept(&times);
    for (pin, _) in scheduled.iter().zip(kept).filter(|(_, kept)| !kept) {
        let (url, name) = (&copy.url, &pin.name);
        if dry_run {
            terminal::print(&format!("{BOLD}{url}@{name}{BOLD:#} would be given up"))?;
            continue;
        }
        match give_up(&*bucket, copy, name) {
            // Somebody else was first, or it is needed for longer.
            Err(ReplicaError::NoPin(_)) => {}
            Err(ReplicaError::HasClones(_)) => {
                terminal::note(&format!("{url}@{name} stays, for there is a clone of it"));
            }
            done => {
                done.map_err(failed)?;
                terminal::print(&format!("{BOLD}{url}@{name}{BOLD:#} is given up"))?;
            }
        }
    }
    Ok(())
}

fn roll_back(copy: &CopyName, take_over: bool) -> Result<(), CliError> {
    let name = name_of(copy)?;
    let bucket = copy.open()?;
    let (owner, seen) = (replication::owner(), replication::seconds_since_1970());
    let may_fence = |record: &VolumeRecord| take_over || replication::has_ended(&record.owner);
    let done = rollback::rollback(&*bucket, name, &owner, seen, &may_fence, &Audibly)
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
    let (record, _) = history::record(&*bucket, &Audibly).map_err(failed)?;
    let (pins, _) = snapshot::pins(&*bucket, &record, &Audibly).map_err(failed)?;
    let mut rows = Vec::new();
    for pin in pins.pins {
        let manifest =
            history::manifest(&*bucket, &record, pin.manifest, &Audibly).map_err(failed)?;
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
