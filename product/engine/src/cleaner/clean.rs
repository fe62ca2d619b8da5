//! Emptying a segment: it is chosen, gone through, and left.

use super::restraint::Reason;
use super::{Cleaner, Job};
use crate::api::Buffers;
use crate::segments::State;
use crate::shared::Shared;
use crate::units::Origin;

impl Cleaner {
    pub(super) fn begin_victim(
        &mut self,
        shared: &mut Shared,
        reason: Reason,
        buffers: &mut impl Buffers,
    ) -> bool {
        let Some(victim) = self.take_victim(shared, reason) else { return false };
        shared.statistics.victims_ahead += u64::from(reason == Reason::Idle);
        self.latest_valid = shared.segments.segment(victim).valid;
        assert_eq!(shared.segments.segment(victim).state, State::Closed, "a victim is closed");
        assert!(
            !shared.segments.segment(victim).keeps_still(),
            "and has no holes that are looked at"
        );
        self.begin_segment(shared, victim, Job::Clean);
        self.time = shared.segments.mean_time(victim);
        let clock = shared.log.write_clock;
        let stream = shared.placer.cleaning_stream(clock.saturating_sub(self.time));
        // What was begun for another one would wait for long, and its victim with it.
        if self.stream.replace(stream).is_some_and(|before| before != stream) {
            shared.seal_all_of(Origin::Cleaning, buffers);
        }
        true
    }

    /// A victim whose last block was overwritten is free without the cleaner, and may soon be
    /// written anew. What was listed of it would then describe a former life, in which the same
    /// address may have lain at the same place: it must not be looked at any more.
    pub(super) fn leave_freed_victim(&mut self, shared: &mut Shared) {
        let Some(victim) = self.segment else { return };
        let segment = shared.segments.segment(victim);
        let same_life = segment.state == State::Closed && segment.life == self.life;
        let given_up = self.is_searching() && !segment.watched;
        if !same_life || given_up {
            self.end_victim(shared);
        }
    }

    /// There is no segment to copy into. Another victim may fit into what is left of the head: an
    /// emptier one, or this one, which has less left by now.
    pub(super) fn leave_victim_without_room(&mut self, shared: &mut Shared) {
        let size = shared.superblock.geometry.segment_blocks;
        let mut streams = shared.placer.cleaning_streams().iter();
        let segments_are_short = !streams.any(|stream| shared.log.head_takes(*stream, size, 1))
            && shared.segments.usable_count() <= self.kept_by_cleaner(shared);
        if segments_are_short && self.job == Some(Job::Defrag) {
            self.drop_range(shared);
        } else if segments_are_short {
            self.drop_victim(shared);
        }
    }

    pub(super) fn end_victim(&mut self, shared: &mut Shared) {
        let segment = self.segment.expect("a victim was being cleaned");
        if self.is_searching() {
            if shared.segments.segment(segment).watched {
                shared.segments.searched_in_vain(segment, 0);
            }
        } else {
            assert_ne!(self.job, Some(Job::Defrag), "a range has no segment");
            shared.segments.exhaust(segment);
        }
        self.drop_victim(shared);
    }

    pub(crate) fn drop_victim(&mut self, shared: &mut Shared) {
        self.segment = None;
        self.abandon_chunks(shared);
        self.again = false;
        self.parked = false;
        self.job = None;
        shared.segments.empty(None);
    }
}
