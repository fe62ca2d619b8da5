//! References into segments: what is counted in each.

use super::{Segment, Segments, State};
use crate::units::{SegmentIndex, Sequence};
use coulter_format::Pba;

impl Segments {
    /// One more reference to a block.
    #[inline]
    pub(crate) fn retain(&mut self, pba: Pba) {
        assert_ne!(pba, Pba::LOST, "what is lost is nowhere");
        if self.uncounted {
            return;
        }
        let segment = self.of(pba);
        let size = self.geometry.segment_blocks;
        let entry = self.segment_mut(segment);
        if entry.valid == size {
            self.miscounted = true;
            return;
        }
        entry.valid += 1;
        debug_assert!(!matches!(entry.state, State::Free | State::Queued(_) | State::Trimming));
        let valid = entry.valid;
        self.valid_count += 1;
        if self.classes.tells_apart(valid - 1, valid) {
            self.classes.update(segment.index(), valid);
        }
    }

    /// The same for one that the checkpoint lists.
    pub(crate) fn retain_listed(&mut self, pba: Pba) {
        if self.uncounted {
            return;
        }
        self.retain(pba);
        let segment = self.of(pba);
        self.segment_mut(segment).listed += 1;
        self.listed_blocks += 1;
    }

    /// One that the checkpoint lists no more.
    pub(crate) fn release_listed(&mut self, pba: Pba, now: Sequence) {
        let segment = self.of(pba);
        let entry = self.segment_mut(segment);
        assert!(entry.listed > 0, "what was listed is listed no more, once");
        entry.listed -= 1;
        self.listed_blocks -= 1;
        self.release(pba, now);
    }

    /// One reference less. A closed segment without any becomes freed at `now`. What is lost is
    /// counted, but nobody knows where: see [`Segments::forgive`].
    #[inline]
    pub(crate) fn release(&mut self, pba: Pba, now: Sequence) {
        if pba == Pba::LOST || self.uncounted {
            return;
        }
        let segment = self.of(pba);
        let entry = self.segment_mut(segment);
        if entry.valid == 0 {
            self.miscounted = true;
            return;
        }
        entry.valid -= 1;
        let (valid, watched) = (entry.valid, entry.watched);
        self.valid_count -= 1;
        if self.classes.tells_apart(valid, valid + 1) {
            self.classes.update(segment.index(), valid);
        }
        if watched {
            self.note_death(segment, pba);
        }
        if valid == 0 {
            self.settle(segment, now);
        }
    }

    /// Whether a count cannot be right: more references than blocks, or one released that was never
    /// counted. The segment table came from the device, so that is damage and not a panic; but no
    /// segment may be freed by such counts.
    pub(crate) fn miscounted(&self) -> bool {
        self.miscounted
    }

    /// References in all.
    pub(crate) fn valid_count(&self) -> u64 {
        self.valid_count
    }

    /// Of them, those of what the checkpoint lists.
    pub(crate) fn listed_blocks(&self) -> u64 {
        self.listed_blocks
    }

    /// The cleaner went through a segment, and knew of every block in it whether it is current.
    pub(crate) fn went_through(&mut self, segment: SegmentIndex) {
        assert!(segment.index() < self.table.len(), "it is one of the store");
        self.gone_through.insert(segment.index());
        self.gone_through_count += 1;
    }

    /// Segments gone through since the last cut: most become free by themselves, the others at the
    /// next cut.
    pub(crate) fn gone_through_count(&self) -> u32 {
        self.gone_through_count
    }

    /// Frees what can only have been counted by map pages that were damaged: in a segment that the
    /// cleaner went through wholly, nothing is current but what the checkpoint lists. To be called
    /// while no relocation is on its way. Returns how many references were given up.
    pub(crate) fn forgive(&mut self, now: Sequence) -> u64 {
        let mut forgiven = 0;
        self.gone_through_count = 0;
        while let Some(index) = self.gone_through.next(0) {
            self.gone_through.remove(index);
            let segment = SegmentIndex(index as u32);
            let Segment { state, pending, valid, listed, .. } = self.table[index];
            let still = state == State::Closed && pending == 0;
            if still && valid > listed {
                forgiven += u64::from(valid - listed);
                self.segment_mut(segment).valid = listed;
                self.classes.update(index, listed);
                self.settle(segment, now);
            }
        }
        assert!(forgiven <= self.valid_count, "what is forgiven was counted");
        self.valid_count -= forgiven;
        forgiven
    }
}
