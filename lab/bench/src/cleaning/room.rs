//! What the log holds besides the volume, on average.

use crate::figures::{Figures, percent};
use crate::standin::HostBlocks;
use coulter_engine::Engine;
use coulter_engine::occupancy::Use;
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
    pub(crate) fn add_to(&self, table: &mut Figures) {
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looks {
    count: u64,
    pub(super) garbage: u64,
    pub(super) moved: u64,
    pub(super) metadata: u64,
    pub(super) headers: u64,
    pub(super) open: u64,
    pub(super) empty: u64,
}

impl Looks {
    /// Looks at an engine of whose volume so many blocks were written at least once, and at what its
    /// device holds when nothing waits to be executed. Every part is counted anew, block by block: no
    /// counter that is carried on could tell what a record in holes took the place of.
    pub(super) fn look(&mut self, engine: &Engine, host_blocks: &HostBlocks, volume: u64) {
        let size = u64::from(engine.geometry().segment_blocks);
        let on_their_way = engine.host_blocks_on_their_way();
        let (mut host, mut moved) = (0, 0);
        for segment in engine.occupancy() {
            let unwritten = u64::from(segment.unwritten);
            let written = size - unwritten;
            match segment.used_for {
                Use::Empty => self.empty += size,
                Use::Metadata => self.metadata += written,
                Use::HostData => {
                    let held = host_blocks.count(segment.start, written as u32);
                    self.headers += written - held;
                    host += held;
                }
            }
            self.open += unwritten;
            moved += u64::from(segment.moved);
        }
        assert!(host >= volume + moved + on_their_way, "what is current lies in the log, once");
        self.count += 1;
        self.headers += on_their_way;
        self.moved += moved;
        self.garbage += host - volume - moved - on_their_way;
    }

    /// The averages, for a volume of so many blocks.
    pub(super) fn report(&self, blocks: u64) -> Room {
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
