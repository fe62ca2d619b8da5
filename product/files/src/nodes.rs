//! Which nodes the kernel knows, and what becomes of those without a name.
//!
//! # Invariants
//! - A node that the kernel knows is not taken away as a whole, whatever becomes of its names.
//! - A node that is *dying* has no name, and goes when the kernel has forgotten it.
//! - A node that is *reaped* is taken away by one task for each time it was found to be too much.

use crate::cache::BlockMap;
use crate::canary::{Canary, sings};
use coulter_format::files::ROOT_INODE;

/// How often the kernel knows a node.
#[derive(Default)]
struct Known {
    lookups: u64,
    /// It has no name any more.
    is_dying: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Nodes {
    known: BlockMap<Known>,
    /// Nodes that a task takes away, or their blocks behind their end.
    reaped: Vec<u64>,
}

impl Nodes {
    /// The nodes of a file system that was just opened.
    pub(crate) fn open(&mut self) {
        assert!(self.known.is_empty(), "a file system is opened once");
        self.known.insert(ROOT_INODE, Known { lookups: 1, is_dying: false });
    }

    /// One more lookup of a node was answered.
    pub(crate) fn know(&mut self, inode: u64) {
        self.known.entry(inode).or_default().lookups += 1;
    }

    /// The kernel forgets lookups of a node. True if it has to go now.
    pub(crate) fn forget(&mut self, inode: u64, lookups: u64) -> bool {
        let Some(known) = self.known.get_mut(&inode) else { return false };
        assert!(known.lookups > 0, "a known node was looked up");
        known.lookups = known.lookups.saturating_sub(lookups);
        known.lookups == 0 && self.known.remove(&inode).is_some_and(|known| known.is_dying)
    }

    /// A node has no name any more: it goes when the kernel does not know it. True if it has to go
    /// now.
    pub(crate) fn let_die(&mut self, inode: u64) -> bool {
        match self.known.get_mut(&inode) {
            Some(known) if !sings(Canary::NodeByPath) => {
                known.is_dying = true;
                false
            }
            _ => true,
        }
    }

    /// A node without a name has got one.
    pub(crate) fn let_live(&mut self, inode: u64) {
        if let Some(known) = self.known.get_mut(&inode) {
            known.is_dying = false;
        }
    }

    /// A task begins to take a node away.
    pub(crate) fn begin_reaping(&mut self, inode: u64) {
        self.reaped.push(inode);
    }

    /// The task has ended.
    pub(crate) fn end_reaping(&mut self, inode: u64) {
        let place = self.reaped.iter().position(|other| *other == inode);
        self.reaped.swap_remove(place.expect("what ends has begun"));
    }

    /// # Panics
    /// If the tasks that reap are not those that were begun, or a known node was looked up never.
    pub(crate) fn assert_invariants(&self, reaping: impl Iterator<Item = u64>) {
        let (mut noted, mut found) = (self.reaped.clone(), reaping.collect::<Vec<u64>>());
        noted.sort_unstable();
        found.sort_unstable();
        assert_eq!(noted, found, "each node that is reaped has its task");
        for (inode, known) in &self.known {
            assert!(known.lookups > 0, "node {inode} is known, so it was looked up");
            assert!(!known.is_dying || *inode != ROOT_INODE, "the root has its name");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_name_goes_when_its_last_lookup_is_forgotten() {
        let mut nodes = Nodes::default();
        nodes.open();
        assert!(nodes.let_die(9), "it is not known");
        nodes.know(9);
        nodes.know(9);
        assert!(!nodes.let_die(9), "it is known");
        assert!(!nodes.forget(9, 1));
        assert!(nodes.forget(9, 1), "now it goes");
        assert!(!nodes.forget(9, 1), "once");
    }

    #[test]
    fn a_node_that_got_a_name_again_stays() {
        let mut nodes = Nodes::default();
        nodes.know(9);
        nodes.let_die(9);
        nodes.let_live(9);
        assert!(!nodes.forget(9, 5));
        nodes.begin_reaping(7);
        nodes.assert_invariants([7].into_iter());
        nodes.end_reaping(7);
        nodes.assert_invariants([].into_iter());
    }
}
