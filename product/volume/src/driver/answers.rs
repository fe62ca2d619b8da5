//! What is answered before the device has it: discards, which are hints; and writes, if the volume is
//! opened so.
//!
//! It is answered when the engine has copied all of it and put it in its place in the order of
//! the log. Until its record has taken effect the driver makes up for what the engine does not know:
//!
//! - a read of those blocks, and a question about them, waits until it has;
//! - a flush waits for all such before it, and then for the device;
//! - if it fails after all, whoever reads those blocks gets an error, not what was there before.
//!   The volume is read-only by then, and every flush fails.
//!
//! Writes with force unit access and writes of zeros are answered as ever.

use super::jobs::{Job, JobIndex, Stage, request_id};
use super::{Driver, Finished};
use crate::direct::Direct;
use crate::open_options::Acknowledge;
use crate::service::Operation;
use coulter_device::ReadSource;
use coulter_engine::read_cache::ReadCache;
use coulter_format::Lba;
use std::sync::Arc;

impl Driver {
    /// Has clients look up in `cache`, before the first of them is there.
    pub(crate) fn share(&mut self, cache: Arc<ReadCache>) {
        self.engine.share(cache.clone());
        self.cache = Some(cache);
    }

    /// The same with a cache of so many bytes, for clients that read from `source`; `None` if there can be none.
    pub(crate) fn share_reads(&mut self, size: u64, source: ReadSource) -> Option<Arc<Direct>> {
        let geometry = *self.engine.geometry();
        let cache = ReadCache::new(
            size,
            geometry.volume_size,
            geometry.first_segment,
            geometry.segment_blocks,
            geometry.segment_count,
        );
        let cache = Arc::new(cache?);
        self.share(cache.clone());
        Some(Arc::new(Direct::new(cache, source)))
    }

    /// Nothing is put where clients look while a write is under way that may be answered before the map
    /// knows of it, nor once such a write was lost.
    pub(super) fn note_early_writes(&self) {
        if let Some(cache) = &self.cache {
            cache.allow_filling(self.conflicts.are_all_late() && self.lost.is_empty());
        }
    }

    /// Sets when writes are answered; before the first one.
    pub(crate) fn acknowledge(&mut self, acknowledge: Acknowledge) {
        self.answers_early = acknowledge == Acknowledge::Buffered;
    }

    /// Begins a request that changes nothing, now or when the writes that it must see have ended.
    pub(super) fn start_after_writes(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        let footprint = (job.operation != Operation::Flush).then(|| job.footprint());
        if self.conflicts.awaits(index, footprint) {
            self.jobs.job(index).stage = Stage::Awaiting;
        } else {
            self.start_unordered(index);
        }
    }

    /// The writes that it must see have ended.
    pub(super) fn start_unordered(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        if job.is_refused {
            return self.finish(index);
        }
        job.stage = Stage::Issuing;
        if job.operation != Operation::Flush
            && let Some(error) = self.lost.error_in(&job.footprint())
        {
            job.failure = Some(error);
            self.finish(index);
            return;
        }
        match job.operation {
            Operation::Extents if !job.exact => self.answer_extents(index),
            Operation::Extents => {
                self.watch_presence(index);
                self.start_prompt(index);
            }
            Operation::Read => {
                self.name_read_memory(index);
                if self.jobs.job(index).exact {
                    self.watch_presence(index);
                }
                self.start_prompt(index);
            }
            Operation::Flush => self.start_prompt(index),
            operation => panic!("{operation:?} changes something"),
        }
    }

    /// Whether others have to wait for what changes something as though it had been answered.
    pub(super) fn may_be_early(&self, operation: Operation) -> bool {
        self.answers_early || operation == Operation::Discard
    }

    /// Answers what the engine has taken whole, if it need not wait for the device.
    pub(super) fn answer_if_early(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        let is_early = match job.operation {
            Operation::Discard => true,
            Operation::Write { fua: false } => self.answers_early,
            _ => false,
        };
        // What the engine took may be refused already: a sparse store that is full.
        let is_refused = self.engine.has_answered(request_id(index));
        if is_early && !is_refused && job.failure.is_none() && self.engine.read_only().is_none() {
            // Before the answer, and until the write has ended: the map does not know of it yet.
            if let Some(cache) = &self.cache {
                let forget = |first, count| cache.forget_range(Lba(first), count);
                job.footprint().each(forget);
            }
            job.is_answered = true;
            self.finished.push(Finished::of(job, Ok(())));
            self.bounces.give(std::mem::take(&mut job.bounce));
        }
    }

    /// What was answered early has ended.
    pub(super) fn note_end_of_answered(&mut self, job: &Job) {
        if let Some(error) = job.failure {
            self.lost.add(job.footprint(), error);
            self.note_early_writes();
            // Clients ask the loop from now on, which knows what is lost.
            if let Some(cache) = &self.cache {
                cache.forget_all();
            }
        }
    }
}
