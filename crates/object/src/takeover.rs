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
//! at once, one's second swap meets a record that the other has changed.
//!
//! A fence is never deleted: its name would be free again.

use crate::bucket::{Bucket, Tag};
use crate::history::{self, History, Next, ReplicaError};
use crate::layout::volume::EPOCH_COUNT_MAX;
use crate::layout::{Commit, Epoch, Stage, VolumeId, VolumeRecord, nonce};
use crate::names::{CommitId, PINS, VOLUME};
use crate::publish::{self, Outcome, Patience};

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
    let volume = VolumeId::random();
    let after = CommitId { epoch: 0, number: 0 };
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
    let pins = crate::layout::Pins {
        volume,
        nonce: nonce(),
        counter: 0,
        horizon: after,
        pins: Vec::new(),
        clones: Vec::new(),
    };
    if let Outcome::Foreign(_) = publish::create(bucket, PINS, &pins.encode(), patience)? {
        return Err(ReplicaError::TakenOver);
    }
    let history = history::start(bucket, &record, patience)?;
    Ok(Claim { record, tag, epoch: 1, history, after })
}

/// A volume on which no host can commit any more, and on which the new epoch has not begun.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) record: VolumeRecord,
    pub(crate) tag: Tag,
    pub(crate) epoch: u64,
    /// What the volume holds, up to the last commit of the epoch before.
    pub(crate) history: History,
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
    let mut ended = end_others(bucket, record, &tag, patience)?;
    let after = ended.history.last;
    let tag = begin(bucket, &mut ended, owner, seen, patience)?;
    let Ended { record, epoch, mut history, .. } = ended;
    history.last = CommitId { epoch, number: 0 };
    history.checksum = 0;
    Ok(Claim { record, tag, epoch, history, after })
}

/// Steps 2 to 4: no other host can commit behind the history that is returned.
pub(crate) fn end_others(
    bucket: &dyn Bucket,
    record: VolumeRecord,
    tag: &Tag,
    patience: &dyn Patience,
) -> Result<Ended, ReplicaError> {
    let (record, tag, epoch) = announce(bucket, record, tag, patience)?;
    let mut history = history::start(bucket, &record, patience)?;
    end_epoch(bucket, &record, &mut history, patience)?;
    // Those that have claimed and not begun cannot begin any more: their second swap is refused. A fence
    // at their first commit says so to whoever reads.
    for stale in
        record.epochs.iter().filter(|one| one.stage == Stage::Claiming && one.epoch != epoch)
    {
        fence(bucket, &record, CommitId { epoch: stale.epoch, number: 0 }, patience)?;
    }
    Ok(Ended { record, tag, epoch, history })
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
        let epoch = record.newest().map_or(1, |newest| newest.epoch + 1);
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
    let (epoch, after) = (ended.epoch, ended.history.last);
    let record = &mut ended.record;
    record.epochs.retain(|one| one.stage == Stage::Begun);
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
    // Openings without a manifest between them: whoever opens writes one long before there are so many.
    assert!(record.epochs.len() <= EPOCH_COUNT_MAX, "a manifest is written before");
}

/// Follows the history to its end and makes sure that it stays the end.
fn end_epoch(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    history: &mut History,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    loop {
        let is_fenced = history::follow(bucket, record, history, patience)?;
        if is_fenced || fence(bucket, record, history.last, patience)? {
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
            let found = history::decode(&found, record, id.next())?;
            Ok(matches!(found, Next::Fence))
        }
    }
}
