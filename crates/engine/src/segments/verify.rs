//! The segment table, counted anew.

use super::{Segment, Segments, State};
use alloc::vec::Vec;

impl Segment {
    /// Whether the device is forgetting it.
    pub(crate) fn is_trimmed_now(&self) -> bool {
        self.state == State::Trimming || self.trimming
    }

    fn assert_invariants(&self, size: u32) {
        assert!(self.valid <= size, "no more references than blocks");
        let is_empty =
            matches!(self.state, State::Free | State::Freed(_) | State::Trimming | State::Queued);
        if is_empty {
            assert_eq!(self.valid, 0, "nothing is counted in an empty segment");
            assert_eq!(self.pending, 0, "no record is on its way to an empty segment");
        }
        if self.state == State::Patching {
            assert!(self.patched, "records lie in holes, or may");
        }
        if self.to_be_trimmed || self.trimming {
            assert_eq!(self.state, State::Queued, "what is trimmed aside waits in the queue");
        }
    }
}

impl Segments {
    /// # Panics
    /// If the counters or the queue contradict the table.
    pub(crate) fn assert_invariants(&self) {
        let size = self.geometry.segment_size;
        let (mut free, mut freed, mut queued, mut gone_through) = (0, 0, 0, 0);
        for segment in &self.table {
            segment.assert_invariants(size);
            free += u32::from(segment.state == State::Free);
            freed += u32::from(matches!(segment.state, State::Freed(_)));
            queued += usize::from(segment.state == State::Queued);
            gone_through += u32::from(segment.gone_through);
        }
        assert_eq!(self.free_count, free, "free segments are counted");
        assert_eq!(self.freed_count, freed, "freed segments are counted");
        assert!(self.gone_through_count >= gone_through, "and those that were gone through");
        assert_eq!(self.queue.len(), queued, "what is queued is in the queue");
        assert!(self.usable <= queued, "the checkpoint lists a part of the queue");
        let mut listed: Vec<_> = self.queue.iter().map(|segment| segment.index()).collect();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), queued, "each once");
        for index in &listed {
            assert_eq!(self.table[*index].state, State::Queued, "and nothing else");
        }
        for segment in self.queue.iter().take(self.usable) {
            let is_told = !self.table[segment.index()].to_be_trimmed;
            assert!(is_told, "a segment that may be opened was trimmed, or is being trimmed");
        }
    }
}
