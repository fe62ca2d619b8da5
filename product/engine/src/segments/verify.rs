//! The segment table, counted anew.

use super::{Segment, Segments, State, Trim};
use crate::units::SegmentIndex;
use alloc::vec::Vec;
use coulter_format::segment_table::SEGMENTS_PER_PAGE;

impl Segment {
    /// Whether the device is forgetting it.
    pub(crate) fn is_trimmed_now(&self) -> bool {
        matches!(self.state, State::Trimming | State::Queued(Trim::UnderWay))
    }

    fn assert_invariants(&self, size: u32) {
        assert!(self.valid <= size, "no more references than blocks");
        let is_empty = matches!(
            self.state,
            State::Free | State::Freed(_) | State::Trimming | State::Queued(_)
        );
        if is_empty {
            assert_eq!(self.valid, 0, "nothing is counted in an empty segment");
            assert_eq!(self.pending, 0, "no record is on its way to an empty segment");
        }
        if self.state == State::Patching {
            assert!(self.patched, "records lie in holes, or may");
        }
        assert!(self.listed <= self.valid, "what is listed is counted");
    }
}

impl Segments {
    /// Reads of a segment that are under way.
    pub(crate) fn reader_count(&self, segment: SegmentIndex) -> u32 {
        self.readers[segment.index()]
    }

    /// # Panics
    /// If the counters or the queue contradict the table.
    pub(crate) fn assert_invariants(&self) {
        let size = self.geometry.segment_blocks;
        let (mut free, mut freed, mut queued, mut valid, mut patched) = (0, 0, 0, 0, 0);
        for (index, segment) in self.table.iter().enumerate() {
            segment.assert_invariants(size);
            let is_changed = self.changed_pages.contains(index / SEGMENTS_PER_PAGE);
            assert!(is_changed || !segment.noted, "what is noted as changed is written");
            free += usize::from(segment.state == State::Free);
            freed += usize::from(matches!(segment.state, State::Freed(_)));
            queued += usize::from(matches!(segment.state, State::Queued(_)));
            valid += u64::from(segment.valid);
            patched += u32::from(segment.patched);
            let is_closed = (segment.state == State::Closed).then_some(true);
            assert_eq!(
                self.classes.holds(index, segment.valid),
                is_closed,
                "what is closed is listed"
            );
            let is_due = segment.state == State::Queued(Trim::Due);
            assert_eq!(
                self.to_be_trimmed.contains(index),
                is_due,
                "what is to be trimmed is listed"
            );
            let is_freed = matches!(segment.state, State::Freed(_));
            assert_eq!(self.freed.contains(index), is_freed, "what was freed is listed");
        }
        assert_eq!(self.free.count(), free, "free segments are listed");
        assert_eq!(self.freed.count(), freed, "freed segments are listed");
        assert_eq!(self.valid_count, valid, "references are counted");
        assert_eq!(self.patched_count, patched, "segments with records in holes are counted");
        let gone_through = self.gone_through.count() as u32;
        assert!(self.gone_through_count >= gone_through, "and those that were gone through");
        assert_eq!(self.queue.len(), queued, "what is queued is in the queue");
        assert!(self.usable <= queued, "the checkpoint lists a part of the queue");
        let mut listed: Vec<_> = self.queue.iter().map(|segment| segment.index()).collect();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), queued, "each once");
        for index in &listed {
            assert!(matches!(self.table[*index].state, State::Queued(_)), "and nothing else");
        }
        for segment in self.queue.iter().take(self.usable) {
            let is_told = self.table[segment.index()].state != State::Queued(Trim::Due);
            assert!(is_told, "a segment that may be opened was trimmed, or is being trimmed");
        }
    }
}
