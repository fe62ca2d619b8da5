//! Makes a snapshot the newest state of a volume.
//!
//! # Steps
//! 1. Take the volume over, up to the fence ([`crate::history::takeover`]): no host commits any
//!    more.
//! 2. Store a manifest of what the snapshot holds, at commit 0 of the new epoch.
//! 3. Swap `pins`: the snapshot is still there, and the horizon is commit 0 of the new epoch.
//! 4. Swap `volume`: the new epoch has begun, and its manifest is that of step 2.
//! 5. End the new epoch by a fence: no host has the volume. Delete what neither the snapshot nor another one needs.
//!
//! # Why a crash or a race does no harm
//! - Step 4 is the only one that changes the newest state. Before it a reader finds the state before the
//!   rollback, whole; after it, the snapshot. If another host has claimed the volume meanwhile, step 4 is refused.
//! - A host that was fenced may still have objects to delete that the snapshot needs: they were garbage to it. If it
//!   reads `pins` before step 3, it finds the snapshot and keeps them. After step 3 the horizon refuses it.
//! - A crash between steps 3 and 4 leaves a horizon that no commit has reached: snapshots of the newest state are
//!   refused until a host begins the next epoch. A crash after step 4 leaves objects that nothing needs.
//!
//! A local store is refused as a replica afterwards, because the newest epoch is not its own.

use crate::bucket::Bucket;
use crate::history::takeover::Unreadable::GivenUp;
use crate::history::{self, History, ReplicaError};
use crate::history::{snapshot, takeover};
use crate::layout::{Pin, Stage, VolumeRecord};
use crate::names::{CommitId, Source};
use crate::publish::{self, Patience};
use std::collections::BTreeSet;

/// What a rollback did.
#[derive(Clone, Debug)]
pub struct RolledBack {
    /// The snapshot that is the newest state now.
    pub pin: Pin,
    /// The last commit that was given up.
    pub given_up: CommitId,
    /// The epoch that begins with the snapshot.
    pub epoch: u64,
}

/// Makes the snapshot `name` the newest state, and fences the host that has the volume. `may_fence` is asked first,
/// with the record of that host, unless its epoch was ended already.
///
/// # Errors
/// [`ReplicaError::InUse`] if `may_fence` says no, [`ReplicaError::NoPin`], [`ReplicaError::TakenOver`] if another
/// host was first, and others.
pub fn rollback(
    bucket: &dyn Bucket,
    name: &str,
    owner: &str,
    seen: u64,
    may_fence: &dyn Fn(&VolumeRecord) -> bool,
    patience: &dyn Patience,
) -> Result<RolledBack, ReplicaError> {
    let (record, tag) = history::record(bucket, patience)?;
    let (pins, _) = snapshot::pins(bucket, &record, patience)?;
    let pin = pins.find(name).ok_or_else(|| ReplicaError::NoPin(name.to_string()))?.clone();
    let manifest = history::manifest(bucket, &record, pin.manifest, patience)?;
    let is_ended = match is_ended(bucket, &record, patience) {
        // Its host is behind what cannot be read.
        Err(error) if error.is_of_object() => false,
        other => other?,
    };
    if !is_ended && !may_fence(&record) {
        return Err(ReplicaError::InUse(record.owner));
    }

    let mut ended = takeover::end_others(bucket, record, &tag, GivenUp, patience)?;
    let given_up = ended.history.last;
    let start = CommitId { epoch: ended.epoch, number: 0 };
    let state = History {
        pieces: manifest.pieces,
        last: start,
        newest_commit: start,
        checksum: 0,
        garbage: Vec::new(),
        commit_count: 0,
        manifest: None,
    };
    let id = snapshot::store_manifest(bucket, &ended.record, &state, patience)?;
    snapshot::hold(bucket, &ended.record, &pin, start, patience)?;
    let before = ended.record.manifest.replace(id);
    takeover::begin(bucket, &mut ended, owner, seen, patience)?;

    // The snapshot counts: what fails from here on costs space, and no data. The fence tells everyone that no host
    // has the volume.
    let _ = takeover::fence(bucket, &ended.record, start, patience);
    let garbage = ended.history.garbage.iter().map(|(_, source)| *source);
    let dead: BTreeSet<Source> = ended.history.pieces.sources().chain(garbage).collect();
    let needed = snapshot::advance_horizon(bucket, &ended.record, start, patience);
    if let Ok((needed, manifests)) = needed {
        for source in dead {
            if !needed.contains(&source) && !state.pieces.names(source) {
                let _ = publish::delete(bucket, &source.name(), patience);
            }
        }
        if let Some(before) = before.filter(|before| !manifests.contains(before)) {
            let _ = publish::delete(bucket, &before.name(), patience);
        }
    }
    Ok(RolledBack { pin, given_up, epoch: start.epoch })
}

/// Whether no host can commit: the newest epoch was ended by a fence. One that has only claimed the volume may still
/// begin.
///
/// # Errors
/// [`ReplicaError`].
pub fn is_ended(
    bucket: &dyn Bucket,
    record: &VolumeRecord,
    patience: &dyn Patience,
) -> Result<bool, ReplicaError> {
    if record.newest().is_some_and(|newest| newest.stage == Stage::Claiming) {
        return Ok(false);
    }
    let read = history::start(bucket, record, patience)
        .and_then(|mut history| history::follow(bucket, record, &mut history, patience));
    match read {
        // If the record has changed, a host is at work, and has deleted what was to be read.
        Err(error) if error.is_of_object() => match history::record(bucket, patience)?.0 == *record
        {
            true => Err(error),
            false => Ok(false),
        },
        other => other,
    }
}
