//! Requests of a session, cut into requests of the engine.

use super::Driver;
use super::jobs::{JobIndex, Stage, main_buffer, request_id};
use crate::service::Operation;
use coulter_engine::Request;
use coulter_format::{BLOCK_SIZE, Lba};

impl Driver {
    /// Names the memory that a read fills: the request's own if it takes whole blocks as the
    /// device wants them, else a bounce buffer.
    pub(super) fn name_read_memory(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        let is_aligned = (job.memory.start() as usize).is_multiple_of(self.alignment);
        let (start, length) = if job.span.is_whole() && is_aligned {
            (job.memory.start(), job.memory.length())
        } else {
            self.counters.requests.bounced += 1;
            job.bounce = self.bounces.take(job.bounce_size());
            (job.bounce.as_mut_pointer(), job.bounce.len())
        };
        // SAFETY: both stay where they are until the request is finished, and nobody else uses
        // them until then.
        unsafe { self.pool.name(main_buffer(index), start, length) };
    }

    /// Copies what was read to where it was asked for.
    pub(super) fn take_from_bounce(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        if job.bounce.is_empty() || job.failure.is_some() {
            return;
        }
        let (start, length) = (job.bounce_offset(), job.memory.length());
        let bytes = &job.bounce[start..start + length];
        // SAFETY: the memory is the request's own, of this length, and is no part of the bounce
        // buffer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), job.memory.start(), length) };
    }

    /// Offers a read, a flush, or the reading of partial blocks to the engine. False if it has no
    /// place now.
    pub(super) fn try_start_prompt(&mut self, index: JobIndex) -> bool {
        let job = self.jobs.job(index);
        if job.stage == Stage::Fetching {
            return self.try_fetch(index);
        }
        let request = match job.operation {
            Operation::Flush => Request::Flush,
            Operation::Read => Request::Read {
                lba: Lba(job.span.first),
                count: u32::try_from(job.span.count()).expect("a read has at most 32 MiB"),
                buffer: main_buffer(index),
            },
            Operation::Extents => Request::Presence {
                lba: Lba(job.span.first),
                count: job.question_blocks() as u32,
                buffer: main_buffer(index),
            },
            operation => panic!("{operation:?} is no prompt request"),
        };
        let taken = self.engine.handle_request(request_id(index), request, &mut self.pool).is_ok();
        if taken {
            job.cursor = job.span.end;
            job.pending = 1;
        }
        taken
    }

    /// Offers the parts of a write to the engine that it has not taken yet. False if it cannot
    /// take all now.
    pub(super) fn try_issue(&mut self, index: JobIndex) -> bool {
        loop {
            let job = self.jobs.job(index);
            assert_eq!(job.stage, Stage::Issuing, "only what is ready is issued");
            if job.cursor == job.span.end {
                return true;
            }
            if self.write_parts == self.write_parts_max {
                return false;
            }
            let Some(next) = self.try_issue_part(index) else { return false };
            let job = self.jobs.job(index);
            job.cursor = next;
            job.pending += 1;
            self.write_parts += 1;
        }
    }

    /// Offers the part at the cursor; the block after it if the engine takes it.
    fn try_issue_part(&mut self, index: JobIndex) -> Option<u64> {
        let id = request_id(index);
        if self.jobs.job(index).many.is_some() {
            return self.try_issue_many(index);
        }
        let (request, next) = self.next_part(index);
        self.engine.handle_request(id, request, &mut self.pool).ok().map(|()| next)
    }

    /// Offers all ranges of a write at once.
    fn try_issue_many(&mut self, index: JobIndex) -> Option<u64> {
        let job = self.jobs.job(index);
        let many = job.many.clone().expect("it has several ranges");
        let (fua, buffer) = (job.is_durable(), main_buffer(index));
        // SAFETY: the memory holds the data of all ranges, and the engine has copied them when it
        // has taken the request.
        unsafe { self.pool.name(buffer, job.memory.start(), job.memory.length()) };
        let request = Request::WriteMany { changes: many.changes(), buffer, fua };
        let taken = self.engine.handle_request(request_id(index), request, &mut self.pool);
        taken.ok().map(|()| self.jobs.job(index).span.end)
    }

    /// The part at the cursor, and the block after it.
    fn next_part(&mut self, index: JobIndex) -> (Request<'static>, u64) {
        let job = self.jobs.job(index);
        let (cursor, fua) = (job.cursor, job.is_durable());
        let lba = Lba(cursor);
        let (whole_first, whole_end) = job.span.whole();
        let is_write = matches!(job.operation, Operation::Write { .. });
        let is_edge = !(whole_first..whole_end).contains(&cursor);
        if !is_write && !is_edge {
            return (Request::Discard { lba, count: whole_end - cursor, fua }, whole_end);
        }
        let left = if is_write { job.span.end - cursor } else { 1 };
        let count = left.min(self.part_count_max);
        let start = if job.bounce.is_empty() {
            let offset = (cursor - job.span.first) as usize * BLOCK_SIZE;
            job.memory.start().wrapping_add(offset)
        } else {
            let offset = job.bounce_block(cursor) * BLOCK_SIZE;
            job.bounce.as_mut_pointer().wrapping_add(offset)
        };
        let buffer = main_buffer(index);
        // SAFETY: the memory holds all blocks of the span (or, bounced, all that are written), and
        // the engine has copied them when it has taken the request.
        unsafe { self.pool.name(buffer, start, count as usize * BLOCK_SIZE) };
        (Request::Write { lba, count: count as u32, buffer, fua }, cursor + count)
    }
}
