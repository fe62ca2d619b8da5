//! A queue of requests to a volume on its own thread, and of completions from it.
//!
//! Requests are gathered by the [`Intake`], and handed to the loop in one batch by `kick`.

use crate::delivery::Outbox;
use crate::intake::{AnyMemory, Intake};
use crate::memory::Memory;
use crate::message::Message;
use crate::service::{Change, Completion, Operation, Request, Session, WriteMany};
use crate::state::Shared;
use crate::validity::ByteRange;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct VolumeSession {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    intake: Intake,
}

impl VolumeSession {
    pub(crate) fn new(shared: Arc<Shared>, size: u64) -> VolumeSession {
        let outbox = Arc::new(Outbox::default());
        let id = shared.mailbox.try_connect(outbox.clone());
        VolumeSession { shared, outbox, intake: Intake::new(id, size) }
    }

    /// Moves completions that are there to `out`; returns whether there were any.
    fn take(&mut self, out: &mut Vec<Completion>) -> bool {
        self.intake.take(out, |out| self.outbox.take(out))
    }
}

impl AnyMemory for VolumeSession {
    fn assert_may_wait(&self) {
        self.shared.assert_may_wait();
    }

    fn enqueue(
        &mut self,
        tag: u64,
        operation: Operation,
        exact: bool,
        range: ByteRange,
        memory: Memory,
    ) {
        self.intake.enqueue(tag, operation, exact, range, memory);
    }

    fn enqueue_many(&mut self, tag: u64, changes: &[Change], fua: bool, memory: Memory) {
        self.intake.enqueue_many(tag, changes, fua, memory);
    }
}

impl Session for VolumeSession {
    fn submit(&mut self, request: Request) {
        let Request { tag, operation, offset, length, buffer } = request;
        self.enqueue(tag, operation, false, ByteRange { offset, length }, Memory::owned(buffer));
    }

    fn submit_exact(&mut self, request: Request) -> Result<(), Request> {
        let Request { tag, operation, offset, length, buffer } = request;
        self.enqueue(tag, operation, true, ByteRange { offset, length }, Memory::owned(buffer));
        Ok(())
    }

    fn submit_many(&mut self, request: WriteMany) -> Result<(), WriteMany> {
        let WriteMany { tag, changes, buffer, fua } = request;
        self.enqueue_many(tag, &changes, fua, Memory::owned(buffer));
        Ok(())
    }

    fn kick(&mut self) {
        if self.intake.queued.is_empty() {
            return;
        }
        self.intake.stamp(self.shared.now_ns());
        let is_known = self.intake.session().is_some();
        if !is_known || !self.shared.mailbox.try_post(&mut self.intake.queued) {
            self.intake.refuse_queued();
        }
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        self.kick();
        if self.take(out) || self.intake.outstanding == 0 || timeout == Some(Duration::ZERO) {
            return;
        }
        self.shared.assert_may_wait();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_any = self.intake.take(out, |out| self.outbox.wait(out, deadline));
        if !is_any && self.outbox.is_over() {
            // Lost in a loop that failed: it could not even say so one by one.
            self.intake.outstanding = 0;
        }
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        let ready = self.shared.ready.as_fd();
        if self.intake.has_refused() {
            ready
        } else if self.intake.outstanding == 0 && self.outbox.is_over() {
            self.shared.quiet.as_fd()
        } else {
            self.outbox.arm().unwrap_or(ready)
        }
    }

    fn outstanding(&self) -> usize {
        self.intake.outstanding
    }
}

impl Drop for VolumeSession {
    fn drop(&mut self) {
        if let Some(id) = self.intake.session() {
            // A loop that has ended needs no goodbye.
            let _ = self.shared.mailbox.try_send(Message::Disconnect(id));
        }
    }
}
