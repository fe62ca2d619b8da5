//! How a device that ships begins: what the copy is to the local store, and whose it is.

use crate::bucket::Bucket;
use crate::history::rollback;
use crate::history::takeover::{self, Claim, NewVolume};
use crate::history::{self, History, ReplicaError};
use crate::layout::{VolumeId, VolumeRecord};
use crate::names::CommitId;
use crate::publish::{self, Patience};
use crate::ranges::RangeSet;
use crate::ship::marks::{Marks, Owner};
use crate::ship::shipper::Settings;
use crate::ship::uploader::seconds_since_1970;
use std::sync::Arc;

/// Bytes of a chunk of the marks.
pub const CHUNK_SIZE: u32 = 8 << 20;

/// What an opening is given.
pub struct Opening {
    /// Where the copy is kept.
    pub bucket: Arc<dyn Bucket>,
    /// How.
    pub settings: Settings,
    /// Which chunks may differ.
    pub marks: Marks,
    /// The store's UUID.
    pub store: [u8; 16],
    /// Who this is, for people.
    pub owner: String,
    /// What of the device is not known to be zeros: all of it, if in doubt. For a new copy.
    pub content: RangeSet,
    /// Ship everything anew though the local store is not what was shipped last: it counts, and what the
    /// remote copy has beyond it is given up.
    pub reseed: bool,
    /// Whether the owner that a record names has ended, as far as anyone here can tell. Another host that has
    /// opened the volume may be about to commit, and is not fenced in passing.
    pub has_ended: fn(&str) -> bool,
}

impl Opening {
    /// Who claims the volume: the owner, signed with the marks.
    pub fn claimant(&self) -> String {
        format!("{}, {}", self.owner, self.marks.signature())
    }
}

/// Finds out what the remote copy is to the local store, and takes the volume over. Returns what may
/// differ, too.
///
/// # Errors
/// [`ReplicaError::Diverged`] if the local store is not what was shipped last, [`ReplicaError::InUse`] if another
/// host has opened the volume since, and others.
pub fn begin(
    opening: &mut Opening,
    device_size: u64,
    patience: &dyn Patience,
) -> Result<(Claim, RangeSet), ReplicaError> {
    let bucket = &*opening.bucket;
    let seen = seconds_since_1970();
    let record = match history::record(bucket, patience) {
        Ok((record, _)) => record,
        Err(ReplicaError::NoVolume) => {
            check_is_empty(bucket, patience)?;
            let (store, owner) = (opening.store, opening.claimant());
            let new = NewVolume { store, device_size, chunk_size: CHUNK_SIZE, owner };
            let claim = takeover::create(bucket, &new, seen, patience)?;
            adopt(&mut opening.marks, &claim, device_size, true)?;
            return Ok((claim, opening.content.clone()));
        }
        Err(error) => return Err(error),
    };
    if record.store != opening.store {
        return Err(ReplicaError::Diverged("another store's volume is there"));
    }
    if record.device_size > device_size {
        return Err(ReplicaError::Diverged("the store is shorter than its copy"));
    }
    if opening.reseed {
        // What the copy holds is given up, whether it can be read or not.
        let (mut claim, _) = takeover::claim_anyway(bucket, &opening.claimant(), seen, patience)?;
        grow(bucket, &mut claim, device_size, patience)?;
        adopt(&mut opening.marks, &claim, device_size, true)?;
        return Ok((claim, std::iter::once(0..device_size).collect()));
    }
    // Before anything is changed: a host that must not go on must not end the one that does.
    let (record, history) = history::newest(bucket, patience)?;
    let is_unused = is_unused(&opening.marks, &record, &history);
    if !is_unused {
        check_is_ours(&opening.marks, record.volume, history.newest_commit)?;
        check_is_not_older(&opening.marks, &record)?;
    }
    let ours = opening.marks.owner().filter(|_| !is_unused).map_or(0, |owner| owner.epoch);
    check_is_free(opening, &record, ours, patience)?;
    let claimant = opening.claimant();
    let mut claim = takeover::claim_seen(bucket, &record, &claimant, seen, patience)?;
    if is_unused && claim.history.newest_commit.epoch > 0 {
        return Err(ReplicaError::TakenOver);
    }
    if !is_unused {
        check_is_ours(&opening.marks, claim.record.volume, claim.history.newest_commit)?;
    }
    grow(bucket, &mut claim, device_size, patience)?;
    adopt(&mut opening.marks, &claim, device_size, is_unused)?;
    if is_unused {
        return Ok((claim, opening.content.clone()));
    }
    let chunk_size = u64::from(CHUNK_SIZE);
    let marked = opening.marks.iter();
    let marked =
        marked.map(|chunk| chunk * chunk_size..((chunk + 1) * chunk_size).min(device_size));
    Ok((claim, marked.collect()))
}

/// Has the copy grow as the device has. What is new reads as zeros until a commit says otherwise, here as there.
fn grow(
    bucket: &dyn Bucket,
    claim: &mut Claim,
    device_size: u64,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    if claim.record.device_size < device_size {
        claim.record.device_size = device_size;
        claim.tag = takeover::swap_record(bucket, &mut claim.record, &claim.tag, patience)?;
    }
    Ok(())
}

/// Whether no objects of an earlier volume are left: under the names of its commits the new one could create none. It
/// looks at the first commit only, which is there until a manifest makes it garbage.
fn check_is_empty(bucket: &dyn Bucket, patience: &dyn Patience) -> Result<(), ReplicaError> {
    let first = CommitId { epoch: 1, number: 1 }.name();
    match publish::read(bucket, &first, None, patience)? {
        Some(_) => Err(ReplicaError::Leftovers(first)),
        None => Ok(()),
    }
}

/// Makes the marks those of a claim: `all` chunks may differ from what it found, or none.
///
/// # Errors
/// [`ReplicaError::File`] when they cannot be kept.
pub fn adopt(
    marks: &mut Marks,
    claim: &Claim,
    device_size: u64,
    all: bool,
) -> Result<(), ReplicaError> {
    let volume = claim.record.volume;
    let owner = Owner { volume, device_size, chunk_size: CHUNK_SIZE, epoch: claim.epoch };
    marks.adopt(owner, all).map_err(ReplicaError::File)
}

/// Whether a crash cut the making of the copy short: nothing was shipped, and these marks are not the copy's yet.
fn is_unused(marks: &Marks, record: &VolumeRecord, history: &History) -> bool {
    history.refuse_nothing().is_err()
        && marks.owner().is_none_or(|owner| owner.volume != record.volume)
}

/// Whether every commit that there is was this store's.
fn check_is_ours(marks: &Marks, volume: VolumeId, newest: CommitId) -> Result<(), ReplicaError> {
    let owner =
        marks.owner().ok_or(ReplicaError::Diverged("nothing tells what was shipped last"))?;
    if owner.volume != volume {
        return Err(ReplicaError::Diverged("it was shipped to another volume"));
    }
    if newest.epoch > owner.epoch {
        return Err(ReplicaError::Diverged("another host has written since"));
    }
    Ok(())
}

/// Whether the copy knows the epoch in which this store was shipped last. One that was brought back from a backup does
/// not: what was shipped since is missing in it, and is not marked here.
fn check_is_not_older(marks: &Marks, record: &VolumeRecord) -> Result<(), ReplicaError> {
    let ours = marks.owner().map_or(0, |owner| owner.epoch);
    let newest = record.newest().map_or(0, |newest| newest.epoch);
    if newest < ours {
        return Err(ReplicaError::Diverged("the copy is older than what was shipped to it"));
    }
    Ok(())
}

/// Whether no other store was made the volume's since epoch `ours`. It need not have committed yet, and its process
/// need not run: a host that has taken the volume over has it until it gives it up.
fn check_is_free(
    opening: &Opening,
    record: &VolumeRecord,
    ours: u64,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    let is_later = record.newest().is_some_and(|newest| newest.epoch > ours);
    // A later epoch with this signature is a claim of this store that a crash cut short.
    let is_signed = record.owner.ends_with(&opening.marks.signature());
    if !is_later
        || is_signed && (opening.has_ended)(&record.owner)
        || rollback::is_ended(&*opening.bucket, record, patience)?
    {
        return Ok(());
    }
    Err(ReplicaError::InUse(record.owner.clone()))
}
