//! Which segment the cleaner goes through next, and what it means that there is none.
//!
//! Candidates are filtered here and scored by the policy (see `policy`); nothing else knows the
//! choice. All segments are looked at, and not again before something was applied or opened.
//!
//! # Invariants
//! - What is valid in a victim fits, headers included, into what the cleaner has when it begins, or into
//!   that and the one segment that it borrows.
//! - The choice depends on nothing but the state of the engine: it is the same on every run.

use super::Cleaner;
use super::restraint::Reason;
use crate::placement::SPARE_SEGMENTS_MIN;
use crate::policy::{self, Candidate, VictimPolicy};
use crate::segments::State;
use crate::shared::{ERRNO_DAMAGED, Shared};
use crate::units::{Origin, SegmentIndex, Stream};

/// What was decided.
#[derive(Clone, Copy, Debug)]
struct VictimChoice {
    victim: Option<SegmentIndex>,
    /// One of the segments that are left to metadata is taken for it.
    borrows: bool,
    /// There is none while holes are kept.
    wants_holes_back: bool,
    /// What has been won, and is not to be had yet, will make room to clean with.
    room_is_to_come: bool,
    least_gain: u32,
}

impl Cleaner {
    /// Takes the segment to be cleaned next, if one is worth it and its blocks fit into what the cleaner
    /// has.
    pub(super) fn take_victim(
        &mut self,
        shared: &mut Shared,
        reason: Reason,
    ) -> Option<SegmentIndex> {
        // They were looked at: not again before something has been applied or opened.
        if self.search_is_fruitless(shared, reason) {
            return None;
        }
        let mut choice = self.choose_victim(shared, reason);
        if choice.wants_holes_back {
            shared.give_up_holes();
            choice = self.choose_victim(shared, reason);
        }
        self.borrows = choice.borrows;
        assert!(self.job.is_none(), "one victim at a time");
        if reason != Reason::Idle {
            shared.pacing.found_victim(choice.victim.is_some() || choice.room_is_to_come);
        }
        if choice.victim.is_none() {
            let usable = shared.segments.usable_count();
            self.fruitless = Some((shared.log.applied, usable, choice.least_gain));
        }
        let is_fresh = |victim| !shared.segments.is_exhausted(victim);
        assert!(choice.victim.is_none_or(is_fresh), "none is cleaned twice before a checkpoint");
        let is_closed = |victim| shared.segments.segment(victim).state == State::Closed;
        assert!(choice.victim.is_none_or(is_closed), "nothing is written to a victim any more");
        let is_still = |victim| shared.segments.segment(victim).pending == 0;
        assert!(choice.victim.is_none_or(is_still), "nor is anything on its way to it");
        choice.victim
    }

    /// Decides; changes nothing.
    fn choose_victim(&self, shared: &Shared, reason: Reason) -> VictimChoice {
        let size = shared.superblock.geometry.segment_blocks;
        let at_floor = reason == Reason::Floor;
        let policy = if at_floor { VictimPolicy::Greedy } else { shared.config.victims };
        let least_gain = size / reason.least_gain();
        let room = self.room_for_relocations(shared);
        // With few segments to spare, one that waits is too much of them.
        let can_wait = !at_floor && shared.pacing.marks().spare >= SPARE_SEGMENTS_MIN;
        let within = |room| self.best_within(shared, room, least_gain, policy, can_wait);
        let mut best = within(room);
        let borrows = best.is_none() && self.may_borrow(shared);
        if borrows {
            best = within(room + u64::from(size));
        }
        let is_worth_it = best.is_some() || self.any_is_worth_cleaning(shared, least_gain);
        VictimChoice {
            victim: best.map(|(_, victim)| victim),
            borrows,
            // Those whose holes wait to be filled are not to be had. Better they than none, and at once: else
            // they would be searched again.
            wants_holes_back: !is_worth_it
                && shared.pacing.is_scarce()
                && shared.segments.any_is_watched(),
            room_is_to_come: is_worth_it && self.room_is_to_come(shared),
            least_gain,
        }
    }

    /// The best victim of which so many blocks are won, and what is valid takes no more than `room`, with its
    /// score.
    fn best_within(
        &self,
        shared: &Shared,
        room: u64,
        least_gain: u32,
        policy: VictimPolicy,
        can_wait: bool,
    ) -> Option<(u64, SegmentIndex)> {
        let size = shared.superblock.geometry.segment_blocks;
        let clock = shared.log.write_clock;
        assert!(least_gain > 0 && least_gain <= size, "cleaning a segment wins something");
        let mean_age = shared.segments.mean_age_of_closed(clock);
        let candidates = shared.segments.cleanable().filter(|(index, segment)| {
            !shared.segments.is_exhausted(*index)
                && !segment.keeps_still()
                && segment.pending == 0
                && segment.leaving == 0
                && segment.valid + least_gain <= size
                && u64::from(segment.valid + headers_for(segment.valid)) <= room
        });
        let scored = candidates.map(|(index, segment)| {
            let age = clock.saturating_sub(segment.clock);
            let score = policy.score(Candidate { valid: segment.valid, size, age, mean_age });
            let empties_by_itself = segment.stream == Stream::Metadata as u8 && can_wait;
            (if empties_by_itself { policy::postponed(score) } else { score }, index)
        });
        // The lowest index wins a tie, so that the choice is the same on every run.
        let best = scored.max_by_key(|(score, index)| (*score, core::cmp::Reverse(*index)));
        best.filter(|(score, _)| *score > 0)
    }

    /// Whether all segments have been looked at since something was applied or opened, and none was
    /// worth it.
    pub(crate) fn nothing_is_worth_cleaning(&self, shared: &Shared, reason: Reason) -> bool {
        self.job.is_none() && self.search_is_fruitless(shared, reason)
    }

    fn search_is_fruitless(&self, shared: &Shared, reason: Reason) -> bool {
        let least_gain = shared.superblock.geometry.segment_blocks / reason.least_gain();
        let now = (shared.log.applied, shared.segments.usable_count());
        self.fruitless
            .is_some_and(|(applied, usable, gain)| (applied, usable) == now && gain <= least_gain)
    }

    /// Why there may be no room to be won: the error number of what cannot be read, or of headers that
    /// are damaged.
    pub(crate) fn why_no_room(&self, shared: &Shared) -> Option<i32> {
        let damaged = self.has_damaged_headers(shared).then_some(ERRNO_DAMAGED);
        self.unreadable.or(damaged)
    }

    /// Whether the cleaner went through a segment, nothing is on its way, and blocks are left in it that
    /// no header told it of. (In one of metadata a checkpoint's body may be left.)
    fn has_damaged_headers(&self, shared: &Shared) -> bool {
        shared.log.is_quiet(Origin::Cleaning)
            && shared.segments.exhausted().any(|segment| {
                let is_data = segment.stream != Stream::Metadata as u8;
                is_data && segment.state == State::Closed && segment.valid > 0
            })
    }

    /// Whether the cleaner may take one of the segments that it leaves to metadata, if a victim fits then.
    /// It always has a head with room, or a segment for one, and wins more than it takes; but where the
    /// placement was changed, the head that it had is the host's alone. Nothing else would ever be won,
    /// and there is one more segment than a checkpoint takes.
    fn may_borrow(&self, shared: &Shared) -> bool {
        let usable = shared.segments.usable_count();
        usable == shared.pacing.kept_by_cleaning()
            && usable == shared.segments.empty_count() as usize
            && shared.segments.gone_through_count() == 0
            && shared.log.is_quiet(Origin::Cleaning)
            && !shared.signals.checkpoint_is_active()
    }

    /// Segments that the cleaner leaves to metadata.
    pub(crate) fn kept_by_cleaner(&self, shared: &Shared) -> usize {
        assert!(shared.pacing.kept_by_cleaning() > 0, "something is left to metadata");
        shared.pacing.kept_by_cleaning() - usize::from(self.borrows)
    }

    /// Whether there is a victim, room for what is valid in it or not.
    fn any_is_worth_cleaning(&self, shared: &Shared, least_gain: u32) -> bool {
        let size = shared.superblock.geometry.segment_blocks;
        shared.segments.cleanable().any(|(index, segment)| {
            !shared.segments.is_exhausted(index)
                && !segment.keeps_still()
                && segment.valid + least_gain <= size
        })
    }

    /// Whether what has been won, and is not to be had yet, will make room to clean with. Till then the
    /// host waits, as while something is being cleaned: where it shares a head with the cleaner, it
    /// would use up each time what the cleaner had won, and nothing would ever be left for metadata.
    fn room_is_to_come(&self, shared: &Shared) -> bool {
        let is_on_its_way = !shared.log.is_quiet(Origin::Cleaning);
        let waits_for_checkpoint =
            shared.segments.empty_count() as usize > shared.segments.usable_count();
        is_on_its_way || waits_for_checkpoint
    }

    /// Blocks that the cleaner can write before another segment is won.
    fn room_for_relocations(&self, shared: &Shared) -> u64 {
        let size = u64::from(shared.superblock.geometry.segment_blocks);
        let heads = shared.placer.cleaning_streams().iter().filter_map(|s| shared.log.head(*s));
        let left: u64 = heads.map(|head| (size - u64::from(head.offset)).saturating_sub(2)).sum();
        let usable =
            shared.segments.usable_count().saturating_sub(shared.pacing.kept_by_cleaning());
        left + usable as u64 * size
    }
}

/// Headers that relocating so many blocks takes: more than one if records go out before they are
/// full.
fn headers_for(blocks: u32) -> u32 {
    blocks / 32 + 2
}
