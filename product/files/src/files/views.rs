//! Questions to a file system, which change nothing.

use super::{Counters, Files, State};
use coulter_format::files::Superblock;

/// Commands that change the volume and are out, beyond which no more should be asked for.
const OUT_MAX: usize = 64;

impl Files {
    /// What it is as a whole, once it is open.
    pub fn superblock(&self) -> Option<&Superblock> {
        match &self.state {
            State::Running(tree) => Some(&tree.superblock),
            _ => None,
        }
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether changes are refused: as it was opened, or after a failure.
    pub fn read_only(&self) -> bool {
        self.options.read_only || self.failed.is_some()
    }

    /// Blocks of metadata that cannot be read; what lies below them answers with EIO.
    pub fn damaged_blocks(&self) -> &[u64] {
        match &self.state {
            State::Running(tree) => tree.cache.damaged(),
            _ => &[],
        }
    }

    /// Whether so much is out that no more should be asked for until something completes.
    pub fn is_congested(&self) -> bool {
        // Commands that wait for space must not keep reads from being answered.
        self.order.out_count() > OUT_MAX && !self.is_short_of_space
    }

    /// Blocks of metadata in memory.
    pub fn cached_blocks(&self) -> usize {
        match &self.state {
            State::Running(tree) => tree.cache.count(),
            _ => 0,
        }
    }

    /// Whether no operation is under way and nothing is out.
    pub fn is_quiet(&self) -> bool {
        self.idle_tasks.len() == self.tasks.len()
            && self.ios.is_empty()
            && self.idle_pending.len() == self.pending.len()
    }

    /// Whether everything that was answered is durable.
    pub fn is_durable(&mut self) -> bool {
        !matches!(self.state, State::Running(_)) || (!self.has_changes() && self.order.is_clean())
    }
}
