//! The object `pins`: snapshots, clones, and how far objects may have been deleted.
//!
//! # Why a pin never names what is gone
//! The collector writes its *horizon* into this object before it deletes anything that only commits
//! before the horizon need. A pin is added by a swap of the same object, and names a commit that is
//! pinned already or not before the horizon. Of two swaps of one version one wins, and the loser looks
//! again. So either the pin is there when the collector reads the pins that it must honour, or the
//! horizon is there when the pin's maker looks whether its commit is still whole.
//!
//! ```text
//! offset bytes
//! 48     8   counter
//! 56     16  horizon: epoch, number
//! 72     4   number of pins, then each:
//!            1+n name; 16 commit: epoch, number; 24 manifest: epoch, number, nonce; 8 time
//!        4   number of clones, then each: 16 volume; 1+n the pin's name; 1+n path
//! ```

use super::{Corrupt, Nonce, VolumeId, header, open, seal};
use crate::names::{CommitId, ManifestId};

const MAGIC: &[u8; 8] = b"CLTRPINS";
const STRUCTURE: &str = "pins";

/// Pins at most.
pub const PIN_COUNT_MAX: usize = 4096;

/// A snapshot: a commit that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Its name: 1 to 255 bytes.
    pub name: String,
    /// The commit.
    pub commit: CommitId,
    /// The manifest of all up to it.
    pub manifest: ManifestId,
    /// When it was made, in seconds since 1970.
    pub time: u64,
}

/// A volume that was cloned from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneLine {
    /// The clone.
    pub volume: VolumeId,
    /// The snapshot.
    pub pin: String,
    /// Where the clone is, as seen from this volume: `../new`.
    pub path: String,
}

/// The object `pins`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// The volume.
    pub volume: VolumeId,
    /// Of this version of the object.
    pub nonce: Nonce,
    /// One more at each swap.
    pub counter: u64,
    /// What only commits before it need may be gone.
    pub horizon: CommitId,
    /// The snapshots, in the order in which they were made.
    pub pins: Vec<Pin>,
    /// Volumes that were cloned from a pin, which cannot be deleted while they are there.
    pub clones: Vec<CloneLine>,
}

impl Pins {
    /// The pin of a name.
    pub fn find(&self, name: &str) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.name == name)
    }

    /// The bytes of the object.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.pins.len() <= PIN_COUNT_MAX, "the caller has checked");
        let mut writer = header(MAGIC, self.volume, &self.nonce);
        writer.u64(self.counter);
        writer.u64(self.horizon.epoch);
        writer.u64(self.horizon.number);
        writer.u32(self.pins.len() as u32);
        for pin in &self.pins {
            writer.text(&pin.name);
            writer.u64(pin.commit.epoch);
            writer.u64(pin.commit.number);
            writer.u64(pin.manifest.commit.epoch);
            writer.u64(pin.manifest.commit.number);
            writer.u64(pin.manifest.nonce);
            writer.u64(pin.time);
        }
        writer.u32(self.clones.len() as u32);
        for line in &self.clones {
            writer.bytes(&line.volume.0);
            writer.text(&line.pin);
            writer.text(&line.path);
        }
        seal(writer)
    }

    /// The object of these bytes.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<Pins, Corrupt> {
        let (mut reader, volume, nonce) = open(STRUCTURE, MAGIC, bytes)?;
        let counter = reader.counted("counter")?;
        let horizon =
            CommitId { epoch: reader.counted("epoch")?, number: reader.counted("number")? };
        let count = reader.count(49, "pin_count")?;
        if count > PIN_COUNT_MAX {
            return Err(reader.field("pin_count"));
        }
        let mut pins: Vec<Pin> = Vec::with_capacity(count);
        for _ in 0..count {
            let name = reader.text("name")?;
            let commit =
                CommitId { epoch: reader.counted("epoch")?, number: reader.counted("number")? };
            let of =
                CommitId { epoch: reader.counted("epoch")?, number: reader.counted("number")? };
            let manifest = ManifestId { commit: of, nonce: reader.u64()? };
            let time = reader.u64()?;
            if name.is_empty() || pins.iter().any(|pin| pin.name == name) {
                return Err(reader.field("name"));
            }
            pins.push(Pin { name, commit, manifest, time });
        }
        let count = reader.count(18, "clone_count")?;
        let mut clones = Vec::with_capacity(count);
        for _ in 0..count {
            let volume = VolumeId(reader.array()?);
            clones.push(CloneLine { volume, pin: reader.text("pin")?, path: reader.text("path")? });
        }
        reader.end()?;
        Ok(Pins { volume, nonce, counter, horizon, pins, clones })
    }
}
