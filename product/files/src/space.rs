//! Which host blocks are free, and who gets them.
//!
//! # Invariants
//! - What the open set frees is not handed out before that set is submitted: data is written at
//!   once, and a crash may bring the time before the set back.
//! - Some blocks are kept for operations that free others, so that a full file system can be
//!   emptied.

use crate::cache::Cache;
use crate::canary::{Canary, sings};
use crate::stop::{Role, Step, Stop, fail};
use coulter_format::files::{Superblock, space};
use std::collections::BTreeMap;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Data,
    Node,
}

/// Host blocks one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) block: u64,
    pub(crate) count: u64,
}

impl Run {
    pub(crate) fn end(self) -> u64 {
        self.block + self.count
    }
    pub(crate) fn overlaps(self, other: Run) -> bool {
        self.block < other.end() && other.block < self.end()
    }
}

/// See the module's documentation.
pub(crate) struct Space {
    block_count: u64,
    /// Where the search for data and for nodes goes on.
    cursors: [u64; 2],
    /// Groups in which nothing was found.
    full: Vec<bool>,
    /// Those of them that the step that is under way found: it may have filled them itself.
    filled: Vec<u64>,
    /// Freed by the open set: first block and count.
    held: BTreeMap<u64, u64>,
    /// Freed by the step that is under way.
    freed: Vec<Run>,
    reserve: u64,
}

impl Space {
    pub(crate) fn new(block_count: u64) -> Space {
        // Nodes first, data a little behind: each stays with its kind while there is room.
        let data = (block_count / 64).max(2);
        Space {
            block_count,
            cursors: [data, 2],
            full: vec![false; space::group_count(block_count) as usize],
            held: BTreeMap::new(),
            filled: Vec::new(),
            freed: Vec::new(),
            reserve: reserve(block_count),
        }
    }

    /// Blocks that only operations that free others may take.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Takes up to `want` blocks in a row, at `goal` if they are free there.
    pub(crate) fn allocate(
        &mut self,
        cache: &mut Cache,
        superblock: &mut Superblock,
        purpose: Purpose,
        goal: Option<u64>,
        want: u64,
        may_use_reserve: bool,
    ) -> Step<Run> {
        let reserve = if may_use_reserve { 0 } else { self.reserve };
        let left = superblock.free_blocks.saturating_sub(reserve);
        if left == 0 {
            return if self.held.is_empty() { fail(libc::ENOSPC) } else { Err(Stop::Space) };
        }
        let cursor = self.cursors[purpose as usize];
        let from = goal.filter(|goal| *goal < self.block_count).unwrap_or(cursor);
        let run = self.find(cache, from, want.min(left))?;
        assert!(run.count > 0 && run.count <= want, "no more is taken than is wanted");
        assert!(run.end() <= self.block_count, "what is taken lies in the file system");
        let group = space::group_of(run.block);
        let bitmap = cache.change(space::bitmap_block(group), Role::Bitmap)?;
        let first = run.block - group * space::GROUP_BLOCKS;
        assert!(!space::is_used(bitmap, group, first), "what is taken was free");
        space::mark(bitmap, first, run.count, true);
        assert!(run.count <= superblock.free_blocks, "no more is taken than is free");
        superblock.free_blocks -= run.count;
        self.cursors[purpose as usize] = run.end();
        Ok(run)
    }

    fn find(&mut self, cache: &mut Cache, from: u64, want: u64) -> Step<Run> {
        let groups = self.full.len() as u64;
        let start = if from < self.block_count { from } else { 2 };
        let first_group = space::group_of(start);
        // The first group twice: from the start on, and in the end all of it.
        for step in 0..=groups {
            let group = (first_group + step) % groups;
            if self.full[group as usize] {
                continue;
            }
            let offset = if step == 0 { start % space::GROUP_BLOCKS } else { 0 };
            if let Some(run) = self.find_in_group(cache, group, offset, want)? {
                return Ok(run);
            }
        }
        if self.held.is_empty() { fail(libc::ENOSPC) } else { Err(Stop::Space) }
    }

    fn find_in_group(
        &mut self,
        cache: &mut Cache,
        group: u64,
        offset: u64,
        want: u64,
    ) -> Step<Option<Run>> {
        let size = space::group_size(group, self.block_count);
        let base = group * space::GROUP_BLOCKS;
        let bitmap = cache.read(space::bitmap_block(group), Role::Bitmap)?;
        let (mut from, mut met_held) = (offset, false);
        while let Some(bit) = space::next_free(bitmap, group, from, size) {
            let count = space::free_run(bitmap, group, bit, want, size);
            let run = self.without_held(Run { block: base + bit, count });
            match run {
                Ok(run) => return Ok(Some(run)),
                Err(end) => (from, met_held) = (end - base, true),
            }
        }
        if offset == 0 && !met_held {
            self.full[group as usize] = true;
            self.filled.push(group);
        }
        Ok(None)
    }

    /// The front of the run that nobody holds, or where what is held at its front ends.
    fn without_held(&self, run: Run) -> Result<Run, u64> {
        if sings(Canary::FreedReusedEarly) {
            return Ok(run);
        }
        let as_run = |(block, count): (&u64, &u64)| Run { block: *block, count: *count };
        let step = self.freed.iter().filter(|freed| freed.overlaps(run)).copied();
        // Held runs do not overlap: the one that begins before, and the first one within.
        let before = self.held.range(..=run.block).next_back().map(as_run);
        let within = self.held.range(run.block + 1..run.end()).next().map(as_run);
        let mut count = run.count;
        for held in step.chain(before).chain(within).filter(|held| held.overlaps(run)) {
            if held.block <= run.block {
                return Err(held.end());
            }
            count = count.min(held.block - run.block);
        }
        Ok(Run { block: run.block, count })
    }

    /// Gives blocks back. They are usable again when the open set is submitted.
    pub(crate) fn free(
        &mut self,
        cache: &mut Cache,
        superblock: &mut Superblock,
        run: Run,
    ) -> Step<()> {
        let (mut block, end) = (run.block, run.end());
        if run.block < 2 || end > self.block_count {
            return fail(libc::EIO);
        }
        while block < end {
            let group = space::group_of(block);
            let base = group * space::GROUP_BLOCKS;
            let count = (end - block).min(base + space::GROUP_BLOCKS - block);
            let bitmap = cache.change(space::bitmap_block(group), Role::Bitmap)?;
            for bit in block - base..block - base + count {
                if bit < space::reserved_blocks(group) || !space::is_used(bitmap, group, bit) {
                    // Two owners of one block: damage, not to be made worse.
                    return fail(libc::EIO);
                }
            }
            space::mark(bitmap, block - base, count, false);
            self.full[group as usize] = false;
            block += count;
        }
        superblock.free_blocks += run.count;
        self.freed.push(run);
        Ok(())
    }

    pub(crate) fn commit(&mut self) {
        for run in self.freed.drain(..) {
            let overlap = self.held.range(..run.end()).next_back();
            let clashes = overlap.is_some_and(|(block, count)| block + count > run.block);
            assert!(!clashes, "a block is freed once");
            self.held.insert(run.block, run.count);
        }
        self.filled.clear();
    }

    pub(crate) fn roll_back(&mut self) {
        assert!(self.freed.iter().all(|run| run.count > 0), "what is freed is something");
        self.freed.clear();
        for group in self.filled.drain(..) {
            self.full[group as usize] = false;
        }
    }

    /// What the open set has freed; it is usable from now on, for the set is being submitted.
    pub(crate) fn take_held(&mut self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (block, count) in std::mem::take(&mut self.held) {
            match runs.last_mut() {
                Some(last) if last.end() == block => last.count += count,
                _ => runs.push(Run { block, count }),
            }
        }
        runs
    }

    /// Whether the open set frees blocks of a run.
    pub(crate) fn holds_some_of(&self, run: Run) -> bool {
        let before = self.held.range(..run.end()).next_back();
        before.is_some_and(|(block, count)| block + count > run.block)
    }

    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Blocks kept for operations that free others.
pub(crate) fn reserve(block_count: u64) -> u64 {
    (block_count / 64).clamp(48, 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: u64 = 16;

    /// Groups of which only the last one has free blocks.
    fn nearly_full() -> (Space, Cache, Superblock) {
        let block_count = GROUPS * space::GROUP_BLOCKS;
        let mut cache = Cache::new(64);
        for group in 0..GROUPS {
            let byte = if group == GROUPS - 1 { 0 } else { 0xff };
            cache.handle_loaded(space::bitmap_block(group), &[byte; coulter_format::BLOCK_SIZE]);
        }
        let [superblock, ..] = crate::create(&crate::CreateOptions {
            block_count,
            uuid: [1; 16],
            hash_seed: [2; 16],
            label: [0; 64],
            owner: (0, 0),
            now: crate::Time::default(),
        })
        .expect("it has room");
        (Space::new(block_count), cache, Superblock::decode(&superblock).expect("just made"))
    }

    fn take(space: &mut Space, cache: &mut Cache, superblock: &mut Superblock) -> Run {
        cache.begin();
        space.allocate(cache, superblock, Purpose::Data, Some(2), 1, true).expect("there is room")
    }

    #[test]
    fn a_step_that_is_undone_has_the_groups_before_it_not_searched_anew() {
        let (mut space, mut cache, mut superblock) = nearly_full();
        let full = |space: &Space| space.full.iter().filter(|full| **full).count() as u64;
        take(&mut space, &mut cache, &mut superblock);
        cache.roll_back();
        space.roll_back();
        assert_eq!(full(&space), 0, "it may have filled them itself");
        let first = take(&mut space, &mut cache, &mut superblock);
        cache.commit();
        space.commit();
        // The search began behind the start of the first group, so that may have something.
        assert_eq!(full(&space), GROUPS - 2);
        let second = take(&mut space, &mut cache, &mut superblock);
        assert_eq!(space::group_of(second.block), GROUPS - 1);
        cache.roll_back();
        space.roll_back();
        assert_eq!(full(&space), GROUPS - 2, "they were full before the step");
        assert_ne!(take(&mut space, &mut cache, &mut superblock), first, "that is taken");
    }
}
