//! Data that waits to be submitted: small writes gather, and go out as one command.
//!
//! A small write is answered when its data is in here. It goes out with the next set, in the same
//! atomic write if that has room for it, or before the set; and before that when somebody reads it,
//! or when it is as much as one command holds. So a small file costs the device one write, not one
//! for each call.
//!
//! # Invariants
//! - What is gathered is submitted before or with the next set, and before any other data.
//! - A block is in here once: what is written last replaces what was there.
//! - Blocks in here count as being written: they are not read from the volume.

use crate::io::{Change, WRITE_BLOCKS_MAX};
use crate::space::Run;
use coulter::buffer::Buffer;
use coulter_format::{BLOCK_SIZE, Block};

/// Runs that are gathered at most, so that they are ranges of one command.
const RUNS_MAX: usize = 190;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Gathered {
    /// Where the blocks of the buffer go, one run behind the other. They do not overlap.
    runs: Vec<Run>,
    /// As large as a command may be, from the first use on.
    buffer: Buffer,
    count: usize,
}

impl Gathered {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn blocks(&self) -> usize {
        self.count
    }

    /// The data, in the order of the runs.
    pub(crate) fn data(&self) -> &[u8] {
        &self.buffer[..self.count * BLOCK_SIZE]
    }

    pub(crate) fn overlaps(&self, run: Run) -> bool {
        self.runs.iter().any(|other| other.overlaps(run))
    }

    /// The future content of a block.
    pub(crate) fn block(&self, block: u64) -> Option<&Block> {
        let index = self.place_of(block)?;
        self.buffer.as_chunks().0.get(index)
    }

    /// Where a block's data is, in blocks of the buffer.
    fn place_of(&self, block: u64) -> Option<usize> {
        let mut first = 0;
        for run in &self.runs {
            if (run.block..run.end()).contains(&block) {
                return Some(first + (block - run.block) as usize);
            }
            first += run.count as usize;
        }
        None
    }

    pub(crate) fn has_room(&self, blocks: usize) -> bool {
        self.count + blocks <= WRITE_BLOCKS_MAX && self.runs.len() + blocks <= RUNS_MAX
    }

    pub(crate) fn add(&mut self, runs: &[Run], data: &[u8]) {
        if self.buffer.capacity() == 0 {
            self.buffer = Buffer::zeroed(WRITE_BLOCKS_MAX * BLOCK_SIZE);
        }
        let counted: u64 = runs.iter().map(|run| run.count).sum();
        assert_eq!(counted as usize * BLOCK_SIZE, data.len(), "each block of data has its place");
        let numbers = runs.iter().flat_map(|run| run.block..run.end());
        for (block, data) in numbers.zip(data.chunks_exact(BLOCK_SIZE)) {
            let place = self.place_of(block).unwrap_or_else(|| {
                match self.runs.last_mut() {
                    Some(last) if last.end() == block => last.count += 1,
                    _ => self.runs.push(Run { block, count: 1 }),
                }
                self.count += 1;
                self.count - 1
            });
            self.buffer[place * BLOCK_SIZE..(place + 1) * BLOCK_SIZE].copy_from_slice(data);
        }
        assert!(self.count <= WRITE_BLOCKS_MAX, "what is gathered fits into one command");
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.count = 0;
    }

    /// # Panics
    /// If the runs do not say where the blocks of the buffer go, each block once.
    pub(crate) fn assert_invariants(&self) {
        let counted: u64 = self.runs.iter().map(|run| run.count).sum();
        assert_eq!(counted, self.count as u64, "each block of the buffer has its place");
        for (place, run) in self.runs.iter().enumerate() {
            let is_apart = self.runs[..place].iter().all(|other| !other.overlaps(*run));
            assert!(is_apart, "what is written last replaces what was there");
        }
    }
}

/// The ranges of a command that stores runs.
pub(crate) fn changes(runs: &[Run]) -> impl Iterator<Item = Change> + '_ {
    runs.iter().map(|run| Change { block: run.block, count: run.count, discard: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_gathered_once_and_holds_what_was_written_last() {
        let mut gathered = Gathered::default();
        assert!(gathered.is_empty());
        gathered.add(&[Run { block: 10, count: 2 }], &[1; 2 * BLOCK_SIZE]);
        gathered.add(&[Run { block: 12, count: 1 }], &[2; BLOCK_SIZE]);
        gathered.add(&[Run { block: 30, count: 1 }, Run { block: 11, count: 1 }], &[3; 8192]);
        assert_eq!(gathered.runs(), [Run { block: 10, count: 3 }, Run { block: 30, count: 1 }]);
        assert_eq!((gathered.blocks(), gathered.data().len()), (4, 4 * BLOCK_SIZE));
        let first = |block| gathered.block(block).map(|data: &Block| data[0]);
        assert_eq!([10, 11, 12, 30].map(first), [Some(1), Some(3), Some(2), Some(3)]);
        assert_eq!(first(13), None);
        assert!(gathered.overlaps(Run { block: 12, count: 9 }));
        assert!(!gathered.overlaps(Run { block: 13, count: 17 }));
    }

    #[test]
    fn no_more_is_gathered_than_one_command_holds() {
        let mut gathered = Gathered::default();
        for number in 0..RUNS_MAX as u64 {
            assert!(gathered.has_room(1));
            gathered.add(&[Run { block: 3 * number, count: 1 }], &[0; BLOCK_SIZE]);
        }
        assert!(!gathered.has_room(1), "each range is apart");
        let mut gathered = Gathered::default();
        gathered.add(&[Run { block: 0, count: 250 }], &[0; 250 * BLOCK_SIZE]);
        assert!(gathered.has_room(6));
        assert!(!gathered.has_room(7));
    }
}
