//! Requests that the driver has taken and not finished.

use super::footprint::Footprint;
use super::span::Span;
use crate::buffer::Buffer;
use crate::many::Many;
use crate::memory::Memory;
use crate::message::{SessionId, Submission};
use crate::service::{Extent, Operation, RequestError};
use coulter_engine::{BufferRef, RequestId};
use coulter_format::BLOCK_SIZE;
use std::sync::Arc;

/// A request's place in the table; free again once it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobIndex(pub(super) u32);

/// The engine's name for the request.
pub(super) fn request_id(index: JobIndex) -> RequestId {
    RequestId(index.0.into())
}

/// The name of a request's memory, or of the first block that it covers in part.
pub(super) fn main_buffer(index: JobIndex) -> BufferRef {
    BufferRef(2 * index.0)
}

/// The name of the last block that a request covers in part.
pub(super) fn tail_buffer(index: JobIndex) -> BufferRef {
    BufferRef(2 * index.0 + 1)
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A write that must be admitted again when a guard is gone.
    Blocked,
    /// Holds its guards; earlier writes must end first.
    Guarding,
    /// The blocks that it covers in part are being read.
    Fetching,
    /// Its parts go to the engine and come back.
    Issuing,
    /// A read, flush or question that begins when earlier writes have ended.
    Awaiting,
}

/// One request.
pub(super) struct Job {
    pub(super) session: SessionId,
    pub(super) tag: u64,
    pub(super) operation: Operation,
    /// Whether it tells exactly which blocks are mapped.
    pub(super) exact: bool,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) memory: Memory,
    /// Whole blocks for what the request's own memory cannot hold; empty if not needed.
    pub(super) bounce: Buffer,
    /// What it covers, from the first block to the last.
    pub(super) span: Span,
    /// If it is a write of several ranges: which.
    pub(super) many: Option<Arc<Many>>,
    pub(super) stage: Stage,
    /// What the engine has accepted: edges while fetching, the next block while issuing.
    pub(super) cursor: u64,
    /// Parts that the engine has accepted and not answered.
    pub(super) pending: u32,
    pub(super) failure: Option<RequestError>,
    /// Its session has the answer, and the memory, already.
    pub(super) is_answered: bool,
    /// That answer was that there is no space: how it ends is of no interest any more.
    pub(super) is_refused: bool,
    /// The answer to a question about extents.
    pub(super) extents: Vec<Extent>,
    /// When it was handed over, in nanoseconds of the volume's clock.
    pub(super) begun_ns: u64,
    /// It waits for space below the store for as long as it takes.
    pub(super) is_held: bool,
}

impl Job {
    /// A request over `span`.
    pub(super) fn new(submission: Submission, span: Span) -> Job {
        Job {
            session: submission.session,
            tag: submission.tag,
            operation: submission.operation,
            exact: submission.exact,
            offset: submission.offset,
            length: submission.length,
            memory: submission.memory,
            bounce: Buffer::empty(),
            span,
            many: submission.many,
            stage: Stage::Issuing,
            cursor: span.first,
            pending: 0,
            failure: None,
            is_answered: false,
            is_refused: false,
            extents: Vec::new(),
            begun_ns: submission.begun_ns,
            is_held: submission.is_held,
        }
    }

    /// The blocks that it touches.
    pub(super) fn footprint(&self) -> Footprint {
        self.many.clone().map_or_else(|| self.span.into(), Footprint::from)
    }

    pub(super) fn is_durable(&self) -> bool {
        matches!(
            self.operation,
            Operation::Write { fua: true } | Operation::WriteZeroes { fua: true }
        )
    }

    /// Whether every part was accepted and answered.
    pub(super) fn is_done(&self) -> bool {
        self.stage == Stage::Issuing && self.pending == 0 && self.cursor == self.span.end
    }

    /// Which block of the bounce buffer stands for a block of the span. Writes have room for all
    /// blocks, discards for those covered in part only.
    pub(super) fn bounce_block(&self, block: u64) -> usize {
        assert!(self.span.contains(block), "the block belongs to the request");
        let whole_span = matches!(self.operation, Operation::Read | Operation::Write { .. });
        if whole_span {
            return (block - self.span.first) as usize;
        }
        usize::from(block != self.span.first && self.span.edges().count() == 2)
    }

    /// Bytes that a bounce buffer must have.
    pub(super) fn bounce_size(&self) -> usize {
        match self.operation {
            Operation::Read | Operation::Write { .. } => self.span.count() as usize * BLOCK_SIZE,
            _ => self.span.edges().count() * BLOCK_SIZE,
        }
    }

    /// Where the request's own bytes begin in a bounce buffer for all its blocks.
    pub(super) fn bounce_offset(&self) -> usize {
        (self.offset % BLOCK_SIZE as u64) as usize
    }
}

/// The table of requests. It grows to the most that were ever there at once.
#[derive(Default)]
pub(super) struct Jobs {
    slots: Vec<Option<Job>>,
    free: Vec<JobIndex>,
}

impl Jobs {
    pub(super) fn insert(&mut self, job: Job) -> JobIndex {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("memory ends before the numbers do");
            assert!(index < u32::MAX / 2, "each request has two names for buffers");
            self.slots.push(None);
            JobIndex(index)
        });
        let slot = &mut self.slots[index.0 as usize];
        assert!(slot.is_none(), "a free place is empty");
        *slot = Some(job);
        index
    }

    #[inline]
    pub(super) fn job(&mut self, index: JobIndex) -> &mut Job {
        self.slots[index.0 as usize].as_mut().expect("a request stays until it is finished")
    }

    pub(super) fn remove(&mut self, index: JobIndex) -> Job {
        let job = self.slots[index.0 as usize].take().expect("a request is finished once");
        self.free.push(index);
        job
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// When the oldest request was handed over that has no answer yet.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        let unanswered = self.slots.iter().flatten().filter(|job| !job.is_answered);
        unanswered.map(|job| job.begun_ns).min()
    }

    /// Requests that were not finished, in no order.
    pub(super) fn each(&self) -> impl Iterator<Item = (JobIndex, &Job)> {
        let slots = (0..).zip(&self.slots);
        slots.filter_map(|(index, job)| Some((JobIndex(index), job.as_ref()?)))
    }

    /// Takes all requests out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Job> + '_ {
        self.free.clear();
        self.slots.drain(..).flatten()
    }
}
