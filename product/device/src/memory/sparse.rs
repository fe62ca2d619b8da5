//! Content that costs memory only for blocks that hold anything but zeros.
//!
//! ```text
//! leaves: one per 2 MiB of device      blocks: one per stored block
//! | none | 512 numbers | none | …  ->  | (unused) | 4096 bytes | 4096 bytes | …
//! ```
//! A leaf is allocated when its first block is stored. Number 0 stands for zeros; a block that
//! turns all zero gives its number back.

use std::iter;

const BLOCK_SIZE: u64 = 4096;

/// Blocks per leaf.
const LEAF_COUNT: u64 = 512;

/// Blocks that are allocated at once.
const GROUP_COUNT: usize = 256;

/// The number that stands for zeros.
const ZEROS: u32 = 0;

type Block = [u8; BLOCK_SIZE as usize];
type Leaf = [u32; LEAF_COUNT as usize];

#[derive(Clone, Debug)]
pub(super) struct Sparse {
    leaves: Vec<Option<Box<Leaf>>>,
    groups: Vec<Box<[Block]>>,
    /// Numbers given back.
    free: Vec<u32>,
    /// The lowest number never used.
    next: u32,
}

impl Sparse {
    pub(super) fn new(size: u64) -> Sparse {
        let count = size.div_ceil(BLOCK_SIZE * LEAF_COUNT);
        let count = usize::try_from(count).expect("the table fits into memory");
        let leaves = iter::repeat_with(|| None).take(count).collect();
        Sparse { leaves, groups: Vec::new(), free: Vec::new(), next: ZEROS + 1 }
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let mut bytes = bytes;
        for piece in pieces(offset, bytes.len() as u64) {
            let (target, rest) = bytes.split_at_mut(piece.length);
            match self.number(piece.block) {
                ZEROS => target.fill(0),
                number => {
                    let block = self.block(number);
                    target.copy_from_slice(&block[piece.start..piece.start + piece.length]);
                }
            }
            bytes = rest;
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut bytes = bytes;
        for piece in pieces(offset, bytes.len() as u64) {
            let (source, rest) = bytes.split_at(piece.length);
            bytes = rest;
            if is_zero(source) {
                self.clear_piece(&piece);
                continue;
            }
            let number = match self.number(piece.block) {
                ZEROS => self.store(piece.block),
                number => number,
            };
            let block = self.block_mut(number);
            block[piece.start..piece.start + piece.length].copy_from_slice(source);
        }
    }

    pub(super) fn clear(&mut self, offset: u64, length: u64) {
        for piece in pieces(offset, length) {
            self.clear_piece(&piece);
        }
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        (u64::from(self.next - 1) - self.free.len() as u64) * BLOCK_SIZE
    }

    /// Zeroes a piece, and gives the block up if nothing else is left in it.
    fn clear_piece(&mut self, piece: &Piece) {
        let number = self.number(piece.block);
        if number == ZEROS {
            return;
        }
        let block = self.block_mut(number);
        block[piece.start..piece.start + piece.length].fill(0);
        if is_zero(block) {
            let (leaf, entry) = place(piece.block);
            let leaf = self.leaves[leaf].as_mut().expect("a stored block has a leaf");
            leaf[entry] = ZEROS;
            self.free.push(number);
        }
    }

    /// Makes room for a block that is not stored; the room holds zeros.
    fn store(&mut self, block: u64) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let number = self.next;
            self.next = number.checked_add(1).expect("at most 16 TiB are stored");
            if number as usize >= self.groups.len() * GROUP_COUNT {
                let group = vec![[0; BLOCK_SIZE as usize]; GROUP_COUNT];
                self.groups.push(group.into_boxed_slice());
            }
            number
        });
        let (leaf, entry) = place(block);
        let leaf = self.leaves[leaf].get_or_insert_with(|| Box::new([ZEROS; LEAF_COUNT as usize]));
        assert_eq!(leaf[entry], ZEROS, "a block is stored once");
        leaf[entry] = number;
        number
    }

    fn number(&self, block: u64) -> u32 {
        let (leaf, entry) = place(block);
        self.leaves[leaf].as_ref().map_or(ZEROS, |leaf| leaf[entry])
    }

    fn block(&self, number: u32) -> &Block {
        &self.groups[number as usize / GROUP_COUNT][number as usize % GROUP_COUNT]
    }

    fn block_mut(&mut self, number: u32) -> &mut Block {
        &mut self.groups[number as usize / GROUP_COUNT][number as usize % GROUP_COUNT]
    }
}

/// The part of a range that lies in one block.
struct Piece {
    block: u64,
    start: usize,
    length: usize,
}

fn pieces(offset: u64, length: u64) -> impl Iterator<Item = Piece> {
    let end = offset + length;
    let mut at = offset;
    iter::from_fn(move || {
        if at == end {
            return None;
        }
        let start = at % BLOCK_SIZE;
        let length = (BLOCK_SIZE - start).min(end - at);
        let piece =
            Piece { block: at / BLOCK_SIZE, start: start as usize, length: length as usize };
        at += length;
        Some(piece)
    })
}

/// Where the number of a block is kept.
fn place(block: u64) -> (usize, usize) {
    ((block / LEAF_COUNT) as usize, (block % LEAF_COUNT) as usize)
}

fn is_zero(bytes: &[u8]) -> bool {
    // In runs, because a loop that may stop at each byte is not vectorised.
    bytes.chunks(256).all(|run| run.iter().fold(0, |seen, byte| seen | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_with_content_are_stored() {
        let mut sparse = Sparse::new(1 << 30);
        sparse.write(0, &[0; 3 * 4096]);
        assert_eq!(sparse.stored_bytes(), 0);
        let mut bytes = vec![0; 3 * 4096];
        bytes[5000] = 1;
        sparse.write(4096 * 511, &bytes);
        assert_eq!(sparse.stored_bytes(), 4096);
        let mut read = vec![9; 3 * 4096];
        sparse.read(4096 * 511, &mut read);
        assert_eq!(read, bytes);
    }

    #[test]
    fn a_block_that_turns_zero_is_given_back_and_used_again() {
        let mut sparse = Sparse::new(1 << 30);
        sparse.write(512, &[1; 1024]);
        sparse.write(512, &[0; 512]);
        assert_eq!(sparse.stored_bytes(), 4096);
        sparse.clear(1024, 512);
        assert_eq!(sparse.stored_bytes(), 0);
        sparse.write(1 << 29, &[2; 512]);
        assert_eq!((sparse.stored_bytes(), sparse.next), (4096, 2));
        let mut read = [9; 1024];
        sparse.read(1 << 29, &mut read);
        assert_eq!((read[511], read[512]), (2, 0));
    }
}
