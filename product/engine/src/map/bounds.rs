//! Bounds of the memory of the map.

use super::entries::EntryWidth;
use super::frames::CELL_SIZE;

/// Bytes of a frame of the widest entries. What a store is promised, and what it promises, is counted
/// in these, whatever its own frames are: see [`super::recovery_memory`].
pub(crate) const FRAME_SIZE_MAX: u64 = CELL_SIZE * EntryWidth::MAX.bits() as u64;

/// Frames that only the sweep may take: it must always get on, for it makes room for all others.
pub(super) const SWEEP_FRAMES: usize = 8;

/// The least frames that a map works with, if they are of the largest size.
pub(crate) const FRAME_COUNT_MIN: u64 = 64;
