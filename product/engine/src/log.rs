//! The log's heads and the records on their way.
//!
//! # Invariants
//! - A record gets its sequence when it is sealed; records are applied in order of sequence, each
//!   only when it and all before it have completed. So the map never points at data that is not on
//!   the device, and acknowledgements come in the order in which a crash would keep the writes.
//! - A stream fills at most one record at a time, at its head.
//! - A group of user records, sealed together, is applied when all of it has completed: what was
//!   applied is never half a group.
//! - A record lies inside one segment: in a row at its stream's head, or in holes (see `holes`), in
//!   ascending order. A stream can have a head over holes besides its other one.

mod buffers;
mod echo;
mod heads;
mod patches;
mod place;
pub(crate) mod record;
#[cfg(feature = "verify")]
pub(crate) mod verify;

use crate::api::{Buffers, RECORD_BLOCKS, RecordRef};
use crate::canary::{Canary, sings};
use crate::config::Reclaim;
use crate::holes::pages;
use crate::memory::{self, NoMemory};
use crate::segments::Segments;
use crate::units::{Origin, SegmentIndex, Sequence, Stream, segment_start};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use coulter_format::StoreId;
use coulter_format::checkpoint::Head;
use coulter_format::record::{
    self as format, Cost, Extent, HeaderRoom, RecordHeader, SHORT_BLOCKS_MAX,
};
use echo::Echoes;
use patches::Patches;
pub(crate) use place::{Piece, Place};
pub(crate) use record::{Record, RecordState};

/// Record buffers that a stream leaves to those that must always get on.
const IDLE_KEPT_BY_USER: usize = 6;
const IDLE_KEPT_BY_CLEANING: usize = 3;

fn idle_kept(origin: Origin) -> usize {
    match origin {
        Origin::User => IDLE_KEPT_BY_USER,
        Origin::Cleaning => IDLE_KEPT_BY_CLEANING,
        Origin::Metadata => 0,
    }
}

/// All streams and records.
pub(crate) struct Log {
    records: Vec<Record>,
    idle: Vec<RecordRef>,
    heads: [Option<Head>; Stream::COUNT],
    patches: Patches,
    filling: [Option<RecordRef>; Stream::COUNT],
    /// Records on their way, a group counting as one.
    in_flight: [u32; Origin::COUNT],
    /// Sealed records in order of sequence.
    pub(crate) order: VecDeque<RecordRef>,
    /// Segments opened since the last cut, with the sequence of their first record if it is
    /// sealed.
    opened: VecDeque<(SegmentIndex, Option<Sequence>)>,
    pub(crate) next_sequence: Sequence,
    pub(crate) applied: Sequence,
    pub(crate) durable: Sequence,
    pub(crate) epoch: u64,
    /// Of the durable superblock.
    pub(crate) generation: u64,
    /// The sequence of the latest cut.
    pub(crate) cut: Sequence,
    echoes: Echoes,
    /// Whether records may be long: both copies of the superblock that is durable say so, and all of the map
    /// has room in memory. Where it has not, each relocation keeps a leaf there until it arrives, and what was
    /// promised to the host's writes while they gather is held back from the cleaner; a header for the
    /// more of them costs less than the pages that the sweep would write to win room back.
    pub(crate) long_records: bool,
    pub(crate) write_clock: u64,
    /// Blocks written to empty segments since the store was opened.
    pub(crate) appended_blocks: u64,
    /// Blocks written since the last cut.
    pub(crate) blocks_since_cut: u64,
    /// How long the host's records are, about: as long as the longest of the latest.
    pub(crate) user_record_length: u32,
}

impl Log {
    // Not inlined: its locals would enlarge the caller's stack frame.
    #[inline(never)]
    pub(crate) fn new(record_count: u16, reclaim: Reclaim) -> Result<Log, NoMemory> {
        let mut records = memory::list(usize::from(record_count))?;
        for _ in 0..record_count {
            records.push(Record::new()?);
        }
        Ok(Log {
            idle: memory::listed((0..record_count).rev().map(RecordRef))?,
            order: memory::queue(records.len())?,
            opened: memory::queue(64)?,
            records,
            heads: [None; Stream::COUNT],
            patches: Patches::new(reclaim),
            filling: [None; Stream::COUNT],
            in_flight: [0; Origin::COUNT],
            next_sequence: 1,
            applied: 0,
            durable: 0,
            epoch: 0,
            generation: 0,
            cut: 0,
            echoes: Echoes::new()?,
            long_records: false,
            write_clock: 0,
            appended_blocks: 0,
            blocks_since_cut: 0,
            user_record_length: 0,
        })
    }

    pub(crate) fn record(&self, record: RecordRef) -> &Record {
        &self.records[record.0 as usize]
    }

    pub(crate) fn record_mut(&mut self, record: RecordRef) -> &mut Record {
        &mut self.records[record.0 as usize]
    }

    pub(crate) fn filling(&self, stream: Stream) -> Option<RecordRef> {
        self.filling[stream.index()]
    }

    /// The stream's record, if this one fills it.
    pub(crate) fn filled_by(&self, stream: Stream, origin: Origin) -> Option<RecordRef> {
        self.filling(stream).filter(|record| self.record(*record).origin == origin)
    }

    /// The streams with a record that this one fills.
    pub(crate) fn streams_filled_by(&self, origin: Origin) -> impl Iterator<Item = Stream> + '_ {
        Stream::ALL.into_iter().filter(move |stream| self.filled_by(*stream, origin).is_some())
    }

    /// Records on their way, a group counting as one.
    pub(crate) fn in_flight(&self, origin: Origin) -> u32 {
        self.in_flight[origin.index()]
    }

    /// Whether nothing of it is being filled or on its way.
    pub(crate) fn is_quiet(&self, origin: Origin) -> bool {
        self.in_flight(origin) == 0 && self.streams_filled_by(origin).next().is_none()
    }

    /// When what happens now counts as having happened: with the next record to be applied.
    pub(crate) fn now(&self) -> Sequence {
        self.applied + 1
    }

    /// The stream's record, if it is this one's and takes the extent besides what it has.
    pub(crate) fn fitting(
        &self,
        stream: Stream,
        origin: Origin,
        extent: &Extent,
    ) -> Option<RecordRef> {
        self.fitting_all(stream, origin, core::slice::from_ref(extent))
    }

    /// The same for several extents.
    pub(crate) fn fitting_all(
        &self,
        stream: Stream,
        origin: Origin,
        extents: &[Extent],
    ) -> Option<RecordRef> {
        self.filled_by(stream, origin).filter(|record| self.record(*record).fits(extents))
    }

    /// Whether there is a buffer for the next record of metadata.
    pub(crate) fn can_begin_metadata(&self) -> bool {
        self.filling(Stream::Metadata).is_some() || self.idle.len() > idle_kept(Origin::Metadata)
    }

    /// Begins a new record that will take at least `blocks`. `keep` usable segments are left to
    /// others. `None` if there is no buffer or no segment now. The stream must not be filling one.
    pub(crate) fn begin(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        origin: Origin,
        blocks: u32,
        keep: usize,
    ) -> Option<RecordRef> {
        assert!(self.filling(stream).is_none(), "one record at a time");
        let images = usize::from(segments.pads_pages() && self.fills_holes(origin));
        if self.idle.len() <= idle_kept(origin) + images {
            return None;
        }
        let (head, place) = match self.place_in_holes(segments, stream, origin, blocks, keep) {
            Some(found) => found,
            None => (self.head_with_room(segments, stream, blocks, keep)?, Place::Row),
        };
        let record_ref = self.idle.pop()?;
        assert_eq!(self.record(record_ref).state, RecordState::Idle, "an idle buffer is idle");
        let pads = segments.pads_pages() && !place.is_appended();
        let image = if pads { self.lend_image() } else { None };
        assert!(place.is_appended() || origin != Origin::Metadata, "metadata lies in a row");
        let segment = SegmentIndex(head.segment);
        let left = segments.geometry().segment_blocks - head.offset - 1;
        let room = place.room(left);
        assert!(room >= blocks, "it takes what it was begun for");
        let header_pba = segment_start(segments.geometry(), segment).plus(head.offset);
        let header_room = place.header_room(self.header_room_in_row(origin));
        let page = segments.geometry().page_blocks;
        let long_max = pages::payload_max(RECORD_BLOCKS as u32, page);
        let in_part = !head.offset.is_multiple_of(page) && !pads;
        assert!(!in_part || sings(Canary::PartOfPageFilled), "a record begins at a page");
        let record = self.record_mut(record_ref);
        record.extents.clear();
        record.words.clear();
        record.requests.clear();
        (record.payload, record.cost) = (0, Cost::default());
        (record.reserved, record.user_blocks) = (0, 0);
        (record.promised, record.discards) = (0, false);
        (record.timed, record.times) = (0, 0);
        let is_long = header_room == HeaderRoom::Long;
        let blocks_max = if is_long { long_max } else { SHORT_BLOCKS_MAX as u32 };
        record.capacity = room.min(blocks_max);
        record.place = place;
        (record.image, record.pads) = (image, None);
        record.room = header_room;
        (record.parts, record.outcome) = (1, Ok(()));
        record.state = RecordState::Filling;
        (record.origin, record.stream, record.goes_on) = (origin, stream, false);
        record.segment = segment;
        record.header_pba = header_pba;
        self.filling[stream.index()] = Some(record_ref);
        Some(record_ref)
    }

    /// What the header of a new record may say. Metadata gains nothing by more: its records are as long
    /// as what there is to be written, and rarely full.
    fn header_room_in_row(&self, origin: Origin) -> HeaderRoom {
        match origin {
            Origin::User | Origin::Cleaning if self.long_records => HeaderRoom::Long,
            _ => HeaderRoom::Short,
        }
    }

    /// Gives a record up that was begun and stayed empty.
    pub(crate) fn abandon(&mut self, record_ref: RecordRef) {
        let record = self.record_mut(record_ref);
        assert!(record.extents.is_empty(), "only an empty record is given up");
        record.state = RecordState::Idle;
        let (stream, image) = (record.stream, record.image.take());
        self.take_back(image);
        assert_eq!(self.filling[stream.index()].take(), Some(record_ref), "it was being filled");
        self.idle.push(record_ref);
    }

    /// Takes the record that a stream is filling away from it, never to be sent.
    pub(crate) fn take_filling(&mut self, stream: Stream) -> Option<RecordRef> {
        self.filling[stream.index()].take()
    }

    /// Gives the stream's record its sequence and header. The caller sends it to the device. If it
    /// goes on, the next record sealed must be of the same group.
    pub(crate) fn seal(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        goes_on: bool,
        store: &StoreId,
        buffers: &mut impl Buffers,
    ) -> RecordRef {
        let record_ref = self.filling[stream.index()].take().expect("a record is being filled");
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let (epoch, durable, generation, cut) =
            (self.epoch, self.durable, self.generation, self.cut);
        let record = self.record_mut(record_ref);
        assert!(!record.extents.is_empty(), "a record says something");
        assert!(record.cost.fits(record.room), "what the record was asked for is what it got");
        assert!(record.sequence < sequence, "sequences rise");
        assert_eq!(record.state, RecordState::Filling, "a record is sealed once");
        assert!(record.payload <= record.capacity, "a record ends inside its segment");
        record.sequence = sequence;
        record.state = RecordState::InFlight;
        record.goes_on = goes_on;
        assert!(record.timed <= record.payload, "only its blocks are timed");
        let origin = record.origin;
        record.place = record.place.sealed(record.payload);
        let page = segments.geometry().page_blocks;
        let start = segment_start(segments.geometry(), record.segment);
        let begins_page = (record.header_pba.0 - start.0).is_multiple_of(page);
        let header = RecordHeader {
            stream: stream as u8,
            epoch,
            sequence,
            durable_sequence: durable,
            generation,
            cut,
            pba: record.header_pba,
            payload_size: record.payload as u16,
            scattered: record.place.scattered(),
            goes_on,
            // A record that begins within a page tells of none: else it would end beyond its last one.
            page_bits: if begins_page { page.trailing_zeros() as u8 } else { 0 },
        };
        let span = header.span();
        let block = &mut buffers.record_mut(record_ref)[0];
        format::encode(&header, store, &record.extents, &record.words, block)
            .expect("the cost of every extent was counted");
        self.echoes.pass_on(block, store);
        let record = self.record_mut(record_ref);
        record.header_checksum = format::header_checksum(block);
        let (segment, place) = (record.segment, record.place);
        self.seal_image(segments, record_ref);
        let record = self.record_mut(record_ref);
        // With what is left of its last page, which nothing is written to.
        let size = if place.is_appended() { span } else { 1 + record.payload };
        record.filler = size - (1 + record.payload);
        segments.record_sealed(segment);
        self.in_flight[origin.index()] += u32::from(!goes_on);
        self.blocks_since_cut += u64::from(size);
        self.appended_blocks += u64::from(if place.is_appended() { size } else { 0 });
        if origin == Origin::User {
            let latest = self.user_record_length;
            self.user_record_length = size.max(latest - latest / 8);
        }
        self.order.push_back(record_ref);
        match place {
            Place::Row => self.move_head(segments, stream, segment, span, sequence),
            Place::Holes(_) => self.move_patch(segments, stream, segment, span),
        }
        record_ref
    }

    /// A device command of the record has completed. Whether that was the last.
    pub(crate) fn part_completed(&mut self, record: RecordRef, result: Result<(), i32>) -> bool {
        let record = self.record_mut(record);
        assert_eq!(record.state, RecordState::InFlight, "a record completes once");
        assert!(record.parts > 0, "each part completes once");
        record.parts -= 1;
        record.outcome = record.outcome.and(result);
        if record.parts == 0 {
            record.state = RecordState::Done(record.outcome);
        }
        record.parts == 0
    }

    /// The first group in order, if all of it has completed, and how it ended; the group leaves the
    /// order. A record that belongs to none is a group of its own.
    pub(crate) fn take_completed(&mut self, group: &mut Vec<RecordRef>) -> Option<Result<(), i32>> {
        let mut outcome = Ok(());
        for (index, record_ref) in self.order.iter().enumerate() {
            let record = self.record(*record_ref);
            let RecordState::Done(result) = record.state else { return None };
            outcome = outcome.and(result);
            if !record.goes_on {
                group.clear();
                group.extend(self.order.drain(..=index));
                return Some(outcome);
            }
        }
        None
    }

    /// The record was applied or given up; its buffer is free.
    pub(crate) fn retire(&mut self, segments: &mut Segments, record_ref: RecordRef) {
        let now = self.now();
        let record = self.record_mut(record_ref);
        assert!(record.state != RecordState::Idle, "a record is done with once");
        let sealed = record.state != RecordState::Filling;
        record.state = RecordState::Idle;
        let (origin, segment, goes_on) = (record.origin, record.segment, record.goes_on);
        record.pads = None;
        let image = record.image.take();
        self.take_back(image);
        if sealed {
            assert!(goes_on || self.in_flight[origin.index()] > 0, "what comes was under way");
            self.in_flight[origin.index()] -= u32::from(!goes_on);
            segments.record_applied(segment, now);
        }
        self.idle.push(record_ref);
    }
}

#[cfg(test)]
mod tests;
