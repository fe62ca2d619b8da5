//! Snapshots: commits that are kept.
//!
//! A snapshot is a line in the object `pins` that names a manifest. To make one costs a manifest and a
//! swap; to delete one costs a swap, and the objects that only it needed go with the next collection.
//! See [`crate::layout::pins`] for why a pin never names what is gone.

use crate::bucket::{Bucket, Object, Tag};
use crate::history::{self, History, ReplicaError};
use crate::layout::pins::CloneLine;
use crate::layout::{Epoch, Manifest, Pin, Pins, Stage, VolumeRecord, nonce};
use crate::names::{CommitId, ManifestId, PINS, Source, VOLUME};
use crate::publish::{self, Outcome, Patience};
use std::collections::HashSet;

/// Times that a swap of the pins is tried again because another was first.
const RACES_MAX: usize = 100;

/// Reads the pins of a volume.
///
/// # Errors
/// [`ReplicaError`].
pub fn pins(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    patience: &dyn Patience,
) -> Result<(Pins, Tag), ReplicaError> {
    history::read_sound(bucket, PINS, patience, |object| pins_of(object, record))
}

/// The pins in what was read under their name.
fn pins_of(object: Option<Object>, record: &VolumeRecord) -> Result<(Pins, Tag), ReplicaError> {
    let object = object.ok_or_else(|| ReplicaError::Missing(PINS.to_string()))?;
    let damaged = |corrupt| ReplicaError::Damaged(PINS.to_string(), corrupt);
    let pins = Pins::decode(&object.bytes).map_err(damaged)?;
    if pins.volume != record.volume {
        let reason = crate::layout::Reason::Volume;
        return Err(damaged(crate::layout::Corrupt { structure: "pins", reason }));
    }
    Ok((pins, object.tag))
}

/// Keeps the newest commit under `name`.
///
/// The pins are read first, together with the record. That is as good as just before the swap: if the horizon has
/// moved since, the swap is refused, and the pins are read again.
///
/// # Errors
/// [`ReplicaError::PinName`] if the name cannot be used, [`ReplicaError::Collected`] if the volume's host
/// deleted what it needs meanwhile, [`ReplicaError::Unfinished`] after a rollback that a crash cut short, and others.
pub fn create(
    bucket: &dyn Bucket,
    name: &str,
    time: u64,
    patience: &dyn Patience,
) -> Result<Pin, ReplicaError> {
    check_name(name)?;
    let names = [VOLUME.to_string(), PINS.to_string()];
    let mut objects = publish::read_all(bucket, &names, patience)?.into_iter();
    let record = history::record_of(objects.next().flatten())?;
    let known = pins_of(objects.next().flatten(), &record.0)?;
    let (record, history) = history::newest_behind(bucket, record, patience)?;
    history.refuse_nothing()?;
    if known.0.find(name).is_some() {
        return Err(ReplicaError::PinTaken);
    }
    let manifest = store_manifest(bucket, &record, &history, patience)?;
    let pin = Pin { name: name.to_string(), commit: history.last, manifest, time };
    change_from(bucket, &record, Some(known), patience, |pins| {
        match pins.find(name) {
            // An earlier try has done it, and its answer was lost.
            Some(found) if *found == pin => return Ok(Edit::Needless),
            Some(_) => return Err(ReplicaError::PinTaken),
            None => {}
        }
        if pins.pins.len() >= crate::layout::pins::PIN_COUNT_MAX {
            return Err(ReplicaError::PinsFull);
        }
        if pin.commit < pins.horizon {
            let claims = |newest: &&Epoch| newest.stage == Stage::Claiming;
            let claimed = record.newest().filter(claims).map(|newest| newest.epoch);
            // Nobody will ever commit at that horizon, so it does not help to try again.
            return Err(match claimed == Some(pins.horizon.epoch) {
                true => ReplicaError::Unfinished,
                false => ReplicaError::Collected,
            });
        }
        pins.pins.push(pin.clone());
        Ok(Edit::Done)
    })?;
    Ok(pin)
}

/// Gives a snapshot up. Every clone counts as there: see [`delete_unless_cloned`].
///
/// # Errors
/// [`ReplicaError::NoPin`], and [`ReplicaError::HasClones`] if volumes were cloned from it.
pub fn delete(
    bucket: &dyn Bucket,
    name: &str,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    delete_unless_cloned(bucket, name, &|_| Ok(true), patience)
}

/// Gives a snapshot up, and the lines of clones of it that are not there, as `is_there` tells.
///
/// # Errors
/// [`ReplicaError::NoPin`], and [`ReplicaError::HasClones`] if a clone of it is there.
pub fn delete_unless_cloned(
    bucket: &dyn Bucket,
    name: &str,
    is_there: &dyn Fn(&CloneLine) -> Result<bool, ReplicaError>,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    let (record, _) = history::record(bucket, patience)?;
    let mut target: Option<Pin> = None;
    change(bucket, &record, patience, |pins| {
        match (pins.find(name), &target) {
            (None, None) => return Err(ReplicaError::NoPin(name.to_string())),
            (Some(found), None) => target = Some(found.clone()),
            (Some(found), Some(target)) if found == target => {}
            // An earlier try has done it, and its answer was lost. What has the name now is another.
            (_, Some(_)) => return Ok(Edit::Needless),
        }
        for line in pins.clones.iter().filter(|line| line.pin == name) {
            if is_there(line)? {
                return Err(ReplicaError::HasClones(name.to_string()));
            }
        }
        pins.clones.retain(|line| line.pin != name);
        pins.pins.retain(|pin| pin.name != name);
        Ok(Edit::Done)
    })
}

/// Clones of a volume at most.
const CLONE_COUNT_MAX: usize = 4096;

/// Adds the line of a clone that is about to be made: the snapshot stays from then on. If there are too many, the line
/// of one that is not there any more goes, as `is_there` tells.
///
/// # Errors
/// [`ReplicaError::NoPin`], and others.
pub(crate) fn add_clone(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    line: &CloneLine,
    is_there: &dyn Fn(&CloneLine) -> Result<bool, ReplicaError>,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    change(bucket, record, patience, |pins| {
        if pins.clones.contains(line) {
            return Ok(Edit::Needless);
        }
        if pins.find(&line.pin).is_none() {
            return Err(ReplicaError::NoPin(line.pin.clone()));
        }
        if pins.clones.len() >= CLONE_COUNT_MAX {
            let mut gone = None;
            for (index, other) in pins.clones.iter().enumerate() {
                if !is_there(other)? {
                    gone = Some(index);
                    break;
                }
            }
            let gone = gone.ok_or_else(|| ReplicaError::HasClones(line.pin.clone()))?;
            pins.clones.remove(gone);
        }
        pins.clones.push(line.clone());
        Ok(Edit::Done)
    })
}

/// Makes sure that the line of a clone is there, by a swap: a deletion of the snapshot that had begun before the clone
/// was there is refused.
///
/// # Errors
/// [`ReplicaError::Collected`] if it is not.
pub(crate) fn confirm_clone(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    line: &CloneLine,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    change(bucket, record, patience, |pins| match pins.clones.contains(line) {
        true => Ok(Edit::Done),
        false => Err(ReplicaError::Collected),
    })
}

/// The state that a snapshot keeps.
///
/// # Errors
/// [`ReplicaError::NoPin`], and others.
pub fn read(
    bucket: &dyn Bucket,
    name: &str,
    patience: &dyn Patience,
) -> Result<(VolumeRecord, Manifest), ReplicaError> {
    let (record, _) = history::record(bucket, patience)?;
    let (pins, _) = pins(bucket, &record, patience)?;
    let pin = pins.find(name).ok_or_else(|| ReplicaError::NoPin(name.to_string()))?;
    let manifest = history::manifest(bucket, &record, pin.manifest, patience)?;
    Ok((record, manifest))
}

/// Whether `name` may be that of a snapshot.
///
/// # Errors
/// [`ReplicaError::PinName`].
pub fn check_name(name: &str) -> Result<(), ReplicaError> {
    let error = if name.is_empty() || name.len() > 255 {
        "must have 1 to 255 bytes"
    } else if name.chars().any(|letter| letter.is_control() || letter == '/' || letter == '@') {
        "must not hold '/', '@' or control characters"
    } else {
        return Ok(());
    };
    Err(ReplicaError::PinName(error))
}

/// Says how far objects may be deleted, and returns those that snapshots need.
///
/// A host that was fenced must delete nothing more: after a rollback the volume may need again what that host
/// counts as garbage. So a horizon of a later epoch refuses it.
///
/// # Errors
/// [`ReplicaError`]; then nothing may be deleted.
pub(crate) fn advance_horizon(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    horizon: CommitId,
    patience: &dyn Patience,
) -> Result<(HashSet<Source>, HashSet<ManifestId>), ReplicaError> {
    let mut kept = Vec::new();
    change(bucket, record, patience, |pins| {
        if pins.horizon.epoch > horizon.epoch {
            return Err(ReplicaError::TakenOver);
        }
        kept.clone_from(&pins.pins);
        pins.horizon = pins.horizon.max(horizon);
        Ok(Edit::Done)
    })?;
    let mut sources = HashSet::new();
    for pin in &kept {
        let manifest = history::manifest(bucket, record, pin.manifest, patience)?;
        sources.extend(manifest.pieces.sources());
    }
    Ok((sources, kept.iter().map(|pin| pin.manifest).collect()))
}

/// Moves the horizon to `horizon` if the snapshot `pin` is still there: from then on no host of an earlier
/// epoch deletes what the snapshot needs, even if the snapshot is deleted later.
///
/// # Errors
/// [`ReplicaError::NoPin`], and others.
pub(crate) fn hold(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    pin: &Pin,
    horizon: CommitId,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    change(bucket, record, patience, |pins| {
        if pins.find(&pin.name) != Some(pin) {
            return Err(ReplicaError::NoPin(pin.name.clone()));
        }
        if pins.horizon > horizon {
            return Err(ReplicaError::TakenOver);
        }
        pins.horizon = horizon;
        Ok(Edit::Done)
    })
}

/// Stores the manifest of a history under a name of its own.
pub(crate) fn store_manifest(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    history: &History,
    patience: &dyn Patience,
) -> Result<ManifestId, ReplicaError> {
    let nonce = nonce();
    let first = *nonce.first_chunk().expect("a nonce has 16 bytes");
    let id = ManifestId { commit: history.last, nonce: u64::from_le_bytes(first) };
    let manifest = Manifest {
        volume: record.volume,
        nonce,
        commit: history.last,
        checksum: history.checksum,
        pieces: history.pieces.clone(),
    };
    match publish::create(bucket, &id.name(), &manifest.encode(), patience)? {
        Outcome::Ours(_) => Ok(id),
        // Nobody else draws the same nonce.
        Outcome::Foreign(_) => Err(ReplicaError::TakenOver),
    }
}

/// What became of the pins.
enum Edit {
    /// They are to be stored.
    Done,
    /// They are already as they are to be.
    Needless,
}

/// Changes the pins, on whatever they are by then. A try whose answer was lost may have counted before another
/// host changed them again: so `edit` may meet its own work.
fn change(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    patience: &dyn Patience,
    edit: impl FnMut(&mut Pins) -> Result<Edit, ReplicaError>,
) -> Result<(), ReplicaError> {
    change_from(bucket, record, None, patience, edit)
}

/// The same; the first try is on `known`, the pins that were read before, if there are any.
fn change_from(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    mut known: Option<(Pins, Tag)>,
    patience: &dyn Patience,
    mut edit: impl FnMut(&mut Pins) -> Result<Edit, ReplicaError>,
) -> Result<(), ReplicaError> {
    for _ in 0..RACES_MAX {
        let (mut pins, tag) = match known.take() {
            Some(known) => known,
            None => pins(bucket, record, patience)?,
        };
        if matches!(edit(&mut pins)?, Edit::Needless) {
            return Ok(());
        }
        pins.counter += 1;
        pins.nonce = nonce();
        if publish::swap(bucket, PINS, &tag, &pins.encode(), patience)?.is_some() {
            return Ok(());
        }
    }
    Err(ReplicaError::TakenOver)
}
