//! The segment table: how much of each segment is still counted on, and which may be written next.
//!
//! # Invariants
//! - `valid` of a segment is the number of references into it: current locations of host blocks,
//!   leaf pages, metadata listed by the checkpoint, and the old locations of blocks whose update is
//!   not yet released (see `map`). It is exact: `Engine::assert_invariants` counts it anew.
//! - A segment is opened only from the front of the queue, and only if the checkpoint that is
//!   durable lists it there: recovery looks at listed segments only.
//! - A segment enters the queue only at the cut of a checkpoint in which nothing is counted in it,
//!   and is opened only after that checkpoint is durable: so no state that recovery could return to
//!   points into it.
//! - A segment is never opened while a read or a discard of it is in flight.

mod counts;
mod queue;
pub(crate) mod readiness;
mod restore;
mod state;
#[cfg(feature = "verify")]
mod verify;

use crate::classes::Classes;
use crate::holes::Holes;
use crate::index_set::IndexSet;
use crate::memory::{self, NoMemory, Pieces};
use crate::read_cache::ReadCache;
use crate::units::{SegmentIndex, Sequence, Stream, mean, segment_of};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use coulter_format::Pba;
use coulter_format::segment_table::SEGMENTS_PER_PAGE;
use coulter_format::superblock::Geometry;
use readiness::{Readiness, ReadyQueue};
pub(crate) use state::{State, Trim};

/// Segments that are looked at for each that is cleaned: of larger stores those that come into question.
const LOOKED_AT_MAX: usize = 4096;
const LOOKED_AT_OF_CLASS: usize = 16;

/// Whether `count` segments are few enough to be looked at one by one.
fn is_few(count: usize) -> bool {
    count <= LOOKED_AT_MAX
}

/// One segment. In this order, so that what each update asks lies in one line of the cache, mostly.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) valid: u32,
    /// The page of the segment table that tells of it is noted as changed. Kept here, for it is asked at
    /// every update.
    noted: bool,
    /// Its holes are being looked for, or are known.
    pub(crate) watched: bool,
    /// Records were written into its holes, or may be: any block may be a header.
    pub(crate) patched: bool,
    pub(crate) stream: u8,
    /// Records sealed into it that are not applied yet.
    pub(crate) pending: u32,
    /// Relocations of its blocks that are being filled or on their way: until they arrive the map leads to it,
    /// though nothing is left to be won.
    pub(crate) leaving: u32,
    pub(crate) state: State,
    /// How often it was opened since the engine was.
    pub(crate) life: u32,
    /// Host blocks in it that the cleaner has moved.
    pub(crate) moved: u32,
    /// Valid blocks that the checkpoint lists. The segment table does not count them.
    pub(crate) listed: u32,
    /// Its holes are looked for while no more than this are valid: fewer once they were in vain.
    pub(crate) search_up_to: u32,
    /// How far it is prepared.
    pub(crate) readiness: Readiness,
    /// Blocks that `mean_time` is of.
    timed: u32,
    /// When its blocks were written by the host, on average.
    mean_time: u64,
    /// The write clock when it was closed.
    pub(crate) clock: u64,
    /// The write clock when it was opened.
    opened: u64,
}

impl Segment {
    /// How long its blocks had been written when it was closed, on average. Zero while open: so a
    /// table page need not be written because a head moved on.
    pub(crate) fn mean_age(&self) -> u64 {
        match self.state {
            State::Closed | State::Patching => self.clock.saturating_sub(self.mean_time),
            _ => 0,
        }
    }

    /// A stream goes on in its holes.
    fn begin_patching(&mut self, stream: Stream) {
        self.stream = stream as u8;
        self.search_up_to = u32::MAX;
        self.life = self.life.wrapping_add(1);
        // What is no longer valid has no say in the average.
        self.timed = self.valid;
        // And what was moved is a hole like any other.
        self.moved = 0;
    }
}

/// Segments of the shortest-lived stream that were freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lives {
    pub(crate) count: u32,
    /// Sum of the clocks at which they were opened.
    pub(crate) sum_opened: u128,
}

/// All segments.
pub(crate) struct Segments {
    geometry: Geometry,
    table: Pieces<Segment>,
    /// Reads under way of each. Not in the table: that is large, and each read of the host would fetch two lines
    /// of it for this alone.
    readers: Pieces<u32>,
    queue: VecDeque<SegmentIndex>,
    /// How many at the front of the queue are listed by the durable checkpoint.
    usable: usize,
    /// Those that are free, that wait for a checkpoint, and that are to be trimmed once it is durable.
    free: IndexSet,
    freed: IndexSet,
    to_be_trimmed: IndexSet,
    /// The cleaner went through them and something remained (a checkpoint's body, or what is on its way);
    /// not again before the next checkpoint.
    exhausted: IndexSet,
    /// The cleaner looked at every block in them since the last cut, and knew of each whether it is
    /// current.
    gone_through: IndexSet,
    /// How often it went through one since then.
    gone_through_count: u32,
    /// Pages of the segment table that may have changed since they were written.
    changed_pages: IndexSet,
    /// Closed segments, by how much of them is valid; and the sum of the clocks when they were closed.
    classes: Classes,
    closed_count: u32,
    closed_clocks: u128,
    /// Sums over all segments.
    valid_count: u64,
    listed_blocks: u64,
    patched_count: u32,
    miscounted: bool,
    /// Nobody knows what counts where, and nothing is written.
    uncounted: bool,
    /// Freed since they were asked for.
    lives: Lives,
    /// The segment that the cleaner is emptying.
    emptied: Option<SegmentIndex>,
    pub(crate) holes: Holes,
    pub(crate) ready: ReadyQueue,
    /// Where clients count themselves that read the device themselves.
    clients: Option<Arc<ReadCache>>,
}

impl Segments {
    // Not inlined: its locals would enlarge the caller's stack frame.
    #[inline(never)]
    pub(crate) fn new(geometry: Geometry) -> Result<Segments, NoMemory> {
        let free = Segment {
            valid: 0,
            listed: 0,
            pending: 0,
            clock: 0,
            opened: 0,
            mean_time: 0,
            timed: 0,
            moved: 0,
            state: State::Free,
            stream: 0,
            life: 0,
            leaving: 0,
            patched: false,
            watched: false,
            search_up_to: u32::MAX,
            readiness: Readiness::default(),
            noted: false,
        };
        let table = Pieces::filled(free, geometry.segment_count as usize)?;
        let none = || IndexSet::new(table.len());
        let mut free = none()?;
        (0..table.len()).for_each(|index| {
            free.insert(index);
        });
        Ok(Segments {
            geometry,
            free,
            freed: none()?,
            to_be_trimmed: none()?,
            exhausted: none()?,
            gone_through: none()?,
            changed_pages: IndexSet::new(table.len().div_ceil(SEGMENTS_PER_PAGE))?,
            classes: match is_few(table.len()) {
                true => Classes::alike(table.len())?,
                false => Classes::new(table.len(), geometry.segment_blocks)?,
            },
            closed_count: 0,
            closed_clocks: 0,
            valid_count: 0,
            listed_blocks: 0,
            patched_count: 0,
            queue: memory::queue(table.len())?,
            readers: Pieces::filled(0, table.len())?,
            table,
            usable: 0,
            miscounted: false,
            uncounted: false,
            gone_through_count: 0,
            lives: Lives::default(),
            emptied: None,
            holes: Holes::default(),
            ready: ReadyQueue::default(),
            clients: None,
        })
    }

    /// More segments come behind those that there are, all of them free. Before anything is written.
    pub(crate) fn grow(&mut self, geometry: Geometry) -> Result<(), NoMemory> {
        let before = self.table.len();
        let mut grown = Segments::new(geometry)?;
        assert!(grown.table.len() >= before, "no segment is given up");
        assert_eq!(self.to_be_trimmed.count(), 0, "nothing is trimmed while a store is opened");
        for (index, segment) in self.table.iter().enumerate() {
            grown.table[index] = *segment;
            grown.readers[index] = self.readers[index];
        }
        (0..before).filter(|index| !self.free.contains(*index)).for_each(|index| {
            grown.free.remove(index);
        });
        let closed = |index: &usize| self.table[*index].state == State::Closed;
        (0..before).filter(closed).for_each(|index| {
            grown.classes.insert(index, self.table[index].valid);
        });
        (grown.closed_count, grown.closed_clocks) = (self.closed_count, self.closed_clocks);
        self.freed.iter().for_each(|index| {
            grown.freed.insert(index);
        });
        grown.queue.extend(self.queue.iter());
        grown.ready = core::mem::take(&mut self.ready);
        (grown.usable, grown.miscounted) = (self.usable, self.miscounted);
        (grown.valid_count, grown.patched_count) = (self.valid_count, self.patched_count);
        grown.listed_blocks = self.listed_blocks;
        (0..grown.table.len().div_ceil(SEGMENTS_PER_PAGE)).for_each(|page| {
            grown.changed_pages.insert(page);
        });
        *self = grown;
        Ok(())
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn segment(&self, segment: SegmentIndex) -> &Segment {
        &self.table[segment.index()]
    }

    /// For what the segment table may have to say anew.
    #[inline]
    pub(crate) fn segment_mut(&mut self, segment: SegmentIndex) -> &mut Segment {
        let entry = &mut self.table[segment.index()];
        if !entry.noted {
            entry.noted = true;
            self.changed_pages.insert(segment.index() / SEGMENTS_PER_PAGE);
        }
        entry
    }

    /// A read of it begins: it is not opened, nor trimmed, before that has ended.
    #[inline]
    pub(crate) fn begin_read(&mut self, segment: SegmentIndex) {
        let readers = &mut self.readers[segment.index()];
        assert!(*readers < u32::MAX, "readers can be counted");
        *readers += 1;
    }

    /// A read of it has ended.
    #[inline]
    pub(crate) fn end_read(&mut self, segment: SegmentIndex) {
        let readers = &mut self.readers[segment.index()];
        assert!(*readers > 0, "a read ends once");
        *readers -= 1;
    }

    /// Clients read the device themselves from now on.
    pub(crate) fn set_clients(&mut self, clients: Arc<ReadCache>) {
        self.clients = Some(clients);
    }

    /// Whether a read of it is under way, the engine's or a client's.
    pub(crate) fn is_read(&self, segment: SegmentIndex) -> bool {
        let by_clients =
            self.clients.as_ref().is_some_and(|clients| clients.is_read(segment.index()));
        by_clients || self.readers[segment.index()] > 0
    }

    /// The only place where a state changes.
    pub(crate) fn enter(&mut self, segment: SegmentIndex, state: State) {
        let before = self.table[segment.index()].state;
        assert!(before.leads_to(state), "{segment:?} goes from {before:?} to {state:?}");
        self.set_state(segment, state);
    }

    fn set_state(&mut self, segment: SegmentIndex, state: State) {
        let index = segment.index();
        let Segment { valid, clock, .. } = self.table[index];
        match self.table[index].state {
            State::Closed => {
                self.classes.remove(index);
                self.closed_count -= 1;
                self.closed_clocks -= u128::from(clock);
            }
            State::Free => assert!(self.free.remove(index), "what is free is listed"),
            State::Freed(_) => assert!(self.freed.remove(index), "what was freed is listed"),
            State::Queued(Trim::Due) => {
                assert!(self.to_be_trimmed.remove(index), "what is to be trimmed is listed");
            }
            _ => {}
        }
        match state {
            State::Closed => {
                self.classes.insert(index, valid);
                self.closed_count += 1;
                self.closed_clocks += u128::from(clock);
            }
            State::Free => assert!(self.free.insert(index), "a segment is free once"),
            State::Freed(_) => assert!(self.freed.insert(index), "a segment is freed once"),
            State::Queued(Trim::Due) => {
                assert!(self.to_be_trimmed.insert(index), "a segment is trimmed once");
            }
            _ => {}
        }
        self.segment_mut(segment).state = state;
    }

    /// The cleaner is done with it, whatever remained.
    pub(crate) fn exhaust(&mut self, segment: SegmentIndex) {
        self.exhausted.insert(segment.index());
    }

    /// Whether it is not to be cleaned again before the next checkpoint.
    pub(crate) fn is_exhausted(&self, segment: SegmentIndex) -> bool {
        self.exhausted.contains(segment.index())
    }

    /// Those that are not.
    pub(crate) fn exhausted(&self) -> impl Iterator<Item = &Segment> {
        self.exhausted.iter().map(|index| &self.table[index])
    }

    /// Its blocks will be others.
    fn forget_cleaning(&mut self, segment: SegmentIndex) {
        self.exhausted.remove(segment.index());
        self.gone_through.remove(segment.index());
    }

    /// A stream goes on in its holes.
    pub(crate) fn begin_patching(&mut self, segment: SegmentIndex, stream: Stream) {
        self.forget_cleaning(segment);
        self.segment_mut(segment).begin_patching(stream);
    }

    /// Records are written into its holes, or may be.
    pub(crate) fn set_patched(&mut self, segment: SegmentIndex, patched: bool) {
        let before = core::mem::replace(&mut self.segment_mut(segment).patched, patched);
        self.patched_count = self.patched_count + u32::from(patched) - u32::from(before);
    }

    /// How many are.
    pub(crate) fn patched_count(&self) -> u32 {
        self.patched_count
    }

    /// Segments that may be worth cleaning: all that are closed, or, where there are too many to be looked
    /// at, of each class of emptiness those that have been in it for longest.
    pub(crate) fn cleanable(&self) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        let is_few = is_few(self.table.len());
        let all = if is_few { self.table.len() } else { 0 };
        let of_class = if is_few { 0 } else { LOOKED_AT_OF_CLASS };
        let emptiest = self.classes.emptiest(of_class);
        let indices = (0..all).chain(emptiest);
        let closed = indices.filter(|index| self.table[*index].state == State::Closed);
        closed.map(|index| (SegmentIndex(index as u32), &self.table[index]))
    }

    /// How long ago closed segments were closed, on average, `clock` being now.
    pub(crate) fn mean_age_of_closed(&self, clock: u64) -> u64 {
        let ages = u128::from(clock) * u128::from(self.closed_count);
        let Some(sum) = ages.checked_sub(self.closed_clocks) else { return 0 };
        mean(sum, self.closed_count.max(1))
    }

    /// Pages of the segment table that may have changed; from now on none has.
    pub(crate) fn take_changed_pages(&mut self, mut each: impl FnMut(&Segments, usize)) {
        while let Some(page) = self.changed_pages.next(0) {
            self.changed_pages.remove(page);
            let first = page * SEGMENTS_PER_PAGE;
            for index in first..self.table.len().min(first + SEGMENTS_PER_PAGE) {
                self.table[index].noted = false;
            }
            each(self, page);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        self.table.iter().enumerate().map(|(index, segment)| (SegmentIndex(index as u32), segment))
    }

    /// Those that a page of the segment table tells of.
    pub(crate) fn of_table_page(
        &self,
        page: usize,
    ) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        let first = page * SEGMENTS_PER_PAGE;
        let indices = (first as u32..).map(SegmentIndex);
        indices.zip(self.table.iter_from(first).take(SEGMENTS_PER_PAGE))
    }

    /// The segment of a block that is known to lie in the log.
    #[inline]
    pub(crate) fn of(&self, pba: Pba) -> SegmentIndex {
        // A segment's size is a power of two: a shift, where `segment_of` divides.
        let offset = pba.0.wrapping_sub(self.geometry.first_segment.0);
        let segment = SegmentIndex(offset >> self.geometry.segment_blocks.trailing_zeros());
        debug_assert_eq!(segment_of(&self.geometry, pba), Some(segment), "checked when read");
        segment
    }

    /// A record was sealed into the segment; it may not be freed before the record is applied.
    pub(crate) fn record_sealed(&mut self, segment: SegmentIndex) {
        self.table[segment.index()].pending += 1;
    }

    /// A record of the segment was applied, or given up.
    pub(crate) fn record_applied(&mut self, segment: SegmentIndex, now: Sequence) {
        let entry = &mut self.table[segment.index()];
        assert!(entry.pending > 0, "a record is applied once");
        entry.pending -= 1;
        self.settle(segment, now);
    }

    /// Frees the segment if it is closed and nothing in it is counted or to come.
    pub(crate) fn settle(&mut self, segment: SegmentIndex, now: Sequence) {
        if self.uncounted {
            return;
        }
        let entry = &self.table[segment.index()];
        if entry.state == State::Closed && entry.valid == 0 && entry.pending == 0 {
            // One that was patched did not live from its opening on.
            if entry.stream == Stream::User as u8 && !entry.patched {
                self.lives.count += 1;
                self.lives.sum_opened += u128::from(entry.opened);
            }
            self.enter(segment, State::Freed(now));
        }
    }

    /// So many blocks of host data came into the segment; the sum of the clocks at which the host
    /// wrote them.
    pub(crate) fn note_times(&mut self, segment: SegmentIndex, blocks: u32, times: u128) {
        let entry = self.segment_mut(segment);
        let total = entry.timed + blocks;
        if total > 0 {
            let sum = u128::from(entry.mean_time) * u128::from(entry.timed) + times;
            entry.mean_time = mean(sum, total);
            entry.timed = total;
        }
    }

    /// A host block was relocated: if the cleaner is emptying its segment, or just has, it is noted as
    /// moved.
    pub(crate) fn note_moved(&mut self, source: Pba) {
        let (segment, victim) = (self.of(source), self.emptied);
        let is_emptied = self.exhausted.contains(segment.index()) || victim == Some(segment);
        self.table[segment.index()].moved += u32::from(is_emptied);
    }

    /// The cleaner empties this segment, or none any more.
    pub(crate) fn empty(&mut self, segment: Option<SegmentIndex>) {
        self.emptied = segment;
    }

    /// A relocation of a block is being filled.
    pub(crate) fn relocation_began(&mut self, source: Pba) {
        let segment = self.of(source);
        self.table[segment.index()].leaving += 1;
    }

    /// It has arrived, in time or not.
    pub(crate) fn relocation_arrived(&mut self, source: Pba) {
        let segment = self.of(source);
        let entry = &mut self.table[segment.index()];
        assert!(entry.leaving > 0, "a relocation arrives once");
        entry.leaving -= 1;
    }

    /// When the blocks of a segment were written by the host, on average.
    pub(crate) fn mean_time(&self, segment: SegmentIndex) -> u64 {
        self.table[segment.index()].mean_time
    }

    /// The lives that ended since this was asked last.
    pub(crate) fn take_lives(&mut self) -> Lives {
        core::mem::take(&mut self.lives)
    }
}
