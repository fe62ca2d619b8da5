//! Runs: map updates that are durable but not yet merged into leaf pages, sorted by host address.
//!
//! ```text
//! offset size field
//!      0    4 magic "CRUN"
//!      4    2 version
//!      6    2 count    entries in this block, at most 340
//!      8    8 base     host address that offsets count from
//!     16   12 entry    × count
//!
//! entry:  0  4 offset   host address − base (31 bits); bit 31: the leaf page's old location is
//!                       no longer counted in the segment table ("released")
//!         4  4 pba      where the block lies; zero: unmapped
//!         8  4 word     the block's checksum; of an unmapped entry, how many blocks it covers
//! ```
//!
//! A block has an entry at least. Entries are in ascending order of address and lie within one leaf
//! each; an entry that covers several blocks may be followed by entries inside of it, which say
//! better, down to its own first address.

use crate::address::LBA_LIMIT;
use crate::bytes::{Reader, Writer};
use crate::map_page::ENTRIES_PER_PAGE;
use crate::{BLOCK_SIZE, Block, BlockPointer, Corrupt, Lba, Pba, Reason, Structure};

const MAGIC: [u8; 4] = *b"CRUN";
const VERSION: u16 = 1;
const HEADER_SIZE: usize = 16;
const ENTRY_SIZE: usize = 12;
const RELEASED: u32 = 1 << 31;

/// Entries that fit in one block.
pub const ENTRIES_PER_RUN_BLOCK: usize = (BLOCK_SIZE - HEADER_SIZE) / ENTRY_SIZE;

const _: () = assert!(ENTRIES_PER_RUN_BLOCK == 340);

/// One update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEntry {
    /// First host address.
    pub lba: Lba,
    /// How many blocks; more than one only if the entry unmaps them.
    pub count: u32,
    /// Where the block lies now, or [`BlockPointer::NOWHERE`].
    pub pointer: BlockPointer,
    /// Whether the segment table no longer counts the location in the leaf page.
    pub released: bool,
}

/// Fills one block.
#[derive(Debug)]
pub struct RunBlockWriter {
    base: u64,
    count: usize,
}

impl RunBlockWriter {
    /// Begins a block whose offsets count from `base`.
    pub fn new(base: Lba, block: &mut Block) -> RunBlockWriter {
        block.fill(0);
        RunBlockWriter { base: base.0, count: 0 }
    }

    /// Adds an entry; `false` if it needs another block (full, or too far from the base).
    pub fn push(&mut self, entry: &RunEntry, block: &mut Block) -> bool {
        let offset = entry.lba.0.wrapping_sub(self.base);
        debug_assert!(is_possible(entry), "an entry lies within a leaf");
        if self.count == ENTRIES_PER_RUN_BLOCK || offset >= u64::from(RELEASED) {
            return false;
        }
        let start = HEADER_SIZE + self.count * ENTRY_SIZE;
        let Some(slot) = block.get_mut(start..) else { return false };
        let mut writer = Writer::new(slot);
        writer.u32(offset as u32 | if entry.released { RELEASED } else { 0 });
        writer.u32(entry.pointer.pba.0);
        writer.u32(if entry.pointer.is_mapped() { entry.pointer.checksum } else { entry.count });
        self.count += 1;
        true
    }

    /// Writes the header; the block is complete.
    pub fn finish(self, block: &mut Block) {
        let mut writer = Writer::new(block);
        writer.put(&MAGIC);
        writer.u16(VERSION);
        writer.u16(self.count as u16);
        writer.u64(self.base);
    }
}

/// The entries of a block, in order of address.
///
/// # Errors
/// [`Corrupt`] when it is no block of a run, of another version, or has an entry that cannot be.
pub fn decode(block: &Block) -> Result<impl Iterator<Item = RunEntry> + Clone + '_, Corrupt> {
    let corrupt = |reason| Corrupt { structure: Structure::Run, reason };
    let mut reader = Reader::new(block);
    if reader.take() != Some(MAGIC) {
        return Err(corrupt(Reason::Magic));
    }
    match reader.u16() {
        Some(VERSION) => {}
        other => return Err(corrupt(Reason::Version(other.unwrap_or(0).into()))),
    }
    let count = usize::from(reader.u16().unwrap_or(u16::MAX));
    if count == 0 || count > ENTRIES_PER_RUN_BLOCK {
        return Err(corrupt(Reason::Field("count")));
    }
    let base = reader.u64().unwrap_or(0);
    if base >= crate::address::LBA_LIMIT {
        return Err(corrupt(Reason::Field("base")));
    }
    let entries = reader.take_slice(count * ENTRY_SIZE).unwrap_or(&[]);
    let entries = entries.as_chunks::<ENTRY_SIZE>().0;
    let decoded = entries.iter().map_while(move |bytes| decode_entry(base, bytes));
    let sorted = decoded.clone().is_sorted_by_key(|entry| entry.lba);
    if !sorted || !decoded.clone().all(|entry| is_possible(&entry)) {
        return Err(corrupt(Reason::Field("entry")));
    }
    Ok(decoded)
}

/// Whether an entry covers a block at least, and none outside its leaf or the host's space.
fn is_possible(entry: &RunEntry) -> bool {
    let leaf = ENTRIES_PER_PAGE as u64;
    let room = leaf - entry.lba.0 % leaf;
    let count = u64::from(entry.count);
    let one = !entry.pointer.is_mapped() || count == 1;
    entry.lba.0 < LBA_LIMIT && (1..=room).contains(&count) && one
}

fn decode_entry(base: u64, bytes: &[u8; ENTRY_SIZE]) -> Option<RunEntry> {
    let mut reader = Reader::new(bytes);
    let offset = reader.u32()?;
    let pba = Pba(reader.u32()?);
    let word = reader.u32()?;
    let mapped = pba != Pba::NOWHERE;
    Some(RunEntry {
        lba: Lba(base + u64::from(offset & !RELEASED)),
        count: if mapped { 1 } else { word },
        pointer: BlockPointer { pba, checksum: if mapped { word } else { 0 } },
        released: offset & RELEASED != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn entries_survive_the_round_trip_until_the_block_is_full() {
        let entry = |i: u64| RunEntry {
            lba: Lba(999_936 + i * 512),
            count: if i.is_multiple_of(5) { 512 } else { 1 },
            pointer: if i.is_multiple_of(5) {
                BlockPointer::NOWHERE
            } else {
                BlockPointer { pba: Pba(i as u32 + 9), checksum: i as u32 * 31 }
            },
            released: i.is_multiple_of(3),
        };
        let mut block = [0; BLOCK_SIZE];
        let mut writer = RunBlockWriter::new(Lba(999_936), &mut block);
        let pushed = (0..1000).take_while(|i| writer.push(&entry(*i), &mut block)).count();
        assert_eq!(pushed, ENTRIES_PER_RUN_BLOCK);
        writer.finish(&mut block);
        let decoded: std::vec::Vec<_> = decode(&block).unwrap().collect();
        assert_eq!(decoded.len(), pushed);
        assert!(decoded.iter().enumerate().all(|(i, e)| *e == entry(i as u64)));
    }

    #[test]
    fn an_entry_too_far_from_the_base_needs_another_block() {
        let mut block = [0; BLOCK_SIZE];
        let mut writer = RunBlockWriter::new(Lba(5), &mut block);
        let far = RunEntry {
            lba: Lba(5 + (1 << 31)),
            count: 1,
            pointer: BlockPointer { pba: Pba(1), checksum: 2 },
            released: false,
        };
        assert!(!writer.push(&far, &mut block));
    }

    /// A block with one entry of these fields, given as offset, pba, word.
    fn block_of(base: u64, entries: &[[u32; 3]]) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let mut writer = Writer::new(&mut block);
        writer.put(&MAGIC);
        writer.u16(VERSION);
        writer.u16(entries.len() as u16);
        writer.u64(base);
        entries.iter().flatten().for_each(|field| writer.u32(*field));
        block
    }

    #[test]
    fn entries_that_cannot_be_are_corrupt() {
        let whole_leaf = [0, 0, 512];
        let block = block_of(512, &[whole_leaf, [0, 9, 1], [7, 0, 1]]);
        assert_eq!(decode(&block).unwrap().count(), 3);
        let reason = |block: Block| decode(&block).map(|_| ()).unwrap_err().reason;
        let wrong = Reason::Field("entry");
        assert_eq!(reason(block_of(512, &[[0, 0, 0]])), wrong, "covers nothing");
        assert_eq!(reason(block_of(512, &[[1, 0, 512]])), wrong, "covers two leaves");
        assert_eq!(reason(block_of(512, &[[5, 9, 1], [4, 9, 1]])), wrong, "not sorted");
        assert_eq!(reason(block_of(LBA_LIMIT - 1, &[[1, 9, 1]])), wrong, "outside the space");
        assert_eq!(reason(block_of(512, &[])), Reason::Field("count"));
        assert_eq!(reason(block_of(LBA_LIMIT, &[[0, 9, 1]])), Reason::Field("base"));
    }
}
