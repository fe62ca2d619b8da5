//! What is damaged beyond repair, in a store that is opened all the same; see [`crate::degraded`].
//!
//! | damaged, in both copies | in doubt |
//! |---|---|
//! | a page of the list of roots | all addresses of which no other page lists the root, and nothing can be written |
//! | a page of the segment table | nothing, but nothing can be written: nobody knows which segments are free |
//! | a block of a run | what lies between the entries before and behind it, in leaves that the sweep has not passed since |
//! | a header that the checkpoint refers to | all leaves that the sweep has not passed since |
//! | a header behind the checkpoint | what it wrote, if the next one tells; else all that no later record wrote |
//!
//! Records behind a missing one take effect, for they are the newest. A relocation does not where its address is in doubt:
//! whether the missing record overtook it is not known. That a relocation is missing is no harm: its block lies where it
//! lay, for nothing is used again before the next checkpoint.

use super::PROBE_BLOCKS;
use super::{Found, Item, Recovery, Walk};
use crate::api::RECORD_BLOCKS;
use crate::canary::{Canary, sings};
use crate::degraded::Degraded;
use crate::error::OpenError;
use crate::holes::Headers;
use crate::map::Map;
use crate::memory;
use crate::segments::State;
use crate::shared::Shared;
use crate::units::{SegmentIndex, Sequence, segment_start};
use alloc::vec::Vec;
use core::ops::Range;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::{Echo, Extent};
use coulter_format::run::RunEntry;
use coulter_format::segment_table::SEGMENTS_PER_PAGE;

/// What is known of what is damaged beyond repair.
#[derive(Default)]
pub(super) struct Beyond {
    /// Walks go on behind headers that are missing.
    skips: bool,
    /// The last entry taken of a run: which run, and its address.
    pub(super) last: Option<(usize, u64)>,
    /// Blocks of this run were given up, from this address on.
    run: Option<(usize, u64)>,
    /// Records whose header is gone, and of which another header tells.
    told: Vec<Sequence>,
    /// What those changed.
    changed: Vec<(Sequence, Range<u64>)>,
    /// One of them holds metadata, which may count.
    holds_metadata: bool,
    /// Something may be missing at the end of the log.
    pub(super) tail: bool,
}

/// Leaves of which a run or header, written when the sweep stood at `written`, may tell something that counts.
fn live_leaves(written: SweepPosition, position: SweepPosition) -> [Range<u64>; 2] {
    let part = |leaves: Range<u64>, cycle: u64| match cycle.cmp(&position.cycle) {
        core::cmp::Ordering::Greater => leaves,
        core::cmp::Ordering::Equal => leaves.start.max(position.leaf)..leaves.end,
        core::cmp::Ordering::Less => 0..0,
    };
    let [behind, before] = [
        part(written.leaf..u64::MAX / ENTRIES_PER_PAGE as u64, written.cycle),
        part(0..written.leaf, written.cycle + 1),
    ];
    let is_live = |leaf| Map::run_is_live(written, position, leaf);
    assert!(behind.is_empty() || is_live(behind.start), "what is behind the sweep is live");
    assert!(before.is_empty() || is_live(before.start), "what it passes next time is live");
    [behind, before]
}

impl Recovery {
    /// Item `next` of the list can be read from nowhere.
    pub(super) fn give_up_item(
        &mut self,
        shared: &mut Shared,
        next: usize,
        error: OpenError,
    ) -> Result<(), OpenError> {
        shared.degrade(error, false)?;
        match self.items[next] {
            Item::RootList { .. } => shared.map.lose_root_list()?,
            Item::TablePage { key, .. } => self.give_up_table_page(shared, key),
            Item::RunBlock { run, .. } => {
                if self.beyond.run.is_none_or(|(given_up, _)| given_up != run) {
                    self.runs_end(shared)?;
                    let last = self.beyond.last.filter(|(taken, _)| *taken == run);
                    self.beyond.run = Some((run, last.map_or(0, |(_, lba)| lba)));
                }
            }
            Item::Header(referred) => {
                self.runs_end(shared)?;
                doubt_live(shared, referred.reference.sweep, 0..u64::MAX)?;
            }
        }
        Ok(())
    }

    /// What counts in the segments of this page is not known. That they are what the lists say.
    fn give_up_table_page(&mut self, shared: &mut Shared, key: u64) {
        let first = key as u32 * SEGMENTS_PER_PAGE as u32;
        let count = shared.superblock.geometry.segment_count - first;
        for index in first..first + count.min(SEGMENTS_PER_PAGE as u32) {
            let segment = SegmentIndex(index);
            let stream =
                self.heads.iter().position(|head| head.is_some_and(|h| h.segment == index));
            let state = match stream {
                Some(_) => State::Open,
                None if self.reserved.contains(&segment) => State::Free,
                None => State::Closed,
            };
            shared.segments.restore(segment, 0, state, stream.unwrap_or(0) as u8, 0, 0);
            if self.holes.contains(&segment) {
                shared.segments.restore_patched(segment);
            }
        }
    }

    /// The next block of a run, whose first entry this is: if blocks before it were given up, what may be in them ends
    /// with its leaf.
    pub(super) fn run_goes_on(
        &mut self,
        shared: &mut Shared,
        run: usize,
        first: Option<RunEntry>,
    ) -> Result<(), OpenError> {
        let Some((given_up, from)) = self.beyond.run else { return Ok(()) };
        let Some(first) = first.filter(|_| given_up == run) else { return self.runs_end(shared) };
        self.beyond.run = None;
        let per_leaf = ENTRIES_PER_PAGE as u64;
        let end = (first.lba.0 / per_leaf + 1).saturating_mul(per_leaf);
        doubt_live(shared, shared.lists.runs[run].sweep, from..end)
    }

    /// No more blocks of the run come of which some were given up.
    pub(super) fn runs_end(&mut self, shared: &mut Shared) -> Result<(), OpenError> {
        match self.beyond.run.take() {
            Some((run, from)) => doubt_live(shared, shared.lists.runs[run].sweep, from..u64::MAX),
            None => Ok(()),
        }
    }

    /// The header that this one tells of is gone, and cannot be rebuilt.
    pub(super) fn note_told(&mut self, echo: &Echo<'_>) -> Result<(), OpenError> {
        if self.beyond.told.contains(&echo.sequence()) {
            return Ok(());
        }
        let mut extents = memory::list(RECORD_BLOCKS)?;
        let is_whole = echo.extents(&mut |extent: Extent| extents.push(extent));
        if is_whole.is_none() {
            return Ok(());
        }
        memory::push(&mut self.beyond.told, echo.sequence())?;
        for extent in extents {
            let range = extent.key..extent.key + u64::from(extent.count);
            match extent.kind {
                Kind::Data if extent.relocated => {}
                Kind::Data | Kind::Discard => {
                    memory::push(&mut self.beyond.changed, (echo.sequence(), range))?;
                }
                _ => self.beyond.holds_metadata = true,
            }
        }
        Ok(())
    }

    /// All walks have ended. If something is missing and the store is to be opened all the same, they go on behind the
    /// places where they ended. Returns whether they do.
    pub(super) fn goes_beyond(&mut self, shared: &mut Shared) -> Result<bool, OpenError> {
        if self.beyond.skips || shared.config.degraded == Degraded::Refused {
            return Ok(false);
        }
        let first = shared.superblock.checkpoint.sequence + 1;
        self.accept(first);
        let is_readable = self.assert_readable(shared);
        if self.first_missing(first).is_none() && is_readable.is_ok() {
            return Ok(false);
        }
        if let Err(unread) = is_readable {
            // Nothing tells whether it was durable, or what was in it.
            self.beyond.tail = !shared.superblock.clean;
            shared.degrade(unread, false)?;
        }
        self.beyond.skips = true;
        self.walks_waiting.clear();
        for index in 0..self.walks.len() {
            let walk = self.walks[index];
            let Some(end) = walk.end.filter(|_| walk.headers == Headers::InARow) else { continue };
            let geometry = &shared.superblock.geometry;
            let offset = end.0 + 1 - segment_start(geometry, walk.segment).0;
            if offset < geometry.segment_blocks {
                let step = RECORD_BLOCKS as u32;
                let probe = PROBE_BLOCKS;
                self.walks[index] = Walk { offset, step, probe, skips: true, ..walk };
                self.walks_waiting.push_back(index);
            }
        }
        Ok(true)
    }

    /// Decides which records count: those without a gap; of a store that is opened degraded all that were durable, too.
    /// Returns the sequence of the last.
    pub(super) fn accept(&mut self, first: Sequence) -> Sequence {
        self.found.sort_unstable_by_key(|found| found.sequence);
        let (skips, durable) = (self.beyond.skips, self.durable);
        let mut next = first;
        let counts = |found: &&Found| {
            let is_behind_gap = skips && found.sequence > next && found.sequence <= durable + 1;
            let follows = found.sequence == next || is_behind_gap;
            next = found.sequence + 1;
            follows && (found.intact || found.sequence <= durable)
        };
        self.accepted = self.found.iter().take_while(counts).count();
        // A group takes effect as a whole or not at all.
        if !sings(Canary::GroupHalved) {
            let is_end = |found: &Found| !found.goes_on || (skips && found.sequence < durable);
            let ends = self.found[..self.accepted].iter().rposition(is_end);
            self.accepted = ends.map_or(0, |end| end + 1);
        }
        self.found[..self.accepted].last().map_or(first - 1, |found| found.sequence)
    }

    /// The first sequence that was durable and of which no record counts.
    pub(super) fn first_missing(&self, first: Sequence) -> Option<Sequence> {
        let mut next = first;
        for found in &self.found[..self.accepted] {
            if found.sequence > next {
                return Some(next);
            }
            next = found.sequence + 1;
        }
        (next <= self.durable).then_some(next)
    }

    /// Records that were durable are missing, and the store is opened all the same, if it may be.
    pub(super) fn lose_records(
        &mut self,
        shared: &mut Shared,
        (first, error): (Sequence, OpenError),
    ) -> Result<(), OpenError> {
        let mut next = first;
        let mut is_told = true;
        for found in &self.found[..self.accepted] {
            is_told &= self.is_told(next..found.sequence);
            next = found.sequence + 1;
        }
        is_told &= self.is_told(next..self.durable + 1);
        shared.degrade(error, is_told && !self.beyond.holds_metadata)
    }

    /// Whether it is known what all of these records changed.
    fn is_told(&self, missing: Range<Sequence>) -> bool {
        let told = self.beyond.told.iter().filter(|told| missing.contains(*told)).count();
        missing.end.saturating_sub(missing.start) == told as u64
    }

    /// Replay comes to a gap: these records are missing.
    pub(super) fn pass_gap(
        &mut self,
        shared: &mut Shared,
        missing: Range<Sequence>,
    ) -> Result<(), OpenError> {
        if missing.is_empty() {
            return Ok(());
        }
        assert!(shared.degradation.is_some(), "nothing is missing of a store that is whole");
        shared.log.applied = missing.end - 1;
        if shared.superblock.clean {
            // None of them changed the map.
            return Ok(());
        }
        if !self.is_told(missing.clone()) {
            return Ok(shared.cast_doubt(0..u64::MAX)?);
        }
        let changed = self.beyond.changed.iter().filter(|(told, _)| missing.contains(told));
        for (_, range) in changed {
            shared.cast_doubt(range.clone())?;
        }
        Ok(())
    }

    /// All has been replayed: what is in doubt stays so.
    pub(super) fn settle_doubt(&mut self, shared: &mut Shared) -> Result<(), OpenError> {
        if self.beyond.tail {
            shared.cast_doubt(0..u64::MAX)?;
        }
        if shared.degradation.is_none() || shared.config.read_only {
            return Ok(());
        }
        let now = shared.log.now();
        if !shared.map.lose_doubtful(&mut shared.segments, now)? {
            shared.refuse_to_write();
        }
        Ok(())
    }
}

/// Casts doubt on those of these addresses of which what was written at `written` may count.
fn doubt_live(
    shared: &mut Shared,
    written: SweepPosition,
    range: Range<u64>,
) -> Result<(), OpenError> {
    let per_leaf = ENTRIES_PER_PAGE as u64;
    for leaves in live_leaves(written, shared.map.sweep_position()) {
        let live = leaves.start * per_leaf..leaves.end * per_leaf;
        shared.cast_doubt(range.start.max(live.start)..range.end.min(live.end))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_that_the_sweep_has_not_passed_are_live() {
        for (written, position) in [
            ((3, 5), (3, 5)),
            ((3, 5), (3, 9)),
            ((3, 5), (4, 2)),
            ((3, 5), (4, 5)),
            ((3, 0), (4, 0)),
        ] {
            let [written, position] =
                [written, position].map(|(cycle, leaf)| SweepPosition { cycle, leaf });
            let parts = live_leaves(written, position);
            for leaf in 0..20 {
                let is_among = parts.iter().any(|leaves| leaves.contains(&leaf));
                let is_live = Map::run_is_live(written, position, leaf);
                assert_eq!(is_among, is_live, "{leaf} {written:?} {position:?}");
            }
        }
    }
}
