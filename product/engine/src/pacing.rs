//! How fast the host may write while the cleaner works.
//!
//! Empty segments are the currency. The fewer there are, the more the cleaner does for each block
//! that the host writes; when they run low, the host gets exactly what the cleaner gains, block by
//! block, so that it slows down and never stops dead.
//!
//! ```text
//! empty segments
//!   high ─┬─ no cleaning above
//!         │  the cleaner earns credit with every user block, more the lower
//!   low  ─┼─ the cleaner works without credit
//!         │  the user spends tokens that the cleaner gains
//!   kept ─┴─ left to the cleaner, the sweep and the checkpoint
//! ```

use crate::placement::SPARE_SEGMENTS_MIN;
use crate::units::Stream;
use coulter_format::checkpoint::{COPY_SIZE, GROUP_SIZE, PARITY_SIZE, REFERENCE_SIZE};
use coulter_format::root_list::ROOTS_PER_PAGE;
use coulter_format::superblock::{Geometry, RecoveryBudget};
use coulter_format::{map_page, record, run};

/// Updates of the journal for each reference. With full records that is as much as thirty journals, more than a
/// round of the sweep takes: so hardly any full record is repeated in a run, which would be written twice.
const JOURNAL_PER_REFERENCE: u32 = 16;

/// References that a checkpoint of this budget has at most.
pub(crate) const fn reference_count_max(budget: &RecoveryBudget) -> usize {
    (budget.journal_size / JOURNAL_PER_REFERENCE) as usize
}

/// Blocks of the cleaner's reads that a write of the host may have to wait behind: a command, which
/// takes two milliseconds where a cloud gives 125 MiB a second.
const CLEANING_READS: u32 = 64;

/// How many more it may come to: a mebibyte, of the three and a half that two chunks come to.
const CLEANING_READS_MORE: u64 = 256;

/// Tokens that may gather: four mebibytes, so that the host is never far ahead.
const TOKENS_MAX: i64 = 4 * record::SHORT_BLOCKS_MAX as i64;

/// With so many any group goes. All that may gather would be too many to ask for: each header that the
/// cleaner writes takes one.
const TOKENS_ASKED_MAX: i64 = TOKENS_MAX / 4 * 3;

/// The watermarks of a store, in segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermarks {
    pub(crate) kept_by_cleaning: u32,
    pub(crate) kept_by_user: u32,
    /// As many should be ready to be opened, so that the host need not wait for a checkpoint.
    pub(crate) wanted_by_user: u32,
    pub(crate) low: u32,
    pub(crate) high: u32,
    /// Segments beyond what the volume needs.
    pub(crate) spare: u32,
    /// Segments in `wanted_by_user`, `low` and `high` because host data goes to several streams.
    pub(crate) apart: u32,
}

/// Blocks that one checkpoint can write at most, headers and the leaf pages included that are swept
/// before the next one.
pub(crate) fn checkpoint_blocks_max(geometry: &Geometry, budget: &RecoveryBudget) -> u64 {
    // A journal is cut at its size, but may have grown to twice that by then.
    let run = 2 * u64::from(budget.journal_size).div_ceil(run::ENTRIES_PER_RUN_BLOCK as u64) + 1;
    let per_page = map_page::ENTRIES_PER_PAGE as u64;
    // Of a sparse volume no more roots change than leaf pages are written.
    let changed = 2 * u64::from(budget.journal_size) + 256;
    let roots = geometry.roots_max().min(changed.max(metadata_roots(geometry.capacity)));
    let table = u64::from(geometry.segment_count).div_ceil(256);
    let copy = COPY_SIZE as u64;
    // Where the roots are in a list of their own, the body lists its pages, of which each root may change one.
    let lists = if geometry.root_lists { root_list_pages(geometry) } else { 0 };
    let listed =
        if geometry.root_lists { (8 + copy) * lists } else { (16 + copy) * geometry.roots_max() };
    let runs = u64::from(budget.run_count_limit) * (32 + (8 + copy) * run);
    let references =
        ((REFERENCE_SIZE + GROUP_SIZE + PARITY_SIZE) * reference_count_max(budget)) as u64;
    let reserved = 4 * u64::from(geometry.segment_count).min(256);
    let body = 256 + reserved + listed + (8 + copy) * table + runs + references;
    let body = body.div_ceil(4096);
    let leaves = geometry.capacity.div_ceil(per_page) as usize;
    let updates = Updates { in_run: 2 * budget.journal_size as usize, referred: 0 };
    let swept = sweep_quota(leaves, updates, budget) as u64;
    // Two copies of each, and of the headers referred to those that still wait.
    let blocks = 2 * (run + roots + table + lists.min(roots))
        + crate::header_parity::WAITING_MAX as u64
        + body
        + swept;
    blocks + blocks.div_ceil(200) + 2
}

/// Pages of the list of roots that a store with one has at most.
pub(crate) fn root_list_pages(geometry: &Geometry) -> u64 {
    geometry.roots_max().div_ceil(ROOTS_PER_PAGE as u64)
}

/// Updates of an interval between two checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updates {
    /// In the newest run.
    pub(crate) in_run: usize,
    /// In the headers of records that are referred to.
    pub(crate) referred: usize,
}

/// For so many updates in runs the sweep writes a page. Runs take room that the cleaner would have as
/// spare space: with a fifth of it that costs as much as the pages do at about this rate, which lets
/// a run live until half of the blocks that the sweep goes over have been updated again.
const RUN_UPDATES_PER_PAGE: usize = map_page::ENTRIES_PER_PAGE / 2;

/// The same for updates that are referred to: they take no room, only recovery's time and memory, and
/// both have limits of their own.
const REFERRED_UPDATES_PER_PAGE: usize = 2 * map_page::ENTRIES_PER_PAGE;

/// Leaf pages that the sweep must write before the next checkpoint if so many leaves have updates. A
/// run lives for no more than half of the checkpoints that it may.
pub(crate) fn sweep_quota(dirty: usize, updates: Updates, budget: &RecoveryBudget) -> usize {
    let by_count = (2 * dirty).div_ceil(budget.run_count_limit as usize);
    let by_updates =
        updates.in_run / RUN_UPDATES_PER_PAGE + updates.referred / REFERRED_UPDATES_PER_PAGE;
    by_count.max(by_updates.min(dirty))
}

impl Watermarks {
    /// What suits a store.
    pub(crate) fn of(geometry: &Geometry, budget: &RecoveryBudget) -> Watermarks {
        let size = u64::from(geometry.segment_blocks);
        let checkpoint = checkpoint_blocks_max(geometry, budget).div_ceil(size) as u32 + 1;
        let kept_by_cleaning = checkpoint;
        let kept_by_user = kept_by_cleaning + 2;
        let live = geometry.capacity + metadata_blocks(geometry.capacity);
        let live_segments = live.div_ceil(size).min(u64::from(geometry.segment_count)) as u32;
        let spare = geometry.segment_count - live_segments;
        // A segment that was freed is of use after the next checkpoint. With more of them at a time
        // checkpoints are rarer, but what waits is no spare space: a fiftieth of it at a fifth of spare
        // space, which is about where the two costs meet, more where there is more of it, and no more than
        // is written between checkpoints anyway.
        let interval = u64::from(budget.journal_size).div_ceil(size) as u32;
        let all = u64::from(live_segments.max(1)) * 60;
        let may_wait = (u64::from(spare) * u64::from(geometry.segment_count) / all) as u32;
        // Each stream of host data may need a segment at the same time.
        let apart = if spare >= SPARE_SEGMENTS_MIN { Stream::USER.len() as u32 - 1 } else { 0 };
        let low = kept_by_user + 2 + apart + interval.min(may_wait);
        let room = spare.saturating_sub(low);
        let high = low + (room / 4).clamp(1, (geometry.segment_count / 32).max(2));
        let wanted_by_user = kept_by_user + 1 + apart;
        assert!(kept_by_cleaning < kept_by_user, "the host leaves more than the cleaner");
        assert!(kept_by_user < low && low < high, "marks are in order");
        Watermarks { kept_by_cleaning, kept_by_user, wanted_by_user, low, high, spare, apart }
    }
}

impl Watermarks {
    /// Up to how many segments are emptied ahead of need.
    pub(crate) fn ahead(&self) -> u32 {
        self.high + self.spare.saturating_sub(self.high) / 2
    }

    /// What suffices while all host data goes to one stream.
    fn together(self) -> Watermarks {
        Watermarks {
            wanted_by_user: self.wanted_by_user - self.apart,
            low: self.low - self.apart,
            high: self.high - self.apart,
            apart: 0,
            ..self
        }
    }
}

/// Blocks of map pages that a dense volume can need.
pub(crate) fn metadata_blocks(volume_size: u64) -> u64 {
    volume_size.div_ceil(map_page::ENTRIES_PER_PAGE as u64) + metadata_roots(volume_size)
}

fn metadata_roots(volume_size: u64) -> u64 {
    let per_page = map_page::ENTRIES_PER_PAGE as u64;
    volume_size.div_ceil(per_page * per_page)
}

/// The balance between host and cleaner.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    marks: Watermarks,
    /// Those for several streams of host data.
    marks_apart: Watermarks,
    /// Below zero while metadata has used up more than the cleaner has gained.
    tokens: i64,
    /// Whether tokens are asked for.
    scarce: bool,
    /// Whether the cleaner has nothing to gain: then the host writes as long as there is room, and
    /// makes something to gain by it.
    nothing_to_gain: bool,
    empty: u32,
    /// Blocks that the host wrote, or that were put in its order; what that is worth is decided when the
    /// cleaner looks.
    credit: u64,
}

impl Pacing {
    pub(crate) fn new(marks: Watermarks) -> Pacing {
        Pacing {
            marks,
            marks_apart: marks,
            tokens: TOKENS_MAX,
            scarce: false,
            nothing_to_gain: false,
            empty: u32::MAX,
            credit: 0,
        }
    }

    /// The host wrote blocks.
    pub(crate) fn earn(&mut self, blocks: u64) {
        self.credit += blocks;
    }

    pub(crate) fn credit(&self) -> u64 {
        self.credit
    }

    /// So much of it is used up; `None` for all.
    pub(crate) fn pay_credit(&mut self, blocks: Option<u64>) {
        self.credit = blocks.map_or(0, |blocks| self.credit.saturating_sub(blocks));
    }

    /// Notes how many segments are empty, and whether host data goes to several streams.
    pub(crate) fn update(&mut self, empty: u32, is_apart: bool) {
        self.empty = empty;
        self.marks = if is_apart { self.marks_apart } else { self.marks_apart.together() };
        assert!(self.marks.low <= self.marks.high, "marks are in order");
        let scarce = empty < self.marks.low;
        if !scarce {
            self.tokens = TOKENS_MAX;
        }
        self.scarce = scarce;
    }

    /// Whether so many blocks of the host may go to the device now. What is filled waits for that
    /// and not each write for itself, so that what gathers meanwhile goes out together.
    pub(crate) fn covers(&self, blocks: u64) -> bool {
        !self.scarce || self.nothing_to_gain || self.tokens >= (blocks as i64).min(TOKENS_ASKED_MAX)
    }

    /// Whether the host gets only what the cleaner gains.
    pub(crate) fn is_scarce(&self) -> bool {
        self.scarce
    }

    /// Whether segments are so few that what counts is to win one soon.
    pub(crate) fn is_at_floor(&self) -> bool {
        self.empty <= self.marks.kept_by_cleaning
    }

    pub(crate) fn spend(&mut self, blocks: u64) {
        if self.scarce {
            self.tokens = (self.tokens - blocks as i64).max(-TOKENS_MAX);
            assert!(self.tokens <= TOKENS_MAX, "no more is saved up than may be");
        }
    }

    /// Metadata or headers took so many blocks of what the cleaner has gained.
    pub(crate) fn pay(&mut self, blocks: u64) {
        self.spend(blocks);
    }

    /// Whether the cleaner found a segment worth cleaning.
    pub(crate) fn found_victim(&mut self, found: bool) {
        self.nothing_to_gain = !found;
    }

    /// Whether the cleaner found something to clean when it last looked.
    pub(crate) fn is_cleaning_worthwhile(&self) -> bool {
        !self.nothing_to_gain
    }

    /// The cleaner has made so many blocks free. The host gets a little less than that, so that
    /// empty segments become more again and not only no fewer.
    pub(crate) fn gain(&mut self, blocks: u64) {
        let share = blocks - blocks / 8;
        assert!(share <= blocks, "a part of what was won is given");
        self.tokens = (self.tokens + share as i64).min(TOKENS_MAX);
        assert!(self.tokens >= -TOKENS_MAX, "no more is owed than may be");
    }

    /// Whether the cleaner should work: always below `low`, with credit below `high`.
    pub(crate) fn wants_cleaning(&self, credit: u64) -> bool {
        self.empty < self.marks.low || (self.empty < self.marks.high && credit > 0)
    }

    /// Whether the cleaner may work ahead while there is time: until half of what is spare beyond
    /// `high` is empty too.
    pub(crate) fn wants_cleaning_ahead(&self) -> bool {
        self.empty < self.marks.ahead()
    }

    /// Blocks that the cleaner may go through for a user block, if a victim has `valid` of `size`.
    pub(crate) fn credit_for(&self, blocks: u64, valid: u32, size: u32) -> u64 {
        if self.empty >= self.marks.high {
            return 0;
        }
        assert!(valid <= size, "no more is valid than there is");
        let (depth, steps) = self.depth();
        let gain = u64::from(size.saturating_sub(valid)).max(1);
        blocks * u64::from(size) * 2 * depth / (gain * steps)
    }

    /// Blocks that the cleaner may have on their way from the device: few as long as it keeps up with
    /// the host, and more the fewer segments are empty.
    pub(crate) fn cleaning_reads_max(&self) -> u32 {
        if self.scarce {
            return u32::MAX;
        }
        let (depth, steps) = self.depth();
        CLEANING_READS + (CLEANING_READS_MORE * depth / steps) as u32
    }

    /// How far the empty segments have fallen from the high mark, and how far it is to the low one.
    fn depth(&self) -> (u64, u64) {
        let steps = u64::from(self.marks.high - self.marks.low).max(1);
        (u64::from(self.marks.high.saturating_sub(self.empty)).min(steps), steps)
    }

    pub(crate) fn kept_by_user(&self) -> usize {
        self.marks.kept_by_user as usize
    }

    pub(crate) fn kept_by_cleaning(&self) -> usize {
        self.marks.kept_by_cleaning as usize
    }

    /// One more than the cleaner: what it needs to win segments with is not the sweep's to take.
    pub(crate) fn kept_by_sweep(&self) -> usize {
        self.marks.kept_by_cleaning as usize + 1
    }

    pub(crate) fn marks(&self) -> Watermarks {
        self.marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Watermarks = Watermarks {
        kept_by_cleaning: 2,
        kept_by_user: 4,
        wanted_by_user: 5,
        low: 6,
        high: 10,
        spare: 20,
        apart: 0,
    };

    #[test]
    fn the_host_writes_freely_until_segments_are_scarce_and_then_what_is_gained() {
        let mut pacing = Pacing::new(MARKS);
        pacing.update(6, true);
        assert!(pacing.covers(1_000_000));
        pacing.update(5, true);
        pacing.spend(TOKENS_MAX as u64);
        assert!(!pacing.covers(1));
        pacing.gain(8);
        assert!(pacing.covers(7));
        assert!(!pacing.covers(8));
    }

    #[test]
    fn the_cleaner_does_more_for_a_block_the_fewer_segments_are_empty() {
        let mut pacing = Pacing::new(MARKS);
        let credits = [10, 9, 8, 7, 6, 3].map(|empty| {
            pacing.update(empty, true);
            pacing.credit_for(100, 50, 100)
        });
        assert_eq!(credits[0], 0);
        assert!(credits.windows(2).all(|pair| pair[0] <= pair[1]), "{credits:?}");
        assert_eq!(credits[4], 400, "at the low mark, twice what keeps the balance");
    }

    #[test]
    fn with_one_stream_of_host_data_fewer_segments_are_kept_empty() {
        let marks = Watermarks { apart: 2, ..MARKS };
        let mut pacing = Pacing::new(marks);
        pacing.update(5, true);
        assert!(pacing.is_scarce());
        pacing.update(5, false);
        assert!(!pacing.is_scarce());
        let Watermarks { wanted_by_user, low, high, .. } = pacing.marks();
        assert_eq!((wanted_by_user, low, high), (3, 4, 8));
        pacing.update(5, true);
        assert_eq!(pacing.marks(), marks);
    }
}
