//! The cleaner: copies what is still valid out of a segment, so that the segment becomes free.
//!
//! A victim is read in chunks of whole records (see `chunk`). Record headers say what every block was written
//! as; the map (or the checkpoint's lists) says whether it still lies there. What does is copied
//! into the cleaning stream as a *relocation*: on arrival it takes effect only if the source is
//! still current, so overwrites and reads in the meantime need no lock and no table.
//!
//! # Power-loss contract
//! The source stays intact until the segment is opened again, and that happens only after a
//! checkpoint is durable in which nothing points into it.
//!
//! # Invariants
//! - A checkpoint is cut only while no relocation is on its way.
//! - Every address whose old location in the victim may still be counted is settled, so when the
//!   last relocation arrives, nothing of the victim is counted (save a checkpoint's body, which
//!   the next checkpoint replaces).

mod blocks;
mod chunk;
mod clean;
pub(crate) mod defrag;
pub(crate) mod restraint;
mod search;
mod victims;

use crate::api::{Buffers, Phase, RecordRef};
use crate::memory::NoMemory;
use crate::shared::{Outcome, Shared};
use crate::tuning::CleaningMode;
use crate::units::{Origin, SegmentIndex, Sequence, Stream};
use chunk::Chunks;
use coulter_format::record::SHORT_BLOCKS_MAX;
use restraint::{Reason, Restraint};

/// Relocations that wait for more while the cleaner rests: enough for a header to weigh little, and
/// no more than a device takes at once without a write of the host waiting for long. If the host's own
/// records are longer, as many as these have.
const GATHERED_MAX: u32 = 64;

/// Steps in a row.
const TURNS_MAX: usize = 4;

/// What the cleaner is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// What is current of a segment is copied out: see `clean`.
    Clean,
    /// What is current of a segment is noted, for the rest may become holes: see `search`.
    Search,
    /// A range of host blocks is written anew in the host's order: see `defrag`.
    Defrag,
}

/// How far the volume is gone over to put ranges in the order of the host: see [`defrag`].
#[derive(Debug, Default)]
struct Position {
    /// The next host block to be looked at; `None` if nobody wants any of it.
    next: Option<u64>,
    /// The leaf that was loaded for the range to be looked at.
    loaded: Option<u64>,
}

/// The cleaner's state.
#[derive(Default)]
pub(crate) struct Cleaner {
    /// `None` while it rests.
    job: Option<Job>,
    /// What is gone through, unless it is a range.
    segment: Option<SegmentIndex>,
    /// Where its blocks go, and when the host wrote them, on average.
    pub(crate) stream: Option<Stream>,
    time: u64,
    /// Of the segment when it was chosen.
    pub(crate) life: u32,
    /// Whether only what is current of it is read.
    pub(crate) reads_sparsely: bool,
    /// The place in it of the next record to be listed.
    pub(crate) next: u32,
    pub(crate) chunks: Chunks,
    /// The next block of the first chunk to be looked at, and how many of it were copied.
    cursor: usize,
    pub(crate) copied: u64,
    /// Whether the segment before this one was searched, not cleaned.
    has_searched: bool,
    /// When to look again for a segment that may have holes, if there was none.
    pub(crate) search_again: Sequence,
    /// When no victim was found: applied sequence, usable segments, least gain.
    pub(crate) fruitless: Option<(Sequence, usize, u32)>,
    /// Some block's address lies below a damaged map page: whether the block is current is not known.
    pub(crate) doubtful: bool,
    /// The chunk was read a second time, because a block did not match its checksum.
    again: bool,
    /// The error number of the latest read that failed: its segment was left as it is.
    pub(crate) unreadable: Option<i32>,
    /// A map page is waited for.
    parked: bool,
    /// When it works, what holds it back, and where defragmenting is.
    mode: CleaningMode,
    restraint: Restraint,
    range: Position,
    /// Something has changed without a command.
    has_changed: bool,
    /// Whether one of the segments that are left to metadata may be taken for this victim.
    pub(crate) borrows: bool,
    /// Valid blocks of the latest victim, for the credit.
    latest_valid: u32,
}

impl Cleaner {
    pub(crate) fn new() -> Result<Cleaner, NoMemory> {
        Ok(Cleaner { chunks: Chunks::new()?, ..Cleaner::default() })
    }

    /// The page that it waited for is there, or will not come.
    pub(crate) fn resume(&mut self) {
        self.parked = false;
    }

    /// What was found to be worth nothing may be worth something.
    pub(crate) fn look_again(&mut self) {
        self.fruitless = None;
    }

    pub(crate) fn mode(&self) -> CleaningMode {
        self.mode
    }

    /// Changes when it works, from its next step on.
    pub(crate) fn set_mode(&mut self, mode: CleaningMode) {
        self.mode = mode;
    }

    pub(crate) fn restraint(&self) -> &Restraint {
        &self.restraint
    }

    pub(crate) fn restraint_mut(&mut self) -> &mut Restraint {
        &mut self.restraint
    }

    /// A range of host blocks is being read into `buffer`, to be relocated to `stream`.
    pub(crate) fn begin_range(&mut self, buffer: RecordRef, stream: Stream, time: u64) {
        assert!(self.segment.is_none(), "one chunk at a time");
        assert!(self.job.is_none(), "one thing at a time");
        self.borrows = false;
        self.job = Some(Job::Defrag);
        self.chunks.take_range(buffer);
        (self.stream, self.time) = (Some(stream), time);
        (self.cursor, self.copied) = (0, 0);
    }

    /// Takes a few steps, if there is reason to.
    pub(crate) fn step(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> Outcome {
        let is_apart = shared.placer.splits_user_data();
        shared.pacing.update(shared.empty_with_space(), is_apart);
        self.leave_freed_victim(shared);
        if shared.phase != Phase::Running || shared.signals.is_quiescing() {
            shared.seal_all_of(Origin::Cleaning, buffers);
            return Outcome::of_change(core::mem::take(&mut self.has_changed));
        }
        let mut turns = 0;
        while !self.parked && turns < TURNS_MAX {
            let reason = self.take_stock(shared);
            let may_search = self.restraint.lets_search();
            let may_go_on = reason.is_some() || (may_search && self.is_searching());
            let goes_on = match self.job {
                None => {
                    let searches_first =
                        may_search && !self.cleans_before_searching(shared, reason);
                    (searches_first && self.begin_search(shared))
                        || reason.is_some_and(|reason| self.begin_step(shared, reason, buffers))
                        || (may_search && !searches_first && self.begin_search(shared))
                }
                Some(_) => may_go_on && self.work_on_chunks(shared, buffers),
            };
            turns += 1;
            if !goes_on {
                break;
            }
        }
        let gathered = self.gathered(shared);
        if self.is_searching() || (gathered > 0 && !self.may_gather(shared, gathered)) {
            shared.seal_all_of(Origin::Cleaning, buffers);
        }
        Outcome::of_change(core::mem::take(&mut self.has_changed))
    }

    /// Whether what the cleaner has copied may wait for more: while it works, and while it only rests in
    /// step with the host. A step copies a few blocks; a header and a command for so few would cost as
    /// much as they do. In the midst of a victim nobody misses what waits, for the victim is not free
    /// before its end; at the end it waits for what the host writes meanwhile, if that is anything.
    fn may_gather(&self, shared: &Shared, gathered: u32) -> bool {
        if shared.signals.memory {
            return false;
        }
        let is_busy = self.job.is_some();
        match self.wish(shared).allowed() {
            Some(_) => is_busy,
            None if shared.pacing.is_scarce() || gathered >= self.gathered_max(shared) => false,
            None => is_busy || shared.log.in_flight(Origin::User) > 0,
        }
    }

    fn gathered_max(&self, shared: &Shared) -> u32 {
        GATHERED_MAX.max(shared.log.user_record_length.min(SHORT_BLOCKS_MAX as u32))
    }

    /// Blocks that wait in the largest record of relocations.
    fn gathered(&self, shared: &Shared) -> u32 {
        let filled = Stream::ALL.iter().filter_map(|s| shared.log.filled_by(*s, Origin::Cleaning));
        filled.map(|record| shared.log.record(record).payload).max().unwrap_or(0)
    }

    /// Whether to win a segment comes before looking for holes. Metadata goes to empty segments only:
    /// where the host may take none any more, nor fill holes, one is cleaned for each that is
    /// searched, and on the floor nothing is searched at all if there is a victim.
    fn cleans_before_searching(&self, shared: &Shared, reason: Option<Reason>) -> bool {
        match reason {
            Some(Reason::Floor) => true,
            Some(Reason::Scarce) => {
                let host_waits = shared.segments.usable_count() <= shared.pacing.kept_by_user();
                host_waits && self.has_searched
            }
            _ => false,
        }
    }

    fn begin_step(
        &mut self,
        shared: &mut Shared,
        reason: Reason,
        buffers: &mut impl Buffers,
    ) -> bool {
        match reason {
            Reason::Defrag => self.gather_range(shared),
            _ => self.begin_victim(shared, reason, buffers),
        }
    }

    /// Why the cleaner should take its next step, if it should and may. What it had from before, and
    /// does not count any more, is forgotten.
    fn take_stock(&mut self, shared: &mut Shared) -> Option<Reason> {
        let wish = self.wish(shared);
        if self.worth(shared) == 0 {
            shared.pacing.pay_credit(None);
        }
        let is_pressed = matches!(wish.allowed(), Some(Reason::Floor | Reason::Scarce));
        if self.mode == CleaningMode::Drain && wish.is_drained && !is_pressed {
            self.mode = CleaningMode::Paced;
        }
        self.restraint.note(wish);
        wish.allowed()
    }

    /// Blocks that what the host wrote is worth.
    fn worth(&self, shared: &Shared) -> u64 {
        let size = shared.superblock.geometry.segment_blocks;
        assert!(self.latest_valid <= size, "a segment holds no more");
        shared.pacing.credit_for(shared.pacing.credit(), self.latest_valid, size)
    }

    fn begin_segment(&mut self, shared: &mut Shared, segment: SegmentIndex, job: Job) {
        assert!(self.job.is_none(), "one thing at a time");
        self.job = Some(job);
        assert!(self.segment.is_none(), "the segment before it was left");
        self.has_searched = job == Job::Search;
        shared.segments.empty(Some(segment).filter(|_| job == Job::Clean));
        self.segment = Some(segment);
        self.life = shared.segments.segment(segment).life;
        self.next = 0;
        (self.cursor, self.copied) = (0, 0);
        self.doubtful = false;
        self.reads_sparsely = self.suits_sparse_reading(shared, segment);
    }

    pub(crate) fn is_searching(&self) -> bool {
        self.job == Some(Job::Search)
    }

    /// Reads, and looks at what has been read. False: must wait.
    fn work_on_chunks(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> bool {
        assert!(self.job.is_some(), "somebody wants the chunks");
        if self.segment.is_some() {
            let may_read_ahead = self.restraint.lets_search();
            self.read_chunks(shared, may_read_ahead, buffers);
        }
        let chunk = self.chunks.first();
        if !chunk.is_ready() {
            return false;
        }
        if chunk.has_failed() {
            // What cannot be read cannot be moved. The segment stays as it is; its blocks give errors
            // when they are read, and the cleaner takes another one.
            self.end_victim(shared);
            return true;
        }
        self.sort_blocks(shared, buffers)
    }

    fn end_chunk(&mut self, shared: &mut Shared) {
        assert_eq!(self.cursor, self.chunks.first().blocks.len(), "each block was looked at");
        if self.is_searching() {
            self.end_searched_chunk(shared);
            return;
        }
        if self.job == Some(Job::Defrag) {
            self.end_range(shared);
            return;
        }
        let chunk = self.chunks.first();
        let (covered, is_last) = (u64::from(chunk.covered()), chunk.is_last());
        assert!(self.job == Some(Job::Clean), "what is copied out is cleaned");
        let gained = covered.saturating_sub(self.copied);
        let size = shared.superblock.geometry.segment_blocks;
        // What was gone through is paid from the credit, in user blocks.
        let rate = shared.pacing.credit_for(1 << 20, self.latest_valid, size);
        shared.pacing.pay_credit((covered << 20).checked_div(rate));
        self.next_chunk(shared);
        shared.pacing.gain(gained);
        if is_last {
            let segment = self.segment.expect("a victim was being cleaned");
            if !self.doubtful {
                shared.segments.went_through(segment);
            }
            shared.statistics.segments_cleaned += 1;
            self.end_victim(shared);
        }
    }

    fn next_chunk(&mut self, shared: &mut Shared) {
        self.leave_chunk(shared);
        self.again = false;
        (self.cursor, self.copied) = (0, 0);
        self.has_changed = true;
    }
}
