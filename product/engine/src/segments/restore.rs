//! While a store is opened: segments become what a checkpoint and the log say.

use super::{Segments, State, Trim};
use crate::units::{SegmentIndex, Sequence};

impl Segments {
    /// The same while a store is opened.
    fn restore_to(&mut self, segment: SegmentIndex, state: State) {
        let before = self.table[segment.index()].state;
        assert!(before.is_restored_to(state), "{segment:?} is {before:?}, and {state:?} at once");
        self.set_state(segment, state);
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
        assert_eq!(self.segment(segment).state, State::Free, "a segment is restored once");
        let entry = self.segment_mut(segment);
        (entry.valid, entry.stream, entry.clock) = (valid, stream, clock);
        // When it was opened is not written down.
        (entry.opened, entry.mean_time, entry.timed) = (mean_time, mean_time, valid);
        self.valid_count += u64::from(valid);
        if state != State::Free {
            self.restore_to(segment, state);
            self.segment_mut(segment).readiness.note_opened();
        }
    }

    /// What counts in which segment cannot be known any more: nothing is counted from now on, and nothing freed.
    pub(crate) fn give_up_counting(&mut self) {
        self.uncounted = true;
    }

    /// Whether it is known what counts in which segment.
    pub(crate) fn counts(&self) -> bool {
        !self.uncounted
    }

    /// The checkpoint says that a segment is patched.
    pub(crate) fn restore_patched(&mut self, segment: SegmentIndex) {
        self.set_patched(segment, true);
    }

    /// Puts a free segment at the end of the queue as a durable checkpoint lists it.
    pub(crate) fn restore_queued(&mut self, segment: SegmentIndex) -> bool {
        let entry = self.segment(segment);
        if entry.state != State::Free || entry.valid != 0 {
            return false;
        }
        self.restore_to(segment, State::Queued(Trim::Done));
        self.queue.push_back(segment);
        self.usable += 1;
        true
    }

    /// Takes a segment that replay found in use out of the queue.
    pub(crate) fn restore_opened(&mut self, segment: SegmentIndex, stream: u8, clock: u64) {
        let position = self.queue.iter().position(|queued| *queued == segment);
        self.queue.remove(position.expect("replay only looks at queued segments"));
        self.usable -= 1;
        self.restore_to(segment, State::Open);
        let entry = self.segment_mut(segment);
        entry.readiness.note_opened();
        entry.stream = stream;
        (entry.opened, entry.mean_time, entry.timed) = (clock, clock, 0);
    }

    /// A segment that replay found left behind by its stream.
    pub(crate) fn restore_closed(&mut self, segment: SegmentIndex, clock: u64) {
        if self.segment(segment).state == State::Open {
            self.segment_mut(segment).clock = clock;
            self.restore_to(segment, State::Closed);
        }
    }

    /// A segment that is a stream's head again, whatever the checkpoint said.
    pub(crate) fn restore_reopened(&mut self, segment: SegmentIndex) {
        self.segment_mut(segment).readiness.note_opened();
        self.restore_to(segment, State::Open);
    }

    /// Open segments that are no stream's head are closed.
    pub(crate) fn close_headless(&mut self, is_head: impl Fn(SegmentIndex) -> bool) {
        for index in 0..self.table.len() {
            let segment = SegmentIndex(index as u32);
            if self.table[index].state == State::Open && !is_head(segment) {
                self.restore_to(segment, State::Closed);
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
