//! Keeps the volume's record, and deletes what nothing needs.
//!
//! # Invariants
//! - The record names a manifest only when that is stored.
//! - Nothing is deleted before the pins say the horizon, and nothing that a pin needs.

use crate::bucket::{Bucket, Tag};
use crate::courier::seconds_since_1970;
use crate::history::ReplicaError;
use crate::layout::{Manifest, VolumeRecord};
use crate::names::{CommitId, ManifestId, Source};
use crate::publish::{self, Outcome, Patience};
use crate::{snapshot, takeover};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// See the [module](self).
pub struct Clerk {
    bucket: Arc<dyn Bucket>,
    record: VolumeRecord,
    tag: Tag,
    /// What could not be deleted because a snapshot needs it.
    kept: Vec<Source>,
    /// Manifests that newer ones have replaced.
    old_manifests: Vec<ManifestId>,
}

impl Clerk {
    /// Of the volume whose record is this, in the version that `tag` names.
    pub fn new(bucket: Arc<dyn Bucket>, record: VolumeRecord, tag: Tag) -> Clerk {
        Clerk { bucket, record, tag, kept: Vec::new(), old_manifests: Vec::new() }
    }

    /// Stores a manifest and names it in the record.
    ///
    /// # Errors
    /// [`ReplicaError::TakenOver`] if another host has the volume, and others.
    pub fn store_manifest(
        &mut self,
        id: ManifestId,
        manifest: &Manifest,
        patience: &dyn Patience,
    ) -> Result<(), ReplicaError> {
        let bytes = manifest.encode();
        if let Outcome::Foreign(_) = publish::create(&*self.bucket, &id.name(), &bytes, patience)? {
            return Err(ReplicaError::TakenOver);
        }
        let old = self.record.manifest.replace(id);
        takeover::drop_old_epochs(&mut self.record);
        self.record.seen = seconds_since_1970();
        self.tag = takeover::swap_record(&*self.bucket, &mut self.record, &self.tag, patience)?;
        self.old_manifests.extend(old);
        Ok(())
    }

    /// Deletes objects that no commit from `horizon` on needs, save those that a snapshot does.
    ///
    /// # Errors
    /// [`ReplicaError`]; what is left is deleted at the next collection.
    pub fn collect(
        &mut self,
        horizon: CommitId,
        sources: Vec<Source>,
        patience: &dyn Patience,
    ) -> Result<(), ReplicaError> {
        self.kept.extend(sources);
        let (needed, manifests) =
            snapshot::advance_horizon(&*self.bucket, &self.record, horizon, patience)?;
        let all: BTreeSet<Source> = self.kept.iter().copied().collect();
        self.kept.retain(|source| needed.contains(source));
        for source in all.iter().filter(|source| !needed.contains(source)) {
            publish::delete(&*self.bucket, &source.name(), patience)?;
        }
        let (kept, gone) = self.old_manifests.drain(..).partition(|id| manifests.contains(id));
        self.old_manifests = kept;
        for id in gone {
            publish::delete(&*self.bucket, &ManifestId::name(id), patience)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Clerk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clerk").field("volume", &self.record.volume).finish_non_exhaustive()
    }
}
