//! How much is written besides what the host wrote.

use coulter_engine::Statistics;
use serde::Serialize;

/// Blocks written per block that the host wrote, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MetadataShares {
    /// Headers of records of host data.
    pub user_headers: f64,
    /// Leaf pages of the map.
    pub leaf_pages: f64,
    /// Root pages of the map.
    pub root_pages: f64,
    /// Runs: the updates since the checkpoint before, sorted.
    pub runs: f64,
    /// Pages of the segment table.
    pub table_pages: f64,
    /// Checkpoint bodies and superblocks, and second copies of what they list.
    pub checkpoints: f64,
    /// Headers of records of metadata.
    pub metadata_headers: f64,
    /// Headers of records of relocated blocks.
    pub cleaning_headers: f64,
    /// Metadata that the cleaner moved.
    pub relocated: f64,
}

impl MetadataShares {
    /// What was written between two views of the same engine.
    pub fn between(before: &Statistics, after: &Statistics) -> MetadataShares {
        let user = after.user_blocks_written.saturating_sub(before.user_blocks_written);
        let share = |of: fn(&Statistics) -> u64| {
            of(after).saturating_sub(of(before)) as f64 / user.max(1) as f64
        };
        MetadataShares {
            user_headers: share(|s| s.user_header_blocks),
            leaf_pages: share(|s| s.leaf_blocks),
            root_pages: share(|s| s.root_blocks),
            runs: share(|s| s.run_blocks),
            table_pages: share(|s| s.table_blocks),
            checkpoints: share(|s| s.checkpoint_blocks + s.copy_blocks + s.header_parity_blocks),
            metadata_headers: share(|s| s.metadata_header_blocks),
            cleaning_headers: share(|s| s.cleaning_header_blocks),
            relocated: share(|s| s.relocated_metadata_blocks),
        }
    }

    /// All of it.
    pub fn sum(&self) -> f64 {
        self.user_headers
            + self.leaf_pages
            + self.root_pages
            + self.runs
            + self.table_pages
            + self.checkpoints
            + self.metadata_headers
            + self.cleaning_headers
            + self.relocated
    }

    pub(crate) fn add_to(&self, table: &mut crate::figures::Figures) {
        let rows = [
            ("  headers of user records", self.user_headers),
            ("  leaf pages", self.leaf_pages),
            ("  root pages", self.root_pages),
            ("  runs", self.runs),
            ("  segment table", self.table_pages),
            ("  checkpoints", self.checkpoints),
            ("  headers of metadata records", self.metadata_headers),
            ("  headers of relocations", self.cleaning_headers),
            ("  metadata relocated", self.relocated),
        ];
        for (name, share) in rows {
            table.row(name, crate::figures::percent(share), "");
        }
    }
}

/// All blocks written between two views, per block that the host wrote.
pub(crate) fn write_amplification(before: &Statistics, after: &Statistics) -> f64 {
    let user = after.user_blocks_written - before.user_blocks_written;
    let all = after.device_blocks_written() - before.device_blocks_written();
    all as f64 / user.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_happened_in_between() {
        let mut before = Statistics::default();
        before.user_blocks_written = 1000;
        before.leaf_blocks = 500;
        let mut after = before;
        after.user_blocks_written = 3000;
        after.leaf_blocks = 520;
        after.user_header_blocks = 8;
        after.relocated_blocks = 4000;
        let shares = MetadataShares::between(&before, &after);
        assert_eq!((shares.leaf_pages, shares.user_headers), (0.01, 0.004));
        assert!((shares.sum() - 0.014).abs() < 1e-12);
        assert!((write_amplification(&before, &after) - 3.014).abs() < 1e-12);
    }
}
