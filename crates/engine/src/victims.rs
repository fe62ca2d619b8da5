//! Which segment the cleaner goes through next, and what it means that there is none.
//!
//! Candidates are filtered here and scored by the policy (see `policy`); nothing else knows the
//! choice. All segments are looked at, and not again before something was applied or opened.
//!
//! # Invariants
//! - What is valid in a victim fits, headers included, into what the cleaner has when it begins, or into
//!   that and the one segment that it borrows.
//! - The choice depends on nothing but the state of the engine: it is the same on every run.

use crate::cleaner::Stage;
use crate::placement::SPARE_SEGMENTS_MIN;
use crate::policy::{self, Candidate, VictimPolicy};
use crate::reclaim::Reclaim;
use crate::restraint::Reason;
use crate::segments::State;
use crate::tuning::CleaningMode;
use crate::units::{Origin, SegmentIndex, Sequence, Stream};
use crate::{ERRNO_DAMAGED, Engine};

/// Records that are applied before all segments are looked at again for one that may have holes.
const RECORDS_BETWEEN_SEARCHES: Sequence = 64;

impl Engine {
    /// The segment to be cleaned next, if one is worth it and its blocks fit into what the cleaner has.
    pub(crate) fn choose_victim(&mut self, reason: Reason) -> Option<SegmentIndex> {
        // All segments are looked at: not again before something has been applied or opened.
        if self.search_is_fruitless(reason) {
            return None;
        }
        let size = self.superblock.geometry.segment_size;
        let at_floor = reason == Reason::Floor;
        let policy = if at_floor { VictimPolicy::Greedy } else { self.config.victims };
        let least_gain = size / reason.least_gain();
        let room = self.room_for_relocations();
        // With few segments to spare, one that waits is too much of them.
        let can_wait = !at_floor && self.pacing.marks().spare >= SPARE_SEGMENTS_MIN;
        let mut best = self.best_within(room, least_gain, policy, can_wait);
        let borrows = best.is_none() && self.may_borrow();
        if borrows {
            best = self.best_within(room + u64::from(size), least_gain, policy, can_wait);
        }
        // Those whose holes wait to be filled are not to be had. Better they than none, and at once: else they
        // would be searched again.
        if best.is_none() && self.pacing.is_scarce() && !self.any_is_worth_cleaning(least_gain) {
            self.segments.give_up_holes(self.log.now());
            self.log.close_patches(&mut self.segments, &[]);
            best = self.best_within(room, least_gain, policy, can_wait);
        }
        self.cleaner.borrows = borrows;
        if reason != Reason::Idle {
            let found = best.is_some() || self.room_is_to_come(least_gain);
            self.pacing.found_victim(found);
        }
        if best.is_none() {
            let usable = self.segments.usable_count();
            self.cleaner.fruitless = Some((self.log.applied, usable, least_gain));
        }
        best.map(|(_, victim)| victim)
    }

    /// The best victim of which so many blocks are won, and what is valid takes no more than `room`, with its
    /// score.
    fn best_within(
        &self,
        room: u64,
        least_gain: u32,
        policy: VictimPolicy,
        can_wait: bool,
    ) -> Option<(u64, SegmentIndex)> {
        let size = self.superblock.geometry.segment_size;
        let clock = self.log.write_clock;
        let candidates = self.segments.iter().filter(|(_, segment)| {
            segment.state == State::Closed
                && !segment.exhausted
                && !segment.watched
                && segment.pending == 0
                && segment.leaving == 0
                && segment.valid + least_gain <= size
                && u64::from(segment.valid + headers_for(segment.valid)) <= room
        });
        let scored = candidates.map(|(index, segment)| {
            let age = clock.saturating_sub(segment.clock);
            let score = policy.score(Candidate { valid: segment.valid, size, age });
            let empties_by_itself = segment.stream == Stream::Metadata as u8 && can_wait;
            (if empties_by_itself { policy::postponed(score) } else { score }, index)
        });
        // The lowest index wins a tie, so that the choice is the same on every run.
        let best = scored.max_by_key(|(score, index)| (*score, core::cmp::Reverse(*index)));
        best.filter(|(score, _)| *score > 0)
    }

    /// The segment to be searched for holes next, if they are wanted and there is one. For hole filling
    /// the fullest that is worth it, and none that is rather to be cleaned; else the one with the most
    /// holes.
    pub(crate) fn choose_to_search(&mut self) -> Option<SegmentIndex> {
        let again = self.cleaner.search_again;
        let paused = self.cleaning() == CleaningMode::Paused && !self.pacing.is_scarce();
        if self.config.reclaim == Reclaim::CopyOut
            || paused
            || self.log.applied < again
            || !self.segments.wants_holes(self.holes_max())
        {
            return None;
        }
        let fullest = self.config.reclaim == Reclaim::HoleFill;
        let size = self.superblock.geometry.segment_size;
        let candidates = self.segments.iter().filter(|(_, segment)| {
            self.segments.may_have_holes(segment) && (!fullest || segment.valid >= size / 2)
        });
        let best = candidates.min_by_key(|(index, segment)| match fullest {
            true => (u32::MAX - segment.valid, *index),
            false => (segment.valid, *index),
        });
        if best.is_none() {
            self.cleaner.search_again = self.log.applied + RECORDS_BETWEEN_SEARCHES;
        }
        best.map(|(segment, _)| segment)
    }

    /// Whether all segments have been looked at since something was applied or opened, and none was
    /// worth it.
    pub(crate) fn nothing_is_worth_cleaning(&self, reason: Reason) -> bool {
        self.cleaner.stage == Stage::Idle && self.search_is_fruitless(reason)
    }

    fn search_is_fruitless(&self, reason: Reason) -> bool {
        let least_gain = self.superblock.geometry.segment_size / reason.least_gain();
        let now = (self.log.applied, self.segments.usable_count());
        self.cleaner
            .fruitless
            .is_some_and(|(applied, usable, gain)| (applied, usable) == now && gain <= least_gain)
    }

    /// Stops writing if segments that cannot be emptied may be why nothing gets on: those that cannot be
    /// read, and those whose headers are damaged, keep what they have, so there may be none left to be
    /// won. To be called when somebody waits and nothing is on its way. False if that is not why.
    pub fn give_up_for_want_of_room(&mut self) -> bool {
        let damaged = self.has_damaged_headers().then_some(ERRNO_DAMAGED);
        let errno = self.cleaner.unreadable.or(damaged).filter(|_| self.poisoned.is_none());
        if let Some(errno) = errno {
            self.poison(errno);
        }
        errno.is_some()
    }

    /// Whether the cleaner went through a segment, nothing is on its way, and blocks are left in it that
    /// no header told it of. (In one of metadata a checkpoint's body may be left.)
    fn has_damaged_headers(&self) -> bool {
        self.log.is_quiet(Origin::Cleaning)
            && self.segments.iter().any(|(_, segment)| {
                let is_data = segment.stream != Stream::Metadata as u8;
                is_data && segment.state == State::Closed && segment.exhausted && segment.valid > 0
            })
    }

    /// Whether the cleaner may take one of the segments that it leaves to metadata, if a victim fits then.
    /// It always has a head with room, or a segment for one, and wins more than it takes; but where the
    /// placement was changed, the head that it had is the host's alone. Nothing else would ever be won,
    /// and there is one more segment than a checkpoint takes.
    fn may_borrow(&self) -> bool {
        let usable = self.segments.usable_count();
        usable == self.pacing.kept_by_cleaning()
            && usable == self.segments.empty_count() as usize
            && self.segments.gone_through_count() == 0
            && self.log.is_quiet(Origin::Cleaning)
            && !self.checkpointer.is_active()
    }

    /// Segments that the cleaner leaves to metadata.
    pub(crate) fn kept_by_cleaner(&self) -> usize {
        self.pacing.kept_by_cleaning() - usize::from(self.cleaner.borrows)
    }

    /// Whether there is a victim, room for what is valid in it or not.
    fn any_is_worth_cleaning(&self, least_gain: u32) -> bool {
        let size = self.superblock.geometry.segment_size;
        self.segments.iter().any(|(_, segment)| {
            segment.state == State::Closed
                && !segment.exhausted
                && !segment.watched
                && segment.valid + least_gain <= size
        })
    }

    /// Whether what has been won, and is not to be had yet, will make room to clean with. Till then the
    /// host waits, as while something is being cleaned: where it shares a head with the cleaner, it
    /// would use up each time what the cleaner had won, and nothing would ever be left for metadata.
    fn room_is_to_come(&self, least_gain: u32) -> bool {
        let is_on_its_way = !self.log.is_quiet(Origin::Cleaning);
        let waits_for_checkpoint =
            self.segments.empty_count() as usize > self.segments.usable_count();
        (is_on_its_way || waits_for_checkpoint) && self.any_is_worth_cleaning(least_gain)
    }

    /// Blocks that the cleaner can write before another segment is won.
    fn room_for_relocations(&self) -> u64 {
        let size = u64::from(self.superblock.geometry.segment_size);
        let heads = self.placer.cleaning_streams().iter().filter_map(|s| self.log.head(*s));
        let left: u64 = heads.map(|head| (size - u64::from(head.offset)).saturating_sub(2)).sum();
        let usable = self.segments.usable_count().saturating_sub(self.pacing.kept_by_cleaning());
        left + usable as u64 * size
    }
}

/// Headers that relocating so many blocks takes: more than one if records go out before they are
/// full.
fn headers_for(blocks: u32) -> u32 {
    blocks / 32 + 2
}
