//! Whether blocks are marked lost: not how many, and not which.
//!
//! A map page that is damaged, or a record that is missing, marks blocks lost, and they stay so until they are written or
//! discarded. Counting them would cost every write a look at what was there before. So it is only known whether there
//! *may* be any: since the first was marked, until a scrub has gone through all blocks and has met none. Those that were
//! marked by this opening are known as ranges besides.
//!
//! # Invariants
//! - A block that is marked lost in a checkpoint is one that its superblock tells of, as one that there may be.
//!
//! # Does not
//! know which blocks those are: see [`Lookup::Damaged`](super::lookup::Lookup::Damaged).

use super::Map;

/// What is known of blocks that are marked lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// There may be some.
    possible: bool,
    /// How often some came about.
    count: u64,
}

impl Map {
    /// Whether blocks may be marked lost.
    pub(crate) fn may_have_lost(&self) -> bool {
        self.losses.possible || !self.lost.is_empty()
    }

    /// How often blocks were lost since the store was opened, by a map page that is damaged.
    pub(crate) fn loss_count(&self) -> u64 {
        self.losses.count
    }

    /// Some may be lost from now on.
    pub(crate) fn note_loss(&mut self) {
        self.losses = Losses { possible: true, count: self.losses.count + 1 };
    }

    /// All blocks were gone through, and none was lost, when [`Map::loss_count`] was this at the beginning. Whether that
    /// is news.
    pub(crate) fn note_none_lost(&mut self, count_before: u64) -> bool {
        assert!(count_before <= self.losses.count, "what was lost is not undone");
        let is_news = self.losses.possible && self.losses.count == count_before;
        self.losses.possible &= !is_news;
        is_news
    }
}
