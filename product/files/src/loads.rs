//! Blocks of metadata that are asked of the volume, and who waits for them.
//!
//! # Invariants
//! - A block is asked for once at a time, by a command that is out.
//! - Who waits for a block is noted once: a listing waits for many, and asks anew whenever one has
//!   come.

use crate::cache::BlockMap;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Loads {
    /// By the block: the tasks that wait for it.
    awaited: BlockMap<Vec<usize>>,
}

impl Loads {
    /// A block is wanted: true if it has to be asked for.
    pub(crate) fn begin(&mut self, block: u64) -> bool {
        if self.awaited.contains_key(&block) {
            return false;
        }
        self.awaited.insert(block, Vec::new());
        true
    }

    /// A task waits for a block that was asked for.
    pub(crate) fn wait(&mut self, block: u64, task: usize) {
        let waiting = self.awaited.get_mut(&block).expect("it was asked for");
        if !waiting.contains(&task) {
            waiting.push(task);
        }
    }

    /// The block is here, or cannot be had. Returns who waited for it.
    pub(crate) fn end(&mut self, block: u64) -> Vec<usize> {
        self.awaited.remove(&block).expect("a load ends once")
    }

    /// # Panics
    /// If the blocks that are asked for are not those of the commands that are out.
    pub(crate) fn assert_invariants(&self, out: impl Iterator<Item = u64>) {
        let mut out: Vec<u64> = out.collect();
        let mut awaited: Vec<u64> = self.awaited.keys().copied().collect();
        out.sort_unstable();
        awaited.sort_unstable();
        assert_eq!(awaited, out, "each block that is awaited has its command");
        for (block, waiting) in &self.awaited {
            let mut once = waiting.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), waiting.len(), "each waits for block {block} once");
        }
    }
}
