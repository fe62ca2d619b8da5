//! Which parts of a range are mapped: at once, as far as memory tells; or exactly, as a question to the
//! engine or beside a read.

use super::Driver;
use super::jobs::{Job, JobIndex, main_buffer};
use crate::service::{Extent, Operation};
use coulter_format::{BLOCK_SIZE, Lba};

/// Blocks that one question covers at most, so that it keeps the loop for well under a
/// millisecond.
const LOOKUPS_MAX: u64 = 16_384;

impl Job {
    /// Blocks that the answer to a question covers.
    pub(super) fn question_blocks(&self) -> u64 {
        self.span.count().min(LOOKUPS_MAX)
    }

    /// Runs of mapped and unmapped bytes over the first `blocks` blocks, from the request's start on.
    fn extents_of(&self, blocks: u64, mut is_mapped: impl FnMut(u64) -> bool) -> Vec<Extent> {
        let (mut at, end) = (self.offset, self.offset + self.length);
        let mut extents: Vec<Extent> = Vec::new();
        for block in self.span.first..self.span.first + blocks {
            let mapped = is_mapped(block);
            let next = ((block + 1) * BLOCK_SIZE as u64).min(end);
            match extents.last_mut() {
                Some(last) if last.mapped == mapped => last.length += next - at,
                _ => extents.push(Extent { length: next - at, mapped }),
            }
            at = next;
        }
        extents
    }
}

impl Driver {
    /// Answers as far as memory tells: what is not there counts as mapped.
    pub(super) fn answer_extents(&mut self, index: JobIndex) {
        let (job, engine) = (self.jobs.job(index), &mut self.engine);
        job.extents = job.extents_of(job.question_blocks(), |block| engine.is_mapped(Lba(block)));
        self.finish(index);
    }

    /// Notes from now on which of the request's blocks the engine finds unmapped.
    pub(super) fn watch_presence(&mut self, index: JobIndex) {
        let blocks = self.jobs.job(index).span.count() as usize;
        self.pool.watch(main_buffer(index), blocks);
    }

    /// Tells what was noted.
    pub(super) fn tell_presence(&mut self, index: JobIndex) {
        let Some(absent) = self.pool.take_absent(main_buffer(index)) else { return };
        let job = self.jobs.job(index);
        if job.failure.is_some() {
            return;
        }
        let blocks = match job.operation {
            Operation::Extents => job.question_blocks(),
            _ => job.span.count(),
        };
        let first = job.span.first;
        job.extents = job.extents_of(blocks, |block| !absent.contains((block - first) as usize));
    }
}
