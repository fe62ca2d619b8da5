//! Pages of the list of roots, in a sparse store that may have more of them than a checkpoint's body lists.
//!
//! The body lists the pages, in order of index, and a page lists up to 186 roots in any order: a root keeps its place
//! in the list for as long as it is in use, so a checkpoint writes only the pages of roots that changed.
//!
//! ```text
//! offset size field     × 186
//!      0    8 key       of the root page
//!      8    4 pba       of the root page; 0: nothing is in this place of the list
//!     12    4 checksum  of the root page
//!     16    4 copy      where its second copy lies; 0: there is none
//!     20    2 tables    bit i: among the leaves 32 i to 32 i + 31 there may be a page
//! ```

use crate::bytes::{Reader, Writer};
use crate::map_page::ENTRIES_PER_PAGE;
use crate::{BLOCK_SIZE, Block, BlockPointer, Corrupt, Pba, Reason, Structure};

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 22;

/// Roots that a page lists.
pub const ROOTS_PER_PAGE: usize = BLOCK_SIZE / ENTRY_SIZE;

/// Leaves that a bit of `tables` is for.
pub const LEAVES_PER_TABLE: usize = ENTRIES_PER_PAGE / 16;

/// Keys of roots are below it.
const KEY_LIMIT: u64 = crate::address::LBA_LIMIT / (ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64;

const _: () = assert!(ROOTS_PER_PAGE == 186);

/// A root in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootEntry {
    /// The root's key.
    pub key: u64,
    /// Its page.
    pub pointer: BlockPointer,
    /// The page's second copy; nowhere if there is none.
    pub copy: Pba,
    /// A bit for each 32 leaves of which any may have a page.
    pub tables: u16,
}

/// Writes a page. Places for which the iterator gives nothing are empty.
pub fn encode(entries: impl Iterator<Item = Option<RootEntry>>, page: &mut Block) {
    page.fill(0);
    let (slots, _) = page.as_chunks_mut::<ENTRY_SIZE>();
    for (slot, entry) in slots.iter_mut().zip(entries) {
        let Some(entry) = entry else { continue };
        let mut writer = Writer::new(slot);
        writer.u64(entry.key);
        writer.u32(entry.pointer.pba.0);
        writer.u32(entry.pointer.checksum);
        writer.u32(entry.copy.0);
        writer.u16(entry.tables);
    }
}

/// The page's places in order, each with what is there.
pub fn decode(page: &Block) -> impl Iterator<Item = Result<Option<RootEntry>, Corrupt>> + '_ {
    page.as_chunks::<ENTRY_SIZE>().0.iter().map(|slot| {
        let corrupt =
            |name| Corrupt { structure: Structure::RootList, reason: Reason::Field(name) };
        let entry = decode_entry(slot).ok_or(corrupt("size"))?;
        if !entry.pointer.is_mapped() {
            return Ok(None);
        }
        if entry.key >= KEY_LIMIT {
            return Err(corrupt("key"));
        }
        if entry.tables == 0 {
            return Err(corrupt("tables"));
        }
        Ok(Some(entry))
    })
}

fn decode_entry(slot: &[u8; ENTRY_SIZE]) -> Option<RootEntry> {
    let mut reader = Reader::new(slot);
    let key = reader.u64()?;
    let pointer = BlockPointer { pba: Pba(reader.u32()?), checksum: reader.u32()? };
    Some(RootEntry { key, pointer, copy: Pba(reader.u32()?), tables: reader.u16()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn entry(key: u64) -> RootEntry {
        let pointer = BlockPointer { pba: Pba((key as u32 >> 1) + 300), checksum: 7 };
        RootEntry { key, pointer, copy: Pba(9), tables: 1 << (key % 16) }
    }

    #[test]
    fn entries_survive_the_round_trip_in_their_places() {
        let mut page = [0xff; BLOCK_SIZE];
        let places = [Some(entry(5)), None, Some(entry(2)), Some(entry(KEY_LIMIT - 1))];
        encode(places.into_iter(), &mut page);
        let read: Vec<_> = decode(&page).map(|entry| entry.unwrap()).collect();
        assert_eq!(read.len(), ROOTS_PER_PAGE);
        assert_eq!(read[..4], places);
        assert!(read[4..].iter().all(Option::is_none));
        assert_eq!(page[ROOTS_PER_PAGE * ENTRY_SIZE..], [0; BLOCK_SIZE - 186 * 22]);
        let full = (0..ROOTS_PER_PAGE as u64).map(|key| Some(entry(key)));
        encode(full.clone(), &mut page);
        assert!(decode(&page).map(|entry| entry.unwrap()).eq(full));
    }

    #[test]
    fn roots_that_cannot_be_are_refused() {
        let reason = |entry| {
            let mut page = [0; BLOCK_SIZE];
            encode([None, Some(entry)].into_iter(), &mut page);
            decode(&page).find_map(|entry| entry.err().map(|corrupt| corrupt.reason))
        };
        assert_eq!(reason(entry(3)), None);
        assert_eq!(reason(RootEntry { key: KEY_LIMIT, ..entry(3) }), Some(Reason::Field("key")));
        assert_eq!(reason(RootEntry { tables: 0, ..entry(3) }), Some(Reason::Field("tables")));
        assert_eq!(reason(RootEntry { pointer: BlockPointer::NOWHERE, ..entry(3) }), None);
    }
}
