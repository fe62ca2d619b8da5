//! Second copies of what the newest checkpoint lists: root pages, pages of the segment table and blocks of runs; and
//! the parity of headers that it refers to. One damaged block then costs none of them.
//!
//! A copy is a block of the metadata stream like the first, in another place, under a kind of its own. The cleaner
//! moves it like any other. The body names both places.
//!
//! # Invariants
//! - A copy is counted as listed for as long as what it is a copy of is listed.
//! - What was read from a copy because the first was damaged is written anew, twice, by the next checkpoint. Until
//!   that is durable the copy stays: its place is released by the same rules as any other.

use crate::memory::{self, NoMemory};
use alloc::vec::Vec;
use coulter_format::checksum::Kind;
use coulter_format::{Block, BlockPointer};

/// Blocks kept from an opening to be written anew; what else was damaged waits for the next opening.
const REPAIRS_MAX: usize = 256;

/// Where the second copies lie.
#[derive(Default)]
pub(crate) struct Copies {
    /// Ascending by kind and key.
    all: Vec<((Kind, u64), BlockPointer)>,
    /// Blocks of which one copy was damaged, by the kind and key of the first.
    repairs: Vec<(Kind, u64, Block)>,
}

/// See [`Copies::in_order`].
pub(crate) struct InOrder<'a> {
    kind: Kind,
    /// From the latest key on.
    rest: &'a [((Kind, u64), BlockPointer)],
}

impl InOrder<'_> {
    /// Where the copy of this key lies, which is no lower than the one before.
    pub(crate) fn pointer(&mut self, key: u64) -> Option<BlockPointer> {
        let wanted = (self.kind, key);
        while let Some((first, pointer)) = self.rest.first() {
            if *first >= wanted {
                return (*first == wanted).then_some(*pointer);
            }
            self.rest = &self.rest[1..];
        }
        None
    }
}

impl Copies {
    /// Where the copy of this kind and key lies. The kind is that of a copy.
    pub(crate) fn pointer(&self, kind: Kind, key: u64) -> Option<BlockPointer> {
        self.place_of(kind, key).ok().map(|index| self.all[index].1)
    }

    /// The copy lies there from now on. Returns where it was.
    pub(crate) fn put(&mut self, kind: Kind, key: u64, at: BlockPointer) -> Option<BlockPointer> {
        assert!(kind.is_copy() && at.is_mapped(), "a copy is somewhere");
        match self.place_of(kind, key) {
            Ok(index) => Some(core::mem::replace(&mut self.all[index].1, at)),
            Err(index) => {
                self.all.insert(index, ((kind, key), at));
                None
            }
        }
    }

    /// Makes room for `most` pointers, or for as many as fit into one piece of memory.
    pub(crate) fn allow(&mut self, most: usize) -> Result<(), NoMemory> {
        let piece = memory::PIECE_SIZE / size_of::<((Kind, u64), BlockPointer)>();
        memory::reserve_in_all(&mut self.all, most.min(piece))?;
        assert!(self.all.capacity() >= most.min(piece), "there is room");
        Ok(())
    }

    /// [`Copies::put`] while a store is opened, when memory may be refused.
    pub(crate) fn try_put(
        &mut self,
        kind: Kind,
        key: u64,
        at: BlockPointer,
    ) -> Result<Option<BlockPointer>, NoMemory> {
        memory::reserve(&mut self.all)?;
        Ok(self.put(kind, key, at))
    }

    /// Where it is in the list, or belongs.
    fn place_of(&self, kind: Kind, key: u64) -> Result<usize, usize> {
        self.all.binary_search_by_key(&(kind, key), |(copied, _)| *copied)
    }

    /// Forgets the copies of a kind that have one of these keys, which are in order; `removed` is told where
    /// each was. The list is gone through once however many go: one by one, each would move all behind it.
    pub(crate) fn remove_all(
        &mut self,
        kind: Kind,
        keys: &[u64],
        mut removed: impl FnMut(BlockPointer),
    ) {
        assert!(kind.is_copy(), "only copies are listed here");
        assert!(keys.is_sorted(), "keys are in order");
        let mut keys = keys.iter().peekable();
        self.all.retain(|((other, key), pointer)| {
            if *other != kind {
                return true;
            }
            while keys.next_if(|wanted| *wanted < key).is_some() {}
            let goes = keys.peek().is_some_and(|wanted| *wanted == key);
            if goes {
                removed(*pointer);
            }
            !goes
        });
    }

    /// Looks up keys of a kind that come in order: many cost one walk, and no search each.
    pub(crate) fn in_order(&self, kind: Kind) -> InOrder<'_> {
        assert!(kind.is_copy(), "only copies are listed here");
        let first = self.all.partition_point(|((other, _), _)| *other < kind);
        InOrder { kind, rest: &self.all[first..] }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockPointer> + '_ {
        self.all.iter().map(|(_, pointer)| *pointer)
    }

    /// A block of which one copy is damaged is to be written anew.
    pub(crate) fn repair(&mut self, kind: Kind, key: u64, content: &Block) {
        assert!(kind.of_copy().is_some(), "of what is written anew there are copies");
        // Without memory for it, it waits too.
        if self.repairs.len() < REPAIRS_MAX && memory::reserve(&mut self.repairs).is_ok() {
            self.repairs.push((kind, key, *content));
        }
    }

    /// What is to be written anew.
    pub(crate) fn take_repairs(&mut self) -> Vec<(Kind, u64, Block)> {
        core::mem::take(&mut self.repairs)
    }
}
