//! From empty to open: which segments wait to be written, and when they may be.

use super::{Segment, Segments, State, Trim};
use crate::canary::{Canary, sings};
use crate::units::{SegmentIndex, Sequence, Stream};

impl Segments {
    /// Takes the next segment for a stream, if at least `keep` others remain usable behind it.
    pub(crate) fn open(&mut self, stream: Stream, keep: usize, clock: u64) -> Option<SegmentIndex> {
        let next = *self.queue.front()?;
        let front = &self.table[next.index()];
        let is_trimmed = front.state == State::Queued(Trim::UnderWay);
        let is_touched = is_trimmed || front.readiness.is_under_way() || self.is_read(next);
        if self.usable_count() <= keep || is_touched {
            return None;
        }
        assert_eq!(front.valid, 0, "nothing is counted in a segment that is opened");
        self.queue.pop_front();
        self.usable -= 1;
        self.ready.front_was_opened();
        self.enter(next, State::Open);
        self.forget_cleaning(next);
        self.set_patched(next, false);
        let entry = self.segment_mut(next);
        entry.readiness.note_opened();
        entry.stream = stream as u8;
        entry.search_up_to = u32::MAX;
        entry.life = entry.life.wrapping_add(1);
        (entry.opened, entry.mean_time, entry.timed) = (clock, clock, 0);
        entry.moved = 0;
        Some(next)
    }

    /// A head takes no more.
    pub(crate) fn close(&mut self, segment: SegmentIndex, clock: u64, now: Sequence) {
        self.segment_mut(segment).clock = clock;
        self.enter(segment, State::Closed);
        self.settle(segment, now);
    }

    /// Queues free segments until `length` wait, and those that the checkpoint being cut at
    /// `sequence` frees. They may be opened once it is durable: see
    /// [`Segments::queue_is_durable`].
    pub(crate) fn fill_queue(&mut self, length: usize, sequence: Sequence) {
        let mut from = 0;
        while self.queue.len() < length {
            let (free, freed) = (self.free.next(from), self.freed.next(from));
            let Some(index) = free.into_iter().chain(freed).min() else { return };
            from = index + 1;
            let segment = SegmentIndex(index as u32);
            let state = match self.table[index].state {
                State::Freed(at) if at > sequence => continue,
                State::Freed(_) => State::Queued(Trim::Due),
                _ => State::Queued(Trim::Done),
            };
            assert_eq!(self.table[index].valid, 0, "nothing is counted in an empty segment");
            self.enter(segment, state);
            self.queue.push_back(segment);
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
        while let Some(index) = self.exhausted.next(0) {
            self.exhausted.remove(index);
        }
        let mut from = 0;
        loop {
            let (due, freed) = (self.to_be_trimmed.next(from), self.freed.next(from));
            let Some(index) = due.into_iter().chain(freed).min() else { break };
            from = index + 1;
            let segment = SegmentIndex(index as u32);
            let Segment { state, valid, .. } = self.table[index];
            // A read that is in flight must not be discarded under.
            let read = self.is_read(segment) && !sings(Canary::ReaderIgnored);
            assert_eq!(valid, 0, "nothing is counted in a freed segment");
            match state {
                // It is not discarded then: it will be written soon anyway.
                State::Queued(_) => {
                    let keeps = read || self.ready.keeps_queued();
                    let is_trimmed = !keeps && trim(segment);
                    self.segment_mut(segment).readiness.note_trimmed(is_trimmed);
                    let trim = if is_trimmed { Trim::UnderWay } else { Trim::Done };
                    self.enter(segment, State::Queued(trim));
                }
                // The next checkpoint will see.
                State::Freed(at) if at > sequence || read => {}
                _ if trim(segment) => {
                    self.segment_mut(segment).readiness.note_trimmed(true);
                    self.enter(segment, State::Trimming);
                }
                _ => self.enter(segment, State::Free),
            }
        }
        self.count_ready();
    }

    /// The device has forgotten a segment.
    pub(crate) fn trimmed(&mut self, segment: SegmentIndex) {
        match self.table[segment.index()].state {
            State::Queued(Trim::UnderWay) => self.enter(segment, State::Queued(Trim::Done)),
            _ => self.enter(segment, State::Free),
        }
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
        (self.free.count() + self.freed.count() + self.queue.len()) as u32
    }

    /// Whether a checkpoint would make more segments usable.
    pub(crate) fn queue_could_grow(&self) -> bool {
        self.free.count() > 0 || self.usable < self.queue.len()
    }

    /// Segments that wait for a checkpoint.
    pub(crate) fn freed_count(&self) -> u32 {
        self.freed.count() as u32
    }
}
