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

use super::footprint::Footprint;
use super::jobs::{Job, JobIndex, Stage};
use super::parts::request_id;
use super::{Driver, Finished};
use crate::open_options::Acknowledge;
use crate::service::{Operation, RequestError};

/// What was answered and never written.
#[derive(Debug, Default)]
pub(super) struct Lost(Vec<(Footprint, RequestError)>);

impl Lost {
    fn error_in(&self, footprint: &Footprint) -> Option<RequestError> {
        self.0.iter().find(|(lost, _)| lost.overlaps(footprint)).map(|(_, error)| *error)
    }
}

impl Driver {
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
            job.is_answered = true;
            self.finished.push(Finished::of(job, Ok(())));
            self.bounces.give(std::mem::take(&mut job.bounce));
        }
    }

    /// What was answered early has ended.
    pub(super) fn note_end_of_answered(&mut self, job: &Job) {
        if let Some(error) = job.failure {
            self.lost.0.push((job.footprint(), error));
        }
    }
}
