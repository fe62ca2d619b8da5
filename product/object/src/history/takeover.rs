//! Makes this host the only one whose commits count.
//!
//! # Steps
//! 1. Read `volume`. 2. Swap in a new epoch, *claiming*. 3. Read the commits of the epoch before, to
//!    their end. 4. Create a *fence* under the name of its next commit; if that name is taken by a commit,
//!    count it and go on behind it. 5. Swap: the new epoch has *begun*, behind the last commit counted.
//!
//! # Why no two hosts both acknowledge
//! A host acknowledges what a commit holds when that commit was created under its name. A fence has taken
//! the next name of its epoch, so whatever it sends later is refused, whenever it arrives: no clock is
//! asked. What it created before the fence was read, and is part of the history. Of two hosts that claim
//! at once, one's second swap meets a record that the other has changed: one that has only claimed can
//! not begin any more once another has claimed behind it, and the record forgets it.
//!
//! A fence is never deleted: its name would be free again.
//!
//! # Why the record stays small
//! It names the epochs since the manifest. One without a commit is left out when the next one begins,
//! and a claim that finds many with commits stores a manifest. So hosts that die soon after each opening
//! neither fill the record nor make the next opening slow.
//!
//! # A history that cannot be read to its end
//! If a commit is gone, the host that has the volume is behind the gap, and a fence in the gap does not
//! stop it. So a gap is looked for first, and then a claim is refused. [`claim_anyway`] goes on from what
//! can be read. It lists the commits of the last epoch and puts the fence behind all of them. What it
//! goes on from is a manifest at the beginning of its own epoch, as after a rollback.

use crate::bucket::{Bucket, Tag};
use crate::history::snapshot;
use crate::history::{self, History, Next, ReplicaError};
use crate::layout::volume::EPOCH_COUNT_MAX;
use crate::layout::{
    COUNTED_MAX, Commit, Corrupt, Epoch, Pins, Reason, Stage, VolumeId, VolumeRecord, nonce,
};
use crate::names::{CommitId, PINS, VOLUME};
use crate::publish::{self, Outcome, Patience};

/// With more epochs in the record a claim stores a manifest: an opening needs a round trip for each epoch.
const EPOCHS_BEFORE_MANIFEST: usize = 16;
const _: () = assert!(EPOCHS_BEFORE_MANIFEST + 2 <= EPOCH_COUNT_MAX);

/// A volume that is this host's from now on.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The record as it is now.
    pub record: VolumeRecord,
    /// Its version.
    pub tag: Tag,
    /// The new epoch.
    pub epoch: u64,
    /// What the volume holds; `last` is the beginning of the new epoch.
    pub history: History,
    /// The last commit of the epoch before.
    pub after: CommitId,
}

/// What a new volume is made of.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// The store's UUID.
    pub store: [u8; 16],
    /// Bytes of the device.
    pub device_size: u64,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// Who has it, for people.
    pub owner: String,
}

/// Makes a new volume, which is this host's.
///
/// # Errors
/// [`ReplicaError::TakenOver`] if there is one already.
pub fn create(
    bucket: &dyn Bucket,
    new: &NewVolume,
    seen: u64,
    patience: &dyn Patience,
) -> Result<Claim, ReplicaError> {
    let after = CommitId { epoch: 0, number: 0 };
    // Before `volume`, which decides whose the place is, and comes when all that it leads to is there.
    let volume = create_pins(bucket, after, patience)?;
    let record = VolumeRecord {
        volume,
        nonce: nonce(),
        counter: 0,
        store: new.store,
        device_size: new.device_size,
        chunk_size: new.chunk_size,
        manifest: None,
        epochs: vec![Epoch { epoch: 1, stage: Stage::Begun, after }],
        owner: new.owner.clone(),
        seen,
        ancestors: Vec::new(),
    };
    let Outcome::Ours(tag) = publish::create(bucket, VOLUME, &record.encode(), patience)? else {
        return Err(ReplicaError::TakenOver);
    };
    let history = history::start(bucket, &record, patience)?;
    Ok(Claim { record, tag, epoch: 1, history, after })
}

/// Creates the pins of a new volume; returns its identity. If a creation was cut short behind this step, or goes on at
/// the same time, its pins are there: they are used as they are, and `volume` decides.
fn create_pins(
    bucket: &dyn Bucket,
    horizon: CommitId,
    patience: &dyn Patience,
) -> Result<VolumeId, ReplicaError> {
    let volume = VolumeId::random();
    let (pins, clones) = (Vec::new(), Vec::new());
    let pins = Pins { volume, nonce: nonce(), counter: 0, horizon, pins, clones };
    let Outcome::Foreign(found) = publish::create(bucket, PINS, &pins.encode(), patience)? else {
        return Ok(volume);
    };
    match Pins::decode(&found) {
        Ok(found) if found.counter == 0 && found.horizon == horizon => Ok(found.volume),
        _ => Err(ReplicaError::Leftovers(PINS.to_string())),
    }
}

/// A volume on which no host can commit any more, and on which the new epoch has not begun.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) record: VolumeRecord,
    pub(crate) tag: Tag,
    pub(crate) epoch: u64,
    /// What the volume holds, up to the last commit of the epoch before.
    pub(crate) history: History,
    /// Why the history could not be read to its end, if that was asked for anyway.
    pub(crate) cut: Option<ReplicaError>,
}

/// What is done if the history cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Nothing is taken over.
    Refused,
    /// What lies behind is given up.
    GivenUp,
}

/// Takes a volume over from whichever host has it.
///
/// # Errors
/// [`ReplicaError::TakenOver`] if another host does the same at the same time and was first.
pub fn claim(
    bucket: &dyn Bucket,
    owner: &str,
    seen: u64,
    patience: &dyn Patience,
) -> Result<Claim, ReplicaError> {
    let (record, tag) = history::record(bucket, patience)?;
    let ended = end_others(bucket, record, &tag, Unreadable::Refused, patience)?;
    go_on(bucket, ended, owner, seen, patience)
}

/// The same, if no other host has claimed the volume since its record was `looked_at`: a look at whether it is free
/// counts for what was there then.
///
/// # Errors
/// [`ReplicaError::TakenOver`] if one has.
pub fn claim_seen(
    bucket: &dyn Bucket,
    looked_at: &VolumeRecord,
    owner: &str,
    seen: u64,
    patience: &dyn Patience,
) -> Result<Claim, ReplicaError> {
    let (record, tag) = history::record(bucket, patience)?;
    if record.volume != looked_at.volume || record.newest() != looked_at.newest() {
        return Err(ReplicaError::TakenOver);
    }
    let ended = end_others(bucket, record, &tag, Unreadable::Refused, patience)?;
    go_on(bucket, ended, owner, seen, patience)
}

/// The same of a history that cannot be read to its end, too. Its state is then what can be read, and the error tells
/// why that is not all.
///
/// # Errors
/// As of [`claim`].
pub fn claim_anyway(
    bucket: &dyn Bucket,
    owner: &str,
    seen: u64,
    patience: &dyn Patience,
) -> Result<(Claim, Option<ReplicaError>), ReplicaError> {
    let (record, tag) = history::record(bucket, patience)?;
    let mut ended = end_others(bucket, record, &tag, Unreadable::GivenUp, patience)?;
    let Some(why) = ended.cut.take() else {
        return Ok((go_on(bucket, ended, owner, seen, patience)?, None));
    };
    let after = ended.history.last;
    let start = CommitId { epoch: ended.epoch, number: 0 };
    let mut history =
        History { last: start, checksum: 0, commit_count: 0, ..ended.history.clone() };
    let id = snapshot::store_manifest(bucket, &ended.record, &history, patience)?;
    history.manifest = Some(id);
    ended.record.manifest = Some(id);
    // What this state needs may be garbage to the host that is behind the gap: it must not delete any more. Nor can
    // it where the pins cannot be read.
    match snapshot::advance_horizon(bucket, &ended.record, start, patience) {
        Ok(_) | Err(ReplicaError::Damaged(..) | ReplicaError::Missing(_)) => {}
        Err(error) => return Err(error),
    }
    let tag = begin(bucket, &mut ended, owner, seen, patience)?;
    let Ended { record, epoch, .. } = ended;
    Ok((Claim { record, tag, epoch, history, after }, Some(why)))
}

/// Step 5 of a claim.
fn go_on(
    bucket: &dyn Bucket,
    mut ended: Ended,
    owner: &str,
    seen: u64,
    patience: &dyn Patience,
) -> Result<Claim, ReplicaError> {
    let after = ended.history.last;
    let is_long = ended.record.epochs.len() > EPOCHS_BEFORE_MANIFEST;
    let mut replaced = None;
    if is_long && ended.history.commit_count > 0 {
        let id = snapshot::store_manifest(bucket, &ended.record, &ended.history, patience)?;
        ended.history.manifest = Some(id);
        ended.history.commit_count = 0;
        replaced = ended.record.manifest.replace(id);
    }
    let tag = begin(bucket, &mut ended, owner, seen, patience)?;
    let Ended { record, epoch, mut history, .. } = ended;
    if let Some(old) = replaced
        && let Ok((pins, _)) = snapshot::pins(bucket, &record, patience)
        && pins.pins.iter().all(|pin| pin.manifest != old)
    {
        // If it stays, it costs space.
        let _ = publish::delete(bucket, &old.name(), patience);
    }
    history.last = CommitId { epoch, number: 0 };
    history.checksum = 0;
    Ok(Claim { record, tag, epoch, history, after })
}

/// Steps 2 to 4: no other host can commit behind the history that is returned.
pub(crate) fn end_others(
    bucket: &dyn Bucket,
    record: VolumeRecord,
    tag: &Tag,
    unreadable: Unreadable,
    patience: &dyn Patience,
) -> Result<Ended, ReplicaError> {
    let (record, tag, epoch) = announce(bucket, record, tag, patience)?;
    let mut history = History::nothing(&record);
    let read = history::start(bucket, &record, patience).and_then(|start| {
        history = start;
        end_epoch(bucket, &record, &mut history, patience)
    });
    let cut = match read {
        Ok(()) => None,
        // Another host that has claimed since may have collected what was to be read.
        Err(error) if error.is_of_object() && history::record(bucket, patience)?.1 != tag => {
            return Err(ReplicaError::TakenOver);
        }
        Err(error) if unreadable == Unreadable::GivenUp && error.is_of_object() => {
            end_behind_all(bucket, &record, patience)?;
            Some(error)
        }
        Err(error) => return Err(error),
    };
    Ok(Ended { record, tag, epoch, history, cut })
}

/// Step 2. The host that has the volume changes the record too, whenever it stores a manifest: that is no
/// other claim, and what it wrote is read and claimed anew.
fn announce(
    bucket: &dyn Bucket,
    mut record: VolumeRecord,
    tag: &Tag,
    patience: &dyn Patience,
) -> Result<(VolumeRecord, Tag, u64), ReplicaError> {
    let (found, mut tag) = (record.newest().copied(), tag.clone());
    loop {
        if record.epochs.len() >= EPOCH_COUNT_MAX {
            // Our hosts store a manifest long before: the record is not ours, or damaged.
            let corrupt = Corrupt { structure: VOLUME, reason: Reason::Field("epoch_count") };
            return Err(ReplicaError::Damaged(VOLUME.to_string(), corrupt));
        }
        let epoch = record.newest().map_or(1, |newest| newest.epoch + 1);
        record.epochs.retain(|one| one.stage == Stage::Begun);
        let begun = record.epochs.iter().rfind(|epoch| epoch.stage == Stage::Begun);
        let before = begun.map_or(0, |begun| begun.epoch);
        let provisional = CommitId { epoch: before, number: 0 };
        record.epochs.push(Epoch { epoch, stage: Stage::Claiming, after: provisional });
        drop_old_epochs(&mut record);
        match swap_record(bucket, &mut record, &tag, patience) {
            Ok(tag) => return Ok((record, tag, epoch)),
            Err(ReplicaError::TakenOver) => {
                let (now, tag_now) = history::record(bucket, patience)?;
                if now.newest().copied() != found || tag_now == tag {
                    return Err(ReplicaError::TakenOver);
                }
                (record, tag) = (now, tag_now);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Step 5. Whatever else the caller has changed in the record counts from the same instant.
pub(crate) fn begin(
    bucket: &dyn Bucket,
    ended: &mut Ended,
    owner: &str,
    seen: u64,
    patience: &dyn Patience,
) -> Result<Tag, ReplicaError> {
    let (epoch, last) = (ended.epoch, ended.history.last);
    let record = &mut ended.record;
    record.epochs.retain(|one| one.stage == Stage::Begun);
    let after = leave_out_empty(record, last);
    record.epochs.push(Epoch { epoch, stage: Stage::Begun, after });
    drop_old_epochs(record);
    record.owner = owner.to_string();
    record.seen = seen;
    swap_record(bucket, record, &ended.tag, patience)
}

/// Ends this host's own epoch by a fence: no host has the volume then. Returns the last commit.
///
/// # Errors
/// [`ReplicaError::TakenOver`] if another host has the volume.
pub fn give_up(
    bucket: &dyn Bucket,
    epoch: u64,
    patience: &dyn Patience,
) -> Result<CommitId, ReplicaError> {
    let (record, mut history) = history::newest(bucket, patience)?;
    let is_ours = record.newest().is_some_and(|newest| newest.epoch == epoch);
    if !is_ours || history.last.epoch != epoch {
        return Err(ReplicaError::TakenOver);
    }
    end_epoch(bucket, &record, &mut history, patience)?;
    Ok(history.newest_commit)
}

/// True if another host has the volume instead of the one of `epoch`: it may have written since,
/// and what that host still holds is of the past. A claim that has not begun may yet come to
/// nothing.
///
/// # Errors
/// When the record cannot be read.
pub fn is_another_hosts(
    bucket: &dyn Bucket,
    volume: VolumeId,
    epoch: u64,
    patience: &dyn Patience,
) -> Result<bool, ReplicaError> {
    let (record, _) = history::record(bucket, patience)?;
    let is_later = |one: &Epoch| one.stage == Stage::Begun && one.epoch > epoch;
    Ok(record.volume != volume || record.epochs.iter().any(is_later))
}

/// Replaces the record by what it is now; returns the new version's tag.
///
/// # Errors
/// [`ReplicaError::TakenOver`] if somebody has changed it.
pub fn swap_record(
    bucket: &dyn Bucket,
    record: &mut VolumeRecord,
    tag: &Tag,
    patience: &dyn Patience,
) -> Result<Tag, ReplicaError> {
    record.counter += 1;
    record.nonce = nonce();
    let swapped = publish::swap(bucket, VOLUME, tag, &record.encode(), patience)?;
    swapped.ok_or(ReplicaError::TakenOver)
}

/// Epochs before the manifest's tell nothing any more.
pub(crate) fn drop_old_epochs(record: &mut VolumeRecord) {
    if let Some(manifest) = record.manifest {
        record.epochs.retain(|epoch| epoch.epoch >= manifest.commit.epoch);
    }
    // Whoever opens writes a manifest long before there are so many openings without one between them.
    assert!(record.epochs.len() <= EPOCH_COUNT_MAX, "a manifest is written before");
}

/// Leaves out the epochs at the end in which nothing was committed. Returns the last commit before them, behind
/// which the next epoch begins.
fn leave_out_empty(record: &mut VolumeRecord, last: CommitId) -> CommitId {
    let mut after = last;
    let manifest = record.manifest.map(|manifest| manifest.commit);
    while after.number == 0
        && manifest != Some(after)
        && let Some(empty) = record.epochs.pop_if(|one| one.epoch == after.epoch)
    {
        after = empty.after;
    }
    after
}

/// Follows the history to its end and makes sure that it stays the end.
fn end_epoch(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    history: &mut History,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    loop {
        if history::follow(bucket, record, history, patience)? {
            return Ok(());
        }
        history::check_no_gap(bucket, record, history.last, patience)?;
        if fence(bucket, record, history.last, patience)? {
            return Ok(());
        }
    }
}

/// Ends the last epoch that has begun, of which not all commits can be read, behind the last one that is there.
fn end_behind_all(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    let Some(begun) = record.epochs.iter().rfind(|one| one.stage == Stage::Begun) else {
        return Ok(());
    };
    let epoch = begun.epoch;
    loop {
        let names = publish::list(bucket, &CommitId::names_of(epoch), patience)?;
        let numbers = names.iter().filter_map(|name| CommitId::of_name(name));
        let numbers = numbers.map(|id| id.number);
        let last = numbers.filter(|number| *number < COUNTED_MAX).max();
        // Where the history was cut there may be none; what the manifest counts may be deleted.
        let counted = record.manifest.map(|manifest| manifest.commit);
        let counted = counted.filter(|commit| commit.epoch == epoch).map_or(0, |one| one.number);
        let number = last.unwrap_or(0).max(counted);
        if fence(bucket, record, CommitId { epoch, number }, patience)? {
            return Ok(());
        }
    }
}

/// Ends an epoch behind `id`; `false` if a commit is there instead.
pub(crate) fn fence(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    id: CommitId,
    patience: &dyn Patience,
) -> Result<bool, ReplicaError> {
    let mut fence = Commit {
        volume: record.volume,
        nonce: nonce(),
        id: id.next(),
        is_fence: true,
        previous: 0,
        entries: Vec::new(),
    };
    let bytes = fence.encode(&crate::layout::commit::Inline::default());
    match publish::create(bucket, &id.next().name(), &bytes, patience)? {
        Outcome::Ours(_) => Ok(true),
        Outcome::Foreign(found) => {
            let found = match history::decode(&found, record, id.next()) {
                Err(ReplicaError::Damaged(..)) => {
                    history::read_next(bucket, record, id.next(), patience)?
                }
                other => other?,
            };
            Ok(matches!(found, Next::Fence))
        }
    }
}
