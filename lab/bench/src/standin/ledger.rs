//! Device content of which only the stored blocks cost memory; all others are zeros.
//!
//! ```text
//! parts: one per 4096 blocks of device    blocks
//! | none | 4096 numbers | none | …   ->   | (unused) | 4096 bytes | 4096 bytes | …
//! ```
//! Blocks that are nearly all zeros can be kept by the lines that are not: a store with a million map pages of one
//! entry then takes little.

use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::collections::HashMap;

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
    /// Blocks that are nearly all zeros, if these are kept apart.
    packed: Option<HashMap<u32, Box<[u8]>>>,
}

/// Bytes of a line; one bit of 64 says whether it is kept.
const LINE: usize = BLOCK_SIZE / 64;

/// Lines of a block that is kept apart.
const LINES_MAX: u32 = 8;

/// The lines that are not all zeros, behind a bit for each.
fn pack(block: &Block) -> Option<Box<[u8]>> {
    let (lines, _) = block.as_chunks::<LINE>();
    let kept = lines.iter().enumerate().filter(|(_, line)| **line != [0; LINE]);
    let bits = kept.clone().fold(0u64, |bits, (index, _)| bits | 1 << index);
    if bits.count_ones() > LINES_MAX {
        return None;
    }
    let mut packed = bits.to_le_bytes().to_vec();
    kept.for_each(|(_, line)| packed.extend_from_slice(line));
    Some(packed.into_boxed_slice())
}

fn unpack(packed: &[u8], block: &mut Block) {
    block.fill(0);
    let (bits, lines) = packed.split_at(8);
    let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes"));
    let kept = (0..64).filter(|index| bits & 1 << index != 0);
    for (index, line) in kept.zip(lines.chunks_exact(LINE)) {
        block[index * LINE..][..LINE].copy_from_slice(line);
    }
}

/// A block that is stored, as it is kept: so it is copied once, and only by who needs what it says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stored<'a> {
    Whole(&'a Block),
    Packed(&'a [u8]),
}

impl Stored<'_> {
    #[inline]
    pub(super) fn copy_to(self, target: &mut Block) {
        match self {
            Stored::Whole(block) => *target = *block,
            Stored::Packed(packed) => unpack(packed, target),
        }
    }

    /// What it says.
    #[cfg(test)]
    pub(super) fn boxed(self) -> Box<Block> {
        let mut block = Box::new([0; BLOCK_SIZE]);
        self.copy_to(&mut block);
        block
    }
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
            packed: None,
        }
    }

    /// From now on blocks that are nearly all zeros take little memory, and a little time.
    pub(super) fn pack(&mut self) {
        self.packed.get_or_insert_default();
    }

    /// The block, if it is stored.
    #[inline]
    pub(super) fn block(&self, pba: Pba) -> Option<Stored<'_>> {
        if let Some(packed) = self.packed.as_ref().and_then(|packed| packed.get(&pba.0)) {
            return Some(Stored::Packed(packed));
        }
        let (part, entry) = place(pba);
        let number = self.parts[part].as_ref().map_or(ZEROS, |part| part[entry]) as usize;
        let whole = || &self.groups[number / GROUP_BLOCKS][number % GROUP_BLOCKS];
        (number != ZEROS as usize).then(|| Stored::Whole(whole()))
    }

    /// Stores a block.
    pub(super) fn store(&mut self, pba: Pba, block: &Block) {
        if self.packed.is_some() {
            self.clear(pba);
        }
        if let Some(packed) = &mut self.packed
            && let Some(lines) = pack(block)
        {
            packed.insert(pba.0, lines);
            return;
        }
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
    #[inline]
    pub(super) fn clear(&mut self, pba: Pba) {
        if let Some(packed) = &mut self.packed {
            packed.remove(&pba.0);
        }
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

    fn stored(ledger: &Ledger) -> Option<Box<Block>> {
        ledger.block(Pba(7)).map(Stored::boxed)
    }

    #[test]
    fn blocks_that_are_nearly_all_zeros_come_back() {
        let mut ledger = Ledger::new(1 << 20);
        ledger.pack();
        let mut block = [0; BLOCK_SIZE];
        block[77] = 5;
        block[4095] = 6;
        ledger.store(Pba(7), &block);
        assert_eq!((stored(&ledger).as_deref(), ledger.stored_count()), (Some(&block), 0));
        ledger.store(Pba(7), &[3; BLOCK_SIZE]);
        assert_eq!(stored(&ledger).as_deref(), Some(&[3; BLOCK_SIZE]));
        assert_eq!(ledger.stored_count(), 1);
        ledger.store(Pba(7), &block);
        assert_eq!((stored(&ledger).as_deref(), ledger.stored_count()), (Some(&block), 0));
        ledger.clear(Pba(7));
        assert!(ledger.block(Pba(7)).is_none());
    }

    #[test]
    fn blocks_are_stored_replaced_and_given_back() {
        let mut ledger = Ledger::new(1 << 32);
        assert!(ledger.block(Pba(u32::MAX)).is_none());
        ledger.store(Pba(u32::MAX), &[1; BLOCK_SIZE]);
        ledger.store(Pba(7), &[2; BLOCK_SIZE]);
        ledger.store(Pba(7), &[3; BLOCK_SIZE]);
        assert_eq!(stored(&ledger).as_deref(), Some(&[3; BLOCK_SIZE]));
        assert_eq!(ledger.stored_count(), 2);
        ledger.clear(Pba(7));
        ledger.clear(Pba(7));
        assert!(ledger.block(Pba(7)).is_none());
        assert_eq!(ledger.stored_count(), 1);
        ledger.store(Pba(8), &[4; BLOCK_SIZE]);
        assert_eq!(ledger.next, 3, "a number given back is used again");
    }
}
