//! The tables of leaves: what is known of 32 leaves each.
//!
//! A root has a table for each 32 of its leaves of which any is in use. So a root of which one block is mapped costs
//! a sixteenth of what a dense one does. Tables are numbered, and lie sixteen to a piece of memory, which is as much
//! as a dense root takes.
//!
//! # Invariants
//! - A table that is free is listed as free, once.
//! - Memory of a table that was given back is kept, and taken again before more is asked for.

use super::leaf::Leaf;
use crate::memory::{self, NoMemory};
use alloc::boxed::Box;
use alloc::vec::Vec;
use coulter_format::map_page::ENTRIES_PER_PAGE;

/// Leaves of a table.
pub(crate) const LEAVES_PER_TABLE: usize = 32;

/// Tables of a root that is dense.
pub(crate) const TABLES_PER_ROOT: usize = ENTRIES_PER_PAGE / LEAVES_PER_TABLE;

/// Bytes of a table.
pub(crate) const TABLE_SIZE: usize = size_of::<[Leaf; LEAVES_PER_TABLE]>();

const LEAVES_PER_PIECE: usize = ENTRIES_PER_PAGE;
const TABLES_PER_PIECE: usize = LEAVES_PER_PIECE / LEAVES_PER_TABLE;

const _: () = assert!(LEAVES_PER_PIECE * size_of::<Leaf>() <= memory::PIECE_SIZE);

/// A table's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableIndex(u32);

impl TableIndex {
    pub(crate) const NONE: TableIndex = TableIndex(u32::MAX);

    pub(crate) fn is_some(self) -> bool {
        self != TableIndex::NONE
    }

    /// The number of one of its leaves.
    #[inline]
    pub(super) fn leaf(self, slot: usize) -> LeafIndex {
        LeafIndex(self.0 * LEAVES_PER_TABLE as u32 + (slot % LEAVES_PER_TABLE) as u32)
    }
}

/// A leaf's number: where memory has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafIndex(u32);

/// All tables.
#[derive(Default)]
pub(super) struct Tables {
    pieces: Vec<Box<[Leaf; LEAVES_PER_PIECE]>>,
    free: Vec<TableIndex>,
}

impl Tables {
    /// A table of empty leaves.
    pub(super) fn take(&mut self) -> Result<TableIndex, NoMemory> {
        if self.free.is_empty() {
            self.add_piece()?;
        }
        let table = self.free.pop().expect("a piece has tables");
        assert!(table.is_some(), "a table has a number");
        for slot in 0..LEAVES_PER_TABLE {
            *self.leaf_mut(table.leaf(slot)) = Leaf::EMPTY;
        }
        Ok(table)
    }

    fn add_piece(&mut self) -> Result<(), NoMemory> {
        let first = self.pieces.len() * TABLES_PER_PIECE;
        assert!(first + TABLES_PER_PIECE < u32::MAX as usize, "tables can be numbered");
        // Room for all there will be: giving back asks for no memory.
        memory::reserve_amply(&mut self.free, first + TABLES_PER_PIECE)?;
        memory::push(&mut self.pieces, memory::boxed(Leaf::EMPTY)?)?;
        // The lowest is taken first.
        let numbers = (first..first + TABLES_PER_PIECE).rev();
        self.free.extend(numbers.map(|number| TableIndex(number as u32)));
        Ok(())
    }

    pub(super) fn give_back(&mut self, table: TableIndex) {
        assert!(table.is_some(), "what is given back was taken");
        assert!(self.free.len() < self.free.capacity(), "there is room for all");
        self.free.push(table);
    }

    /// Tables in use.
    pub(super) fn count(&self) -> usize {
        self.pieces.len() * TABLES_PER_PIECE - self.free.len()
    }

    #[inline]
    pub(super) fn leaf(&self, leaf: LeafIndex) -> &Leaf {
        &self.pieces[leaf.0 as usize / LEAVES_PER_PIECE][leaf.0 as usize % LEAVES_PER_PIECE]
    }

    #[inline]
    pub(super) fn leaf_mut(&mut self, leaf: LeafIndex) -> &mut Leaf {
        &mut self.pieces[leaf.0 as usize / LEAVES_PER_PIECE][leaf.0 as usize % LEAVES_PER_PIECE]
    }

    /// The leaves of a table.
    pub(super) fn leaves(&self, table: TableIndex) -> &[Leaf] {
        let first = table.leaf(0).0 as usize;
        let piece = &self.pieces[first / LEAVES_PER_PIECE];
        &piece[first % LEAVES_PER_PIECE..][..LEAVES_PER_TABLE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_taken_again_is_empty() {
        let mut tables = Tables::default();
        let taken: Vec<TableIndex> =
            (0..40).map(|_| tables.take().expect("there is memory")).collect();
        assert_eq!(tables.count(), 40);
        tables.leaf_mut(taken[20].leaf(5)).unmerged = 3;
        tables.leaf_mut(taken[21].leaf(5)).unmerged = 4;
        tables.give_back(taken[20]);
        assert_eq!(tables.count(), 39);
        assert_eq!(tables.take().expect("there is memory"), taken[20]);
        assert!(tables.leaves(taken[20]).iter().all(|leaf| leaf.unmerged == 0));
        assert_eq!(tables.leaf(taken[21].leaf(5)).unmerged, 4);
        assert_eq!(tables.pieces.len(), 3);
    }

    #[test]
    fn a_table_takes_a_sixteenth_of_what_all_leaves_of_a_root_take() {
        assert_eq!(TABLE_SIZE * TABLES_PER_ROOT, size_of::<[Leaf; ENTRIES_PER_PAGE]>());
        assert_eq!(TABLE_SIZE, 768);
    }
}
