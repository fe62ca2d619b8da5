//! What hosts have done with a volume, for the health log.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts that only grow.
#[derive(Default)]
pub(super) struct Tally {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    media_errors: AtomicU64,
}

/// What one queue has done since it last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) media_errors: u64,
}

impl Tally {
    /// Adds what a queue has done, once for a whole turn of it.
    pub(super) fn add(&self, counts: Counts) {
        for (total, count) in self.pairs(counts) {
            if count > 0 {
                total.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let load = |total: &AtomicU64| total.load(Ordering::Relaxed);
        Counts {
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            reads: load(&self.reads),
            writes: load(&self.writes),
            media_errors: load(&self.media_errors),
        }
    }

    fn pairs(&self, counts: Counts) -> [(&AtomicU64, u64); 5] {
        [
            (&self.bytes_read, counts.bytes_read),
            (&self.bytes_written, counts.bytes_written),
            (&self.reads, counts.reads),
            (&self.writes, counts.writes),
            (&self.media_errors, counts.media_errors),
        ]
    }
}
