//! What the driver decides when it opens a store.

use crate::degraded::Degraded;
use crate::placement::Placement;
use crate::policy::VictimPolicy;

/// Limits and habits of a running engine. Nothing here changes what is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes that the map may occupy; `None` for what the store was created with.
    pub map_size: Option<u64>,
    /// Record buffers that the driver keeps; at least [`Config::RECORD_COUNT_MIN`].
    pub record_count: u16,
    /// One-block buffers that the driver keeps; at least [`Config::PAGE_COUNT_MIN`].
    pub page_count: u16,
    /// Requests that may be in the engine at once.
    pub request_count: u32,
    /// Records of host data in flight up to which a partly filled record is sent off at once.
    /// Beyond it, requests gather in the record until it is full or one comes back.
    pub batch_depth: u32,
    /// Blocks that a record has at least for a checkpoint to refer to it, and not to repeat what it
    /// changed. Recovery reads a block for each.
    pub reference_blocks: u32,
    /// Whether freed segments are discarded on the device.
    pub trim: bool,
    /// Whether to refuse writes and leave the device untouched.
    pub read_only: bool,
    /// What to do if something is damaged beyond repair.
    pub degraded: Degraded,
    /// Whether the store is to take in the rest of the device, and how.
    pub growth: Option<Growth>,
    /// How the cleaner chooses; see [`crate::Engine::set_victims`].
    pub victims: VictimPolicy,
    /// Which blocks share segments; see [`crate::Engine::set_placement`].
    pub placement: Placement,
    /// How space is reclaimed; see [`crate::Engine::set_reclaim`].
    pub reclaim: Reclaim,
    /// What the device does for segments before they are written.
    pub prepare: Prepare,
    /// Blocks of the aligned pages of which the device says that a power cut leaves each as it was, or as a
    /// write made it; 1 if it says nothing.
    pub atomic_page_blocks: u32,
    /// Whether partly dead flash pages are holes; see [`crate::Engine::pads_pages`].
    pub pad_pages: bool,
}

impl Config {
    /// Least record buffers: two for each stream, two for the cleaner's reads, the rest in flight.
    pub const RECORD_COUNT_MIN: u16 = 12;
    /// Least one-block buffers.
    pub const PAGE_COUNT_MIN: u16 = 16;
}

impl Default for Config {
    fn default() -> Config {
        Config {
            map_size: None,
            record_count: 18,
            page_count: 64,
            request_count: 1024,
            batch_depth: 2,
            reference_blocks: 128,
            trim: false,
            read_only: false,
            degraded: Degraded::default(),
            growth: None,
            victims: VictimPolicy::default(),
            placement: Placement::default(),
            reclaim: Reclaim::default(),
            prepare: Prepare::Never,
            atomic_page_blocks: 1,
            pad_pages: false,
        }
    }
}

/// How the space of blocks that are dead is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reclaim {
    /// What is valid in a segment is copied into an empty one; the segment becomes empty.
    #[default]
    CopyOut,
    /// The same, but into the holes of fuller segments: an empty one is not used up. Han and Son 2021,
    /// and Sung et al. 2022, with the departures that `holes` tells of.
    HoleFill,
    /// Host data is written into the holes of segments, with nothing copied, as long as there are
    /// enough of them; else as with copy-out. Choi et al. 2015, S-LFS.
    Threaded,
}

/// What the device does for segments before they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepare {
    /// Nothing.
    #[default]
    Never,
    /// It writes blocks that were never written, so that later writes are cheap. A segment that comes
    /// too soon is opened all the same.
    Blocks,
    /// It secures space. A segment without it is not opened.
    Space,
}

/// What a store should be like when it has grown over the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Blocks to export; `None` for as many as `spare_percent` leaves.
    pub volume_size: Option<u64>,
    /// Spare space in percent of the exported space, when `volume_size` is `None`; `None` for as much as there
    /// is now.
    pub spare_percent: Option<u32>,
}
