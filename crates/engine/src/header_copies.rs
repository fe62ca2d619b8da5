//! Copies of headers that the next checkpoint will refer to, on their way into the metadata stream.
//!
//! A referred header is the only place that tells where the blocks of its record belong, so a second one is written
//! elsewhere. It is taken when the record takes effect, while the header is still in memory.
//!
//! # Does not
//! delay anything: while there is no room for another copy, records are not referred to, and the run says what they
//! changed.

use crate::api::Buffers;
use crate::memory::{self, NoMemory};
use crate::shared::Shared;
use crate::units::Stream;
use alloc::vec::Vec;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::Extent;
use coulter_format::{BLOCK_SIZE, Block, Pba};

/// Headers that may wait: more than take effect at once.
pub(crate) const WAITING_MAX: usize = 48;

/// So many are written together, behind one header of their own.
const TOGETHER: usize = 16;

/// What waits to be written.
pub(crate) struct HeaderCopies {
    places: Vec<Pba>,
    blocks: Vec<Block>,
}

impl HeaderCopies {
    pub(crate) fn new() -> Result<HeaderCopies, NoMemory> {
        let places = memory::list(WAITING_MAX)?;
        let blocks = memory::filled([0; BLOCK_SIZE], WAITING_MAX)?;
        Ok(HeaderCopies { places, blocks })
    }

    pub(crate) fn have_room(&self) -> bool {
        self.places.len() < WAITING_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Takes the header that lies at `pba`.
    pub(crate) fn take(&mut self, pba: Pba, header: &Block) {
        assert!(self.have_room(), "room is asked for first");
        assert_ne!(pba, Pba::NOWHERE, "a header lies somewhere");
        self.blocks[self.places.len()] = *header;
        self.places.push(pba);
    }
}

impl Shared {
    /// Writes copies when enough of them wait, but not while a checkpoint is being written.
    pub(crate) fn write_header_copies(&mut self, buffers: &mut impl Buffers) {
        let enough = self.header_copies.places.len() >= TOGETHER;
        if enough && self.poisoned.is_none() && !self.signals.checkpoint_is_active() {
            self.put_header_copies(buffers);
            if self.log.filling(Stream::Metadata).is_some() {
                self.seal(Stream::Metadata, buffers);
            }
        }
    }

    /// Puts all that wait into records of the metadata stream, as far as there is room. Before a cut none is left.
    pub(crate) fn put_header_copies(&mut self, buffers: &mut impl Buffers) {
        while let Some(pba) = self.header_copies.places.last().copied() {
            let (kind, key) = (Kind::HeaderCopy, u64::from(pba.0));
            let extent = Extent { key, count: 1, kind, relocated: false };
            let Some(record) = self.metadata_record(&extent, buffers) else { return };
            let place = 1 + self.log.record(record).payload as usize;
            assert!(place < crate::api::RECORD_BLOCKS, "a record that takes it has room");
            self.header_copies.places.pop();
            assert!(self.header_copies.have_room(), "what goes makes room");
            let content = &self.header_copies.blocks[self.header_copies.places.len()];
            let checksum = checksum::block(kind, key, content);
            buffers.record_mut(record)[place] = *content;
            self.push_metadata(record, extent, checksum);
            self.statistics.header_copy_blocks += 1;
        }
    }
}
