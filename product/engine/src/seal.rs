//! Sending records off: when what is filled goes to the device, and what is paid for it.

use crate::api::{Buffers, Command, Phase, RecordRef, Target};
use crate::ios::Purpose;
use crate::log::Piece;
use crate::shared::Shared;
use crate::units::{Origin, Stream};
use coulter_format::Pba;
use coulter_format::record::{self, BlockWord, Extent};

/// Blocks from which on a record is full enough not to wait for others to come back while the cleaner hands
/// out room: the header weighs little.
const RECORD_FULL: u32 = record::SHORT_BLOCKS_MAX as u32 / 2;

impl Shared {
    /// Sends off partly filled records that should not wait.
    pub(crate) fn seal_ready(&mut self, buffers: &mut impl Buffers) {
        let (blocks, largest) = self.filled_by_user();
        if largest.is_none() || !self.may_go(blocks) {
            return;
        }
        let in_flight = self.log.in_flight(Origin::User);
        // While the cleaner hands out room bit by bit, records fill before they go.
        let depth = if self.pacing.is_scarce() { 1 } else { self.config.batch_depth };
        let full = largest >= Some(RECORD_FULL);
        if in_flight < depth || (full && in_flight < self.config.batch_depth) {
            self.seal_group(buffers);
        }
    }

    /// Whether there is room for the user records being filled.
    pub(crate) fn group_may_go(&self) -> bool {
        self.may_go(self.filled_by_user().0)
    }

    /// Blocks that the user records being filled append, and blocks in the largest of them if there
    /// is one.
    pub(crate) fn filled_by_user(&self) -> (u64, Option<u32>) {
        let filled = Stream::USER.iter().filter_map(|s| self.log.filled_by(*s, Origin::User));
        let records = filled.map(|record| self.log.record(record));
        records.fold((0, None), |(sum, largest), record| {
            (sum + record.appended_blocks(), largest.max(Some(record.payload)))
        })
    }

    /// Whether so many blocks of the host may go to the device; a shutdown does not wait for the
    /// cleaner.
    fn may_go(&self, blocks: u64) -> bool {
        self.phase != Phase::Running || self.pacing.covers(blocks)
    }

    /// Sends off the user records being filled, as one group.
    pub(crate) fn seal_group(&mut self, buffers: &mut impl Buffers) {
        let mut streams = [Stream::User; Stream::USER.len()];
        let mut count = 0;
        for stream in self.log.streams_filled_by(Origin::User) {
            streams[count] = stream;
            count += 1;
        }
        let (mut blocks, mut appended) = (0, 0);
        for (index, stream) in streams[..count].iter().enumerate() {
            let record = self.log.filling(*stream).expect("it was being filled");
            blocks += u64::from(self.log.record(record).payload);
            appended += self.log.record(record).appended_blocks();
            self.seal_record(*stream, index + 1 < count, buffers);
        }
        assert!(appended <= blocks, "what is appended is some of it");
        if count > 0 {
            self.pacing.spend(appended);
            self.placer.group_sealed(blocks);
        }
        self.group.end();
    }

    /// Sends off the record that a stream is filling, with its group if it belongs to one.
    pub(crate) fn seal(&mut self, stream: Stream, buffers: &mut impl Buffers) {
        if self.log.filled_by(stream, Origin::User).is_some() {
            self.seal_group(buffers);
        } else if self.log.filling(stream).is_some() {
            self.seal_record(stream, false, buffers);
        }
    }

    /// Sends off what the cleaner, or the engine itself, is filling.
    pub(crate) fn seal_all_of(&mut self, origin: Origin, buffers: &mut impl Buffers) {
        for stream in Stream::ALL {
            if self.log.filled_by(stream, origin).is_some() {
                self.seal(stream, buffers);
            }
        }
    }

    /// One command for a record in a row, else one for each row of its blocks.
    pub(crate) fn write_record(&mut self, record: RecordRef) {
        let purpose = Purpose::Record(record);
        let sealed = self.log.record_mut(record);
        let (header, payload, stream) = (sealed.header_pba, sealed.payload, sealed.stream);
        assert!(payload > 0 || !sealed.extents.is_empty(), "a record says something");
        assert!(header != Pba::NOWHERE, "a record that is sealed has its place");
        let mut parts = 0;
        for Piece { pba, block, count } in sealed.place.pieces(header, payload) {
            let is_whole = count == 1 + payload;
            let source = if is_whole {
                Target::Record(record)
            } else {
                Target::RecordPart { record, block }
            };
            self.ios.start(purpose, Command::Write { pba, count, source, stream });
            parts += 1;
        }
        assert!(parts > 0, "the header is a row of its own, at least");
        self.log.record_mut(record).parts = parts;
    }

    fn seal_record(&mut self, stream: Stream, goes_on: bool, buffers: &mut impl Buffers) {
        let store = self.store();
        let record = self.log.seal(&mut self.segments, stream, goes_on, &store, buffers);
        if !self.hold_back(record) {
            self.write_record(record);
        }
        self.statistics.records += 1;
        self.statistics.long_records += u64::from(self.log.record(record).is_long());
        let (origin, payload) = (self.log.record(record).origin, self.log.record(record).payload);
        // What the cleaner gains is not all the host's: headers and metadata come first.
        if self.log.record(record).place.is_appended() {
            let overhead = if origin == Origin::Metadata { 1 + payload } else { 1 };
            let filler = self.log.record(record).filler;
            self.pacing.pay((overhead + filler).into());
        } else {
            self.statistics.hole_blocks += u64::from(1 + payload);
        }
        if origin == Origin::Cleaning {
            self.count_relocations(record);
        }
        *match origin {
            Origin::User => &mut self.statistics.user_header_blocks,
            Origin::Cleaning => &mut self.statistics.cleaning_header_blocks,
            Origin::Metadata => &mut self.statistics.metadata_header_blocks,
        } += 1;
    }

    /// Counts what a record of the cleaner writes again, now that it goes out: it may have gathered for
    /// long.
    fn count_relocations(&mut self, record: RecordRef) {
        let record = self.log.record(record);
        let data = u64::from(record.timed);
        self.statistics.relocated_blocks += data;
        self.statistics.relocated_blocks_by_class[record.stream.class()] += data;
        self.statistics.relocated_metadata_blocks += u64::from(record.payload) - data;
    }

    /// The metadata stream's record with room for this.
    pub(crate) fn metadata_record(
        &mut self,
        extent: &Extent,
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        if let Some(record) = self.log.fitting(Stream::Metadata, Origin::Metadata, extent) {
            return Some(record);
        }
        if self.log.filling(Stream::Metadata).is_some() {
            self.seal(Stream::Metadata, buffers);
        }
        // What a checkpoint needs, the pages included that must be swept before the next one, is kept
        // by all others.
        let due = self.signals.checkpoint_is_active()
            || self.signals.sweep_quota > 0
            || self.signals.sweep_hurry;
        let keep = if due { 0 } else { self.pacing.kept_by_sweep() };
        let blocks = extent.payload_blocks() as u32;
        self.log.begin(&mut self.segments, Stream::Metadata, Origin::Metadata, blocks, keep)
    }

    /// Adds one block whose content is in the buffer.
    pub(crate) fn push_metadata(&mut self, record: RecordRef, extent: Extent, checksum: u32) {
        assert_eq!(extent.count, 1, "a block at a time");
        assert!(!extent.relocated, "it is written for the first time");
        let target = self.log.record_mut(record);
        target.words.push(BlockWord { checksum, address: Pba::NOWHERE });
        target.push_extent(extent);
    }
}
