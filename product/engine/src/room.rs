//! Whether a sparse store has room for a write.
//!
//! A sparse store has more host addresses than blocks. Its *capacity* is given in blocks: so many may be
//! mapped at once if they lie densely, 512 to a map page. Scattered blocks need more map pages, and
//! those take the room of data. So the device always has room for all that is mapped, for its map pages
//! and for the cleaner, whatever the addresses are.
//!
//! ```text
//! charge = blocks counted in the segment table      data, leaf pages, and old locations not looked at
//!        + leaves that have updates and no page yet
//!        + leaf pages given up since the last checkpoint  after a crash they would be there
//!        + roots in use                               twice, if they are in a list of their own
//! ```
//! The segment table is exact over crashes, so the charge is. It is too high only by what is *unsettled*:
//! locations that an overwrite or a discard has left in a leaf page at which nobody looked since, and
//! pages of leaves in which nothing is mapped any more.
//!
//! # Invariants
//! - Charge and promises together never exceed capacity and the map pages that a dense volume of that
//!   size has.
//! - `Full` is answered only when nothing is promised and nothing is unsettled: then the charge is exact.
//!   Before that the write waits: for what is on its way, for a leaf to be loaded, or for a round of the
//!   sweep, which settles everything.
//! - An overwrite is charged nothing, so it always succeeds; a discard is not even asked.
//!
//! # Does not
//! concern a store that is not sparse: its capacity is its number of addresses.

mod admission;

use crate::memory::{NoMemory, list};
use alloc::vec::Vec;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::ATOMIC_BLOCKS_MAX;

const LEAF: u64 = ENTRIES_PER_PAGE as u64;
const ROOT: u64 = LEAF * LEAF;

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may go on. So many blocks are promised to it.
    Free(u64),
    /// Something must end first; it is on its way.
    Wait,
    /// There is no room, and nothing that is under way will make any.
    Full,
}

/// What was promised to writes that did not take effect yet, and what the sweep was asked for.
pub(crate) struct Promises {
    /// Blocks.
    pub(crate) blocks: u64,
    /// Records with discards that did not take effect.
    pub(crate) discards: u32,
    /// New roots of the write in hand, and a leaf of each table that it writes to; kept for their memory.
    roots: Vec<u64>,
    /// Its leaves that have no page yet; kept for its memory.
    leaves: Vec<u64>,
    tables: Vec<u64>,
    /// Nothing is unsettled once the sweep has come here.
    settled_at: Option<SweepPosition>,
}

impl Promises {
    /// None, with room for the leaves and roots of the largest write: a block in each.
    pub(crate) fn new() -> Result<Promises, NoMemory> {
        let (roots, leaves) = (list(ATOMIC_BLOCKS_MAX)?, list(ATOMIC_BLOCKS_MAX)?);
        let tables = list(ATOMIC_BLOCKS_MAX)?;
        Ok(Promises { blocks: 0, discards: 0, roots, leaves, tables, settled_at: None })
    }
}
