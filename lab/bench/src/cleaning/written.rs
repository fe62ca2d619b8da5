//! What was written, per block that the host wrote.

use crate::figures::Figures;
use crate::metadata::MetadataShares;
use coulter_engine::Statistics;
use serde::Serialize;

/// Blocks written per block that the host wrote, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Written {
    /// What the host wrote: 1.
    pub user: f64,
    /// Host data that the cleaner moved.
    pub relocated: f64,
    /// Metadata that the cleaner moved.
    pub relocated_metadata: f64,
    /// Headers of records, of all kinds.
    pub headers: f64,
    /// Leaf pages of the map.
    pub leaves: f64,
    /// Runs of map updates.
    pub runs: f64,
    /// Root pages, the segment table, checkpoint bodies and superblocks.
    pub checkpoints: f64,
}

impl Written {
    /// What was written between two views of the same engine.
    pub fn between(before: &Statistics, after: &Statistics) -> Written {
        let host = after.user_blocks_written - before.user_blocks_written;
        let relocated = after.relocated_blocks - before.relocated_blocks;
        let shares = MetadataShares::between(before, after);
        Written {
            user: if host > 0 { 1.0 } else { 0.0 },
            relocated: relocated as f64 / host.max(1) as f64,
            relocated_metadata: shares.relocated,
            headers: shares.user_headers + shares.cleaning_headers + shares.metadata_headers,
            leaves: shares.leaf_pages,
            runs: shares.runs,
            checkpoints: shares.root_pages + shares.table_pages + shares.checkpoints,
        }
    }

    /// All that is neither host data nor its relocation.
    pub fn metadata(&self) -> f64 {
        self.relocated_metadata + self.headers + self.leaves + self.runs + self.checkpoints
    }

    /// All of it.
    pub fn sum(&self) -> f64 {
        self.user + self.relocated + self.metadata()
    }

    pub(crate) fn add_to(&self, table: &mut Figures) {
        let rows = [
            ("  user", self.user),
            ("  relocated", self.relocated),
            ("  relocated metadata", self.relocated_metadata),
            ("  headers", self.headers),
            ("  leaf pages", self.leaves),
            ("  runs", self.runs),
            ("  checkpoints", self.checkpoints),
        ];
        for (name, share) in rows {
            table.row(name, format!("{share:.4}"), "");
        }
    }
}
