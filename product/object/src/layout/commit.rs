//! A commit: what the device holds from now on, in one object; or a fence.
//!
//! ```text
//! offset bytes
//! 48     16  commit: epoch, number
//! 64     1   kind: 0 commit, 1 fence
//! 65     4   CRC-32C at the end of the commit before it; 0 for the first of an epoch
//! 69     4   number of entries, then each:
//!            1 kind: 0 zeros, 1 inline, 2 data object
//!            8 first byte on the device, 8 bytes
//!            inline: 8 first byte in this object
//!            data object: 8 epoch, 8 number, 8 first byte in it
//!        n   inline bytes, up to the checksum
//! ```
//!
//! Entries are applied in their order. A fence has none: its name is taken so that no commit of that
//! epoch can follow, and it is never deleted.

use super::{Corrupt, Nonce, Reason, VolumeId, header, open, seal};
use crate::names::{CommitId, Source};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"CLTRCOMM";
const STRUCTURE: &str = "commit";
/// Bytes of an object at most: offsets in it are kept in 32 bits.
pub const OBJECT_SIZE_MAX: u64 = u32::MAX as u64;
/// Bytes of an entry at least.
const ENTRY_SIZE_MIN: usize = 17;

/// Whence the bytes of a range come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing is stored: it reads as zeros.
    Zeros,
    /// From an object, from this byte on.
    At(Source, u64),
}

/// One range of the device and what it holds from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Bytes on the device.
    pub range: Range<u64>,
    /// What they are.
    pub content: Content,
}

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The volume.
    pub volume: VolumeId,
    /// Of this object.
    pub nonce: Nonce,
    /// Its place in the history.
    pub id: CommitId,
    /// Whether it ends its epoch.
    pub is_fence: bool,
    /// The checksum of the commit before it in its epoch; 0 for the first.
    pub previous: u32,
    /// What changes.
    pub entries: Vec<Entry>,
}

/// Ranges whose bytes a commit carries itself, in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inline {
    /// The ranges.
    pub ranges: Vec<Range<u64>>,
    /// Their bytes, one range behind the other.
    pub bytes: Vec<u8>,
}

impl Commit {
    /// The bytes of a commit that carries `inline` besides the entries it has; these are added to it.
    pub fn encode(&mut self, inline: &Inline) -> Vec<u8> {
        assert!(
            !self.is_fence || (self.entries.is_empty() && inline.ranges.is_empty()),
            "a fence is empty"
        );
        let sizes = inline.ranges.iter().map(|range| range.end - range.start);
        assert_eq!(sizes.sum::<u64>(), inline.bytes.len() as u64, "each range has its bytes");
        let of_entry = |entry: &Entry| match entry.content {
            Content::Zeros => ENTRY_SIZE_MIN,
            Content::At(Source::Commit(_), _) => ENTRY_SIZE_MIN + 8,
            Content::At(Source::Data { .. }, _) => ENTRY_SIZE_MIN + 24,
        };
        let fields = 48 + 16 + 1 + 4 + 4;
        let entries: usize = self.entries.iter().map(of_entry).sum();
        let mut start = (fields + entries + inline.ranges.len() * (ENTRY_SIZE_MIN + 8)) as u64;
        for range in &inline.ranges {
            let content = Content::At(Source::Commit(self.id), start);
            self.entries.push(Entry { range: range.clone(), content });
            start += range.end - range.start;
        }
        let mut writer = header(MAGIC, self.volume, &self.nonce);
        writer.taken.reserve(start as usize + 4);
        writer.u64(self.id.epoch);
        writer.u64(self.id.number);
        writer.u8(self.is_fence.into());
        writer.u32(self.previous);
        writer.u32(self.entries.len() as u32);
        for entry in &self.entries {
            let kind = match entry.content {
                Content::Zeros => 0,
                Content::At(Source::Commit(_), _) => 1,
                Content::At(Source::Data { .. }, _) => 2,
            };
            writer.u8(kind);
            writer.u64(entry.range.start);
            writer.u64(entry.range.end - entry.range.start);
            match entry.content {
                Content::Zeros => {}
                Content::At(Source::Commit(id), offset) => {
                    assert_eq!(id, self.id, "a commit refers to no other");
                    writer.u64(offset);
                }
                Content::At(Source::Data { epoch, number }, offset) => {
                    writer.u64(epoch);
                    writer.u64(number);
                    writer.u64(offset);
                }
            }
        }
        writer.bytes(&inline.bytes);
        assert_eq!(writer.taken.len() as u64, start, "the inline bytes are where the entries say");
        seal(writer)
    }

    /// The commit of these bytes, which were found under the name of `id`.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn decode(bytes: &[u8], volume: VolumeId, id: CommitId) -> Result<Commit, Corrupt> {
        let (mut reader, of, nonce) = open(STRUCTURE, MAGIC, bytes)?;
        if of != volume {
            return Err(reader.corrupt(Reason::Volume));
        }
        if (CommitId { epoch: reader.counted("epoch")?, number: reader.counted("number")? }) != id {
            return Err(reader.corrupt(Reason::Name));
        }
        let is_fence = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(reader.field("kind")),
        };
        let previous = reader.u32()?;
        let count = reader.count(ENTRY_SIZE_MIN, "entry_count")?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let kind = reader.u8()?;
            let (start, length) = (reader.u64()?, reader.u64()?);
            let end =
                start.checked_add(length).filter(|_| length > 0).ok_or(reader.field("range"))?;
            let fits =
                |offset: u64| offset.checked_add(length).is_some_and(|end| end <= OBJECT_SIZE_MAX);
            let content = match kind {
                0 => Content::Zeros,
                1 => {
                    let offset = reader.u64()?;
                    let inline = offset.checked_add(length);
                    let end = bytes.len() as u64 - 4;
                    if inline.is_none_or(|until| until > end) || !fits(offset) {
                        return Err(reader.field("inline"));
                    }
                    Content::At(Source::Commit(id), offset)
                }
                2 => {
                    let source = Source::Data {
                        epoch: reader.counted("epoch")?,
                        number: reader.counted("number")?,
                    };
                    let offset = reader.u64()?;
                    if !fits(offset) {
                        return Err(reader.field("offset"));
                    }
                    Content::At(source, offset)
                }
                _ => return Err(reader.field("entry_kind")),
            };
            entries.push(Entry { range: start..end, content });
        }
        // What follows are the inline bytes.
        if is_fence && !(entries.is_empty() && reader.rest.is_empty()) {
            return Err(reader.field("fence"));
        }
        Ok(Commit { volume, nonce, id, is_fence, previous, entries })
    }
}
