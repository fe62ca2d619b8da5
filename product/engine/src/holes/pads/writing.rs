//! Reading what is needed in the pages of a record, and writing these pages.

use super::{IMAGE_FIRST, PADDED_SHARE_MIN, Pads, Stretch};
use crate::Engine;
use crate::api::{Buffers, Command, IoResult, RecordRef};
use crate::canary::{Canary, sings};
use crate::error::OpenError;
use crate::holes::pages::{MULTI_LEVEL, PaddingCost, is_set, set};
use crate::holes::{HOLES_SHARE_MIN, HoleRoom, Holes};
use crate::ios::Purpose;
use crate::log::{Place, Record};
use crate::segments::Segments;
use crate::shared::Shared;
use crate::units::SegmentIndex;

impl Holes {
    /// Refuses padding on a device that does not say that it writes whole pages or none.
    pub(crate) fn set_pads(
        &mut self,
        wanted: bool,
        page_blocks: u32,
        atomic_page_blocks: u32,
    ) -> Result<(), OpenError> {
        assert!(page_blocks > 0 && atomic_page_blocks > 0, "a page has a block at least");
        if wanted && (page_blocks == 1 || page_blocks > atomic_page_blocks) {
            return Err(OpenError::Padding { page_blocks, atomic_page_blocks });
        }
        self.pads = wanted || sings(Canary::PaddedUnasked) && page_blocks > 1;
        Ok(())
    }
}

impl Segments {
    /// Whether pages of which something is needed are written.
    pub(crate) fn pads_pages(&self) -> bool {
        self.holes.pads
    }

    /// Blocks that are holes only together.
    pub(crate) fn hole_blocks(&self) -> u32 {
        if self.holes.pads { 1 } else { self.geometry().page_blocks }
    }

    /// Holes from which on a segment is worth it.
    pub(crate) fn least_holes(&self) -> u32 {
        self.geometry().segment_blocks
            / if self.holes.pads { PADDED_SHARE_MIN } else { HOLES_SHARE_MIN }
    }

    /// What it costs the flash if records are written between the blocks that are needed.
    pub(crate) fn padding_cost(&self, needed: &[u64]) -> PaddingCost {
        let (size, page) = (self.geometry().segment_blocks, self.geometry().page_blocks);
        PaddingCost::new(&MULTI_LEVEL, needed, size, page)
    }

    /// Whether a record may begin here.
    pub(crate) fn may_begin(&self, room: &HoleRoom) -> bool {
        self.holes.pads || room.offset.is_multiple_of(self.geometry().page_blocks)
    }

    /// What is to be read before a sealed record in holes can be written.
    pub(crate) fn pads(&self, record: &Record, image: RecordRef) -> Option<Pads> {
        let entry = self.open_entry(record.segment)?;
        Pads::new(record, image, &entry.needed, self.geometry())
    }

    /// Where a head over holes goes on behind a record: what is left of a page is not written a second time.
    pub(crate) fn behind(&self, segment: SegmentIndex, end: u32) -> u32 {
        assert!(segment.index() < self.iter().count(), "it is one of the store");
        end.next_multiple_of(self.geometry().page_blocks).min(self.geometry().segment_blocks)
    }
}

impl Shared {
    /// Holds a sealed record back if others over the same holes are, or until its pages are read; false if it can
    /// be written now.
    pub(crate) fn hold_back(&mut self, record: RecordRef) -> bool {
        let sealed = self.log.record(record);
        let (segment, is_row) = (sealed.segment, sealed.place.is_appended());
        let waits = !is_row && self.log.first_held_back(segment).is_some();
        if !waits && sealed.pads.is_none() {
            return false;
        }
        let sealed = self.log.record_mut(record);
        (sealed.is_held, sealed.parts) = (true, 1);
        self.read_pads(record);
        true
    }

    /// Reads what a sealed record is to be written with, if anything.
    fn read_pads(&mut self, record: RecordRef) {
        let Some(mut pads) = self.log.record(record).pads else { return };
        let mut pages = pads.pages();
        while let Some(Stretch { at, count }) = pages.next(&pads, Pads::is_read) {
            let command =
                Command::Read { pba: pads.first.plus(at), count, target: pads.target(at) };
            self.ios.start(Purpose::Pad { record, at: at as u16, count: count as u16 }, command);
            pads.reads += 1;
            self.statistics.pad_reads += 1;
        }
        assert!(pads.reads > 0, "what is needed is read");
        let sealed = self.log.record_mut(record);
        assert!(sealed.place != Place::Row, "a row has nothing beside it");
        sealed.pads = Some(pads);
    }

    /// Pages have been read, or cannot be. With the last ones the record is written, and those that waited for it.
    pub(crate) fn pads_read(
        &mut self,
        record: RecordRef,
        at: u32,
        count: u32,
        result: IoResult,
        buffers: &mut impl Buffers,
    ) {
        let sealed = self.log.record_mut(record);
        let pads = sealed.pads.as_mut().expect("it waits for them");
        assert!(sealed.is_held && pads.reads > 0, "each read comes back once");
        pads.reads -= 1;
        if result.is_err() {
            (at..at + count).for_each(|block| {
                set(&mut pads.unread, block);
            });
        }
        let segment = sealed.segment;
        while let Some(next) = self.log.first_held_back(segment) {
            let sealed = self.log.record_mut(next);
            if sealed.pads.is_some_and(|pads| pads.reads > 0) {
                break;
            }
            sealed.is_held = false;
            match (self.poisoned, sealed.pads) {
                // Nothing is written any more.
                (Some(errno), _) => {
                    let is_done = self.log.part_completed(next, Err(errno));
                    assert!(is_done, "it had nothing under way but reads");
                }
                (None, Some(pads)) => self.write_padded(next, &pads, buffers),
                (None, None) => self.write_record(next),
            }
        }
    }

    /// Writes a record, and what is needed beside it: one command for pages in a row.
    fn write_padded(&mut self, record: RecordRef, pads: &Pads, buffers: &mut impl Buffers) {
        let sealed = self.log.record(record);
        let stream = sealed.stream;
        put_together(sealed, record, pads, buffers);
        let mut parts = 0;
        let mut write = |at: u32, count: u32| {
            let (pba, source) = (pads.first.plus(at), pads.target(at));
            self.ios.start(Purpose::Record(record), Command::Write { pba, count, source, stream });
            parts += 1;
        };
        let mut pages = pads.pages();
        while let Some(Stretch { at, count }) = pages.next(pads, Pads::is_whole) {
            write(at, count);
        }
        let in_part = |at: &u32| is_set(&pads.unread, *at) && is_set(&pads.written, *at);
        (0..pads.count).filter(in_part).for_each(|at| write(at, 1));
        assert!(parts > 0, "the header is written at least");
        self.statistics.padded_blocks += u64::from(pads.padded());
        self.log.record_mut(record).parts = parts;
    }
}

/// Copies a record's blocks to their places in the image. What is neither needed nor the record's becomes zeros,
/// unless it was read.
fn put_together(record: &Record, source: RecordRef, pads: &Pads, buffers: &mut impl Buffers) {
    let mut places = record.place.payload(record.header_pba);
    let places = (0..record.payload).map(|_| places.next());
    for (block, pba) in (0..).zip(core::iter::once(record.header_pba).chain(places)) {
        let at = pba.0 - pads.first.0;
        assert!(is_set(&pads.written, at), "it goes where the record lies");
        buffers.relocate(source, block, pads.image, IMAGE_FIRST + at - 1);
    }
    let image = buffers.record_mut(pads.image);
    for at in (0..pads.count).filter(|at| !is_set(&pads.written, *at)) {
        if !pads.is_read(at - at % pads.page_blocks) {
            image[(IMAGE_FIRST + at) as usize].fill(0);
        }
    }
    if sings(Canary::PadDisplaced)
        && let Some(at) = (0..pads.count).find(|at| is_set(&pads.needed, *at))
    {
        image[(IMAGE_FIRST + at) as usize].rotate_left(1);
    }
}

impl Engine {
    /// Whether partly dead flash pages are holes, and written with what is needed there.
    pub fn pads_pages(&self) -> bool {
        self.shared.segments.pads_pages()
    }
}
