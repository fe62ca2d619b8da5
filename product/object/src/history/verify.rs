//! Reads everything that a copy needs, and names what is damaged or missing.
//!
//! It reads the record, the newest state's manifest and commits, the snapshots and their manifests, and every object
//! that one of these states refers to. It lists the commits of the newest epoch, because a commit that is missing
//! looks like the end of the history.
//!
//! A host may write meanwhile, and delete what the newest state no longer needs. So what seems to be missing is a fault
//! only if a state that is read afterwards still needs it.

use crate::bucket::Bucket;
use crate::history::{self, History, ReplicaError};
use crate::layout::{Stage, VolumeRecord};
use crate::names::{CommitId, PINS, Source, VOLUME};
use crate::pieces::PieceMap;
use crate::publish::{self, Patience};
use crate::{
    history::{restore, snapshot},
    side_by_side,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Something that is wrong with a copy.
#[derive(Debug)]
pub struct Fault {
    /// The object.
    pub object: String,
    /// What is wrong with it.
    pub error: ReplicaError,
    /// The snapshots that need it.
    pub snapshots: BTreeSet<String>,
    /// Whether the newest state needs it.
    pub is_newest: bool,
}

/// What was read, and what is wrong.
#[derive(Debug, Default)]
pub struct Report {
    /// The newest commit, if the newest state can be told.
    pub newest: Option<CommitId>,
    /// Snapshots that were read.
    pub snapshot_count: usize,
    /// Objects that hold data and were read.
    pub object_count: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong, by the object's name.
    pub faults: Vec<Fault>,
}

/// The states that need an object, and up to which of its bytes.
#[derive(Debug, Default)]
struct Need {
    snapshots: BTreeSet<String>,
    is_newest: bool,
    end: u64,
}

/// Verifies the copy in `bucket` with `thread_count` requests at once. `progress` is told the number of objects that
/// were read, and of all that are to be.
///
/// # Errors
/// [`ReplicaError::NoVolume`], and what the bucket met. All else is in the report.
pub fn verify(
    bucket: &dyn Bucket,
    thread_count: usize,
    patience: &(dyn Patience + Sync),
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Report, ReplicaError> {
    let mut report = Report::default();
    let record = match history::record(bucket, patience) {
        Ok((record, _)) => record,
        Err(error) => {
            report.faults.push(fault_of_newest(VOLUME.to_string(), of_object(error)?));
            return Ok(report);
        }
    };
    let mut needs = BTreeMap::new();
    match newest(bucket, patience) {
        Ok(history) => {
            report.newest = Some(history.newest_commit);
            need(&mut needs, &history.pieces, None);
        }
        Err(error) => {
            let error = of_object(error)?;
            let object = object_of(&error);
            report.faults.push(fault_of_newest(object, error));
        }
    }
    read_pins(bucket, &record, &mut needs, &mut report, patience)?;
    read_objects(bucket, &record, &needs, &mut report, (thread_count, patience, progress))?;
    drop_overtaken(bucket, &record, &mut report, patience);
    report.faults.sort_by(|one, other| one.object.cmp(&other.object));
    Ok(report)
}

/// The newest state, of which no commit is missing.
fn newest(bucket: &dyn Bucket, patience: &dyn Patience) -> Result<History, ReplicaError> {
    let found =
        history::of_one_record(bucket, patience, |record| newest_of(bucket, record, patience));
    found.map(|(_, history)| history)
}

fn newest_of(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    patience: &dyn Patience,
) -> Result<History, ReplicaError> {
    // Before the history is read: a commit that is created meanwhile is then no sign of a gap.
    let begun = record.epochs.iter().rfind(|one| one.stage == Stage::Begun);
    let epoch = begun.map_or(0, |begun| begun.epoch);
    let listed = publish::list(bucket, &CommitId::names_of(epoch), patience)?;
    let mut history = history::start(bucket, record, patience)?;
    history::follow(bucket, record, &mut history, patience)?;
    let next = history.last.next();
    let is_gap = history.last.epoch == epoch
        && listed.iter().any(|name| CommitId::of_name(name).is_some_and(|id| id > next));
    if is_gap { Err(ReplicaError::Missing(next.name())) } else { Ok(history) }
}

/// Notes what a state needs: that of a snapshot, or the newest.
fn need(needs: &mut BTreeMap<Source, Need>, pieces: &PieceMap, snapshot: Option<&str>) {
    for (_, piece) in pieces.iter() {
        let need = needs.entry(piece.source).or_default();
        need.end = need.end.max(u64::from(piece.offset) + u64::from(piece.length));
        match snapshot {
            Some(name) if !need.snapshots.contains(name) => {
                need.snapshots.insert(name.to_string());
            }
            Some(_) => {}
            None => need.is_newest = true,
        }
    }
}

fn read_pins(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    needs: &mut BTreeMap<Source, Need>,
    report: &mut Report,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    let pins = match snapshot::pins(bucket, record, patience) {
        Ok((pins, _)) => pins.pins,
        Err(error) => {
            let error = of_object(error)?;
            let object = PINS.to_string();
            let snapshots = BTreeSet::new();
            report.faults.push(Fault { object, error, snapshots, is_newest: false });
            return Ok(());
        }
    };
    for pin in pins {
        report.snapshot_count += 1;
        match history::manifest(bucket, record, pin.manifest, patience) {
            Ok(manifest) => need(needs, &manifest.pieces, Some(&pin.name)),
            Err(error) => {
                let (error, object) = (of_object(error)?, pin.manifest.name());
                let snapshots = BTreeSet::from([pin.name]);
                report.faults.push(Fault { object, error, snapshots, is_newest: false });
            }
        }
    }
    Ok(())
}

/// How objects are read.
type Reading<'a> = (usize, &'a (dyn Patience + Sync), &'a (dyn Fn(usize, usize) + Sync));

fn read_objects(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    needs: &BTreeMap<Source, Need>,
    report: &mut Report,
    (thread_count, patience, progress): Reading<'_>,
) -> Result<(), ReplicaError> {
    let work: Vec<_> = needs.iter().collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let shared = Mutex::new((report, None));
    let run = || {
        while let Some((source, need)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            let read = restore::payload(bucket, record.volume, **source, patience);
            let read = read.and_then(|bytes| {
                let size = bytes.len() as u64;
                if size < need.end { Err(restore::too_short(**source)) } else { Ok(size) }
            });
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let (report, failure) = &mut *shared;
            if failure.is_some() {
                return;
            }
            match read {
                Ok(size) => report.bytes += size,
                Err(error) => match of_object(error) {
                    Ok(error) => {
                        let Need { snapshots, is_newest, .. } = need;
                        let (object, snapshots) = (source.name(), snapshots.clone());
                        let is_newest = *is_newest;
                        report.faults.push(Fault { object, error, snapshots, is_newest });
                    }
                    Err(error) => *failure = Some(error),
                },
            }
            report.object_count += 1;
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, work.len());
        }
    };
    side_by_side::share(thread_count.clamp(1, work.len().max(1)), run);
    shared.into_inner().unwrap_or_else(PoisonError::into_inner).1.map_or(Ok(()), Err)
}

/// Takes out what was deleted meanwhile because no state needs it any more.
fn drop_overtaken(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    report: &mut Report,
    patience: &dyn Patience,
) {
    let is_missing = |fault: &Fault| matches!(fault.error, ReplicaError::Missing(_));
    if report.newest.is_none() || !report.faults.iter().any(is_missing) {
        return;
    }
    let Ok(now) = newest(bucket, patience) else { return };
    let Ok((pins, _)) = snapshot::pins(bucket, record, patience) else { return };
    for fault in report.faults.iter_mut().filter(|fault| is_missing(fault)) {
        fault.is_newest &= now.pieces.sources().any(|source| source.name() == fault.object);
        fault.snapshots.retain(|name| pins.find(name).is_some());
    }
    report
        .faults
        .retain(|fault| !is_missing(fault) || fault.is_newest || !fault.snapshots.is_empty());
}

/// An error that tells of an object, not of the bucket.
fn of_object(error: ReplicaError) -> Result<ReplicaError, ReplicaError> {
    match error {
        ReplicaError::Gap(missing, _) => Ok(ReplicaError::Missing(missing.name())),
        error if error.is_of_object() => Ok(error),
        other => Err(other),
    }
}

fn object_of(error: &ReplicaError) -> String {
    match error {
        ReplicaError::Damaged(name, _) | ReplicaError::Missing(name) => name.clone(),
        ReplicaError::Broken(id) => id.name(),
        _ => VOLUME.to_string(),
    }
}

fn fault_of_newest(object: String, error: ReplicaError) -> Fault {
    Fault { object, error, snapshots: BTreeSet::new(), is_newest: true }
}
