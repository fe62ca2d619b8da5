//! What a volume wrote to its device, per byte that the host wrote.

use crate::figures::{Figures, percent};
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
        WrittenShares::over([&(*before, *after)])
    }

    /// What was written in several times, each between two moments.
    pub(crate) fn over<'w>(
        times: impl IntoIterator<Item = &'w (WrittenBytes, WrittenBytes)>,
    ) -> WrittenShares {
        let times: Vec<_> = times.into_iter().collect();
        let sum = |of: fn(&WrittenBytes) -> u64| -> u64 {
            times.iter().map(|(before, after)| of(after).saturating_sub(of(before))).sum()
        };
        let host = sum(|w| w.host_bytes).max(1) as f64;
        let share = |of: fn(&WrittenBytes) -> u64| sum(of) as f64 / host;
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

    pub(crate) fn add_to(&self, table: &mut Figures) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written(host: u64, relocated: u64) -> WrittenBytes {
        let mut written = WrittenBytes::default();
        (written.host_bytes, written.relocated_bytes) = (host, relocated);
        written
    }

    #[test]
    fn what_was_written_between_the_times_does_not_count() {
        let first = (written(100, 50), written(200, 150));
        let second = (written(1000, 5000), written(1300, 5900));
        let shares = WrittenShares::over([&first, &second]);
        assert_eq!((shares.relocated, shares.amplification()), (2.5, 3.5));
        assert_eq!(WrittenShares::between(&first.0, &first.1).relocated, 1.0);
        assert_eq!(WrittenShares::over([]), WrittenShares::default());
    }
}
