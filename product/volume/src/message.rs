//! What sessions say to the loop.

use crate::delivery::Outbox;
use crate::many::Many;
use crate::memory::Memory;
use crate::scrub::{Scrub, ScrubOrder};
use crate::service::{Completion, Guest, Operation, RequestError};
use crate::statistics::Statistics;
use crate::tuning::{Retuning, Tuning};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// A session's number. Used again once the session is gone and all its requests are finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionId(pub(crate) u32);

/// A valid request on its way to the loop.
pub(crate) struct Submission {
    pub(crate) session: SessionId,
    pub(crate) tag: u64,
    pub(crate) operation: Operation,
    /// Whether it is to tell exactly which blocks are mapped; only of reads and questions.
    pub(crate) exact: bool,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) memory: Memory,
    /// If it is a write of several ranges: which. `offset` is where the first begins, `length` that
    /// of the data then.
    pub(crate) many: Option<Arc<Many>>,
    /// When it was handed over, in nanoseconds of the volume's clock.
    pub(crate) begun_ns: u64,
    /// A write waits for space below the store for as long as it takes.
    pub(crate) is_held: bool,
}

impl Submission {
    /// The request's completion, without anything done.
    pub(crate) fn refused(self, error: RequestError) -> Completion {
        let (tag, buffer) = (self.tag, self.memory.into_buffer());
        Completion { tag, result: Err(error), buffer, extents: Vec::new() }
    }
}

/// How a loop is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Finish what was taken, write a checkpoint.
    Orderly,
    /// At once and without a checkpoint, as if the process had been killed.
    Abrupt,
}

/// What sessions and the volume say to the loop, in order.
pub(crate) enum Message {
    /// Do this.
    Submit(Submission),
    /// A session begins; its completions go there.
    Connect(SessionId, Arc<Outbox>),
    /// A session has gone.
    Disconnect(SessionId),
    /// Somebody wants the counters.
    Statistics(SyncSender<Statistics>),
    /// Change settings, and tell what they are then.
    Tune(Retuning, SyncSender<Tuning>),
    /// Begin or end a scrub, and tell how far it is.
    Scrub(ScrubOrder, SyncSender<Scrub>),
    /// Refuse writes and flushes with this error number.
    RefuseWrites(i32),
    /// Run this on the loop's thread.
    Host(Guest),
    /// Stop.
    End(Ending),
}
