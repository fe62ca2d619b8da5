//! The ways to reclaim space, and all that is done otherwise for one than for another.
//!
//! Log, cleaner and checkpoints ask here, and know none of them by name. What a hole is: see `holes`; where a
//! record lies: `log::Place`; where its header can be found: `holes::Headers`.

use crate::Engine;
use crate::api::Phase;
pub use crate::config::Reclaim;
use crate::named::{Named, print_and_parse_by_name};
use crate::placement::Placer;
use crate::shared::Shared;
use crate::units::{Origin, SegmentIndex, Stream};
use alloc::vec::Vec;
use coulter_format::superblock::Geometry;

impl Reclaim {
    /// Whether this one's records go into holes.
    pub(crate) fn fills_holes(self, origin: Origin) -> bool {
        match self {
            Reclaim::CopyOut => false,
            Reclaim::HoleFill => origin == Origin::Cleaning,
            Reclaim::Threaded => origin == Origin::User,
        }
    }

    /// What a store takes if it is asked for this: one that knows the pages of the flash below fills holes
    /// with host data, whatever it is asked for.
    pub fn suited_to(self, geometry: &Geometry) -> Reclaim {
        if geometry.has_pages() { Reclaim::Threaded } else { self }
    }

    /// Streams whose records go into holes.
    fn streams(self, placer: &Placer) -> &[Stream] {
        match self {
            Reclaim::CopyOut => &[],
            Reclaim::HoleFill => placer.cleaning_streams(),
            Reclaim::Threaded => &Stream::USER,
        }
    }

    /// How much a segment of `size` blocks, `valid` of them counted, is worth being searched for holes; the
    /// least goes first. For hole filling the fullest that is worth it, and none that is rather to be
    /// cleaned; else the one with the most holes.
    fn search_rank(self, valid: u32, size: u32) -> Option<u32> {
        match self {
            Reclaim::CopyOut => None,
            Reclaim::HoleFill => (valid >= size / 2).then_some(u32::MAX - valid),
            Reclaim::Threaded => Some(valid),
        }
    }
}

impl Shared {
    /// From now on space is reclaimed in this way, or in the one that suits the store.
    pub(crate) fn set_reclaim(&mut self, reclaim: Reclaim) {
        let reclaim = reclaim.suited_to(&self.superblock.geometry);
        self.config.reclaim = reclaim;
        self.log.set_reclaim(reclaim);
    }

    /// Whether holes of another segment are to be looked for.
    pub(crate) fn wants_holes(&self) -> bool {
        self.config.reclaim != Reclaim::CopyOut && self.segments.wants_holes(self.holes_max())
    }

    /// The segment to be searched for holes next, if one is worth it.
    pub(crate) fn segment_with_holes(&self) -> Option<SegmentIndex> {
        let size = self.superblock.geometry.segment_blocks;
        let candidates = self.segments.cleanable().filter_map(|(index, segment)| {
            let rank = self.config.reclaim.search_rank(segment.valid, size)?;
            self.segments.may_have_holes(index).then_some((rank, index))
        });
        candidates.min().map(|(_, index)| index)
    }

    /// Whether the holes that wait for a checkpoint have so many blocks, and none are ready.
    pub(crate) fn holes_are_worth(&self, blocks: u64) -> bool {
        let waiting = self.segments.holes_wait_for_cut();
        self.config.reclaim != Reclaim::CopyOut && waiting.is_some_and(|waiting| waiting >= blocks)
    }

    /// At the cut of a checkpoint: reserves holes, or gives up those that nobody wants any more.
    pub(crate) fn cut_holes(&mut self) {
        let is_running = self.phase == Phase::Running;
        let streams = if is_running { self.config.reclaim.streams(&self.placer) } else { &[] };
        self.log.close_patches(&mut self.segments, streams);
        match streams.is_empty() {
            false => {
                let most = self.holes_max();
                self.segments.reserve_holes(most, &self.lists.references);
            }
            true => self.segments.give_up_holes(self.log.now()),
        }
    }

    /// Gives up all holes, be a head over them or not, save where a record is being filled.
    pub(crate) fn give_up_holes(&mut self) {
        self.segments.give_up_holes(self.log.now());
        self.log.close_patches(&mut self.segments, &[]);
    }

    /// Segments in whose holes recovery must look after this cut: those whose holes are reserved, and those
    /// of records that lie in holes and are not applied yet.
    pub(crate) fn holes_to_be_searched(&self, all: &mut Vec<u32>) {
        let under_way = self.log.segments_in_holes();
        all.clear();
        let segments = self.segments.reserved_holes().chain(under_way);
        all.extend(segments.map(|segment| segment.0));
        all.sort_unstable();
        all.dedup();
    }

    /// Segments of which the holes may be reserved: recovery reads each of them, and no more than it
    /// may have to read of the log; and most must be left for the cleaner.
    fn holes_max(&self) -> usize {
        let geometry = &self.superblock.geometry;
        let log = 4 * u64::from(self.superblock.budget.journal_size);
        let by_log = (log / u64::from(geometry.segment_blocks)).max(1) as usize;
        let by_count = (geometry.segment_count as usize / 12).max(2);
        by_log.min(by_count).min(crate::holes::SEGMENTS_MAX)
    }
}

impl Named for Reclaim {
    const NAMED: &'static [(&'static str, Reclaim)] = &[
        ("copy-out", Reclaim::CopyOut),
        ("hole-fill", Reclaim::HoleFill),
        ("threaded", Reclaim::Threaded),
    ];
}

print_and_parse_by_name!(Reclaim);

impl Engine {
    /// How space is reclaimed.
    pub fn reclaim(&self) -> Reclaim {
        self.shared.config.reclaim
    }

    /// Changes how space is reclaimed, from the next record on. Holes that were prepared are given
    /// up at the next checkpoint if nobody wants them any more.
    pub fn set_reclaim(&mut self, reclaim: Reclaim) {
        self.shared.set_reclaim(reclaim);
    }
}
