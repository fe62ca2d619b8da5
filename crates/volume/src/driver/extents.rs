//! Which parts of a range are mapped.

use super::Driver;
use super::jobs::JobIndex;
use crate::service::Extent;
use coulter_format::{BLOCK_SIZE, Lba};

/// Blocks that one request looks up at most, so that it keeps the loop for well under a
/// millisecond.
const LOOKUPS_MAX: u64 = 16_384;

impl Driver {
    /// Finds runs of mapped and unmapped bytes from the request's start on.
    pub(super) fn answer_extents(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        let (span, mut at) = (job.span, job.offset);
        let end = at + job.length;
        let mut extents: Vec<Extent> = Vec::new();
        for block in span.first..span.end.min(span.first + LOOKUPS_MAX) {
            let mapped = self.engine.is_mapped(Lba(block));
            let next = ((block + 1) * BLOCK_SIZE as u64).min(end);
            match extents.last_mut() {
                Some(last) if last.mapped == mapped => last.length += next - at,
                _ => extents.push(Extent { length: next - at, mapped }),
            }
            at = next;
        }
        job.extents = extents;
        self.finish(index);
    }
}
