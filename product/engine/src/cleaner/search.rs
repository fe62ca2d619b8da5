//! Searching a segment for holes: see `holes` for what they are. Nothing is copied.

use super::{Cleaner, Job};
use crate::shared::Shared;
use crate::tuning::CleaningMode;
use crate::units::{SegmentIndex, Sequence};

/// Records that are applied before all segments are looked at again for one that may have holes.
const RECORDS_BETWEEN_SEARCHES: Sequence = 64;

impl Cleaner {
    /// Begins to look for holes in a segment.
    pub(super) fn begin_search(&mut self, shared: &mut Shared) -> bool {
        let Some(segment) = self.choose_to_search(shared) else { return false };
        assert!(!shared.segments.is_exhausted(segment), "what was just emptied has no holes");
        shared.segments.watch(segment);
        self.begin_segment(shared, segment, Job::Search);
        true
    }

    /// The segment to be searched for holes next, if they are wanted and there is one.
    pub(crate) fn choose_to_search(&mut self, shared: &mut Shared) -> Option<SegmentIndex> {
        let is_paused = self.mode == CleaningMode::Paused && !shared.pacing.is_scarce();
        if is_paused || shared.log.applied < self.search_again || !shared.wants_holes() {
            return None;
        }
        let best = shared.segment_with_holes();
        if best.is_none() {
            self.search_again = shared.log.applied + RECORDS_BETWEEN_SEARCHES;
        }
        best
    }

    pub(super) fn end_searched_chunk(&mut self, shared: &mut Shared) {
        let is_last = self.chunks.first().is_last();
        self.next_chunk(shared);
        if is_last {
            let segment = self.segment.expect("a segment was being searched");
            shared.segments.holes_known(segment);
            self.drop_victim(shared);
        }
    }
}
