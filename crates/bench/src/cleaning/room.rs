//! What the log holds besides the volume, on average.

use crate::table::{Table, percent};
use coulter_engine::Statistics;
use serde::Serialize;

/// Shares of the volume's size. Together they are all that the log has beyond the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Room {
    /// Host blocks that were overwritten, or discarded: what the literature calls garbage.
    pub garbage: f64,
    /// Host blocks that the cleaner has copied out of segments that are not empty yet.
    pub moved: f64,
    /// Segments that metadata is written to, dead metadata included.
    pub metadata: f64,
    /// In the other segments: headers of records, metadata that the cleaner moved there, records that
    /// are still on their way, and what is too short for a record.
    pub headers: f64,
    /// What is still to be written of the segments that streams have open.
    pub open: f64,
    /// Empty segments.
    pub empty: f64,
}

impl Room {
    pub(crate) fn add_to(&self, table: &mut Table) {
        let rows = [
            ("  garbage", self.garbage, "overwritten host blocks that cleaning has to gain"),
            ("  moved", self.moved, "out of segments that are not empty yet"),
            ("  metadata", self.metadata, "segments of metadata, what is dead in them included"),
            ("  headers", self.headers, "and metadata among host data, and what is on its way"),
            ("  open", self.open, "still to be written"),
            ("  empty", self.empty, "segments"),
        ];
        for (name, share, what) in rows {
            table.row(name, percent(share), what);
        }
    }
}

/// The sums of all looks, in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    count: u64,
    garbage: u64,
    moved: u64,
    metadata: u64,
    headers: u64,
    open: u64,
    empty: u64,
}

impl Looks {
    /// Looks at an engine of whose volume so many blocks were written at least once.
    pub(crate) fn look(&mut self, now: &Statistics, blocks: u64) {
        let log = now.segment_count * now.segment_size;
        let empty = now.segments_empty * now.segment_size;
        let others = now.host_log_blocks + now.metadata_log_blocks + now.open_blocks + empty;
        self.count += 1;
        self.garbage += (now.host_log_blocks - now.moved_blocks).saturating_sub(blocks);
        self.moved += now.moved_blocks;
        self.metadata += now.metadata_log_blocks;
        self.headers += log.saturating_sub(others);
        self.open += now.open_blocks;
        self.empty += empty;
    }

    /// The averages, for a volume of so many blocks.
    pub(crate) fn report(&self, blocks: u64) -> Room {
        let all = self.count.max(1) as f64 * blocks as f64;
        let share = |sum: u64| sum as f64 / all;
        Room {
            garbage: share(self.garbage),
            moved: share(self.moved),
            metadata: share(self.metadata),
            headers: share(self.headers),
            open: share(self.open),
            empty: share(self.empty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cleaner_has_copied_is_no_garbage() {
        let mut statistics = Statistics::default();
        (statistics.segment_count, statistics.segment_size) = (20, 100);
        (statistics.segments_empty, statistics.open_blocks) = (3, 50);
        (statistics.metadata_log_blocks, statistics.host_log_blocks) = (150, 1450);
        statistics.moved_blocks = 40;
        let mut looks = Looks::default();
        looks.look(&statistics, 1000);
        statistics.moved_blocks = 60;
        looks.look(&statistics, 1000);
        let room = looks.report(1000);
        let expected = Room {
            garbage: 0.4,
            moved: 0.05,
            metadata: 0.15,
            headers: 0.05,
            open: 0.05,
            empty: 0.3,
        };
        assert_eq!(room, expected);
    }
}
