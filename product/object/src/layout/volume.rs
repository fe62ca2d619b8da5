//! The object `volume`: who may write, the chain of epochs, and the newest manifest.
//!
//! ```text
//! offset bytes
//! 48     8   counter: one more at each swap, so that no two versions are alike
//! 56     16  the store's UUID
//! 72     8   size of the device in bytes
//! 80     4   size of a chunk in bytes
//! 84     17  the newest manifest: present (1 byte), and if so epoch, number, nonce: 25 bytes
//!        4   number of epochs, then each:
//!            8 epoch, 1 stage, 8 predecessor's epoch, 8 predecessor's last number
//!        1+n owner: the host's name and process, for people
//!        8   time of the owner's last sign of life in seconds since 1970, for people
//!        4   of a clone only (incompatible feature 0): number of ancestors, at least 1, then each:
//!            8 last epoch, 16 volume, 1+n path
//! ```

use super::{Corrupt, Nonce, Reason, VolumeId, header_with, open_with, seal};
use crate::layout::bytes::{Reader, Writer};
use crate::names::{CommitId, ManifestId};

const MAGIC: &[u8; 8] = b"CLTRVOLU";
const STRUCTURE: &str = "volume";

/// Epochs that the object names at most; older ones are dropped, for a manifest stands behind them.
pub const EPOCH_COUNT_MAX: usize = 256;

/// How far an epoch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its owner may not commit yet: it has still to end the epoch before.
    Claiming,
    /// Its owner commits behind the end of its predecessor.
    Begun,
}

/// One opening of the volume by one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number; each is larger than all before it.
    pub epoch: u64,
    /// How far it has come.
    pub stage: Stage,
    /// The last commit before it, once it has begun.
    pub after: CommitId,
}

/// The record has ancestors.
const CLONE: u32 = 1;

/// A volume whose objects a clone shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// The largest epoch of its objects that the clone shares; those of smaller ones may be an older ancestor's.
    pub last_epoch: u64,
    /// The volume.
    pub volume: VolumeId,
    /// Where it is, as seen from the clone: `../vol`.
    pub path: String,
}

/// The object `volume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// The volume.
    pub volume: VolumeId,
    /// Of this version of the object.
    pub nonce: Nonce,
    /// One more at each swap.
    pub counter: u64,
    /// The store's UUID; a clone has the same as what it was cloned from.
    pub store: [u8; 16],
    /// Bytes of the device.
    pub device_size: u64,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// The newest manifest; `None` before the first.
    pub manifest: Option<ManifestId>,
    /// The epochs since the newest manifest's and that one, ascending.
    pub epochs: Vec<Epoch>,
    /// Who has it, for people.
    pub owner: String,
    /// When the owner last said so, in seconds since 1970, for people. Nothing depends on it.
    pub seen: u64,
    /// Of a clone: the volumes whose objects it shares, the oldest first.
    pub ancestors: Vec<Ancestor>,
}

impl VolumeRecord {
    /// The newest epoch.
    pub fn newest(&self) -> Option<&Epoch> {
        self.epochs.last()
    }

    /// Whether the manifest, if there is one, is of an epoch up to the newest.
    fn is_manifest_known(&self) -> bool {
        let newest = self.newest().map(|newest| newest.epoch);
        self.manifest.is_none_or(|manifest| newest >= Some(manifest.commit.epoch))
    }

    /// The bytes of the object.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.epochs.len() <= EPOCH_COUNT_MAX, "old epochs are dropped");
        assert!(self.epochs.is_sorted_by(|a, b| a.epoch < b.epoch), "epochs ascend");
        let follows = |one: &Epoch| one.after.epoch < one.epoch;
        assert!(self.epochs.iter().all(follows), "an epoch begins behind an earlier one");
        assert!(self.is_manifest_known(), "no manifest is of a later epoch");
        let features = if self.ancestors.is_empty() { 0 } else { CLONE };
        let mut writer = header_with(MAGIC, features, self.volume, &self.nonce);
        writer.u64(self.counter);
        writer.bytes(&self.store);
        writer.u64(self.device_size);
        writer.u32(self.chunk_size);
        write_manifest_id(&mut writer, self.manifest);
        writer.u32(self.epochs.len() as u32);
        for epoch in &self.epochs {
            writer.u64(epoch.epoch);
            writer.u8(match epoch.stage {
                Stage::Claiming => 0,
                Stage::Begun => 1,
            });
            writer.u64(epoch.after.epoch);
            writer.u64(epoch.after.number);
        }
        writer.text(&self.owner);
        writer.u64(self.seen);
        if !self.ancestors.is_empty() {
            writer.u32(self.ancestors.len() as u32);
        }
        for ancestor in &self.ancestors {
            writer.u64(ancestor.last_epoch);
            writer.bytes(&ancestor.volume.0);
            writer.text(&ancestor.path);
        }
        seal(writer)
    }

    /// The object of these bytes.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<VolumeRecord, Corrupt> {
        let (mut reader, features, volume, nonce) = open_with(STRUCTURE, MAGIC, CLONE, bytes)?;
        let counter = reader.counted("counter")?;
        let store = reader.array()?;
        let device_size = reader.u64()?;
        let chunk_size = reader.u32()?;
        if chunk_size == 0 || chunk_size % 4096 != 0 {
            return Err(reader.field("chunk_size"));
        }
        let manifest = read_manifest_id(&mut reader)?;
        let count = reader.count(25, "epoch_count")?;
        if count > EPOCH_COUNT_MAX {
            return Err(reader.field("epoch_count"));
        }
        let mut epochs: Vec<Epoch> = Vec::with_capacity(count);
        for _ in 0..count {
            let epoch = reader.counted("epoch")?;
            let stage = match reader.u8()? {
                0 => Stage::Claiming,
                1 => Stage::Begun,
                _ => return Err(reader.field("stage")),
            };
            let after =
                CommitId { epoch: reader.counted("epoch")?, number: reader.counted("number")? };
            if epochs.last().is_some_and(|last| last.epoch >= epoch) || after.epoch >= epoch {
                return Err(reader.field("epoch"));
            }
            epochs.push(Epoch { epoch, stage, after });
        }
        let owner = reader.text("owner")?;
        let seen = reader.u64()?;
        let ancestors = if features & CLONE == 0 { Vec::new() } else { ancestors(&mut reader)? };
        // An object's epoch tells whose it is.
        let last = ancestors.last().map_or(0, |ancestor| ancestor.last_epoch);
        if !ancestors.is_empty() && epochs.first().is_none_or(|first| first.epoch <= last) {
            return Err(reader.field("last_epoch"));
        }
        let foreign_manifest = reader.field("manifest");
        reader.end()?;
        let record = VolumeRecord {
            volume,
            nonce,
            counter,
            store,
            device_size,
            chunk_size,
            manifest,
            epochs,
            owner,
            seen,
            ancestors,
        };
        if record.is_manifest_known() { Ok(record) } else { Err(foreign_manifest) }
    }
}

fn ancestors(reader: &mut Reader<'_>) -> Result<Vec<Ancestor>, Corrupt> {
    let count = reader.count(25, "ancestor_count")?;
    let mut ancestors: Vec<Ancestor> = Vec::with_capacity(count);
    for _ in 0..count {
        let last_epoch = reader.counted("last_epoch")?;
        let volume = VolumeId(reader.array()?);
        let path = reader.text("path")?;
        if ancestors.last().is_some_and(|before| before.last_epoch >= last_epoch) {
            return Err(reader.field("last_epoch"));
        }
        ancestors.push(Ancestor { last_epoch, volume, path });
    }
    if ancestors.is_empty() { Err(reader.field("ancestor_count")) } else { Ok(ancestors) }
}

pub(super) fn write_manifest_id(writer: &mut Writer, manifest: Option<ManifestId>) {
    writer.u8(manifest.is_some().into());
    if let Some(ManifestId { commit, nonce }) = manifest {
        writer.u64(commit.epoch);
        writer.u64(commit.number);
        writer.u64(nonce);
    }
}

pub(super) fn read_manifest_id(reader: &mut Reader<'_>) -> Result<Option<ManifestId>, Corrupt> {
    match reader.u8()? {
        0 => Ok(None),
        1 => {
            let commit =
                CommitId { epoch: reader.counted("epoch")?, number: reader.counted("number")? };
            Ok(Some(ManifestId { commit, nonce: reader.u64()? }))
        }
        _ => Err(reader.corrupt(Reason::Field("manifest"))),
    }
}
