//! A queue of requests to a volume and of completions from it.
//!
//! Requests are checked and gathered here, and handed to the loop in one batch by `kick`. What is
//! refused here (senseless ranges, a closed volume) completes without troubling the loop.

use crate::delivery::Outbox;
use crate::memory::Memory;
use crate::message::{Message, SessionId, Submission};
use crate::service::{Completion, Operation, Request, RequestError, Session};
use crate::state::Shared;
use crate::validity::{self, ByteRange};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct VolumeSession {
    shared: Arc<Shared>,
    /// Bytes of the volume.
    size: u64,
    /// `None` when the volume was closed already.
    id: Option<SessionId>,
    outbox: Arc<Outbox>,
    /// Requests since the last kick.
    queued: Vec<Message>,
    /// Completions of requests that never reached the loop.
    refused: Vec<Completion>,
    outstanding: usize,
}

impl VolumeSession {
    pub(crate) fn new(shared: Arc<Shared>, size: u64) -> VolumeSession {
        let outbox = Arc::new(Outbox::default());
        let id = shared.mailbox.try_connect(outbox.clone());
        let (queued, refused) = (Vec::new(), Vec::new());
        VolumeSession { shared, size, id, outbox, queued, refused, outstanding: 0 }
    }

    /// Queues a request.
    pub(crate) fn enqueue(
        &mut self,
        tag: u64,
        operation: Operation,
        range: ByteRange,
        memory: Memory,
    ) {
        self.outstanding += 1;
        let checked = validity::check(operation, range, memory.length() as u64, self.size);
        let ByteRange { offset, length } = match operation {
            Operation::Flush => ByteRange { offset: 0, length: 0 },
            _ => range,
        };
        // Without a number there is nobody to hand it to, and `kick` refuses it.
        let session = self.id.unwrap_or(SessionId(u32::MAX));
        let submission =
            Submission { session, tag, operation, offset, length, memory, begun_ns: 0 };
        match checked {
            Ok(()) => self.queued.push(Message::Submit(submission)),
            Err(error) => self.refused.push(submission.refused(error)),
        }
    }

    /// Moves completions that are there to `out`; returns whether there were any.
    fn take(&mut self, out: &mut Vec<Completion>) -> bool {
        let before = out.len();
        out.append(&mut self.refused);
        self.outbox.take(out);
        self.outstanding -= out.len() - before;
        out.len() > before
    }

    fn refuse_queued(&mut self) {
        for message in self.queued.drain(..) {
            if let Message::Submit(submission) = message {
                self.refused.push(submission.refused(RequestError::Closed));
            }
        }
    }
}

impl Session for VolumeSession {
    fn submit(&mut self, request: Request) {
        let Request { tag, operation, offset, length, buffer } = request;
        self.enqueue(tag, operation, ByteRange { offset, length }, Memory::owned(buffer));
    }

    fn kick(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let now_ns = self.shared.now_ns();
        for message in &mut self.queued {
            if let Message::Submit(submission) = message {
                submission.begun_ns = now_ns;
            }
        }
        if self.id.is_none() || !self.shared.mailbox.try_post(&mut self.queued) {
            self.refuse_queued();
        }
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        self.kick();
        if self.take(out) || self.outstanding == 0 || timeout == Some(Duration::ZERO) {
            return;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let before = out.len();
        self.outbox.wait(out, deadline);
        self.outstanding -= out.len() - before;
        if out.len() == before && self.outbox.is_over() {
            // Lost in a loop that failed: it could not even say so one by one.
            self.outstanding = 0;
        }
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        let ready = self.shared.ready.as_fd();
        if self.refused.is_empty() { self.outbox.arm().unwrap_or(ready) } else { ready }
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl Drop for VolumeSession {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // A loop that has ended needs no goodbye.
            let _ = self.shared.mailbox.try_send(Message::Disconnect(id));
        }
    }
}
