//! Segments are prepared before they are opened, where the device has something to prepare.
//!
//! A store in a file meets two costs of the file system below. A file with holes has no space for them
//! until they are written, and there may be none. And each flush of a file with blocks that were never
//! written before commits the journal of that file system. [`Prepare`] says which of the two it is.
//!
//! The engine issues [`Command::Prepare`] for segments at the front of the queue: nothing in them is
//! needed, and nobody else writes there before they are opened. It has no clock. What it prepares ahead
//! of the host's writes is paid with a credit, which grows with what the log writes.
//!
//! Does not know what the device does, nor when there is space again: the driver says so by
//! [`crate::Engine::try_for_space`].
//!
//! # Invariants
//! - A segment is prepared only while it waits in the queue that the durable checkpoint lists, and no
//!   read and no discard of it is in flight.
//! - It is not opened while that is under way. Where space is needed it is not opened before.
//! - Segments are opened in the order of the queue: what is ready is a prefix of it.
//! - A lack of space is no failure: nothing is poisoned, reads go on, writes wait.

use crate::api::{Command, IoResult, Phase};
use crate::canary::{Canary, sings};
pub use crate::config::Prepare;
use crate::ios::Purpose;
use crate::segments::readiness::Readiness;
use crate::segments::{Segment, Segments, State, Trim};
use crate::shared::{Outcome, Shared};
use crate::units::{SegmentIndex, segment_start};

/// Blocks that one command prepares, so that a segment that is wanted meanwhile waits for little.
const PIECE_BLOCKS: u32 = 256;

/// Blocks at the front of the queue that are prepared ahead of the host's writes (512 MiB).
const AHEAD_BLOCKS: u32 = 1 << 17;

/// Segments of these that are looked at, at most.
const AHEAD_SEGMENTS_MAX: u32 = 64;

/// Blocks that may be prepared before the log has written any (256 MiB), and that are saved up at most.
const CREDIT_MAX: u64 = 1 << 16;

/// Blocks that may be prepared for one that the log writes: the prepared part of the queue grows.
const CREDIT_PER_BLOCK: u64 = 2;

/// What is being prepared, and what may be.
#[derive(Debug)]
pub(crate) struct Preparer {
    /// The segment, and how many blocks.
    out: Option<(SegmentIndex, u32)>,
    credit: u64,
    /// Blocks that the log had written when it was last looked at.
    seen: u64,
}

impl Default for Preparer {
    fn default() -> Preparer {
        Preparer { out: None, credit: CREDIT_MAX, seen: 0 }
    }
}

impl Segment {
    /// Whether it may be prepared now, waiting in the queue, if it is not read.
    fn may_be_prepared(&self, size: u32) -> bool {
        !self.readiness.is_whole(size) && self.state == State::Queued(Trim::Done)
    }
}

impl Segments {
    /// Only what has space may be opened from now on.
    pub(crate) fn need_space(&mut self) {
        self.ready.needs_space = true;
        self.ready.keeps = true;
    }

    /// Counts what is ready at the front of the queue.
    pub(crate) fn count_ready(&mut self) {
        if !self.ready.needs_space {
            return;
        }
        let size = self.geometry().segment_blocks;
        let (counted, listed) = (self.ready.count, self.listed_count());
        assert!(counted <= listed, "what is ready is a prefix of what is listed");
        let others = self.queue().take(listed).skip(counted);
        let more = others.take_while(|next| self.segment(*next).readiness.is_whole(size));
        self.ready.count = counted + more.count();
    }

    /// # Panics
    /// If what is ready is not a prefix of the listed queue that has space.
    #[cfg(feature = "verify")]
    pub(crate) fn assert_ready(&self) {
        let size = self.geometry().segment_blocks;
        if self.ready.needs_space {
            assert!(self.ready.count <= self.listed_count(), "what is ready is listed");
            for segment in self.queue().take(self.ready.count) {
                assert!(self.segment(segment).readiness.is_whole(size), "and has space");
            }
        }
    }

    /// The segment to be prepared next among the first `count` of the queue, the very first last: that
    /// one is opened any moment.
    fn next_to_prepare(&self, count: usize) -> Option<SegmentIndex> {
        let size = self.geometry().segment_blocks;
        let mut waiting = self.queue().take(self.listed_count().min(count));
        let front = waiting.next()?;
        let mut ordered = waiting.chain(core::iter::once(front));
        ordered.find(|segment| self.may_be_prepared(*segment, size))
    }

    /// The segment to be given space next: in order.
    fn next_without_space(&self, count: usize) -> Option<SegmentIndex> {
        let size = self.geometry().segment_blocks;
        let next = self.queue().take(self.listed_count().min(count)).nth(self.ready.count)?;
        self.may_be_prepared(next, size).then_some(next)
    }

    fn may_be_prepared(&self, segment: SegmentIndex, size: u32) -> bool {
        self.segment(segment).may_be_prepared(size) && !self.is_read(segment)
    }
}

impl Shared {
    /// See [`crate::Engine::try_for_space`].
    pub(crate) fn try_for_space(&mut self) {
        if self.signals.lacks_space {
            self.signals.lacks_space = false;
            self.segments.ready.keeps = true;
        }
    }

    /// See [`crate::Engine::lacks_space`].
    pub(crate) fn lacks_space(&self) -> bool {
        self.signals.lacks_space
    }

    /// Segments that are empty and need no cleaning: without space for more, only those that have it.
    pub(crate) fn empty_with_space(&self) -> u32 {
        let empty = self.segments.empty_count();
        match self.signals.lacks_space {
            true => empty.min(self.segments.usable_count() as u32 + self.segments.freed_count()),
            false => empty,
        }
    }
}

impl Preparer {
    /// Prepares what comes next, one command at a time.
    pub(crate) fn step(&mut self, shared: &mut Shared, outcome: Outcome) {
        let written = shared.log.appended_blocks;
        let earned = CREDIT_PER_BLOCK * (written - core::mem::replace(&mut self.seen, written));
        self.credit = (self.credit + earned).min(CREDIT_MAX);
        if shared.config.prepare == Prepare::Never || self.out.is_some() {
            return;
        }
        if shared.signals.lacks_space {
            give_up_shutdown_without_space(shared, outcome);
            return;
        }
        if let Some((segment, first, count)) = self.what_to_prepare(shared) {
            self.out = Some((segment, count));
            shared.segments.segment_mut(segment).readiness.is_under_way = true;
            let pba = segment_start(&shared.superblock.geometry, segment).plus(first);
            shared.ios.start(Purpose::Prepare(segment), Command::Prepare { pba, count });
        }
    }

    /// The segment, its first block that is not prepared, and how many blocks of it to prepare.
    fn what_to_prepare(&mut self, shared: &Shared) -> Option<(SegmentIndex, u32, u32)> {
        let size = shared.superblock.geometry.segment_blocks;
        if shared.config.prepare == Prepare::Space {
            let count = shared.pacing.marks().wanted_by_user as usize + 2;
            return shared.segments.next_without_space(count).map(|segment| (segment, 0, size));
        }
        // Before the first checkpoint a queued segment may hold records that replay did not accept.
        if shared.phase != Phase::Running || self.credit < u64::from(PIECE_BLOCKS) {
            return None;
        }
        let count = (AHEAD_BLOCKS / size).clamp(2, AHEAD_SEGMENTS_MAX);
        let segment = shared.segments.next_to_prepare(count as usize)?;
        let first = shared.segments.segment(segment).readiness.blocks;
        let blocks = PIECE_BLOCKS.min(size - first);
        self.credit -= u64::from(blocks);
        Some((segment, first, blocks))
    }

    /// The device has prepared a piece of a segment, or could not.
    pub(crate) fn completed(
        &mut self,
        shared: &mut Shared,
        segment: SegmentIndex,
        result: IoResult,
    ) {
        let (expected, count) = self.out.take().expect("one is prepared at a time");
        assert_eq!(expected, segment, "what completes is what was asked for");
        let waits = shared.segments.segment(segment).state == State::Queued(Trim::Done);
        assert!(waits || sings(Canary::OpenedWhilePrepared), "it is opened only afterwards");
        let needs_space = shared.config.prepare == Prepare::Space;
        let readiness = &mut shared.segments.segment_mut(segment).readiness;
        assert!(readiness.is_under_way, "a command completes once");
        readiness.is_under_way = false;
        match result {
            Ok(()) => {
                readiness.blocks = readiness.blocks.saturating_add(count);
                shared.statistics.prepared_blocks += u64::from(count);
            }
            Err(_) if needs_space => {
                shared.signals.lacks_space = true;
                // What is freed from now on is given back, for others to have it.
                shared.segments.ready.keeps = false;
            }
            // Only cheaper writes were to be won. If the device is damaged there, the log will meet it.
            Err(_) => readiness.blocks = Readiness::WHOLE,
        }
        shared.segments.count_ready();
    }

    /// # Panics
    /// If the segment that a command prepares is not the one that is known to be, or is used.
    #[cfg(feature = "verify")]
    pub(crate) fn assert_preparing(&self, shared: &Shared, segment: SegmentIndex) {
        let known = self.out.map(|(segment, _)| segment);
        assert_eq!(known, Some(segment), "one segment is prepared at a time");
        let entry = shared.segments.segment(segment);
        assert!(entry.readiness.is_under_way, "and says so");
        assert_eq!(entry.state, State::Queued(Trim::Done), "it waits in the queue");
        assert!(!entry.is_trimmed_now(), "it is not discarded meanwhile");
    }
}

/// A shutdown that cannot write its checkpoint for want of space ends without it: opening replays
/// the log.
fn give_up_shutdown_without_space(shared: &mut Shared, outcome: Outcome) {
    let stands_still = shared.ios.out_count() == 0 && outcome == Outcome::Rests;
    if shared.phase == Phase::ShuttingDown && stands_still {
        shared.give_up_shutdown(ERRNO_NO_SPACE);
    }
}

/// Error number for want of space (ENOSPC).
const ERRNO_NO_SPACE: i32 = 28;
