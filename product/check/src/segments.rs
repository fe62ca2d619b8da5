//! What is known of each segment: what the table says, and up to where it holds anything.

use crate::checkpoint::Checkpoint;
use crate::finding::{Finding, Owner, SegmentFault};
use crate::layout::{Layout, Place};
use crate::metadata::read_metadata;
use crate::report::Report;
use crate::window::Window;
use coulter_format::checksum::Kind;
use coulter_format::segment_table::{self, SEGMENTS_PER_PAGE, SegmentEntry, SegmentState};
use coulter_format::superblock::Superblock;
use coulter_format::{BlockPointer, Pba, Reason};

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// What the table says; `None` if its page is damaged.
    pub(crate) entry: Option<SegmentEntry>,
    /// Records up to this offset are in the checkpoint. The segment's size unless the segment is
    /// free (0) or a head.
    pub(crate) checkpoint_end: u32,
    /// Records up to this offset count; more than `checkpoint_end` only by replay.
    pub(crate) end: u32,
    /// Records may lie in its holes: any block may be a header.
    pub(crate) patched: bool,
    /// Whether `end` is where a record ends, and not only an upper bound.
    pub(crate) end_is_exact: bool,
}

impl Segment {
    /// Whether anything may lie in it.
    pub(crate) fn in_use(&self) -> bool {
        self.end > 0
    }
}

/// All segments.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) layout: Layout,
    all: Vec<Segment>,
}

impl Segments {
    /// Reads the segment table, and compares it with the checkpoint's lists.
    pub(crate) fn read(
        window: &mut Window<'_>,
        superblock: &Superblock,
        checkpoint: &Checkpoint,
        report: &mut Report,
    ) -> Segments {
        let layout = Layout { geometry: superblock.geometry };
        let size = layout.segment_blocks();
        let unknown = Segment {
            entry: None,
            checkpoint_end: size,
            end: size,
            patched: false,
            end_is_exact: false,
        };
        let mut segments = Segments { layout, all: vec![unknown; layout.segment_count() as usize] };
        for (key, pointer) in (0u64..).zip(&checkpoint.table) {
            segments.read_page(window, key, *pointer, report);
        }
        segments.take_lists(checkpoint, report);
        segments.compare_references(checkpoint, report);
        segments.compare_patched(superblock, checkpoint, report);
        segments
    }

    fn read_page(
        &mut self,
        window: &mut Window<'_>,
        key: u64,
        pointer: BlockPointer,
        report: &mut Report,
    ) {
        let owner = Owner::new(Kind::SegmentTable, key);
        let Some(page) = read_metadata(window, &self.layout, owner, pointer, report) else {
            return report.complete = false;
        };
        report.counters.table_pages += 1;
        let first = (key as usize).saturating_mul(SEGMENTS_PER_PAGE);
        let slots = self.all.get_mut(first..).unwrap_or(&mut []);
        for (slot, entry) in slots.iter_mut().zip(segment_table::decode(page)) {
            match entry {
                Ok(entry) => slot.entry = Some(entry),
                Err(corrupt) => {
                    let (pba, reason) = (pointer.pba, corrupt.reason);
                    report.complete = false;
                    report.add(Finding::MetadataDamaged { owner, pba, reason });
                    return;
                }
            }
        }
    }

    /// Sets how far each segment is filled, and reports entries that cannot be.
    fn take_lists(&mut self, checkpoint: &Checkpoint, report: &mut Report) {
        let size = self.layout.segment_blocks();
        let heads: Vec<_> = checkpoint.heads.iter().flatten().copied().collect();
        for (segment, slot) in (0u32..).zip(&mut self.all) {
            let Some(entry) = slot.entry else { continue };
            let mut fault = |fault| report.add(Finding::SegmentContradicts { segment, fault });
            let head = heads.iter().find(|head| head.segment == segment);
            if entry.valid > size {
                fault(SegmentFault::TooManyBlocks);
            }
            match (entry.state, head) {
                (SegmentState::Free, Some(_)) => fault(SegmentFault::HeadOfFree),
                (SegmentState::Free, None) if entry.valid > 0 => {
                    fault(SegmentFault::FreeWithBlocks);
                }
                (SegmentState::Open, None) => fault(SegmentFault::OpenWithoutHead),
                (SegmentState::Patched, Some(_)) => fault(SegmentFault::HeadOfPatched),
                _ => {}
            }
            slot.checkpoint_end = match (entry.state, head) {
                (_, Some(head)) => head.offset,
                (SegmentState::Free, None) => 0,
                _ => size,
            };
            slot.end = slot.checkpoint_end;
            slot.end_is_exact = head.is_some();
            slot.patched = entry.state == SegmentState::Patched;
        }
        for segment in &checkpoint.reserved {
            let entry = self.segment(*segment).and_then(|slot| slot.entry);
            if entry.is_some_and(|entry| entry.state != SegmentState::Free) {
                let fault = SegmentFault::ReservedNotFree;
                report.add(Finding::SegmentContradicts { segment: *segment, fault });
            }
        }
    }

    /// A header that is referred to must lie where the checkpoint counts on what was written.
    fn compare_references(&self, checkpoint: &Checkpoint, report: &mut Report) {
        for reference in &checkpoint.references.all {
            let pba = reference.pba;
            let found = self.find(pba);
            if found.is_some_and(|(place, segment)| place.offset >= segment.checkpoint_end) {
                report.add(Finding::ReferenceDamaged { pba, reason: Reason::Field("pba") });
            }
        }
    }

    /// Segments of which the holes are reserved must say so, and the superblock that there are some.
    fn compare_patched(
        &self,
        superblock: &Superblock,
        checkpoint: &Checkpoint,
        report: &mut Report,
    ) {
        for segment in &checkpoint.holes {
            if self.segment(*segment).is_some_and(|slot| slot.entry.is_some() && !slot.patched) {
                let fault = SegmentFault::HolesNotPatched;
                report.add(Finding::SegmentContradicts { segment: *segment, fault });
            }
        }
        if self.all.iter().any(|slot| slot.patched) && !superblock.patched {
            let (pba, field) = (superblock.checkpoint.pba, "incompatible_features");
            report.add(Finding::CheckpointContradicts { pba, field, value: 0 });
        }
    }

    /// Replay found that a segment holds records up to this offset.
    pub(crate) fn extend(&mut self, segment: u32, end: u32) {
        if let Some(slot) = self.all.get_mut(segment as usize) {
            slot.end = slot.end.max(end);
            slot.end_is_exact = true;
        }
    }

    pub(crate) fn segment(&self, segment: u32) -> Option<&Segment> {
        self.all.get(segment as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0u32..).zip(&self.all)
    }

    /// A block's place and segment; `None` outside the log.
    pub(crate) fn find(&self, pba: Pba) -> Option<(Place, &Segment)> {
        let place = self.layout.place(pba)?;
        Some((place, self.segment(place.segment)?))
    }
}
