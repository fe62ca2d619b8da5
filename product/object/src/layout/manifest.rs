//! A manifest: what all of the device holds after a commit.
//!
//! ```text
//! offset bytes
//! 48     16  commit: epoch, number
//! 64     4   CRC-32C at the end of that commit, to which the next one refers
//! 68     4   number of pieces, then each, ascending:
//!            1 kind: 0 data object, 1 commit
//!            8 first byte on the device, 4 bytes
//!            16 the object: epoch, number; 4 first byte in it
//! ```

use super::{Corrupt, Nonce, Reason, VolumeId, header, open, seal};
use crate::names::{CommitId, Source};
use crate::pieces::{Piece, PieceMap};

const MAGIC: &[u8; 8] = b"CLTRMANI";
const STRUCTURE: &str = "manifest";
/// Bytes of a piece.
const PIECE_SIZE: usize = 33;

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The volume.
    pub volume: VolumeId,
    /// Of this object; its first eight bytes are part of the name.
    pub nonce: Nonce,
    /// The last commit that it counts.
    pub commit: CommitId,
    /// The checksum at that commit's end.
    pub checksum: u32,
    /// What the device holds.
    pub pieces: PieceMap,
}

impl Manifest {
    /// The bytes of the object.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = header(MAGIC, self.volume, &self.nonce);
        writer.u64(self.commit.epoch);
        writer.u64(self.commit.number);
        writer.u32(self.checksum);
        writer.u32(u32::try_from(self.pieces.count()).expect("pieces are counted in 32 bits"));
        for (start, piece) in self.pieces.iter() {
            let (kind, epoch, number) = match piece.source {
                Source::Data { epoch, number } => (0, epoch, number),
                Source::Commit(CommitId { epoch, number }) => (1, epoch, number),
            };
            writer.u8(kind);
            writer.u64(start);
            writer.u32(piece.length);
            writer.u64(epoch);
            writer.u64(number);
            writer.u32(piece.offset);
        }
        seal(writer)
    }

    /// The manifest of these bytes, which were found under the name of `commit`.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn decode(bytes: &[u8], volume: VolumeId, commit: CommitId) -> Result<Manifest, Corrupt> {
        let (mut reader, of, nonce) = open(STRUCTURE, MAGIC, bytes)?;
        if of != volume {
            return Err(reader.corrupt(Reason::Volume));
        }
        if (CommitId { epoch: reader.counted("epoch")?, number: reader.counted("number")? })
            != commit
        {
            return Err(reader.corrupt(Reason::Name));
        }
        let checksum = reader.u32()?;
        let count = reader.count(PIECE_SIZE, "piece_count")?;
        let mut pieces = PieceMap::new();
        let mut free = 0_u64;
        for _ in 0..count {
            let kind = reader.u8()?;
            let (start, length) = (reader.u64()?, reader.u32()?);
            let (epoch, number) = (reader.counted("epoch")?, reader.counted("number")?);
            let source = match kind {
                0 => Source::Data { epoch, number },
                1 => Source::Commit(CommitId { epoch, number }),
                _ => return Err(reader.field("piece_kind")),
            };
            let offset = reader.u32()?;
            let end = start.checked_add(length.into()).ok_or(reader.field("piece"))?;
            if start < free || length == 0 || offset.checked_add(length).is_none() {
                return Err(reader.field("piece"));
            }
            free = end;
            pieces.place(start, Piece { length, source, offset });
        }
        reader.end()?;
        Ok(Manifest { volume, nonce, commit, checksum, pieces })
    }
}
