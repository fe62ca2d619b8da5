//! Keeps the volume's record, and deletes what nothing needs.
//!
//! # Invariants
//! - The record names a manifest only when that is stored.
//! - Nothing is deleted before the pins say the horizon, and nothing that a pin needs.
//! - Data objects that a killed host has left are those of earlier epochs that the manifest at the
//!   horizon does not name: these epochs have ended, so no later commit names them either.

use crate::bucket::{Bucket, Tag};
use crate::history::ReplicaError;
use crate::history::{snapshot, takeover};
use crate::layout::{Manifest, VolumeRecord};
use crate::names::{CommitId, ManifestId, Source};
use crate::pieces::PieceMap;
use crate::publish::{self, Outcome, Patience};
use crate::ship::uploader::seconds_since_1970;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// See the [module](self).
pub struct Housekeeper {
    bucket: Arc<dyn Bucket>,
    record: VolumeRecord,
    tag: Tag,
    /// What could not be deleted because a snapshot needs it.
    kept: Vec<Source>,
    /// Manifests that newer ones have replaced.
    old_manifests: Vec<ManifestId>,
    /// The newest manifest's commit and pieces, until left-overs were looked for.
    newest: Option<(CommitId, PieceMap)>,
    /// Objects that killed hosts have left and that are still there, once they were looked for.
    left_over: Option<Vec<Source>>,
}

/// Data objects of killed hosts that one collection deletes.
const LEFT_OVER_STEP: usize = 1000;

impl Housekeeper {
    /// Of the volume whose record is this, in the version that `tag` names.
    pub fn new(bucket: Arc<dyn Bucket>, record: VolumeRecord, tag: Tag) -> Housekeeper {
        let (kept, old_manifests, newest, left_over) = (Vec::new(), Vec::new(), None, None);
        Housekeeper { bucket, record, tag, kept, old_manifests, newest, left_over }
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
        if self.left_over.is_none() {
            self.newest = Some((id.commit, manifest.pieces.clone()));
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
        self.look_for_left_over(horizon);
        if let Some(left_over) = &mut self.left_over {
            let step = left_over.len().min(LEFT_OVER_STEP);
            self.kept.extend(left_over.drain(..step));
        }
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

    /// Looks once for data objects of killed hosts. If the bucket does not list now, the next
    /// collection does.
    fn look_for_left_over(&mut self, horizon: CommitId) {
        let Some((commit, pieces)) = &self.newest else { return };
        assert!(self.left_over.is_none(), "it is looked for once");
        if *commit != horizon {
            return;
        }
        let Ok(names) = self.bucket.list("d/") else { return };
        let data = names.iter().filter_map(|(name, _)| Source::of_data_name(name));
        let is_left = |source: &Source| source.epoch() < horizon.epoch && !pieces.names(*source);
        self.left_over = Some(data.filter(is_left).collect());
        self.newest = None;
    }
}

impl fmt::Debug for Housekeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Housekeeper").field("volume", &self.record.volume).finish_non_exhaustive()
    }
}
