//! Reads the history of a volume: the newest manifest, and the commits behind it.
//!
//! It asks for commits by name, one after the other, until there is none: nothing is listed. So a
//! service's listing may be late or out of order.
//!
//! What builds on it: [`restore`] makes a store of a state; [`snapshot`] keeps one, [`lineage`]
//! lets clones share it, [`rollback`] goes back to it; [`takeover`] fences another host;
//! [`mod@verify`] reads all of it and names what is damaged.

pub mod lineage;
pub mod restore;
pub mod rollback;
pub mod snapshot;
pub mod takeover;
pub mod verify;

use crate::bucket::{Bucket, BucketError, Object, Tag};
use crate::layout::pins::PIN_COUNT_MAX;
use crate::layout::{Commit, Corrupt, Manifest, Reason, Stage, VolumeRecord};
use crate::layout::{checksum, commit::Content};
use crate::names::{CommitId, ManifestId, Source, VOLUME};
use crate::pieces::PieceMap;
use crate::publish::{self, Patience};

/// Why a replica cannot be read or taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The bucket failed.
    #[error("{0}")]
    Bucket(#[from] BucketError),
    /// An object is damaged: its name, and what is wrong.
    #[error("the object '{0}' is damaged: {1}")]
    Damaged(String, #[source] Corrupt),
    /// An object that must be there is not: its name.
    #[error("the object '{0}' is missing")]
    Missing(String),
    /// There is no volume here.
    #[error("there is no replicated volume here")]
    NoVolume,
    /// Nothing was shipped to the volume yet.
    #[error("nothing was shipped to it yet")]
    Nothing,
    /// Another host has taken the volume over meanwhile.
    #[error("another host has taken the volume over")]
    TakenOver,
    /// The commits do not follow each other: the one where that shows.
    #[error("commit {0} does not follow the one before it")]
    Broken(CommitId),
    /// A commit is gone: which one, and one behind it that is there.
    #[error("commit {0} is missing, and commit {1} is there")]
    Gap(CommitId, CommitId),
    /// The local store is not what was shipped last: what does not match.
    #[error("the local store is not what was shipped last: {0}")]
    Diverged(&'static str),
    /// There is no snapshot of that name.
    #[error("there is no snapshot '{0}'")]
    NoPin(String),
    /// The name cannot be used: what is wrong.
    #[error("the snapshot's name {0}")]
    PinName(&'static str),
    /// There is a snapshot of that name already.
    #[error("there is a snapshot of that name already")]
    PinTaken,
    /// The copy has the largest number of snapshots.
    #[error("there are {PIN_COUNT_MAX} snapshots, which is the limit")]
    PinsFull,
    /// What the snapshot needs was deleted while it was made. Try again.
    #[error("the state was deleted while the snapshot was made")]
    Collected,
    /// A rollback has fenced the host that had the volume, and was not finished.
    #[error("a rollback was begun and not finished")]
    Unfinished,
    /// Volumes were cloned from it, and are still there.
    #[error("volumes were cloned from the snapshot '{0}'")]
    HasClones(String),
    /// There is no volume, and an object of an earlier one: its name.
    #[error(
        "the object '{0}' of an earlier volume is there: delete all objects below the URL, or name \
         another URL"
    )]
    Leftovers(String),
    /// There is a volume already.
    #[error("there is a volume already")]
    Taken,
    /// A clone and its volume must be in one bucket.
    #[error("a clone is made in the bucket of its volume, or both are directories")]
    OtherBucket,
    /// A clone of a clone, too often.
    #[error("it is a clone of a clone too often; restore it and ship that instead")]
    TooManyAncestors,
    /// A host has the volume and may be writing to it: who.
    #[error("{0} has the volume and may be writing to it")]
    InUse(String),
    /// The local file failed.
    #[error("the local file: {0}")]
    File(#[source] std::io::Error),
    /// The place lies inside of another copy, whose URL this is.
    #[error("it lies inside of the copy at {0}: a copy has a place of its own")]
    Inside(String),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Threads(std::io::Error),
}

impl ReplicaError {
    /// Whether it tells of an object that is damaged or missing, and not of the bucket or of another host.
    pub fn is_of_object(&self) -> bool {
        matches!(
            self,
            ReplicaError::Damaged(..)
                | ReplicaError::Missing(_)
                | ReplicaError::Broken(_)
                | ReplicaError::Gap(..)
        )
    }
}

/// What a volume holds, up to some commit.
#[derive(Clone, Debug)]
pub struct History {
    /// What the device holds.
    pub pieces: PieceMap,
    /// The last commit that is counted.
    pub last: CommitId,
    /// The last commit that was not the mere beginning of an epoch.
    pub newest_commit: CommitId,
    /// The checksum at its end; 0 at the beginning of an epoch.
    pub checksum: u32,
    /// Objects that no piece names any more, with the commit since which that is so.
    pub garbage: Vec<(CommitId, Source)>,
    /// Commits behind the manifest.
    pub commit_count: u64,
    /// The manifest on which it stands.
    pub manifest: Option<ManifestId>,
}

impl History {
    /// Refuses what no commit has ever been made of: it is no store.
    ///
    /// # Errors
    /// [`ReplicaError::Nothing`].
    pub fn refuse_nothing(&self) -> Result<(), ReplicaError> {
        if self.newest_commit.epoch == 0 { Err(ReplicaError::Nothing) } else { Ok(()) }
    }

    /// That of a volume without a manifest, before its first commit.
    pub(crate) fn nothing(record: &VolumeRecord) -> History {
        let first = record.epochs.iter().find(|epoch| epoch.stage == Stage::Begun);
        let last = CommitId { epoch: first.map_or(0, |epoch| epoch.epoch), number: 0 };
        History {
            pieces: PieceMap::new(),
            last,
            newest_commit: CommitId { epoch: 0, number: 0 },
            checksum: 0,
            garbage: Vec::new(),
            commit_count: 0,
            manifest: None,
        }
    }

    /// What a manifest says.
    fn of(manifest: Manifest, id: ManifestId) -> History {
        History {
            pieces: manifest.pieces,
            last: id.commit,
            newest_commit: id.commit,
            checksum: manifest.checksum,
            garbage: Vec::new(),
            commit_count: 0,
            manifest: Some(id),
        }
    }

    /// Counts a commit.
    ///
    /// # Errors
    /// [`ReplicaError::Broken`] if it does not follow.
    pub fn apply(&mut self, commit: &Commit, checksum: u32) -> Result<(), ReplicaError> {
        if commit.previous != self.checksum || commit.is_fence {
            return Err(ReplicaError::Broken(commit.id));
        }
        let mut dead = Vec::new();
        let mut carries = false;
        for entry in &commit.entries {
            self.pieces.apply(entry, &mut dead);
            carries |= matches!(entry.content, Content::At(Source::Commit(_), _));
        }
        // The object of a commit that carries no bytes is needed no longer than until a manifest.
        dead.extend((!carries).then_some(Source::Commit(commit.id)));
        self.garbage.extend(dead.into_iter().map(|source| (commit.id, source)));
        self.last = commit.id;
        self.newest_commit = commit.id;
        self.checksum = checksum;
        self.commit_count += 1;
        Ok(())
    }
}

/// What stands behind a commit.
#[derive(Clone, Debug)]
pub enum Next {
    /// Nothing yet.
    Nothing,
    /// The end of its epoch.
    Fence,
    /// A commit, and the checksum at its end.
    Commit(Box<Commit>, u32),
    /// Nothing, though this commit is behind it.
    Gap(CommitId),
}

/// Reads the volume's record.
///
/// # Errors
/// [`ReplicaError::NoVolume`], and others.
pub fn record(
    bucket: &dyn Bucket,
    patience: &dyn Patience,
) -> Result<(VolumeRecord, Tag), ReplicaError> {
    read_sound(bucket, VOLUME, patience, record_of)
}

/// Reads of one object that is damaged each time: what was damaged on its way is not damaged there.
const READS_OF_DAMAGED: u32 = 3;

/// Reads and decodes an object. If it is damaged, it is read again.
pub(crate) fn read_sound<T>(
    bucket: &dyn Bucket,
    name: &str,
    patience: &dyn Patience,
    decode: impl Fn(Option<Object>) -> Result<T, ReplicaError>,
) -> Result<T, ReplicaError> {
    let mut reads = 1;
    loop {
        match decode(publish::read(bucket, name, None, patience)?) {
            Err(ReplicaError::Damaged(..)) if reads < READS_OF_DAMAGED => reads += 1,
            other => return other,
        }
    }
}

/// The commit or fence `id`, which is there, read anew.
///
/// # Errors
/// [`ReplicaError::Damaged`] if it is damaged each time.
pub(crate) fn read_next(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    id: CommitId,
    patience: &dyn Patience,
) -> Result<Next, ReplicaError> {
    read_sound(bucket, &id.name(), patience, |object| match object {
        Some(object) => decode(&object.bytes, record, id),
        None => Err(ReplicaError::Missing(id.name())),
    })
}

/// The volume's record in what was read under its name.
///
/// # Errors
/// [`ReplicaError::NoVolume`], and others.
pub(crate) fn record_of(object: Option<Object>) -> Result<(VolumeRecord, Tag), ReplicaError> {
    let object = object.ok_or(ReplicaError::NoVolume)?;
    let record = VolumeRecord::decode(&object.bytes);
    Ok((record.map_err(|corrupt| ReplicaError::Damaged(VOLUME.to_string(), corrupt))?, object.tag))
}

/// Reads a manifest.
///
/// # Errors
/// [`ReplicaError`].
pub fn manifest(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    id: ManifestId,
    patience: &dyn Patience,
) -> Result<Manifest, ReplicaError> {
    read_sound(bucket, &id.name(), patience, |object| manifest_of(object, record, id))
}

/// The manifest in what was read under its name.
fn manifest_of(
    object: Option<Object>,
    record: &VolumeRecord,
    id: ManifestId,
) -> Result<Manifest, ReplicaError> {
    let name = id.name();
    let object = object.ok_or_else(|| ReplicaError::Missing(name.clone()))?;
    let manifest = Manifest::decode(&object.bytes, record.volume, id.commit);
    let manifest = manifest.map_err(|corrupt| ReplicaError::Damaged(name.clone(), corrupt))?;
    let nonce = u64::from_le_bytes(*manifest.nonce.first_chunk().expect("a nonce has 16 bytes"));
    if nonce != id.nonce {
        let corrupt = Corrupt { structure: "manifest", reason: Reason::Name };
        return Err(ReplicaError::Damaged(name, corrupt));
    }
    Ok(manifest)
}

/// What stands behind commit `id` of its epoch: commits up to the first name that is free or a fence, `count` of
/// them at most.
///
/// All are asked for at once, so one may be seen behind a name that was still free a moment before. That name is then
/// read again: commits are created one after the other, so it is free now only if its commit is gone.
fn behind(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    id: CommitId,
    count: usize,
    patience: &dyn Patience,
) -> Result<Vec<Next>, ReplicaError> {
    let names = names_behind(id, count);
    let objects = publish::read_all(bucket, &names, patience)?;
    decode_behind(bucket, objects, record, id, patience)
}

/// Looks for commits behind the free name that a history ends at.
///
/// # Errors
/// [`ReplicaError::Gap`] if there is one.
pub(crate) fn check_no_gap(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    last: CommitId,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    match behind(bucket, record, last, AHEAD_FIRST, patience)?.last() {
        Some(Next::Gap(found)) if found.number > last.number => {
            Err(ReplicaError::Gap(last.next(), *found))
        }
        _ => Ok(()),
    }
}

/// The names of `count` commits behind `id`.
fn names_behind(id: CommitId, count: usize) -> Vec<String> {
    let ids = std::iter::successors(Some(id.next()), |id| Some(id.next()));
    ids.take(count).map(|id| id.name()).collect()
}

/// What was read under the names behind `id`, up to the first that is no commit.
fn decode_behind(
    bucket: &dyn Bucket,
    objects: Vec<Option<Object>>,
    record: &VolumeRecord,
    id: CommitId,
    patience: &dyn Patience,
) -> Result<Vec<Next>, ReplicaError> {
    let mut all = Vec::with_capacity(objects.len());
    let last_found = objects.iter().rposition(Option::is_some);
    let last_found =
        last_found.map(|index| CommitId { number: id.number + 1 + index as u64, epoch: id.epoch });
    let mut id = id;
    for object in objects {
        id = id.next();
        let found_behind = last_found.filter(|found| *found > id);
        let object = match (object, found_behind) {
            (None, Some(_)) => publish::read(bucket, &id.name(), None, patience)?,
            (object, _) => object,
        };
        let next = match (object, found_behind) {
            (Some(object), _) => match decode(&object.bytes, record, id) {
                Err(ReplicaError::Damaged(..)) => read_next(bucket, record, id, patience)?,
                other => other?,
            },
            (None, Some(found)) => Next::Gap(found),
            (None, None) => Next::Nothing,
        };
        let goes_on = matches!(next, Next::Commit(..));
        all.push(next);
        if !goes_on {
            break;
        }
    }
    Ok(all)
}

/// The commit or fence of these bytes.
///
/// # Errors
/// [`ReplicaError::Damaged`].
pub fn decode(bytes: &[u8], record: &VolumeRecord, id: CommitId) -> Result<Next, ReplicaError> {
    let commit = Commit::decode(bytes, record.volume, id);
    let commit = commit.map_err(|corrupt| ReplicaError::Damaged(id.name(), corrupt))?;
    if commit.is_fence {
        return Ok(Next::Fence);
    }
    // The object ends with the checksum of all before it; that of the whole tells commits apart.
    Ok(Next::Commit(Box::new(commit), checksum(bytes)))
}

/// The state on which a volume's history stands: its newest manifest, or nothing at all.
///
/// # Errors
/// [`ReplicaError`].
pub fn start(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    patience: &dyn Patience,
) -> Result<History, ReplicaError> {
    let Some(id) = record.manifest else { return Ok(History::nothing(record)) };
    Ok(History::of(manifest(bucket, record, id, patience)?, id))
}

/// Commits that are asked for at once, at most. All that can be behind a manifest come in four round trips.
const AHEAD_MAX: usize = 128;

/// Commits that are asked for together with the manifest that they are behind.
const AHEAD_FIRST: usize = 16;

/// How many times as many commits are asked for after each round trip.
const AHEAD_GROWTH: usize = 4;

/// Counts what follows up to the end of what is there, through all epochs that have begun; returns
/// whether the last epoch has been ended by a fence.
///
/// # Errors
/// [`ReplicaError`].
pub fn follow(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    history: &mut History,
    patience: &dyn Patience,
) -> Result<bool, ReplicaError> {
    // Who follows a host closely finds one commit or none; who comes late, many.
    let found = behind(bucket, record, history.last, 1, patience)?;
    follow_from(bucket, record, history, (found, 1), patience)
}

/// The same, of which the first `count` names behind the history were read already.
fn follow_from(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    history: &mut History,
    (mut found, mut count): (Vec<Next>, usize),
    patience: &dyn Patience,
) -> Result<bool, ReplicaError> {
    loop {
        let mut end = None;
        for next in std::mem::take(&mut found) {
            match next {
                Next::Commit(commit, checksum) => history.apply(&commit, checksum)?,
                Next::Fence => end = Some(true),
                Next::Nothing => end = Some(false),
                Next::Gap(found) => return Err(ReplicaError::Gap(history.last.next(), found)),
            }
        }
        count = (AHEAD_GROWTH * count).min(AHEAD_MAX);
        let Some(is_fenced) = end else {
            found = behind(bucket, record, history.last, count, patience)?;
            continue;
        };
        let last = history.last;
        let later = record
            .epochs
            .iter()
            .find(|epoch| epoch.stage == Stage::Begun && epoch.epoch > last.epoch);
        let Some(later) = later else { return Ok(is_fenced) };
        if later.after != last {
            return Err(ReplicaError::Broken(later.after));
        }
        history.last = CommitId { epoch: later.epoch, number: 0 };
        history.checksum = 0;
        // A host that dies soon leaves few commits, and there may be many such epochs.
        count = AHEAD_GROWTH;
        found = behind(bucket, record, history.last, count, patience)?;
    }
}

/// The newest state. A host may be shipping meanwhile.
///
/// # Errors
/// [`ReplicaError`].
pub fn newest(
    bucket: &dyn Bucket,
    patience: &dyn Patience,
) -> Result<(VolumeRecord, History), ReplicaError> {
    newest_behind(bucket, record(bucket, patience)?, patience)
}

/// The same, from a record that was just read.
///
/// # Errors
/// [`ReplicaError`].
pub(crate) fn newest_behind(
    bucket: &dyn Bucket,
    found: (VolumeRecord, Tag),
    patience: &dyn Patience,
) -> Result<(VolumeRecord, History), ReplicaError> {
    of_this_record(bucket, found, patience, |record| read_whole(bucket, record, patience))
}

/// The history that a record leads to. The manifest and what may be behind it take one round trip.
fn read_whole(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    patience: &dyn Patience,
) -> Result<History, ReplicaError> {
    let Some(id) = record.manifest else {
        let mut history = start(bucket, record, patience)?;
        let found = behind(bucket, record, history.last, AHEAD_FIRST, patience)?;
        follow_from(bucket, record, &mut history, (found, AHEAD_FIRST), patience)?;
        return Ok(history);
    };
    let mut names = vec![id.name()];
    names.extend(names_behind(id.commit, AHEAD_FIRST));
    let mut objects = publish::read_all(bucket, &names, patience)?;
    let manifest = match manifest_of(objects.remove(0), record, id) {
        Err(ReplicaError::Damaged(..)) => self::manifest(bucket, record, id, patience)?,
        other => other?,
    };
    let found = decode_behind(bucket, objects, record, id.commit, patience)?;
    let mut history = History::of(manifest, id);
    follow_from(bucket, record, &mut history, (found, AHEAD_FIRST), patience)?;
    Ok(history)
}

/// What `read` makes of the volume's record. If it misses an object that the record led to, and the record
/// has changed meanwhile, it is asked again with the new one: what the old one led to may have been
/// collected. Each turn follows a change that another host has made.
pub(crate) fn of_one_record<T>(
    bucket: &dyn Bucket,
    patience: &dyn Patience,
    read: impl FnMut(&VolumeRecord) -> Result<T, ReplicaError>,
) -> Result<(VolumeRecord, T), ReplicaError> {
    of_this_record(bucket, self::record(bucket, patience)?, patience, read)
}

/// The same, of a record that was just read.
fn of_this_record<T>(
    bucket: &dyn Bucket,
    (mut record, mut tag): (VolumeRecord, Tag),
    patience: &dyn Patience,
    mut read: impl FnMut(&VolumeRecord) -> Result<T, ReplicaError>,
) -> Result<(VolumeRecord, T), ReplicaError> {
    loop {
        match read(&record) {
            Ok(found) => return Ok((record, found)),
            Err(
                error
                @ (ReplicaError::Missing(_) | ReplicaError::Broken(_) | ReplicaError::Gap(..)),
            ) => {
                let (now, tag_now) = self::record(bucket, patience)?;
                if tag_now == tag {
                    return Err(error);
                }
                (record, tag) = (now, tag_now);
            }
            Err(error) => return Err(error),
        }
    }
}
