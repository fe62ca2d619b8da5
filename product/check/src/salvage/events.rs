//! What the records say of leaves, in order.

use super::scan::Log;
use crate::window::Window;
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::Entry;
use coulter_format::{BlockPointer, Pba};

const PER_LEAF: u64 = ENTRIES_PER_PAGE as u64;

/// What an event does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The address lies there.
    Written,
    /// The address lies there if it lay at the source.
    Moved { source: Pba },
    /// The addresses are unmapped.
    Discarded,
    /// The leaf's page lies there; with a source if it was moved.
    Page { moved: bool },
}

/// An entry of a record, or what it says of one leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    leaf: u32,
    /// The first address in the leaf, and how many; more than one only of those discarded.
    pub(super) index: u16,
    pub(super) count: u16,
    pub(super) sequence: u64,
    pub(super) pointer: BlockPointer,
    pub(super) effect: Effect,
}

impl Event {
    /// Whether it says where a block of data lies.
    pub(super) fn is_block(&self) -> bool {
        matches!(self.effect, Effect::Written | Effect::Moved { .. })
    }
}

/// All that was asked for.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// By leaf, and in order of the records.
    all: Vec<Event>,
}

impl Events {
    /// Reads the headers again, for the leaves that are wanted.
    pub(super) fn collect(
        window: &mut Window<'_>,
        log: &Log,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Events {
        let mut events = Events::default();
        for record in &log.records {
            for entry in log.entries(window, record.pba).iter().flatten() {
                events.take(record.sequence, entry, wanted);
            }
        }
        // Stable: what one record says of an address stays in its order.
        events.all.sort_by_key(|event| (event.leaf, event.sequence));
        events
    }

    fn take(&mut self, sequence: u64, entry: &Entry, wanted: &dyn Fn(u64) -> bool) {
        let pointer = BlockPointer { pba: entry.pba, checksum: entry.word.checksum };
        let effect = match entry.kind {
            Kind::Data if entry.relocated => Effect::Moved { source: entry.word.address },
            Kind::Data => Effect::Written,
            Kind::Discard => Effect::Discarded,
            Kind::Leaf => {
                let effect = Effect::Page { moved: entry.relocated };
                return self.push(entry.key, (0, 0), sequence, pointer, effect, wanted);
            }
            _ => return,
        };
        let pointer = if entry.kind == Kind::Discard { BlockPointer::NOWHERE } else { pointer };
        let (mut first, mut left) = (entry.key, u64::from(entry.count));
        while left > 0 {
            let index = first % PER_LEAF;
            let count = left.min(PER_LEAF - index);
            let place = (index as u16, count as u16);
            self.push(first / PER_LEAF, place, sequence, pointer, effect, wanted);
            left -= count;
            first = first.saturating_add(count);
        }
    }

    fn push(
        &mut self,
        leaf: u64,
        (index, count): (u16, u16),
        sequence: u64,
        pointer: BlockPointer,
        effect: Effect,
        wanted: &dyn Fn(u64) -> bool,
    ) {
        // A volume has fewer leaves than that; what says otherwise is of no volume.
        let Ok(short) = u32::try_from(leaf) else { return };
        if wanted(leaf) {
            self.all.push(Event { leaf: short, index, count, sequence, pointer, effect });
        }
    }

    /// The leaves that anything is said of.
    pub(super) fn leaves(&self) -> impl Iterator<Item = u64> + '_ {
        self.all
            .chunk_by(|one, other| one.leaf == other.leaf)
            .filter_map(|events| events.first().map(|event| u64::from(event.leaf)))
    }

    /// What is said of a leaf.
    pub(super) fn of(&self, leaf: u64) -> &[Event] {
        let first = self.all.partition_point(|event| u64::from(event.leaf) < leaf);
        let end = self.all.partition_point(|event| u64::from(event.leaf) <= leaf);
        self.all.get(first..end).unwrap_or(&[])
    }
}
