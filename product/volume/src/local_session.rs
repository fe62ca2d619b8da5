//! A queue of requests to a volume on the same thread, and of completions from it: calls where
//! another session has messages.

use crate::descriptors::Descriptors;
use crate::event_loop::EventLoop;
use crate::intake::{AnyMemory, Intake};
use crate::memory::Memory;
use crate::service::{Change, Completion, Operation, Request, Session, WriteMany};
use crate::state::Shared;
use crate::validity::ByteRange;
use coulter_device::Wait;
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct LocalSession {
    event_loop: Rc<RefCell<EventLoop>>,
    shared: Arc<Shared>,
    intake: Intake,
    /// What the loop's device calls through, once it was asked for.
    descriptor: Descriptors,
}

impl LocalSession {
    pub(crate) fn new(event_loop: Rc<RefCell<EventLoop>>, shared: Arc<Shared>) -> LocalSession {
        let (id, size) = {
            let mut event_loop = event_loop.borrow_mut();
            (event_loop.connect(), event_loop.geometry().volume_size_bytes)
        };
        let intake = Intake::new(id, size, shared.revocation());
        LocalSession { event_loop, shared, intake, descriptor: Descriptors::default() }
    }

    /// Hands over what is queued; the device need not know of it yet.
    fn hand_over(&mut self, event_loop: &mut EventLoop) {
        if self.intake.queued.is_empty() {
            return;
        }
        if self.intake.session().is_some() {
            self.intake.stamp(self.shared.now_ns());
            event_loop.accept(&mut self.intake.queued);
        }
        // What is left then comes too late.
        self.intake.refuse_queued();
    }

    /// Moves completions that are there to `out`; returns whether there were any.
    fn take(&mut self, event_loop: &mut EventLoop, out: &mut Vec<Completion>) -> bool {
        let session = self.intake.session();
        self.intake.take(out, |out| {
            if let Some(session) = session {
                event_loop.take(session, out);
            }
        })
    }

    /// Waits for the first completion until `deadline`, or for ever. One at least is outstanding.
    fn await_completion(
        &mut self,
        event_loop: &mut EventLoop,
        out: &mut Vec<Completion>,
        deadline: Option<Instant>,
    ) {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let wait = match left {
                None => Wait::Forever,
                Some(Duration::ZERO) => Wait::No,
                Some(left) => Wait::For(left),
            };
            event_loop.wait(wait);
            event_loop.work();
            if self.take(event_loop, out) || wait == Wait::No {
                return;
            }
            if event_loop.outcome().is_some() {
                // Lost in a loop that failed: it could not even say so one by one.
                self.intake.outstanding = 0;
                return;
            }
        }
    }
}

impl AnyMemory for LocalSession {
    /// Who waits here does the loop's work meanwhile.
    fn assert_may_wait(&self) {}

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

impl Session for LocalSession {
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
        let event_loop = self.event_loop.clone();
        let mut event_loop = event_loop.borrow_mut();
        self.hand_over(&mut event_loop);
        event_loop.wait(Wait::No);
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        let event_loop = self.event_loop.clone();
        let mut event_loop = event_loop.borrow_mut();
        self.hand_over(&mut event_loop);
        event_loop.work();
        if !self.take(&mut event_loop, out) && self.intake.outstanding > 0 {
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            self.await_completion(&mut event_loop, out, deadline);
        }
        // What was begun meanwhile is not to wait for the next call.
        event_loop.wait(Wait::No);
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        let ready = self.shared.ready.as_fd();
        let mut event_loop = self.event_loop.borrow_mut();
        event_loop.work();
        let has_completions =
            self.intake.session().is_some_and(|session| event_loop.has_completions(session));
        if has_completions || self.intake.has_refused() {
            ready
        } else if self.intake.outstanding == 0 && event_loop.outcome().is_some() {
            self.shared.quiet.as_fd()
        } else {
            event_loop.arm(&self.descriptor).unwrap_or(ready)
        }
    }

    fn outstanding(&self) -> usize {
        self.intake.outstanding
    }

    fn hold_writes(&mut self) {
        self.intake.holds_writes = true;
    }

    fn lacks_space(&self) -> bool {
        self.shared.lacks_space()
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        if let Some(session) = self.intake.session() {
            self.event_loop.borrow_mut().disconnect(session);
        }
    }
}
