//! The loop's body: it owns the engine, the device and all buffers, and carries requests from one
//! to the other. It has no thread, no clock and no lock: the same calls give the same commands.
//!
//! ```text
//! accept ─┬─ read, flush ───────────────► prompt ─┐
//!         │   (after writes: `answers`)            ├─► engine ─► device ─► engine ─► finished
//!         └─ write ─► admission ─┬─ whole ► writes ┘
//!                      (blocked) └─ partial: wait, read the edges, merge, then as whole
//! ```
//! Reads and flushes never wait for writes that the engine cannot take yet: the two queues are
//! tried separately, and writes leave some of the engine's places to the others.
//!
//! What it does not do: decide when to sleep ([`crate::event_loop`] does), or check ranges
//! ([`crate::validity`] did).
//!
//! Invariants:
//! - every request that was accepted is finished once, with its memory;
//! - memory is given back only when no device command uses it.

mod answers;
mod conflicts;
mod extents;
mod footprint;
mod jobs;
mod lost;
mod merging;
mod opening;
mod parts;
mod space;
mod span;
#[cfg(test)]
mod tests;
mod transfers;

use crate::bounce::BounceBuffers;
use crate::counters::Counters;
use crate::descriptors::Descriptors;
use crate::failures::Failures;
use crate::geometry::Geometry;
use crate::memory::Memory;
use crate::message::{SessionId, Submission};
use crate::pool::Pool;
use crate::service::{BLOCK_SIZE, Completion, Operation, RequestError};
use crate::tuning::{Retuning, Tuning};
use conflicts::{Admission, Conflicts};
use coulter_device::{self as device, Device, Wait};
use coulter_engine::many::ChangesError;
use coulter_engine::read_cache::ReadCache;
use coulter_engine::{Engine, Failure, Phase, Request, RequestId, Response};
use jobs::{Job, JobIndex, Jobs, Stage};
use lost::Lost;
use space::ShortOfSpace;
use span::Span;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// Turns without any effect after which the engine is known to stand still. One might be enough;
/// but what one turn has changed may help the next.
const IDLE_TURNS_MAX: u32 = 8;

/// Completions of the device that are handled before it gets what they led to. The fewer, the
/// sooner it has work again while the others are handled: a disk that ends many reads at once, as
/// those of virtual machines do, would stand still meanwhile. Each turn costs a system call or two.
const COMPLETIONS_PER_TURN_MAX: usize = 8;

/// The engine's name for the request that ends it.
const SHUTDOWN: RequestId = RequestId(u64::MAX);

/// A finished request.
pub(crate) struct Finished {
    pub(crate) session: SessionId,
    pub(crate) operation: Operation,
    pub(crate) begun_ns: u64,
    pub(crate) completion: Completion,
}

impl Finished {
    /// What a session gets to see of a request: its memory is given back, for good.
    fn of(job: &mut Job, result: Result<(), RequestError>) -> Finished {
        let buffer = std::mem::replace(&mut job.memory, Memory::empty()).into_buffer();
        let extents = std::mem::take(&mut job.extents);
        let completion = Completion { tag: job.tag, result, buffer, extents };
        let (session, operation, begun_ns) = (job.session, job.operation, job.begun_ns);
        Finished { session, operation, begun_ns, completion }
    }
}

/// Engine, device and buffers, and the requests between them.
pub(crate) struct Driver {
    /// First, so that it is dropped first: it uses the memory of the others until then.
    device: Box<dyn Device>,
    engine: Engine,
    pool: Pool,
    jobs: Jobs,
    conflicts: Conflicts,
    /// Reads and flushes for which the engine had no place.
    prompt: VecDeque<JobIndex>,
    /// Writes that the engine has yet to take, in order.
    writes: VecDeque<JobIndex>,
    /// Writes that touch a guarded block, or have to let another one go first.
    blocked: VecDeque<JobIndex>,
    /// Whether writes are answered before the device has them, as discards are.
    answers_early: bool,
    /// What was answered so, and failed.
    lost: Lost,
    /// Parts of writes that the engine has taken and not answered.
    write_parts: u32,
    write_parts_max: u32,
    /// Blocks of one write of the engine at most.
    part_count_max: u64,
    /// Alignment of memory that the device takes.
    alignment: usize,
    bounces: BounceBuffers,
    /// What the device says, on its way to `arrived`.
    completions: Vec<device::Completion>,
    /// What the device has completed and is yet to be handled.
    arrived: VecDeque<device::Completion>,
    freed: Vec<JobIndex>,
    /// Commands that the device has not completed.
    commands_out: usize,
    /// Where clients look up what they read themselves.
    cache: Option<Arc<ReadCache>>,
    /// Writes that wait for space.
    space: ShortOfSpace,
    is_shutting_down: bool,
    /// How a shutdown ended.
    ended: Option<Result<(), Failure>>,
    pub(crate) counters: Counters,
    /// Requests that are done; to be taken by the caller.
    pub(crate) finished: Vec<Finished>,
}

impl Driver {
    /// Takes a valid request.
    pub(crate) fn accept(&mut self, submission: Submission) {
        self.counters.accept(submission.operation, submission.length);
        let span = match (&submission.many, submission.length) {
            (Some(many), _) => Span::whole_blocks(many.hull().0, many.hull().1),
            (None, 0) => Span::default(),
            (None, length) => Span::of(submission.offset, length),
        };
        // Into the table first: what is there is finished even if the engine should panic.
        let index = self.jobs.insert(Job::new(submission, span));
        match self.jobs.job(index).operation {
            Operation::Flush => self.start_after_writes(index),
            _ if span.is_empty() => self.finish(index),
            Operation::Extents | Operation::Read => self.start_after_writes(index),
            Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => {
                if let Some(refusal) = self.refusal(index) {
                    self.jobs.job(index).failure = Some(refusal);
                    self.finish(index);
                } else {
                    self.admit(index);
                }
            }
        }
    }

    /// Does all that can be done without waiting for the device.
    ///
    /// # Panics
    /// When requests are left and nothing is on its way that could help them, though the device can
    /// be read. That is a bug in the engine, and better told than slept over.
    pub(crate) fn work(&mut self) {
        let mut idle_turns = 0;
        while idle_turns < IDLE_TURNS_MAX {
            self.start_waiting();
            while let Some(io) = self.engine.poll_io(&mut self.pool) {
                self.submit(io);
            }
            let mut answered = false;
            while let Some(response) = self.engine.poll_response() {
                self.handle_response(response);
                answered = true;
            }
            if answered {
                idle_turns = 0;
            } else if self.is_stuck() {
                idle_turns += 1;
                if idle_turns == IDLE_TURNS_MAX && self.engine.give_up_for_want_of_room() {
                    idle_turns = 0;
                }
            } else {
                return;
            }
        }
        panic!("the engine stands still with {} requests waiting", self.jobs.count());
    }

    /// Has the device begin what it was told, and takes some of what it has done; sleeps according
    /// to `wait` if that is nothing. There may be more: see [`Driver::has_completions`].
    ///
    /// # Errors
    /// When the device can do nothing any more.
    pub(crate) fn poll_device(&mut self, wait: Wait) -> io::Result<()> {
        let wait = if self.has_completions() { Wait::No } else { wait };
        let polled = self.device.poll(&mut self.completions, wait);
        self.arrived.extend(self.completions.drain(..));
        for _ in 0..COMPLETIONS_PER_TURN_MAX {
            let Some(completion) = self.arrived.pop_front() else { break };
            self.handle_completion(completion);
        }
        polled
    }

    /// Whether the next [`Driver::poll_device`] has something to handle without asking the device.
    pub(crate) fn has_completions(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Starts what the device was told, and gives a descriptor that is readable as soon as it has
    /// more to tell, or at `due`; see [`Device::arm`].
    ///
    /// # Errors
    /// When the process has no descriptor left, and as `poll_device`.
    pub(crate) fn arm_device<'d>(
        &mut self,
        descriptors: &'d Descriptors,
        due: Option<Instant>,
    ) -> io::Result<BorrowedFd<'d>> {
        descriptors.armed(self.device.arm()?, due)
    }

    /// Asks the engine to end. [`Driver::ended`] tells when it has.
    pub(crate) fn shut_down(&mut self) {
        let taken = self.engine.handle_request(SHUTDOWN, Request::Shutdown, &mut self.pool);
        assert!(taken.is_ok(), "an open engine takes a shutdown at any time");
        self.is_shutting_down = true;
    }

    /// How the shutdown ended, if it has.
    pub(crate) fn ended(&self) -> Option<Result<(), Failure>> {
        self.ended
    }

    /// Refuses writes and flushes from now on.
    pub(crate) fn refuse_writes(&mut self, errno: i32) {
        self.engine.refuse_writes(errno);
    }

    /// Requests accepted and not finished.
    pub(crate) fn job_count(&self) -> usize {
        self.jobs.count()
    }

    /// When the oldest of them was handed over, by the volume's clock.
    pub(crate) fn oldest_job_ns(&self) -> Option<u64> {
        self.jobs.oldest_ns()
    }

    /// True while the engine has taken a write and not answered it.
    pub(crate) fn is_write_out(&self) -> bool {
        self.write_parts > 0
    }

    /// Whether the engine has got so far that requests are taken.
    fn is_readable(&self) -> bool {
        matches!(self.engine.phase(), Phase::Recovered | Phase::Running)
    }

    /// Whether writes are refused: since it was opened (zero), or after this error.
    pub(crate) fn read_only(&self) -> Option<i32> {
        self.engine.read_only()
    }

    /// Bytes in doubt, if something was damaged beyond repair when it was opened.
    pub(crate) fn in_doubt_bytes(&self) -> Option<u64> {
        self.engine.degradation()?;
        Some(self.engine.in_doubt_count().saturating_mul(BLOCK_SIZE))
    }

    /// What has failed so far.
    pub(crate) fn failures(&self) -> Failures {
        Failures { corrupt_blocks: self.engine.corrupt_blocks(), ..self.counters.failures }
    }

    /// Changes settings of the engine; what they are then. It acts on them in its next turn.
    pub(crate) fn tune(&mut self, retuning: Retuning) -> Tuning {
        if let Some(mode) = retuning.cleaning {
            self.engine.set_cleaning(mode);
        }
        if let Some(policy) = retuning.policy {
            self.engine.set_victims(policy);
        }
        if let Some(placement) = retuning.placement {
            self.engine.set_placement(placement);
        }
        if let Some(reclaim) = retuning.reclaim {
            self.engine.set_reclaim(reclaim);
        }
        if let Some(is_on) = retuning.defrag {
            self.engine.set_defrag(is_on);
        }
        if let Some(patience) = retuning.space_patience {
            self.space.patience = patience;
        }
        let engine = &self.engine;
        Tuning {
            cleaning: engine.cleaning(),
            policy: engine.victims(),
            placement: engine.placement(),
            reclaim: engine.reclaim(),
            defrag: engine.is_defragmenting(),
            space_patience: self.space.patience,
            ..Tuning::default()
        }
    }

    /// For whoever tells it what the clock allows.
    pub(crate) fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    pub(crate) fn engine_statistics(&self) -> coulter_engine::Statistics {
        self.engine.statistics()
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry::of(self.engine.superblock())
    }

    /// Gives everything up. When this returns the device uses no memory any more, and all requests
    /// are finished with `error`.
    pub(crate) fn abandon(self, error: RequestError) -> Vec<Finished> {
        let Driver { device, mut jobs, mut finished, pool, .. } = self;
        // First of all: it waits for what it has begun, which uses the others' memory.
        drop(device);
        drop(pool);
        let unanswered = jobs.drain().filter(|job| !job.is_answered);
        finished.extend(unanswered.map(|mut job| Finished::of(&mut job, Err(error))));
        finished
    }

    // Reads and flushes.

    fn start_prompt(&mut self, index: JobIndex) {
        if !self.prompt.is_empty() || !self.try_start_prompt(index) {
            self.counters.requests.waits += 1;
            self.prompt.push_back(index);
        }
    }

    // Writes.

    /// Why a write is not even tried.
    fn refusal(&mut self, index: JobIndex) -> Option<RequestError> {
        if self.engine.read_only().is_some() {
            return Some(RequestError::ReadOnly);
        }
        let job = self.jobs.job(index);
        // Of a store with segments of 1 MiB records are one block shorter.
        let is_too_much = job.many.is_some() && job.length > self.part_count_max * BLOCK_SIZE;
        is_too_much.then_some(RequestError::Changes(ChangesError::TooMuchData))
    }

    /// Lets a write go on unless another one is in its way.
    fn admit(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        let (footprint, operation) = (job.footprint(), job.operation);
        match self.conflicts.try_enter(index, footprint.clone(), self.may_be_early(operation)) {
            Admission::Blocked => {
                self.counters.requests.blocked += 1;
                self.jobs.job(index).stage = Stage::Blocked;
                self.blocked.push_back(index);
                self.conflicts.line_up(index, footprint);
            }
            Admission::Waits => {
                self.note_early_writes();
                self.jobs.job(index).stage = Stage::Guarding;
            }
            Admission::Free => {
                self.note_early_writes();
                self.start_write(index);
            }
        }
    }

    /// No earlier write is in the way.
    fn start_write(&mut self, index: JobIndex) {
        if self.jobs.job(index).is_refused {
            return self.finish(index);
        }
        if self.jobs.job(index).span.is_whole() {
            self.issue(index);
        } else {
            self.counters.requests.merged += 1;
            self.fetch(index);
        }
    }

    /// Hands the parts of a write to the engine, or lines it up.
    fn issue(&mut self, index: JobIndex) {
        let job = self.jobs.job(index);
        (job.stage, job.cursor) = (Stage::Issuing, job.span.first);
        if !self.writes.is_empty() || !self.try_issue(index) {
            self.counters.requests.waits += 1;
            self.writes.push_back(index);
        } else {
            self.answer_if_early(index);
        }
    }

    /// Tries again what the engine could not take.
    fn start_waiting(&mut self) {
        while let Some(index) = self.prompt.front() {
            if !self.try_start_prompt(*index) {
                break;
            }
            self.prompt.pop_front();
        }
        while let Some(index) = self.writes.front() {
            if !self.try_issue(*index) {
                break;
            }
            let index = self.writes.pop_front().expect("it was looked at");
            self.answer_if_early(index);
        }
    }

    /// Whether somebody waits although nothing is on its way, not even time.
    fn is_stuck(&self) -> bool {
        let waiting = self.jobs.count() > 0 || self.is_shutting_down;
        let is_given_time = self.engine.waits_for_time() || self.engine.scrub_waits_for_time();
        let waits = is_given_time || self.engine.lacks_space();
        // A client that reads a segment which is wanted wakes the loop when it is done.
        let by_clients = self.cache.as_ref().is_some_and(|cache| cache.is_awaited());
        let on_its_way = self.commands_out > 0 || waits || by_clients;
        waiting && !on_its_way && self.ended.is_none()
    }

    // Ends.

    fn handle_response(&mut self, response: Response) {
        if response.id == SHUTDOWN {
            self.ended = Some(response.result);
            return;
        }
        let index = JobIndex(u32::try_from(response.id.0).expect("the engine keeps the name"));
        let job = self.jobs.job(index);
        job.pending -= 1;
        if let Err(failure) = response.result {
            job.failure.get_or_insert(request_error(failure));
        }
        match (job.operation, job.stage) {
            (Operation::Read | Operation::Flush | Operation::Extents, _) => {
                if job.is_done() {
                    self.finish(index);
                }
            }
            (_, Stage::Fetching) => self.edge_fetched(index),
            (_, Stage::Issuing) => {
                let is_done = job.is_done();
                self.write_parts -= 1;
                if is_done {
                    self.finish(index);
                }
            }
            (_, stage) => panic!("the engine has nothing of a request that is {stage:?}"),
        }
    }

    fn finish(&mut self, index: JobIndex) {
        if self.jobs.job(index).is_refused {
            self.jobs.remove(index);
            return self.release(index);
        }
        if self.jobs.job(index).operation == Operation::Read {
            self.take_from_bounce(index);
        }
        if self.jobs.job(index).exact {
            self.tell_presence(index);
        }
        let mut job = self.jobs.remove(index);
        let result = job.failure.map_or(Ok(()), Err);
        self.counters.finish(job.offset, result);
        if job.is_answered {
            self.note_end_of_answered(&job);
        } else {
            self.finished.push(Finished::of(&mut job, result));
            self.bounces.give(job.bounce);
        }
        self.release(index);
    }

    /// Lets those go on that waited for this request.
    fn release(&mut self, index: JobIndex) {
        let mut freed = std::mem::take(&mut self.freed);
        let guards_are_gone = self.conflicts.leave(index, &mut freed);
        self.note_early_writes();
        for index in freed.drain(..) {
            match self.jobs.job(index).stage {
                Stage::Awaiting => self.start_unordered(index),
                _ => self.start_write(index),
            }
        }
        self.freed = freed;
        if guards_are_gone {
            // Each once; those that are blocked still line up again in the same order.
            for _ in 0..self.blocked.len() {
                let index = self.blocked.pop_front().expect("counted");
                self.admit(index);
            }
        }
    }
}

fn request_error(failure: Failure) -> RequestError {
    match failure {
        Failure::Corrupt(lba) => RequestError::Corrupt { block: lba.0 },
        Failure::Device(errno) => RequestError::Device { errno },
        Failure::Full => RequestError::Full,
        // What else there may come to be is a refusal too.
        _ => RequestError::ReadOnly,
    }
}
