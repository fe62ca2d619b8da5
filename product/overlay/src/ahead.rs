//! Pieces of the file that is being brought home that were asked for and are not written below yet.
//!
//! # Invariants
//! - They are given out in the order in which they were added, whatever the order in which they come.

use crate::store::Portion;
use coulter::buffer::Buffer;
use std::collections::VecDeque;

/// Blocks of one piece at most.
pub(crate) const PIECE_BLOCKS_MAX: u64 = 256;
/// Pieces of all files at once: many small ones keep a disk busy that reads many at a time.
pub(crate) const COUNT_MAX: usize = 64;
/// Blocks of all of them, 8 MiB and a piece more: what settling needs of memory.
pub(crate) const BLOCKS_MAX: u64 = 2048;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    pieces: VecDeque<(Portion, Option<Buffer>)>,
    /// The number of the first of them.
    first: u64,
    blocks: u64,
}

impl Ahead {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// How many they are, and how many blocks they have.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.pieces.len(), self.blocks)
    }

    /// One more is asked for; this is its number.
    pub(crate) fn add(&mut self, portion: Portion) -> u64 {
        assert!(self.pieces.len() < COUNT_MAX, "memory is bounded");
        assert!(portion.count <= PIECE_BLOCKS_MAX, "memory is bounded");
        self.blocks += portion.count;
        self.pieces.push_back((portion, None));
        self.first + self.pieces.len() as u64 - 1
    }

    /// It has come.
    pub(crate) fn came(&mut self, serial: u64, bytes: Buffer) {
        let (_, place) = &mut self.pieces[(serial - self.first) as usize];
        assert!(place.replace(bytes).is_none(), "a piece comes once");
    }

    /// The first one, if it has come.
    pub(crate) fn next(&mut self) -> Option<(Portion, Buffer)> {
        let (portion, bytes) = self.pieces.pop_front()?;
        let Some(bytes) = bytes else {
            self.pieces.push_front((portion, None));
            return None;
        };
        self.first += 1;
        self.blocks -= portion.count;
        Some((portion, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portion(first: u64) -> Portion {
        Portion { first, count: PIECE_BLOCKS_MAX, host: first, runs: Vec::new() }
    }

    #[test]
    fn pieces_are_given_out_in_the_order_in_which_they_were_added() {
        let mut ahead = Ahead::default();
        let serials: Vec<u64> = (0..8).map(|first| ahead.add(portion(first))).collect();
        assert_eq!(ahead.size(), (8, 8 * PIECE_BLOCKS_MAX));
        let mut given = Vec::new();
        for serial in serials.iter().rev() {
            assert!(given.is_empty(), "the first is missing");
            ahead.came(*serial, Buffer::empty());
            given.extend(std::iter::from_fn(|| ahead.next()).map(|(portion, _)| portion.first));
        }
        assert_eq!(given, serials);
        assert!(ahead.is_empty());
        assert_eq!(ahead.size(), (0, 0));
        let serial = ahead.add(portion(9));
        ahead.came(serial, Buffer::empty());
        assert_eq!(ahead.next().map(|(portion, _)| portion.first), Some(9));
    }
}
