//! Lending record buffers: who reads, or writes outside the log, uses one for a while.

use super::{IDLE_KEPT_BY_CLEANING, IDLE_KEPT_BY_USER, Log, RecordState};
use crate::api::RecordRef;
use crate::segments::Segments;
use crate::units::SegmentIndex;

impl Log {
    /// Lends a record buffer for reading, if enough remain for writing.
    pub(crate) fn lend(&mut self) -> Option<RecordRef> {
        if self.idle.len() <= IDLE_KEPT_BY_CLEANING {
            return None;
        }
        let record = self.idle.pop()?;
        self.record_mut(record).state = RecordState::Lent;
        Some(record)
    }

    /// Lends one for what a checkpoint writes outside the log, be it the last.
    pub(crate) fn lend_to_checkpoint(&mut self) -> Option<RecordRef> {
        let record = self.idle.pop()?;
        self.record_mut(record).state = RecordState::Lent;
        Some(record)
    }

    /// The same for reading ahead, if enough remain for the host as well.
    pub(crate) fn lend_ahead(&mut self) -> Option<RecordRef> {
        if self.idle.len() > IDLE_KEPT_BY_USER + 1 { self.lend() } else { None }
    }

    /// Lends a buffer in which pages are put together. The caller has checked that one is free.
    pub(super) fn lend_image(&mut self) -> Option<RecordRef> {
        let image = self.idle.pop().expect("a record that may need one was begun with two");
        self.record_mut(image).state = RecordState::Lent;
        Some(image)
    }

    /// A record is sealed: if nothing is needed in its pages, it needs no image.
    pub(super) fn seal_image(&mut self, segments: &Segments, record_ref: RecordRef) {
        let record = self.record(record_ref);
        let Some(image) = record.image else { return };
        let pads = segments.pads(record, image);
        let is_needed = pads.is_some();
        let record = self.record_mut(record_ref);
        (record.pads, record.image) = (pads, Some(image).filter(|_| is_needed));
        if !is_needed {
            self.give_back(image);
        }
    }

    /// The first record over the holes of a segment that is sealed and not written yet.
    pub(crate) fn first_held_back(&self, segment: SegmentIndex) -> Option<RecordRef> {
        self.order.iter().copied().find(|record| {
            let record = self.record(*record);
            record.is_held && record.segment == segment
        })
    }

    /// Takes an image back, if there is one.
    pub(super) fn take_back(&mut self, image: Option<RecordRef>) {
        if let Some(image) = image {
            self.give_back(image);
        }
    }

    /// Buffers lent as images.
    #[cfg(feature = "verify")]
    pub(crate) fn images(&self) -> usize {
        self.records.iter().filter(|record| record.image.is_some()).count()
    }

    /// Takes a lent buffer back.
    pub(crate) fn give_back(&mut self, record: RecordRef) {
        assert_eq!(self.record(record).state, RecordState::Lent, "only what was lent");
        self.record_mut(record).state = RecordState::Idle;
        self.idle.push(record);
    }
}
