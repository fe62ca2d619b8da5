//! Second copies of what the newest checkpoint lists: root pages, pages of the segment table, blocks of runs, and
//! headers that it refers to. One damaged block then costs none of them.
//!
//! A copy is a block of the metadata stream like the first, in another place, under a kind of its own. The cleaner
//! moves it like any other. The body names both places.
//!
//! # Invariants
//! - A copy is counted as listed for as long as what it is a copy of is listed.
//! - What was read from a copy because the first was damaged is written anew, twice, by the next checkpoint. Until
//!   that is durable the copy stays: its place is released by the same rules as any other.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use coulter_format::checksum::Kind;
use coulter_format::{Block, BlockPointer};

/// Blocks kept from an opening to be written anew; what else was damaged waits for the next opening.
const REPAIRS_MAX: usize = 256;

/// Where the second copies lie.
#[derive(Default)]
pub(crate) struct Copies {
    all: BTreeMap<(Kind, u64), BlockPointer>,
    /// Blocks of which one copy was damaged, by the kind and key of the first.
    repairs: Vec<(Kind, u64, Block)>,
}

impl Copies {
    /// Where the copy of this kind and key lies. The kind is that of a copy.
    pub(crate) fn pointer(&self, kind: Kind, key: u64) -> Option<BlockPointer> {
        self.all.get(&(kind, key)).copied()
    }

    /// The copy lies there from now on. Returns where it was.
    pub(crate) fn put(&mut self, kind: Kind, key: u64, at: BlockPointer) -> Option<BlockPointer> {
        assert!(kind.is_copy() && at.is_mapped(), "a copy is somewhere");
        self.all.insert((kind, key), at)
    }

    /// Forgets a copy. Returns where it was.
    pub(crate) fn remove(&mut self, kind: Kind, key: u64) -> Option<BlockPointer> {
        assert!(kind.is_copy(), "only copies are listed here");
        self.all.remove(&(kind, key))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockPointer> + '_ {
        self.all.values().copied()
    }

    /// Keys of all copies of a kind.
    pub(crate) fn keys_of(&self, kind: Kind) -> impl Iterator<Item = u64> + '_ {
        assert!(kind.is_copy(), "only copies are listed here");
        self.all.range((kind, 0)..=(kind, u64::MAX)).map(|((_, key), _)| *key)
    }

    /// A block of which one copy is damaged is to be written anew.
    pub(crate) fn repair(&mut self, kind: Kind, key: u64, content: &Block) {
        assert!(kind.of_copy().is_some(), "of what is written anew there are copies");
        if self.repairs.len() < REPAIRS_MAX {
            self.repairs.push((kind, key, *content));
        }
    }

    /// What is to be written anew.
    pub(crate) fn take_repairs(&mut self) -> Vec<(Kind, u64, Block)> {
        core::mem::take(&mut self.repairs)
    }
}
