//! The log's heads and records, counted anew.

use super::{Log, Place, Record, RecordState};
use crate::api::RecordRef;
use crate::segments::{Segments, State};
use crate::units::{Origin, Stream, segment_start};
use alloc::vec::Vec;
use coulter_format::Pba;
use coulter_format::checksum::Kind;

/// A block that is being relocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    pub(crate) is_data: bool,
    pub(crate) key: u64,
    pub(crate) source: Pba,
}

/// What is being filled or on its way.
pub(crate) struct UnderWay {
    pub(crate) relocations: Vec<Relocation>,
    /// Keys of leaves whose pages are written anew.
    pub(crate) leaf_pages: Vec<u64>,
    /// Chunks of the map that were promised.
    pub(crate) reserved: usize,
}

impl Log {
    /// Returns what is under way. With `is_sound`, no write has failed.
    ///
    /// # Panics
    /// If heads, records, counters and segments contradict each other.
    pub(crate) fn assert_invariants(&self, segments: &Segments, is_sound: bool) -> UnderWay {
        self.assert_buffers();
        self.assert_order(is_sound);
        self.assert_heads(segments);
        let mut pending = alloc::vec![0; segments.iter().count()];
        let mut under_way =
            UnderWay { relocations: Vec::new(), leaf_pages: Vec::new(), reserved: 0 };
        for record in self.order.iter().map(|record| self.record(*record)) {
            pending[record.segment.index()] += 1;
            note(record, &mut under_way);
        }
        for record in self.filling.iter().flatten() {
            note(self.record(*record), &mut under_way);
        }
        for (index, segment) in segments.iter() {
            assert_eq!(segment.pending, pending[index.index()], "records keep {index:?}");
        }
        under_way
    }

    /// Buffers lent to whoever reads.
    pub(crate) fn lent_count(&self) -> usize {
        self.records.iter().filter(|record| record.state == RecordState::Lent).count()
    }

    /// The requests that records which are filled or on their way are a part of, as often as they are.
    pub(crate) fn requests_under_way(&self) -> impl Iterator<Item = u32> + '_ {
        let records = self.order.iter().chain(self.filling.iter().flatten());
        records.flat_map(|record| self.record(*record).requests.iter().copied())
    }

    /// Blocks promised to writes in records that did not take effect, and how many of these discard.
    pub(crate) fn count_promises(&self) -> (u64, u32) {
        let records = self.order.iter().chain(self.filling.iter().flatten());
        records.map(|record| self.record(*record)).fold((0, 0), |(blocks, discards), record| {
            (blocks + record.promised, discards + u32::from(record.discards))
        })
    }

    /// Each buffer is in one place.
    fn assert_buffers(&self) {
        let mut places = alloc::vec![0; self.records.len()];
        let mut see = |record: &RecordRef, state: fn(RecordState) -> bool| {
            places[usize::from(record.0)] += 1;
            let seen = self.record(*record).state;
            assert!(state(seen), "{record:?} is {seen:?} where it cannot be");
        };
        self.idle.iter().for_each(|record| see(record, |state| state == RecordState::Idle));
        let is_filling = |state| state == RecordState::Filling;
        self.filling.iter().flatten().for_each(|record| see(record, is_filling));
        let is_sealed = |state| matches!(state, RecordState::InFlight | RecordState::Done(_));
        self.order.iter().for_each(|record| see(record, is_sealed));
        for (record, places) in self.records.iter().zip(places) {
            let is_lent = record.state == RecordState::Lent;
            assert_eq!(places + usize::from(is_lent), 1, "a buffer is in one place");
        }
    }

    /// Sealed records follow each other without a gap, behind what is applied.
    fn assert_order(&self, is_sound: bool) {
        assert!(self.durable <= self.applied, "what is durable was applied");
        let first = self.next_sequence - self.order.len() as u64;
        assert!(!is_sound || first == self.applied + 1, "what was applied left the order");
        let mut in_flight = [0; Origin::COUNT];
        let mut goes_on = false;
        for (expected, record) in (first..).zip(&self.order) {
            let record = self.record(*record);
            assert_eq!(record.sequence, expected, "sequences have no gap");
            goes_on = record.goes_on;
            in_flight[record.origin.index()] += u32::from(!goes_on);
            let is_out = record.state == RecordState::InFlight;
            assert_eq!(record.parts > 0, is_out, "a record is done with its last part");
            assert!(!record.is_held || is_out, "what is held back is not done");
            if let Some(pads) = &record.pads {
                assert_eq!(Some(pads.image), record.image, "pages are put together in its image");
                let lent = self.record(pads.image).state == RecordState::Lent;
                assert!(lent, "which nobody else has");
                pads.assert_invariants(record);
            }
        }
        assert!(!goes_on, "a group is sealed as a whole");
        assert_eq!(in_flight, self.in_flight, "records on their way are counted");
    }

    /// Heads are in segments that know of it, and each open segment is a head.
    fn assert_heads(&self, segments: &Segments) {
        let size = segments.geometry().segment_blocks;
        let mut heads = 0;
        for stream in Stream::ALL {
            if let Some(head) = self.heads[stream.index()] {
                let segment = segments.segment(crate::units::SegmentIndex(head.segment));
                assert_eq!(segment.state, State::Open, "a head is in an open segment");
                assert!(head.offset <= size, "a head is inside its segment");
                heads += 1;
            }
            if let Some(patch) = self.patches.head(stream) {
                let segment = segments.segment(crate::units::SegmentIndex(patch.segment));
                assert_eq!(segment.state, State::Patching, "a head over holes fills them");
            }
            if let Some(record) = self.filling(stream) {
                self.assert_at_head(self.record(record), stream, segments);
            }
        }
        let open = segments.iter().filter(|(_, segment)| segment.state == State::Open).count();
        assert_eq!(open, heads, "an open segment is the head of one stream");
    }

    fn assert_at_head(&self, record: &Record, stream: Stream, segments: &Segments) {
        assert_eq!(record.stream, stream, "a stream fills a record of its own");
        let head = match record.place {
            Place::Row => self.heads[stream.index()],
            Place::Holes(_) => self.patches.head(stream),
        };
        let head = head.expect("a record is filled at a head");
        assert_eq!(head.segment, record.segment.0, "at this one");
        let place = segment_start(segments.geometry(), record.segment).plus(head.offset);
        assert_eq!(record.header_pba, place, "just behind the one before");
        assert!(record.cost.fits(record.room), "a header says what the record holds");
        assert!(record.payload <= record.capacity, "a record ends inside its segment");
    }
}

/// Adds what a record says.
fn note(record: &Record, under_way: &mut UnderWay) {
    under_way.reserved += record.reserved;
    let mut words = record.words.iter();
    for extent in record.extents.iter().filter(|extent| extent.kind != Kind::Discard) {
        for key in extent.key..extent.key + u64::from(extent.count) {
            let word = words.next().expect("a word for each block");
            let is_data = extent.kind == Kind::Data;
            if extent.relocated {
                let source = word.address;
                under_way.relocations.push(Relocation { is_data, key, source });
            } else if extent.kind == Kind::Leaf {
                under_way.leaf_pages.push(key);
            }
        }
    }
    assert!(words.next().is_none(), "a block for each word");
    assert_eq!(record.words.len(), record.payload as usize, "and all of them are payload");
}
