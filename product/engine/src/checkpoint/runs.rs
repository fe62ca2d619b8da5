//! The runs on the device that the newest checkpoint lists.
//!
//! # Invariants
//! - They are in order of number. The sweep passes them in that order, so those that are dead come first.
//! - A run that dies leaves its list of blocks to one to come: none is allocated once as many have died as
//!   live at a time.

use crate::map::Map;
use crate::memory::{self, NoMemory};
use alloc::vec::Vec;
use core::ops::Deref;
use coulter_format::BlockPointer;
use coulter_format::checkpoint::SweepPosition;

/// A run on the device.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) sweep: SweepPosition,
    pub(crate) blocks: Vec<BlockPointer>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Runs {
    all: Vec<Run>,
    /// Blocks of all runs.
    block_count: usize,
    /// Blocks of the longest run that was cut.
    longest: usize,
    /// Empty lists of blocks.
    spare: Vec<Vec<BlockPointer>>,
}

impl Runs {
    /// The runs of the checkpoint that recovery begins with. At most `alive_max` are alive at once.
    pub(crate) fn new(mut all: Vec<Run>, alive_max: u32) -> Result<Runs, NoMemory> {
        assert!(all.is_sorted_by(|a, b| a.number < b.number), "runs are in order");
        let block_count = all.iter().map(|run| run.blocks.len()).sum();
        memory::reserve_in_all(&mut all, alive_max as usize + 1)?;
        let spare = memory::list(all.capacity())?;
        Ok(Runs { all, block_count, longest: 0, spare })
    }

    /// Adds a run that was cut. Its `block_count` blocks are to be written.
    pub(crate) fn add(&mut self, number: u64, sweep: SweepPosition, block_count: usize) {
        assert!(block_count > 0, "a run says something");
        assert!(self.all.last().is_none_or(|last| last.number < number), "runs are in order");
        self.longest = self.longest.max(block_count);
        let mut blocks = self.spare.pop().unwrap_or_default();
        // Room for any that came yet, and some more: lists change places.
        blocks.reserve_exact(self.longest.next_power_of_two());
        assert!(blocks.is_empty(), "a spare list is empty");
        blocks.resize(block_count, BlockPointer::NOWHERE);
        self.block_count += block_count;
        self.all.push(Run { number, sweep, blocks });
    }

    /// Forgets those that the sweep has passed, and tells of each.
    pub(crate) fn remove_dead(&mut self, position: SweepPosition, mut removed: impl FnMut(&Run)) {
        let (spare, block_count) = (&mut self.spare, &mut self.block_count);
        self.all.retain_mut(|run| {
            if !Map::run_is_dead(run.sweep, position) {
                return true;
            }
            removed(run);
            assert!(*block_count >= run.blocks.len(), "its blocks were counted");
            *block_count -= run.blocks.len();
            let mut blocks = core::mem::take(&mut run.blocks);
            blocks.clear();
            spare.push(blocks);
            false
        });
    }

    /// How many the sweep has not passed, and how many blocks they have.
    pub(crate) fn alive(&self, position: SweepPosition) -> (usize, usize) {
        let dead = self.all.iter().take_while(|run| Map::run_is_dead(run.sweep, position));
        let (count, blocks) = dead.fold((0, 0), |(c, b), run| (c + 1, b + run.blocks.len()));
        assert!(blocks <= self.block_count, "those that are dead are some of them");
        (self.all.len() - count, self.block_count - blocks)
    }

    /// Where the block of a run lies that a key names.
    pub(crate) fn pointer_mut(&mut self, number: u64, index: usize) -> Option<&mut BlockPointer> {
        let run = self.all.iter_mut().find(|run| run.number == number)?;
        run.blocks.get_mut(index)
    }
}

impl Deref for Runs {
    type Target = [Run];

    fn deref(&self) -> &[Run] {
        &self.all
    }
}

#[cfg(feature = "verify")]
impl Runs {
    /// # Panics
    /// If they are out of order, or miscounted.
    pub(crate) fn assert_invariants(&self, is_idle: bool) {
        assert!(self.is_sorted_by(|a, b| a.number < b.number), "runs are in order");
        let counted: usize = self.iter().map(|run| run.blocks.len()).sum();
        assert_eq!(counted, self.block_count, "blocks of runs");
        assert!(self.spare.iter().all(Vec::is_empty), "a spare list is empty");
        for run in self.iter() {
            let is_written = run.blocks.iter().all(|pointer| pointer.is_mapped());
            assert!(is_written || !is_idle, "the blocks of a run are somewhere");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_the_sweep_has_passed_leave_their_lists_to_those_to_come() {
        let at = |cycle, leaf| SweepPosition { cycle, leaf };
        let mut runs = Runs::new(Vec::new(), 3).expect("there is memory");
        for number in 0..3 {
            runs.add(number, at(1, 10 * number), 5 + number as usize);
        }
        assert_eq!(runs.alive(at(1, 25)), (3, 18));
        assert_eq!(runs.alive(at(2, 10)), (1, 7), "two are dead");
        let mut gone = Vec::new();
        runs.remove_dead(at(2, 10), |run| gone.push(run.number));
        assert_eq!((gone, runs.alive(at(2, 10))), ([0, 1].to_vec(), (1, 7)));
        assert_eq!(runs.spare.len(), 2);
        runs.add(3, at(2, 10), 4);
        assert_eq!((runs.spare.len(), runs.alive(at(2, 10))), (1, (2, 11)));
        assert!(runs[1].blocks.iter().all(|pointer| !pointer.is_mapped()));
        assert!(runs.pointer_mut(3, 3).is_some() && runs.pointer_mut(3, 4).is_none());
    }
}
