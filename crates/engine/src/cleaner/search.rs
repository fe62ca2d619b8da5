//! Searching a segment for holes: see `holes` for what they are. Nothing is copied.

use super::{Cleaner, Job};
use crate::reclaim::Reclaim;
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

    /// The segment to be searched for holes next, if they are wanted and there is one. For hole filling
    /// the fullest that is worth it, and none that is rather to be cleaned; else the one with the most
    /// holes.
    pub(crate) fn choose_to_search(&mut self, shared: &mut Shared) -> Option<SegmentIndex> {
        let again = self.search_again;
        let paused = self.mode == CleaningMode::Paused && !shared.pacing.is_scarce();
        if shared.config.reclaim == Reclaim::CopyOut
            || paused
            || shared.log.applied < again
            || !shared.segments.wants_holes(shared.holes_max())
        {
            return None;
        }
        let fullest = shared.config.reclaim == Reclaim::HoleFill;
        let size = shared.superblock.geometry.segment_blocks;
        let candidates = shared.segments.cleanable().filter(|(index, segment)| {
            shared.segments.may_have_holes(*index) && (!fullest || segment.valid >= size / 2)
        });
        let best = candidates.min_by_key(|(index, segment)| match fullest {
            true => (u32::MAX - segment.valid, *index),
            false => (segment.valid, *index),
        });
        if best.is_none() {
            self.search_again = shared.log.applied + RECORDS_BETWEEN_SEARCHES;
        }
        best.map(|(segment, _)| segment)
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
