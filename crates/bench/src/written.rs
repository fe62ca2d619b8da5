//! What a volume wrote to its device, per byte that the host wrote.

use crate::table::{Table, percent};
use coulter::statistics::WrittenBytes;
use serde::Serialize;

/// Bytes written per byte that the host wrote, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WrittenShares {
    /// Host data that cleaning wrote again.
    pub relocated: f64,
    /// Metadata that cleaning wrote again.
    pub relocated_metadata: f64,
    /// Headers of records.
    pub headers: f64,
    /// Pages of the map.
    pub map: f64,
    /// Runs of map updates.
    pub runs: f64,
    /// Segment tables, checkpoint bodies and superblocks.
    pub checkpoints: f64,
}

impl WrittenShares {
    /// What was written between two moments.
    pub fn between(before: &WrittenBytes, after: &WrittenBytes) -> WrittenShares {
        let host = after.host_bytes.saturating_sub(before.host_bytes).max(1) as f64;
        let share =
            |of: fn(&WrittenBytes) -> u64| of(after).saturating_sub(of(before)) as f64 / host;
        WrittenShares {
            relocated: share(|w| w.relocated_bytes),
            relocated_metadata: share(|w| w.relocated_metadata_bytes),
            headers: share(|w| w.header_bytes),
            map: share(|w| w.map_bytes),
            runs: share(|w| w.run_bytes),
            checkpoints: share(|w| w.checkpoint_bytes),
        }
    }

    /// All that is not data.
    pub fn metadata(&self) -> f64 {
        self.relocated_metadata + self.headers + self.map + self.runs + self.checkpoints
    }

    /// All bytes written per byte that the host wrote.
    pub fn amplification(&self) -> f64 {
        1.0 + self.relocated + self.metadata()
    }

    pub(crate) fn add_to(&self, table: &mut Table) {
        let rows = [
            ("  data relocated", self.relocated),
            ("  metadata relocated", self.relocated_metadata),
            ("  record headers", self.headers),
            ("  map pages", self.map),
            ("  runs", self.runs),
            ("  checkpoints", self.checkpoints),
        ];
        for (name, share) in rows {
            table.row(name, percent(share), "");
        }
    }
}
