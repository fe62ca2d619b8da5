//! Update chains: the updates of a leaf whose array is not in memory, or not yet changed.
//!
//! A chain is a list of 64-byte cells with six updates each. Newest first: updates are added to
//! the first cell. An address occurs at most once.
//!
//! ```text
//! word 0–5: pointer (pba, checksum)
//! word 6  : four marks; word 7: two marks, then the next cell (u32)
//! mark    : bit 0–8 index in the leaf, bit 14 in use, bit 15 released
//! ```

use super::frames::{CELL_WORDS, CellIndex, Frames, pack, unpack};
use coulter_format::BlockPointer;

/// Updates in a cell.
pub(crate) const UPDATES_PER_CELL: usize = 6;

const IN_USE: u16 = 1 << 14;
const RELEASED: u16 = 1 << 15;
const INDEX_MASK: u16 = 511;

/// One update in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Update {
    /// UpdatePlace in the leaf.
    pub(crate) index: usize,
    /// Current value.
    pub(crate) pointer: BlockPointer,
    /// Whether the leaf page's location for this address is no longer counted.
    pub(crate) released: bool,
}

/// Where an update lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpdatePlace {
    cell: CellIndex,
    slot: usize,
}

fn mark(words: &[u64; CELL_WORDS], slot: usize) -> u16 {
    (words[6 + slot / 4] >> (slot % 4 * 16)) as u16
}

fn set_mark(words: &mut [u64; CELL_WORDS], slot: usize, mark: u16) {
    let shift = slot % 4 * 16;
    let word = &mut words[6 + slot / 4];
    *word = *word & !(0xffff << shift) | u64::from(mark) << shift;
}

fn next(words: &[u64; CELL_WORDS]) -> CellIndex {
    CellIndex::from_bits((words[7] >> 32) as u32)
}

fn set_next(words: &mut [u64; CELL_WORDS], next: CellIndex) {
    words[7] = words[7] & 0xffff_ffff | u64::from(next.to_bits()) << 32;
}

fn decode(words: &[u64; CELL_WORDS], slot: usize) -> Option<Update> {
    let mark = mark(words, slot);
    (mark & IN_USE != 0).then(|| Update {
        index: usize::from(mark & INDEX_MASK),
        pointer: unpack(words[slot]),
        released: mark & RELEASED != 0,
    })
}

impl Frames {
    /// The update of one address.
    pub(crate) fn chain_find(
        &self,
        chain: CellIndex,
        index: usize,
    ) -> Option<(UpdatePlace, Update)> {
        let wanted = index as u16 | IN_USE;
        let mut cell = chain;
        while cell.is_some() {
            let words = self.cell(cell);
            for slot in 0..UPDATES_PER_CELL {
                if mark(words, slot) & !RELEASED == wanted {
                    let update = decode(words, slot).expect("the mark says that it is in use");
                    return Some((UpdatePlace { cell, slot }, update));
                }
            }
            cell = next(words);
        }
        None
    }

    /// Touches every cell. The result is of no meaning.
    pub(crate) fn chain_warm(&self, chain: CellIndex) -> u64 {
        let (mut cell, mut sum) = (chain, 0);
        while cell.is_some() {
            let words = self.cell(cell);
            sum ^= words[0] ^ words[7];
            cell = next(words);
        }
        sum
    }

    /// Changes an update in place.
    pub(crate) fn chain_set(&mut self, place: UpdatePlace, update: Update) {
        let words = self.cell_mut(place.cell);
        assert!(update.index <= usize::from(INDEX_MASK), "an index is one of the leaf");
        words[place.slot] = pack(update.pointer);
        let released = if update.released { RELEASED } else { 0 };
        set_mark(words, place.slot, update.index as u16 | IN_USE | released);
    }

    /// Adds an update of an address that the chain does not have. A cell must be there: the
    /// caller reserved it.
    pub(crate) fn chain_add(&mut self, chain: &mut CellIndex, update: Update) {
        if chain.is_some() {
            let free =
                (0..UPDATES_PER_CELL).find(|slot| mark(self.cell(*chain), *slot) & IN_USE == 0);
            if let Some(slot) = free {
                self.chain_set(UpdatePlace { cell: *chain, slot }, update);
                return;
            }
        }
        if self.free_cell_count() == 0 {
            let grown = self.grow_cells();
            assert!(grown, "cells are reserved before a record is sealed");
        }
        let cell = self.take_cell().expect("a cell is free");
        set_next(self.cell_mut(cell), *chain);
        *chain = cell;
        self.chain_set(UpdatePlace { cell, slot: 0 }, update);
    }

    /// The updates of a chain's first cell, and the rest of the chain; `None` at its end.
    pub(crate) fn cell_updates(
        &self,
        chain: CellIndex,
    ) -> Option<([Option<Update>; UPDATES_PER_CELL], CellIndex)> {
        let words = chain.is_some().then(|| self.cell(chain))?;
        Some((core::array::from_fn(|slot| decode(words, slot)), next(words)))
    }

    /// All updates, newest cell first.
    pub(crate) fn chain_updates(&self, chain: CellIndex) -> impl Iterator<Item = Update> + '_ {
        let mut cell = chain;
        let mut slot = 0;
        core::iter::from_fn(move || {
            while cell.is_some() {
                let words = self.cell(cell);
                while slot < UPDATES_PER_CELL {
                    slot += 1;
                    if let Some(update) = decode(words, slot - 1) {
                        return Some(update);
                    }
                }
                slot = 0;
                cell = next(words);
            }
            None
        })
    }

    /// Gives all cells back.
    pub(crate) fn chain_release(&mut self, chain: &mut CellIndex) {
        while chain.is_some() {
            let following = next(self.cell(*chain));
            self.release_cell(*chain);
            *chain = following;
        }
    }
}

#[cfg(feature = "verify")]
impl Frames {
    /// The cells of a chain.
    pub(super) fn chain_cells(&self, chain: CellIndex) -> impl Iterator<Item = CellIndex> + '_ {
        let follow = |cell: &CellIndex| Some(next(self.cell(*cell))).filter(|c| c.is_some());
        core::iter::successors(Some(chain).filter(|cell| cell.is_some()), follow)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::EntryWidth;
    use super::*;
    use alloc::vec::Vec;
    use coulter_format::Pba;

    fn update(index: usize) -> Update {
        let pointer = BlockPointer { pba: Pba(index as u32 + 7), checksum: index as u32 * 3 };
        Update { index, pointer, released: index.is_multiple_of(2) }
    }

    #[test]
    fn updates_are_found_changed_listed_and_released() {
        let mut frames = Frames::new(3, EntryWidth::MAX).expect("there is memory");
        let mut chain = CellIndex::NONE;
        for index in 0..512 {
            frames.chain_add(&mut chain, update(index));
        }
        for index in 0..512 {
            assert_eq!(frames.chain_find(chain, index).unwrap().1, update(index));
        }
        let (place, _) = frames.chain_find(chain, 100).unwrap();
        let changed = Update { pointer: BlockPointer::NOWHERE, released: false, ..update(100) };
        frames.chain_set(place, changed);
        assert_eq!(frames.chain_find(chain, 100).unwrap().1, changed);
        let mut indices: Vec<_> = frames.chain_updates(chain).map(|update| update.index).collect();
        indices.sort_unstable();
        assert!(indices.iter().copied().eq(0..512));
        frames.chain_release(&mut chain);
        assert!(!chain.is_some());
        assert_eq!(frames.free_count(), 3);
    }
}
