//! Questions to a file system, which change nothing.

use super::Files;
use crate::parts::Counters;
use crate::tree::Tree;
use coulter_format::files::Superblock;

/// Commands that change the volume and are out, beyond which no more should be asked for.
const OUT_MAX: usize = 64;

impl Files {
    /// Its superblock, once it is open.
    pub fn superblock(&self) -> Option<&Superblock> {
        self.parts.opened().map(|tree| &tree.superblock)
    }

    /// Figures of the work done so far.
    pub fn counters(&self) -> Counters {
        self.parts.counters
    }

    /// True if changes are refused: as it was opened, or after a failure.
    pub fn read_only(&self) -> bool {
        self.parts.read_only()
    }

    /// Blocks of metadata that cannot be read; what lies below them answers with EIO.
    pub fn damaged_blocks(&self) -> &[u64] {
        self.parts.opened().map_or(&[], |tree: &Tree| tree.cache.damaged())
    }

    /// True if no more should be asked for until something completes.
    pub fn is_congested(&self) -> bool {
        // Commands that wait for space must not keep reads from being answered.
        let out = self.parts.flushes.order().out_count();
        out > OUT_MAX && !self.parts.health.is_short_of_space()
    }

    /// Blocks of metadata in memory.
    pub fn cached_blocks(&self) -> usize {
        self.parts.opened().map_or(0, |tree| tree.cache.count())
    }

    /// True if no operation is under way and nothing is out.
    pub fn is_quiet(&self) -> bool {
        self.parts.desk.is_quiet()
    }

    /// True if everything that was answered is durable.
    pub fn is_durable(&self) -> bool {
        self.parts.is_durable()
    }

    /// Counts anew all that the parts count, and compares.
    ///
    /// # Panics
    /// If they differ. Called between two inputs, by tests: it looks at all that is in memory.
    pub fn assert_invariants(&self) {
        self.parts.assert_invariants();
    }
}
