//! Changes of the map by the records after the checkpoint, sorted by leaf.

use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::Entry;
use coulter_format::{BlockPointer, Pba};

const PER_LEAF: u64 = ENTRIES_PER_PAGE as u64;

/// One change, within one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) sequence: u64,
    pub(crate) leaf: u64,
    /// First entry of the leaf.
    pub(crate) index: u16,
    /// Entries; more than one only if they are unmapped.
    pub(crate) count: u16,
    pub(crate) pointer: BlockPointer,
    /// A relocation: takes effect only while the entry points here.
    pub(crate) source: Option<Pba>,
}

/// Collects updates in the order of the records.
#[derive(Debug, Default)]
pub(crate) struct UpdatesBuilder {
    updates: Vec<Update>,
}

impl UpdatesBuilder {
    /// Changes so far.
    pub(crate) fn count(&self) -> usize {
        self.updates.len()
    }

    /// Takes an entry of a record. Metadata changes nothing: the checkpoint's pages are intact.
    pub(crate) fn add(&mut self, sequence: u64, entry: &Entry) {
        let pointer = match entry.kind {
            Kind::Data => BlockPointer { pba: entry.pba, checksum: entry.word.checksum },
            Kind::Discard => BlockPointer::NOWHERE,
            _ => return,
        };
        let source = entry.relocated.then_some(entry.word.address);
        let mut first = entry.key;
        let mut left = u64::from(entry.count);
        while left > 0 {
            let (leaf, index) = (first / PER_LEAF, first % PER_LEAF);
            let count = left.min(PER_LEAF - index);
            let (index, short) = (index as u16, count as u16);
            self.updates.push(Update { sequence, leaf, index, count: short, pointer, source });
            left -= count;
            first = first.saturating_add(count);
        }
    }

    pub(crate) fn finish(mut self) -> Updates {
        // Stable: within a leaf the order of the records stays.
        self.updates.sort_by_key(|update| update.leaf);
        Updates { updates: self.updates }
    }
}

/// All changes.
#[derive(Debug)]
pub(crate) struct Updates {
    updates: Vec<Update>,
}

impl Updates {
    pub(crate) fn count(&self) -> usize {
        self.updates.len()
    }

    /// Goes through them leaf by leaf.
    pub(crate) fn cursor(&self) -> UpdateCursor<'_> {
        UpdateCursor { rest: &self.updates }
    }
}

/// A place between two leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdateCursor<'a> {
    rest: &'a [Update],
}

impl<'a> UpdateCursor<'a> {
    /// The next leaf that has updates.
    pub(crate) fn leaf(&self) -> Option<u64> {
        self.rest.first().map(|update| update.leaf)
    }

    /// The updates of a leaf, in order; those of leaves before it are skipped.
    pub(crate) fn take(&mut self, leaf: u64) -> &'a [Update] {
        let start = self.rest.partition_point(|update| update.leaf < leaf);
        let end = self.rest.partition_point(|update| update.leaf <= leaf);
        let taken = self.rest.get(start..end).unwrap_or(&[]);
        self.rest = self.rest.get(end..).unwrap_or(&[]);
        taken
    }
}
