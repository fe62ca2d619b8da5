//! Clones: volumes that begin with a snapshot of another one and share its objects.
//!
//! A clone's record names its *ancestors*: the volume that it was cloned from, and the ancestors of that. Each has the
//! largest epoch of the objects that it gave. The clone's own epochs are larger, so an object's name tells whose it is.
//!
//! # Invariants
//! - A clone deletes and creates no object of an ancestor.
//! - The snapshot's volume has a line in `pins` for each clone, and with a line the snapshot is not deleted. So what the
//!   clone needs is kept, whatever the ancestor's host collects.
//!
//! # Steps of making one
//! 1. Swap the ancestor's `pins`: the line is there. 2. Create the manifest, `volume` and `pins` of the clone, and a fence:
//!    no host has it. 3. Swap the ancestor's `pins` again: the line is still there.
//!
//! To delete the snapshot is refused while a `volume` stands where the line says. If it stands nowhere, the line goes with
//! the snapshot: the clone was deleted, or never finished. If that happens between steps 1 and 2, the swap of step 3 finds
//! the line gone, and the clone is given up. If it is about to happen, that swap comes first, and then the other
//! swap is refused and looks again.

use crate::bucket::{Bucket, BucketError, Created, Object, Swapped, Tag};
use crate::history::{self, ReplicaError};
use crate::history::{snapshot, takeover};
use crate::layout::pins::CloneLine;
use crate::layout::volume::Ancestor;
use crate::layout::{Epoch, Manifest, Pins, Stage, VolumeId, VolumeRecord, nonce};
use crate::names::{CommitId, ManifestId, PINS, VOLUME};
use crate::publish::{self, Outcome, Patience};
use crate::url::Url;
use std::ops::Range;
use std::sync::Arc;

/// Ancestors at most.
const ANCESTOR_COUNT_MAX: usize = 16;

/// A clone's bucket: the objects of its ancestors are read where they are.
struct ClonedBucket {
    own: Arc<dyn Bucket>,
    /// The largest epoch of what each ancestor gave, ascending; the ancestor, and where it is.
    ancestors: Vec<(u64, VolumeId, Arc<dyn Bucket>)>,
}

impl ClonedBucket {
    /// The ancestor that an object is of, if it is of one.
    fn ancestor(&self, name: &str) -> Option<&Arc<dyn Bucket>> {
        let epoch = epoch_of(name)?;
        let found = self.ancestors.iter().find(|(last, ..)| epoch <= *last);
        found.map(|(_, _, bucket)| bucket)
    }
}

/// The epoch of a commit or data object, by its name.
fn epoch_of(name: &str) -> Option<u64> {
    let digits = match name.split_once('/')? {
        ("c", rest) => rest.split_once('/')?.0,
        ("d", rest) => rest.split_once('/')?.1.split_once('-')?.0,
        _ => return None,
    };
    u64::from_str_radix(digits, 16).ok()
}

impl Bucket for ClonedBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        assert!(self.ancestor(name).is_none(), "a clone creates nothing of an ancestor");
        self.own.create(name, bytes)
    }
    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.own.swap(name, tag, bytes)
    }
    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        self.ancestor(name).unwrap_or(&self.own).read(name, range)
    }
    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        // Each bucket is asked for all of its own at once.
        let buckets = self.ancestors.iter().map(|(.., bucket)| bucket).chain([&self.own]);
        let mut found: Vec<_> = names.iter().map(|_| None).collect();
        for bucket in buckets {
            let of = |name: &&String| Arc::ptr_eq(self.ancestor(name).unwrap_or(&self.own), bucket);
            let own: Vec<String> = names.iter().filter(of).cloned().collect();
            if own.is_empty() {
                continue;
            }
            let places = found.iter_mut().zip(names).filter(|(_, name)| of(name));
            for ((place, _), object) in places.zip(bucket.read_all(&own)) {
                *place = Some(object);
            }
        }
        found.into_iter().map(|object| object.expect("each object is of one bucket")).collect()
    }
    fn delete(&self, name: &str) -> Result<(), BucketError> {
        match self.ancestor(name) {
            Some(_) => Ok(()),
            None => self.own.delete(name),
        }
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.own.list(prefix)
    }
    fn url(&self) -> String {
        self.own.url()
    }
    fn host(&self) -> String {
        self.own.host()
    }
    fn cautions(&self) -> Vec<String> {
        self.own.cautions()
    }

    fn volume_of(&self, own: VolumeId, epoch: u64) -> VolumeId {
        let found = self.ancestors.iter().find(|(last, ..)| epoch <= *last);
        found.map_or(own, |(_, volume, _)| *volume)
    }
}

/// Opens the copy at `url`, with its ancestors if it is a clone.
///
/// # Errors
/// What the bucket met. A record that makes no sense is met by those who read it.
pub fn open(
    url: &Url,
    create: bool,
    patience: &dyn Patience,
) -> Result<Arc<dyn Bucket>, BucketError> {
    let own = url.open(create)?;
    let ancestors = match history::record(&*own, patience) {
        Ok((record, _)) => record.ancestors,
        Err(ReplicaError::Bucket(error)) => return Err(error),
        Err(_) => Vec::new(),
    };
    if ancestors.is_empty() {
        return Ok(own);
    }
    let mut found = Vec::new();
    for Ancestor { last_epoch, volume, path } in ancestors {
        found.push((last_epoch, volume, url.beside(&path)?.open(false)?));
    }
    Ok(Arc::new(ClonedBucket { own, ancestors: found }))
}

/// That no other copy lies at a place above `url`, where a new one is to be.
///
/// # Errors
/// [`ReplicaError::Inside`]. What cannot be looked at counts as none.
pub fn check_place(url: &Url, patience: &dyn Patience) -> Result<(), ReplicaError> {
    let is_copy = |above: &Url| {
        let bucket = above.open(false).ok();
        bucket.is_some_and(|bucket| history::record(&*bucket, patience).is_ok())
    };
    match url.above().iter().find(|above| is_copy(above)) {
        Some(above) => Err(ReplicaError::Inside(above.to_string())),
        None => Ok(()),
    }
}

/// Whether the clone of a line is there.
///
/// # Errors
/// What the bucket met.
pub fn is_there(
    parent: &Url,
    line: &CloneLine,
    patience: &dyn Patience,
) -> Result<bool, ReplicaError> {
    let Ok(bucket) = parent.beside(&line.path)?.open(false) else { return Ok(false) };
    match history::record(&*bucket, patience) {
        Ok((record, _)) => Ok(record.volume == line.volume),
        Err(ReplicaError::NoVolume) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the volume `to`, which begins with the snapshot `name` of `from`. Returns its identity.
///
/// # Errors
/// [`ReplicaError::NoPin`], [`ReplicaError::Taken`] if a volume is at `to`, and others.
pub fn clone(
    from: &Url,
    name: &str,
    to: &Url,
    seen: u64,
    patience: &dyn Patience,
) -> Result<VolumeId, ReplicaError> {
    let parent = open(from, false, patience)?;
    let (record, manifest) = snapshot::read(&*parent, name, patience)?;
    check_place(to, patience)?;
    let own = to.open(true)?;
    match history::record(&*own, patience) {
        Err(ReplicaError::NoVolume) => {}
        Ok(_) => return Err(ReplicaError::Taken),
        Err(error) => return Err(error),
    }
    let last_epoch = manifest.commit.epoch;
    let mut ancestors = Vec::new();
    for ancestor in &record.ancestors {
        let path = from.beside(&ancestor.path)?.path_beside(to).ok_or(ReplicaError::OtherBucket)?;
        ancestors.push(Ancestor { path, ..ancestor.clone() });
    }
    let path = from.path_beside(to).ok_or(ReplicaError::OtherBucket)?;
    ancestors.push(Ancestor { last_epoch, volume: record.volume, path });
    if ancestors.len() > ANCESTOR_COUNT_MAX {
        return Err(ReplicaError::TooManyAncestors);
    }
    let volume = VolumeId::random();
    let path = to.path_beside(from).ok_or(ReplicaError::OtherBucket)?;
    let line = CloneLine { volume, pin: name.to_owned(), path };
    let is_there = |line: &CloneLine| is_there(from, line, patience);
    snapshot::add_clone(&*parent, &record, &line, &is_there, patience)?;
    let made = make(&*own, &record, manifest, (volume, ancestors), seen, patience)
        .and_then(|()| snapshot::confirm_clone(&*parent, &record, &line, patience));
    if let Err(error) = made {
        if !matches!(error, ReplicaError::Taken) {
            let _ = publish::delete(&*own, VOLUME, patience);
        }
        return Err(error);
    }
    Ok(volume)
}

/// The objects of a new clone.
fn make(
    own: &dyn Bucket,
    of: &VolumeRecord,
    manifest: Manifest,
    (volume, ancestors): (VolumeId, Vec<Ancestor>),
    seen: u64,
    patience: &dyn Patience,
) -> Result<(), ReplicaError> {
    let after = CommitId { epoch: manifest.commit.epoch, number: 0 };
    let start = CommitId { epoch: after.epoch + 1, number: 0 };
    let nonce_of_manifest = nonce();
    let first = *nonce_of_manifest.first_chunk().expect("a nonce has 16 bytes");
    let id = ManifestId { commit: start, nonce: u64::from_le_bytes(first) };
    let record = VolumeRecord {
        volume,
        nonce: nonce(),
        counter: 0,
        store: of.store,
        device_size: of.device_size,
        chunk_size: of.chunk_size,
        manifest: Some(id),
        epochs: vec![Epoch { epoch: start.epoch, stage: Stage::Begun, after }],
        owner: String::new(),
        seen,
        ancestors,
    };
    let pins = Pins {
        volume,
        nonce: nonce(),
        counter: 0,
        horizon: start,
        pins: Vec::new(),
        clones: Vec::new(),
    };
    let manifest = Manifest {
        volume,
        nonce: nonce_of_manifest,
        commit: start,
        checksum: 0,
        pieces: manifest.pieces,
    };
    // `volume` decides whose the place is, and comes when all that it leads to is there.
    let objects = [
        (id.name(), manifest.encode()),
        (VOLUME.to_owned(), record.encode()),
        (PINS.to_owned(), pins.encode()),
    ];
    for (name, bytes) in objects {
        if let Outcome::Foreign(_) = publish::create(own, &name, &bytes, patience)? {
            return Err(ReplicaError::Taken);
        }
    }
    takeover::fence(own, &record, start, patience).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_object_tells_its_epoch() {
        let commit = CommitId { epoch: 0x1a, number: 7 };
        assert_eq!(epoch_of(&commit.name()), Some(0x1a));
        let data = crate::names::Source::Data { epoch: 0x2b, number: 9 };
        assert_eq!(epoch_of(&data.name()), Some(0x2b));
        assert_eq!(epoch_of(&ManifestId { commit, nonce: 3 }.name()), None);
        assert_eq!((epoch_of(VOLUME), epoch_of("c/x/y"), epoch_of("d/00/-")), (None, None, None));
    }
}
