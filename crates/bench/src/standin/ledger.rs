//! Device content of which only the stored blocks cost memory; all others are zeros.
//!
//! ```text
//! parts: one per 4096 blocks of device    blocks
//! | none | 4096 numbers | none | …   ->   | (unused) | 4096 bytes | 4096 bytes | …
//! ```

use coulter_format::{BLOCK_SIZE, Block, Pba};

const PART_BLOCKS: usize = 4096;
const GROUP_BLOCKS: usize = 64;

/// The number that stands for zeros.
const ZEROS: u32 = 0;

type Part = [u32; PART_BLOCKS];

/// The blocks that are stored.
pub(super) struct Ledger {
    parts: Vec<Option<Box<Part>>>,
    groups: Vec<Box<[Block]>>,
    /// Numbers given back.
    free: Vec<u32>,
    /// The lowest number never used.
    next: u32,
}

impl Ledger {
    /// A device of so many blocks, all zeros.
    pub(super) fn new(size: u64) -> Ledger {
        let count = size.div_ceil(PART_BLOCKS as u64) as usize;
        Ledger {
            parts: std::iter::repeat_with(|| None).take(count).collect(),
            groups: Vec::new(),
            free: Vec::new(),
            next: ZEROS + 1,
        }
    }

    /// The block, if it is stored.
    pub(super) fn block(&self, pba: Pba) -> Option<&Block> {
        let (part, entry) = place(pba);
        let number = self.parts[part].as_ref().map_or(ZEROS, |part| part[entry]);
        (number != ZEROS)
            .then(|| &self.groups[number as usize / GROUP_BLOCKS][number as usize % GROUP_BLOCKS])
    }

    /// Stores a block.
    pub(super) fn store(&mut self, pba: Pba, block: &Block) {
        let (part, entry) = place(pba);
        let part = self.parts[part].get_or_insert_with(|| Box::new([ZEROS; PART_BLOCKS]));
        if part[entry] == ZEROS {
            part[entry] = self.free.pop().unwrap_or_else(|| {
                let number = self.next;
                self.next += 1;
                if number as usize >= self.groups.len() * GROUP_BLOCKS {
                    let group = vec![[0; BLOCK_SIZE]; GROUP_BLOCKS];
                    self.groups.push(group.into_boxed_slice());
                }
                number
            });
        }
        let number = part[entry] as usize;
        self.groups[number / GROUP_BLOCKS][number % GROUP_BLOCKS] = *block;
    }

    /// Turns a block into zeros.
    pub(super) fn clear(&mut self, pba: Pba) {
        let (part, entry) = place(pba);
        let Some(part) = &mut self.parts[part] else { return };
        if part[entry] != ZEROS {
            self.free.push(part[entry]);
            part[entry] = ZEROS;
        }
    }

    /// Blocks that are stored.
    #[cfg(test)]
    fn stored_count(&self) -> u64 {
        u64::from(self.next - 1) - self.free.len() as u64
    }
}

fn place(pba: Pba) -> (usize, usize) {
    (pba.0 as usize / PART_BLOCKS, pba.0 as usize % PART_BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_stored_replaced_and_given_back() {
        let mut ledger = Ledger::new(1 << 32);
        assert!(ledger.block(Pba(u32::MAX)).is_none());
        ledger.store(Pba(u32::MAX), &[1; BLOCK_SIZE]);
        ledger.store(Pba(7), &[2; BLOCK_SIZE]);
        ledger.store(Pba(7), &[3; BLOCK_SIZE]);
        assert_eq!(ledger.block(Pba(7)), Some(&[3; BLOCK_SIZE]));
        assert_eq!(ledger.stored_count(), 2);
        ledger.clear(Pba(7));
        ledger.clear(Pba(7));
        assert!(ledger.block(Pba(7)).is_none());
        assert_eq!(ledger.stored_count(), 1);
        ledger.store(Pba(8), &[4; BLOCK_SIZE]);
        assert_eq!(ledger.next, 3, "a number given back is used again");
    }
}
