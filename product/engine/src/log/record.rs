//! A record buffer and what is in it.

use super::place::Place;
use crate::api::RecordRef;
use crate::holes::pads::Pads;
use crate::memory::{self, NoMemory};
use crate::units::{Origin, SegmentIndex, Sequence, Stream};
use alloc::vec::Vec;
use coulter_format::Pba;
use coulter_format::record::{BlockWord, Cost, Extent, HeaderRoom, PAYLOAD_BLOCKS_MAX};

/// What a record buffer is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    Idle,
    /// Takes blocks.
    Filling,
    /// On its way to the device.
    InFlight,
    /// Completed; waits for those before it.
    Done(Result<(), i32>),
    /// Lent to the cleaner or to recovery for reading, or to a checkpoint.
    Lent,
}

/// A record buffer and what is in it.
pub(crate) struct Record {
    pub(crate) state: RecordState,
    pub(crate) origin: Origin,
    pub(crate) stream: Stream,
    /// Sealed, and the group goes on with the next one.
    pub(super) goes_on: bool,
    pub(crate) segment: SegmentIndex,
    pub(crate) header_pba: Pba,
    /// Of the header, once it is sealed.
    pub(crate) header_checksum: u32,
    pub(crate) sequence: Sequence,
    pub(crate) extents: Vec<Extent>,
    pub(crate) words: Vec<BlockWord>,
    pub(crate) payload: u32,
    /// Blocks behind its payload to the end of the flash page, once it is sealed in a row.
    pub(crate) filler: u32,
    /// Request slots to answer when it is applied.
    pub(crate) requests: Vec<u32>,
    /// Chunks reserved in the map for its updates.
    pub(crate) reserved: usize,
    /// Blocks promised to its writes (see `room`), and whether it discards anything.
    pub(crate) promised: u64,
    pub(crate) discards: bool,
    /// Blocks of host data, for the write clock.
    pub(crate) user_blocks: u64,
    /// Blocks of host data, and the sum of the clocks at which the host wrote them.
    pub(crate) timed: u32,
    pub(crate) times: u128,
    /// Where its payload can lie; once it is sealed, where it lies.
    pub(crate) place: Place,
    /// A buffer to put pages together in, if its pages may have to be padded; and once it is sealed what they
    /// are padded with.
    pub(super) image: Option<RecordRef>,
    pub(crate) pads: Option<Pads>,
    /// Sealed, and not written yet: see `pads`.
    pub(crate) is_held: bool,
    /// Device commands that have not completed, and how the others ended.
    pub(crate) parts: u32,
    pub(super) outcome: Result<(), i32>,
    pub(super) capacity: u32,
    pub(super) cost: Cost,
    pub(super) room: HeaderRoom,
}

impl Record {
    pub(super) fn new() -> Result<Record, NoMemory> {
        Ok(Record {
            state: RecordState::Idle,
            origin: Origin::User,
            stream: Stream::User,
            goes_on: false,
            segment: SegmentIndex(0),
            header_pba: Pba::NOWHERE,
            header_checksum: 0,
            sequence: 0,
            extents: memory::list(PAYLOAD_BLOCKS_MAX)?,
            words: memory::list(PAYLOAD_BLOCKS_MAX)?,
            payload: 0,
            filler: 0,
            requests: memory::list(PAYLOAD_BLOCKS_MAX)?,
            reserved: 0,
            promised: 0,
            discards: false,
            user_blocks: 0,
            timed: 0,
            times: 0,
            place: Place::Row,
            image: None,
            pads: None,
            is_held: false,
            parts: 1,
            outcome: Ok(()),
            capacity: 0,
            cost: Cost::default(),
            room: HeaderRoom::Short,
        })
    }

    /// Blocks of payload that use up empty segments: none if it lies in holes.
    pub(crate) fn appended_blocks(&self) -> u64 {
        if self.place.is_appended() { u64::from(self.payload) } else { 0 }
    }

    /// What was promised to its writes, once.
    pub(crate) fn take_promises(&mut self) -> (u64, bool) {
        (core::mem::take(&mut self.promised), core::mem::take(&mut self.discards))
    }

    /// Whether only a store that says so may hold it as it is.
    pub(crate) fn is_long(&self) -> bool {
        self.place.is_appended() && !self.cost.fits(HeaderRoom::Short)
    }

    #[inline]
    pub(super) fn fits(&self, extents: &[Extent]) -> bool {
        assert!(self.payload <= self.capacity, "what is in it had room");
        let (mut blocks, mut cost) = (self.payload, self.cost);
        for extent in extents {
            blocks += extent.payload_blocks() as u32;
            cost = cost.with(extent);
        }
        blocks <= self.capacity && cost.fits(self.room)
    }

    /// Adds an extent; joins it to the last one if it goes on from there. The record was asked whether
    /// it fits, or is empty.
    pub(crate) fn push_extent(&mut self, extent: Extent) {
        self.payload += extent.payload_blocks() as u32;
        assert!(extent.count > 0, "an extent covers something");
        assert!(self.payload <= self.capacity, "whoever adds to a record asks whether it fits");
        if let Some(last) = self.extents.last_mut() {
            let joins = last.kind == extent.kind
                && last.relocated == extent.relocated
                && last.key + u64::from(last.count) == extent.key
                && last.count.checked_add(extent.count).is_some();
            if joins {
                last.count += extent.count;
                self.cost = self.cost.with_joined(&extent);
                return;
            }
        }
        self.cost = self.cost.with(&extent);
        self.extents.push(extent);
    }
}
