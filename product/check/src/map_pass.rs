//! Through the map once: every pointer is checked and counted.

use crate::checkpoint::Checkpoint;
use crate::finding::{Finding, Owner};
use crate::leaves::{self, Leaf, Visitor};
use crate::progress::{Options, Phase};
use crate::references::{References, Source};
use crate::replay::Replay;
use crate::report::Report;
use crate::segments::Segments;
use crate::window::Window;
use coulter_format::BlockPointer;
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::superblock::Geometry;
use std::ops::ControlFlow;

/// One pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    pub(crate) owner: Owner,
    pub(crate) pointer: BlockPointer,
    pub(crate) source: Source,
    /// Whether it is data that is mapped now.
    pub(crate) mapped: bool,
}

/// Hands every pointer that a checkpoint lists, besides the roots, to `take`.
pub(crate) fn listed(checkpoint: &Checkpoint, mut take: impl FnMut(Reference)) {
    let mut list = |kind, key, pointer| {
        let owner = Owner::new(kind, key);
        take(Reference { owner, pointer, source: Source::Listed, mapped: false });
    };
    for (key, pointer) in (0u64..).zip(&checkpoint.body) {
        list(Kind::Checkpoint, key, *pointer);
    }
    for (key, pointer) in (0u64..).zip(&checkpoint.table) {
        list(Kind::SegmentTable, key, *pointer);
    }
    for (key, pointer) in (0u64..).zip(&checkpoint.root_lists) {
        list(Kind::RootList, key, *pointer);
    }
    for run in &checkpoint.runs {
        for (index, pointer) in run.blocks.iter().enumerate() {
            list(Kind::Run, run.key(index), *pointer);
        }
    }
    for copied in &checkpoint.copies {
        list(copied.owner.kind, copied.owner.key, copied.pointer);
    }
}

/// Hands every pointer of a leaf to `take`, each block once.
pub(crate) fn leaf_references(leaf: &Leaf, mut take: impl FnMut(Reference)) {
    let values = leaf.base.iter().zip(&leaf.checkpoint).zip(&leaf.now).zip(&leaf.unreleased);
    for (index, (((base, checkpoint), now), unreleased)) in values.enumerate() {
        let owner = Owner::new(Kind::Data, leaf.lba(index).0);
        let same = checkpoint == now;
        if is_somewhere(checkpoint) {
            let source = Source::Checkpoint;
            take(Reference { owner, pointer: *checkpoint, source, mapped: same });
        }
        if !same && is_somewhere(now) {
            let source = Source::Replayed;
            take(Reference { owner, pointer: *now, source, mapped: true });
        }
        if *unreleased && is_somewhere(base) {
            let source = Source::Checkpoint;
            take(Reference { owner, pointer: *base, source, mapped: false });
        }
    }
}

/// Whether a pointer leads to a block: it is neither unmapped nor lost.
fn is_somewhere(pointer: &BlockPointer) -> bool {
    pointer.is_mapped() && !pointer.is_lost()
}

/// The pass.
pub(crate) struct MapPass<'a, 'o> {
    pub(crate) segments: &'a Segments,
    pub(crate) references: References,
    pub(crate) options: &'a mut Options<'o>,
    volume_size: u64,
}

impl<'a, 'o> MapPass<'a, 'o> {
    /// Goes through the map; returns what points where.
    pub(crate) fn run(
        window: &mut Window<'_>,
        segments: &'a Segments,
        checkpoint: &Checkpoint,
        replay: &Replay,
        options: &'a mut Options<'o>,
        report: &mut Report,
    ) -> References {
        let volume_size = segments.layout.geometry.volume_size;
        let references = References::new(segments);
        let mut pass = MapPass { segments, references, options, volume_size };
        listed(checkpoint, |reference| pass.add(reference, report));
        let layout = &segments.layout;
        leaves::walk(window, layout, checkpoint, replay, 0..u64::MAX, &mut pass, report);
        pass.references
    }

    fn add(&mut self, reference: Reference, report: &mut Report) {
        let Reference { owner, pointer, source, mapped } = reference;
        self.references.add(self.segments, owner, pointer, source, mapped, report);
    }

    /// Addresses of which a damaged map page took the place away; one finding a leaf.
    fn check_lost(&self, leaf: &Leaf, report: &mut Report) {
        let mut lost = leaf.now.iter().enumerate().filter(|(_, pointer)| pointer.is_lost());
        if let Some((first, _)) = lost.next() {
            let blocks = 1 + lost.count() as u64;
            let lba = leaf.lba(first);
            report.add(Finding::BlocksLost { lba, blocks });
            let is_told = report.store.as_ref().is_none_or(|store| store.may_have_lost);
            if !is_told {
                report.add(Finding::LossUntold { lba });
            }
        }
    }

    /// Addresses behind the end of the volume; one finding a leaf.
    fn check_volume(&self, leaf: &Leaf, report: &mut Report) {
        if leaf.lba(leaf.now.len()).0 <= self.volume_size {
            return;
        }
        let outside =
            leaf.now.iter().enumerate().find(|(index, pointer)| {
                pointer.is_mapped() && leaf.lba(*index).0 >= self.volume_size
            });
        if let Some((index, pointer)) = outside {
            report.add(Finding::OutsideVolume { lba: leaf.lba(index), pba: pointer.pba });
        }
    }
}

impl Visitor for MapPass<'_, '_> {
    fn root(&mut self, key: u64, pointer: BlockPointer, report: &mut Report) {
        let owner = Owner::new(Kind::Root, key);
        self.add(Reference { owner, pointer, source: Source::Listed, mapped: false }, report);
    }

    fn leaf_page(&mut self, key: u64, pointer: BlockPointer, report: &mut Report) {
        let owner = Owner::new(Kind::Leaf, key);
        self.add(Reference { owner, pointer, source: Source::Checkpoint, mapped: false }, report);
    }

    fn leaf(
        &mut self,
        leaf: &Leaf,
        _window: &mut Window<'_>,
        report: &mut Report,
    ) -> ControlFlow<()> {
        leaf_references(leaf, |reference| self.add(reference, report));
        let mapped = leaf.now.iter().filter(|pointer| pointer.is_mapped()).count();
        report.counters.mapped_blocks += mapped as u64;
        let unreleased = leaf.unreleased.iter().zip(&leaf.base);
        let unreleased = unreleased.filter(|(unreleased, base)| **unreleased && base.is_mapped());
        report.counters.unreleased_blocks += unreleased.count() as u64;
        self.check_volume(leaf, report);
        self.check_lost(leaf, report);
        ControlFlow::Continue(())
    }

    fn progress(&mut self, done: u64, total: u64) {
        self.options.report(Phase::Map, done, total);
    }
}

/// Compares what a sparse store may take with what it takes, by the table and by the map: the table may lie.
pub(crate) fn compare_with_capacity(
    geometry: &Geometry,
    roots: u64,
    segments: &Segments,
    references: &References,
    report: &mut Report,
) {
    if geometry.root_limit == 0 {
        return;
    }
    let blocks = segments.iter().map(|(index, slot)| {
        let counted = references.segment(index).map_or(0, |found| found.counted);
        u64::from(counted.max(slot.entry.map_or(0, |entry| entry.valid)))
    });
    // An overwrite is always let in, and what it took the place of is counted for a while.
    let blocks = blocks.sum::<u64>().saturating_sub(report.counters.unreleased_blocks);
    let per_root = if geometry.root_lists { 2 } else { 1 };
    let charged = blocks + roots.saturating_mul(per_root);
    let per_leaf = ENTRIES_PER_PAGE as u64;
    let pages =
        geometry.capacity.div_ceil(per_leaf) + geometry.capacity.div_ceil(per_leaf * per_leaf);
    let limit = geometry.capacity + pages;
    if charged > limit {
        report.add(Finding::CapacityExceeded { charged, limit });
    }
}

/// Compares what was counted with the segment table.
pub(crate) fn compare_counts(segments: &Segments, references: &References, report: &mut Report) {
    for (segment, slot) in segments.iter() {
        let Some(entry) = slot.entry else { continue };
        let Some(found) = references.segment(segment) else { continue };
        let (counted, recorded) = (found.counted, entry.valid);
        if counted > recorded {
            report.add(Finding::ValidTooLow { segment, counted, recorded });
        } else if counted < recorded && report.complete {
            // What could not be followed was not counted, and is no fault of the table.
            report.add(Finding::ValidTooHigh { segment, counted, recorded });
        }
    }
}
