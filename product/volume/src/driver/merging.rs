//! Requests that change parts of blocks: read the block, merge, write it back.
//!
//! Order against other writes is kept by [`super::conflicts`]: when the reading begins, every
//! earlier write to the block has ended, and no later one is admitted before this one has.

use super::Driver;
use super::jobs::{JobIndex, Stage, main_buffer, request_id, tail_buffer};
use crate::service::Operation;
use coulter_engine::Request;
use coulter_format::{BLOCK_SIZE, Lba};

impl Driver {
    /// Begins to read the blocks that are covered in part.
    pub(super) fn fetch(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        (job.stage, job.cursor) = (Stage::Fetching, 0);
        job.bounce = self.bounces.take(job.bounce_size());
        let start = job.bounce.as_mut_pointer();
        let buffers = [main_buffer(index), tail_buffer(index)];
        for (buffer, block) in buffers.into_iter().zip(job.span.edges()) {
            let start = start.wrapping_add(job.bounce_block(block) * BLOCK_SIZE);
            // SAFETY: the bounce buffer has room for every edge, and stays until the request is
            // finished.
            unsafe { self.pool.name(buffer, start, BLOCK_SIZE) };
        }
        self.start_prompt(index);
    }

    /// Offers to the engine the reads that it has not taken yet. False if it cannot take all now.
    pub(super) fn try_fetch(&mut self, index: JobIndex) -> bool {
        let job = self.jobs.job(index);
        let buffers = [main_buffer(index), tail_buffer(index)];
        let reads = buffers.into_iter().zip(job.span.edges());
        for (buffer, block) in reads.skip(job.cursor as usize) {
            let request = Request::Read { lba: Lba(block), count: 1, buffer };
            let id = request_id(index);
            if self.engine.handle_request(id, request, &mut self.pool).is_err() {
                return false;
            }
            job.cursor += 1;
            job.pending += 1;
        }
        true
    }

    /// A block that is covered in part has been read, or could not be.
    pub(super) fn edge_fetched(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        if job.pending > 0 || (job.cursor as usize) < job.span.edges().count() {
            return;
        }
        if job.failure.is_some() {
            self.finish(index);
            return;
        }
        match job.operation {
            Operation::Write { .. } => self.merge_content(index),
            _ => self.merge_zeros(index),
        }
        self.issue(index);
    }

    /// Puts the request's bytes between what was read.
    fn merge_content(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        let (start, length) = (job.bounce_offset(), job.memory.length());
        let target = job.bounce[start..start + length].as_mut_ptr();
        // SAFETY: the memory is the request's own, of this length, and is no part of the bounce
        // buffer.
        unsafe { std::ptr::copy_nonoverlapping(job.memory.start(), target, length) };
    }

    /// Zeroes the covered parts of what was read.
    fn merge_zeros(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        let (begin, end) = (job.offset, job.offset + job.length);
        for block in job.span.edges() {
            let block_begin = block * BLOCK_SIZE as u64;
            let within = |offset: u64| {
                offset.clamp(block_begin, block_begin + BLOCK_SIZE as u64) - block_begin
            };
            let place = job.bounce_block(block) * BLOCK_SIZE;
            let covered = place + within(begin) as usize..place + within(end) as usize;
            job.bounce[covered].fill(0);
        }
    }
}
