//! Which segments of the world's device have space, where that is short.
//!
//! At first those have it that creating the store wrote to, and there is room for a few more. Others come
//! only when nothing else happens ([`Space::add_room`]). A write to a segment without space is a mistake
//! of the engine, and a panic.

use crate::device::Device;
use crate::plan::Shape;
use coulter_engine::Prepare;
use coulter_format::Pba;
use std::collections::BTreeSet;

/// Error number of a device without space.
pub(super) const ERRNO_NO_SPACE: i32 = 28;

/// Segments for which there is room at first.
const ROOM: u64 = 6;

/// Segments with space, and room for more.
pub(super) struct Space {
    is_short: bool,
    segment_blocks: u32,
    allocated: BTreeSet<u32>,
    room: u64,
}

impl Space {
    /// What a new store has.
    pub(super) fn of(shape: &Shape, device: &Device) -> Space {
        let segment_blocks = shape.segment_blocks;
        Space {
            is_short: shape.prepare == Prepare::Space,
            segment_blocks,
            allocated: device.written().map(|pba| pba.0 / segment_blocks).collect(),
            room: ROOM,
        }
    }

    /// Somebody else frees space.
    pub(super) fn add_room(&mut self, segments: u64) {
        self.room += segments;
    }

    /// Gives a segment space; false if there is none.
    pub(super) fn allocate(&mut self, pba: Pba) -> bool {
        let segment = pba.0 / self.segment_blocks;
        if !self.is_short || self.allocated.contains(&segment) {
            return true;
        }
        let has_room = self.room > 0;
        if has_room {
            self.room -= 1;
            self.allocated.insert(segment);
        }
        has_room
    }

    /// Takes the space of a segment back.
    pub(super) fn free(&mut self, pba: Pba) {
        self.room += u64::from(self.allocated.remove(&(pba.0 / self.segment_blocks)));
    }

    /// Stops at a write to a segment without space. What lies before the first segment always has it.
    pub(super) fn assert_has(&self, pba: Pba) {
        let segment = pba.0 / self.segment_blocks;
        let has = !self.is_short || segment == 0 || self.allocated.contains(&segment);
        assert!(has, "a write to {} has no space", pba.0);
    }
}
