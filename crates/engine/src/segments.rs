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

#[cfg(feature = "verify")]
mod verify;

use crate::canary::{Canary, sings};
use crate::holes::Holes;
use crate::prepare::{Readiness, ReadyQueue};
use crate::units::{SegmentIndex, Sequence, Stream, segment_of};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use coulter_format::Pba;
use coulter_format::superblock::Geometry;

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing counted, in a durable checkpoint too; may be queued.
    Free,
    /// Nothing counted since this sequence; waits for a checkpoint that says so.
    Freed(Sequence),
    /// Being discarded on the device.
    Trimming,
    /// In the queue of segments to be opened; with `to_be_trimmed`, since it was freed.
    Queued,
    /// A stream's head.
    Open,
    /// Full.
    Closed,
    /// Full, and records are or will be written into its holes: see `holes`.
    Patching,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) valid: u32,
    pub(crate) readers: u32,
    /// Records sealed into it that are not applied yet.
    pub(crate) pending: u32,
    /// The write clock when it was closed.
    pub(crate) clock: u64,
    /// The write clock when it was opened.
    opened: u64,
    /// When its blocks were written by the host, on average, and how many that counts.
    mean_time: u64,
    timed: u32,
    /// Host blocks in it that the cleaner has moved.
    pub(crate) moved: u32,
    pub(crate) state: State,
    pub(crate) stream: u8,
    /// How often it was opened since the engine was.
    pub(crate) life: u32,
    /// The cleaner went through it and something remained (a checkpoint's body); not again before
    /// the next checkpoint.
    pub(crate) exhausted: bool,
    /// Relocations of its blocks that are being filled or on their way: until they arrive the map leads to it,
    /// though nothing is left to be won.
    pub(crate) leaving: u32,
    /// The cleaner looked at every block in it, and knew of each whether it is current.
    pub(crate) gone_through: bool,
    /// Records were written into its holes, or may be: any block may be a header.
    pub(crate) patched: bool,
    /// Its holes are being looked for, or are known.
    pub(crate) watched: bool,
    /// Its holes are looked for while no more than this are valid: fewer once they were in vain.
    pub(crate) search_up_to: u32,
    /// It was queued as soon as it was freed: the device has not been told to forget it.
    pub(crate) to_be_trimmed: bool,
    /// The device is forgetting it.
    pub(crate) trimming: bool,
    /// How far it is prepared.
    pub(crate) readiness: Readiness,
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
    pub(crate) fn begin_patching(&mut self, stream: Stream) {
        self.stream = stream as u8;
        (self.exhausted, self.gone_through) = (false, false);
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
    table: Vec<Segment>,
    queue: VecDeque<SegmentIndex>,
    /// How many at the front of the queue are listed by the durable checkpoint.
    usable: usize,
    free_count: u32,
    freed_count: u32,
    miscounted: bool,
    /// Segments gone through since the last cut.
    gone_through_count: u32,
    /// Freed since they were asked for.
    lives: Lives,
    pub(crate) holes: Holes,
    pub(crate) ready: ReadyQueue,
}

impl Segments {
    pub(crate) fn new(geometry: Geometry) -> Segments {
        let free = Segment {
            valid: 0,
            readers: 0,
            pending: 0,
            clock: 0,
            opened: 0,
            mean_time: 0,
            timed: 0,
            moved: 0,
            state: State::Free,
            stream: 0,
            life: 0,
            exhausted: false,
            leaving: 0,
            gone_through: false,
            patched: false,
            watched: false,
            search_up_to: u32::MAX,
            to_be_trimmed: false,
            trimming: false,
            readiness: Readiness::default(),
        };
        let table = alloc::vec![free; geometry.segment_count as usize];
        Segments {
            geometry,
            free_count: table.len() as u32,
            freed_count: 0,
            queue: VecDeque::with_capacity(table.len()),
            table,
            usable: 0,
            miscounted: false,
            gone_through_count: 0,
            lives: Lives::default(),
            holes: Holes::default(),
            ready: ReadyQueue::default(),
        }
    }

    /// More segments come behind those that there are, all of them free.
    pub(crate) fn grow(&mut self, geometry: Geometry) {
        let more = Segments::new(geometry).table.split_off(self.table.len());
        self.free_count += more.len() as u32;
        self.table.extend(more);
        self.queue.reserve(self.table.len() - self.queue.len());
        self.geometry = geometry;
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn segment(&self, segment: SegmentIndex) -> &Segment {
        &self.table[segment.index()]
    }

    pub(crate) fn segment_mut(&mut self, segment: SegmentIndex) -> &mut Segment {
        &mut self.table[segment.index()]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        self.table.iter().enumerate().map(|(index, segment)| (SegmentIndex(index as u32), segment))
    }

    /// The segment of a block that is known to lie in the log.
    pub(crate) fn of(&self, pba: Pba) -> SegmentIndex {
        // A segment's size is a power of two: a shift, where `segment_of` divides.
        let offset = pba.0.wrapping_sub(self.geometry.first_segment.0);
        let segment = SegmentIndex(offset >> self.geometry.segment_size.trailing_zeros());
        debug_assert_eq!(segment_of(&self.geometry, pba), Some(segment), "checked when read");
        segment
    }

    /// One more reference to a block.
    pub(crate) fn retain(&mut self, pba: Pba) {
        assert_ne!(pba, Pba::LOST, "what is lost is nowhere");
        let segment = self.of(pba);
        let entry = &mut self.table[segment.index()];
        if entry.valid == self.geometry.segment_size {
            self.miscounted = true;
            return;
        }
        entry.valid += 1;
        debug_assert!(!matches!(entry.state, State::Free | State::Queued | State::Trimming));
    }

    /// One reference less. A closed segment without any becomes freed at `now`. What is lost is
    /// counted, but nobody knows where: see [`Segments::forgive`].
    pub(crate) fn release(&mut self, pba: Pba, now: Sequence) {
        if pba == Pba::LOST {
            return;
        }
        let segment = self.of(pba);
        let entry = &mut self.table[segment.index()];
        if entry.valid == 0 {
            self.miscounted = true;
            return;
        }
        entry.valid -= 1;
        let (empty, watched) = (entry.valid == 0, entry.watched);
        if watched {
            self.note_death(segment, pba);
        }
        if empty {
            self.settle(segment, now);
        }
    }

    /// Whether a count cannot be right: more references than blocks, or one released that was never
    /// counted. The segment table came from the device, so that is damage and not a panic; but no
    /// segment may be freed by such counts.
    pub(crate) fn miscounted(&self) -> bool {
        self.miscounted
    }

    /// The cleaner went through a segment, and knew of every block in it whether it is current.
    pub(crate) fn went_through(&mut self, segment: SegmentIndex) {
        self.table[segment.index()].gone_through = true;
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
    pub(crate) fn forgive(&mut self, listed: &[u32], now: Sequence) -> u64 {
        let mut forgiven = 0;
        self.gone_through_count = 0;
        for (index, listed) in listed.iter().enumerate() {
            let entry = &mut self.table[index];
            let gone_through = core::mem::replace(&mut entry.gone_through, false);
            let still = entry.state == State::Closed && entry.pending == 0;
            if gone_through && still && entry.valid > *listed {
                forgiven += u64::from(entry.valid - listed);
                entry.valid = *listed;
                self.settle(SegmentIndex(index as u32), now);
            }
        }
        forgiven
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
        let entry = &mut self.table[segment.index()];
        if entry.state == State::Closed && entry.valid == 0 && entry.pending == 0 {
            entry.state = State::Freed(now);
            self.freed_count += 1;
            // One that was patched did not live from its opening on.
            if entry.stream == Stream::User as u8 && !entry.patched {
                self.lives.count += 1;
                self.lives.sum_opened += u128::from(entry.opened);
            }
        }
    }

    /// Takes the next segment for a stream, if at least `keep` others remain usable behind it.
    pub(crate) fn open(&mut self, stream: Stream, keep: usize, clock: u64) -> Option<SegmentIndex> {
        let next = *self.queue.front()?;
        let front = &self.table[next.index()];
        let is_touched = front.readers > 0 || front.trimming || front.readiness.is_under_way();
        if self.usable_count() <= keep || is_touched {
            return None;
        }
        self.queue.pop_front();
        self.usable -= 1;
        self.ready.front_was_opened();
        let entry = &mut self.table[next.index()];
        entry.readiness.note_opened();
        assert_eq!(entry.state, State::Queued, "only a queued segment is opened");
        assert_eq!(entry.valid, 0, "nothing is counted in a segment that is opened");
        entry.state = State::Open;
        entry.stream = stream as u8;
        entry.exhausted = false;
        entry.gone_through = false;
        (entry.patched, entry.search_up_to) = (false, u32::MAX);
        entry.life = entry.life.wrapping_add(1);
        (entry.opened, entry.mean_time, entry.timed) = (clock, clock, 0);
        entry.moved = 0;
        Some(next)
    }

    /// A head takes no more.
    pub(crate) fn close(&mut self, segment: SegmentIndex, clock: u64, now: Sequence) {
        let entry = &mut self.table[segment.index()];
        assert_eq!(entry.state, State::Open, "only an open segment is closed");
        entry.clock = clock;
        entry.state = State::Closed;
        self.settle(segment, now);
    }

    /// So many blocks of host data came into the segment; the sum of the clocks at which the host
    /// wrote them.
    pub(crate) fn note_times(&mut self, segment: SegmentIndex, blocks: u32, times: u128) {
        let entry = &mut self.table[segment.index()];
        let total = entry.timed + blocks;
        if total > 0 {
            let sum = u128::from(entry.mean_time) * u128::from(entry.timed) + times;
            entry.mean_time = (sum / u128::from(total)) as u64;
            entry.timed = total;
        }
    }

    /// A host block was relocated: if the cleaner is emptying its segment, or just has, it is noted as
    /// moved.
    pub(crate) fn note_moved(&mut self, source: Pba, victim: Option<SegmentIndex>) {
        let segment = self.of(source);
        let entry = &mut self.table[segment.index()];
        let is_emptied = entry.exhausted || victim == Some(segment);
        entry.moved += u32::from(is_emptied);
    }

    /// A relocation of a block is being filled.
    pub(crate) fn relocation_began(&mut self, source: Pba) {
        let segment = self.of(source);
        self.table[segment.index()].leaving += 1;
    }

    /// It has arrived, in time or not.
    pub(crate) fn relocation_arrived(&mut self, source: Pba) {
        let segment = self.of(source);
        self.table[segment.index()].leaving -= 1;
    }

    /// When the blocks of a segment were written by the host, on average.
    pub(crate) fn mean_time(&self, segment: SegmentIndex) -> u64 {
        self.table[segment.index()].mean_time
    }

    /// The lives that ended since this was asked last.
    pub(crate) fn take_lives(&mut self) -> Lives {
        core::mem::take(&mut self.lives)
    }

    /// Queues free segments until `length` wait, and those that the checkpoint being cut at
    /// `sequence` frees. They may be opened once it is durable: see
    /// [`Segments::queue_is_durable`].
    pub(crate) fn fill_queue(&mut self, length: usize, sequence: Sequence) {
        let mut index = 0;
        while self.queue.len() < length && self.free_count + self.freed_count > 0 {
            let Some(entry) = self.table.get_mut(index) else { return };
            match entry.state {
                State::Free => self.free_count -= 1,
                State::Freed(at) if at <= sequence => {
                    assert_eq!(entry.valid, 0, "nothing is counted in a freed segment");
                    self.freed_count -= 1;
                    entry.to_be_trimmed = true;
                }
                _ => {
                    index += 1;
                    continue;
                }
            }
            entry.state = State::Queued;
            self.queue.push_back(SegmentIndex(index as u32));
        }
    }

    /// The checkpoint that lists the queue is durable. Nothing was queued since its cut; some of
    /// the front may have been opened.
    pub(crate) fn queue_is_durable(&mut self) {
        self.usable = self.queue.len();
    }

    /// Segments freed up to `sequence` are free now that a checkpoint of it is durable. Calls
    /// `trim` for each, queued already or not; if it returns true, the segment waits for
    /// [`Segments::trimmed`].
    pub(crate) fn checkpoint_is_durable(
        &mut self,
        sequence: Sequence,
        mut trim: impl FnMut(SegmentIndex) -> bool,
    ) {
        for (index, entry) in self.table.iter_mut().enumerate() {
            entry.exhausted = false;
            if core::mem::take(&mut entry.to_be_trimmed) {
                // With a read of it in flight it is not discarded: it will be written soon anyway.
                let read = entry.readers > 0 && !sings(Canary::ReaderIgnored);
                let keeps = read || self.ready.keeps_queued();
                entry.trimming = !keeps && trim(SegmentIndex(index as u32));
                entry.readiness.note_trimmed(entry.trimming);
                continue;
            }
            let State::Freed(at) = entry.state else { continue };
            // A read that is in flight must not be discarded under; the next checkpoint will see.
            let read = entry.readers > 0 && !sings(Canary::ReaderIgnored);
            if at > sequence || read {
                continue;
            }
            assert_eq!(entry.valid, 0, "nothing is counted in a freed segment");
            self.freed_count -= 1;
            if trim(SegmentIndex(index as u32)) {
                entry.readiness.note_trimmed(true);
                entry.state = State::Trimming;
            } else {
                entry.state = State::Free;
                self.free_count += 1;
            }
        }
        self.count_ready();
    }

    /// The device has forgotten a segment.
    pub(crate) fn trimmed(&mut self, segment: SegmentIndex) {
        let entry = &mut self.table[segment.index()];
        if core::mem::take(&mut entry.trimming) {
            return;
        }
        assert_eq!(entry.state, State::Trimming, "a discard was asked for once");
        entry.state = State::Free;
        self.free_count += 1;
    }

    /// Segments in the queue, in order of opening.
    pub(crate) fn queue(&self) -> impl ExactSizeIterator<Item = SegmentIndex> + '_ {
        self.queue.iter().copied()
    }

    /// Segments that may be opened now.
    pub(crate) fn usable_count(&self) -> usize {
        self.ready.limit(self.usable)
    }

    /// Segments that the durable checkpoint lists to be opened, prepared or not.
    pub(crate) fn listed_count(&self) -> usize {
        self.usable
    }

    /// Segments that are empty and need no cleaning: queued, free and (soon) freed ones.
    pub(crate) fn empty_count(&self) -> u32 {
        self.free_count + self.freed_count + self.queue.len() as u32
    }

    /// Whether a checkpoint would make more segments usable.
    pub(crate) fn queue_could_grow(&self) -> bool {
        self.free_count > 0 || self.usable < self.queue.len()
    }

    /// Segments that wait for a checkpoint.
    pub(crate) fn freed_count(&self) -> u32 {
        self.freed_count
    }

    /// Sets a segment as a checkpoint describes it.
    pub(crate) fn restore(
        &mut self,
        segment: SegmentIndex,
        valid: u32,
        state: State,
        stream: u8,
        clock: u64,
        mean_time: u64,
    ) {
        let entry = &mut self.table[segment.index()];
        assert_eq!(entry.state, State::Free, "a segment is restored once");
        (entry.valid, entry.state, entry.stream, entry.clock) = (valid, state, stream, clock);
        // When it was opened is not written down.
        (entry.opened, entry.mean_time, entry.timed) = (mean_time, mean_time, valid);
        if state != State::Free {
            entry.readiness.note_opened();
            self.free_count -= 1;
        }
    }

    /// The checkpoint says that a segment is patched.
    pub(crate) fn restore_patched(&mut self, segment: SegmentIndex) {
        self.table[segment.index()].patched = true;
    }

    /// Puts a free segment at the end of the queue as a durable checkpoint lists it.
    pub(crate) fn restore_queued(&mut self, segment: SegmentIndex) -> bool {
        let entry = &mut self.table[segment.index()];
        if entry.state != State::Free || entry.valid != 0 {
            return false;
        }
        entry.state = State::Queued;
        self.free_count -= 1;
        self.queue.push_back(segment);
        self.usable += 1;
        true
    }

    /// Takes a segment that replay found in use out of the queue.
    pub(crate) fn restore_opened(&mut self, segment: SegmentIndex, stream: u8, clock: u64) {
        let position = self.queue.iter().position(|queued| *queued == segment);
        self.queue.remove(position.expect("replay only looks at queued segments"));
        self.usable -= 1;
        let entry = &mut self.table[segment.index()];
        entry.readiness.note_opened();
        entry.state = State::Open;
        entry.stream = stream;
        (entry.opened, entry.mean_time, entry.timed) = (clock, clock, 0);
    }

    /// A segment that replay found left behind by its stream.
    pub(crate) fn restore_closed(&mut self, segment: SegmentIndex, clock: u64) {
        let entry = &mut self.table[segment.index()];
        if entry.state == State::Open {
            entry.state = State::Closed;
            entry.clock = clock;
        }
    }

    /// A segment that is a stream's head again, whatever the checkpoint said.
    pub(crate) fn restore_reopened(&mut self, segment: SegmentIndex) {
        let entry = &mut self.table[segment.index()];
        if entry.state == State::Free {
            self.free_count -= 1;
        }
        entry.readiness.note_opened();
        entry.state = State::Open;
    }

    /// Open segments that are no stream's head are closed.
    pub(crate) fn close_headless(&mut self, is_head: impl Fn(SegmentIndex) -> bool) {
        for (index, entry) in self.table.iter_mut().enumerate() {
            if entry.state == State::Open && !is_head(SegmentIndex(index as u32)) {
                entry.state = State::Closed;
            }
        }
    }

    /// After restoring: closed segments in which nothing is counted are freed.
    pub(crate) fn free_empty(&mut self, now: Sequence) {
        for index in 0..self.table.len() {
            self.settle(SegmentIndex(index as u32), now);
        }
    }
}
