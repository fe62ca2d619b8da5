//! A queue of requests to a volume on its own thread, and of completions from it.
//!
//! Requests are gathered by the [`Intake`], and handed to the loop in one batch by `kick`.

use crate::delivery::Outbox;
use crate::direct::reads::{DirectReads, lasting};
use crate::intake::{AnyMemory, Intake};
use crate::memory::Memory;
use crate::message::Message;
use crate::service::{Change, Completion, Operation, Request, Session, WriteMany};
use crate::state::Shared;
use crate::validity::ByteRange;
use coulter_device::Wait;
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct VolumeSession {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    intake: Intake,
    /// Reads that this thread carries out itself. Borrowed for the time of one call.
    direct: RefCell<DirectReads>,
}

impl VolumeSession {
    pub(crate) fn new(shared: Arc<Shared>, size: u64) -> VolumeSession {
        let outbox = Arc::new(Outbox::default());
        let id = shared.mailbox.try_connect(outbox.clone());
        let direct = RefCell::new(DirectReads::new(shared.clone()));
        let intake = Intake::new(id, size, shared.revocation());
        VolumeSession { shared, outbox, intake, direct }
    }

    /// Moves completions that are there to `out`; returns whether there were any.
    fn take(&mut self, out: &mut Vec<Completion>) -> bool {
        let direct = self.direct.get_mut();
        self.intake.take(out, |out| {
            out.append(&mut direct.done);
            self.outbox.take(out);
        })
    }

    /// Hands over what is queued. Reads that this thread carries out itself begin when they are polled.
    fn hand_over(&mut self) {
        if self.intake.queued.is_empty() {
            return;
        }
        self.intake.stamp(self.shared.now_ns());
        if self.intake.session().is_some() {
            self.direct.get_mut().begin(&mut self.intake.queued);
        }
        self.post();
    }

    fn post(&mut self) {
        if self.intake.queued.is_empty() {
            return;
        }
        let is_known = self.intake.session().is_some();
        if !is_known || !self.shared.mailbox.try_post(&mut self.intake.queued) {
            self.intake.refuse_queued();
        }
    }

    /// Carries out a read that is alone, at once.
    fn try_in_place(&mut self) -> bool {
        if self.intake.outstanding != 1 || self.intake.queued.len() != 1 {
            return false;
        }
        self.intake.stamp(self.shared.now_ns());
        let direct = self.direct.get_mut();
        let is_done = direct.try_read_in_place(&mut self.intake.queued);
        direct.tell_times();
        is_done
    }

    /// Lets the own reads go on; sleeps according to `wait` until one has ended, or the loop delivers.
    fn poll_direct(&mut self, wait: Wait) {
        let direct = self.direct.get_mut();
        if direct.in_flight() == 0 {
            return;
        }
        let with_the_loop = self.intake.outstanding - direct.in_flight() - direct.done.len();
        let mut wait = wait;
        if wait != Wait::No
            && with_the_loop > 0
            && let Some(waker) = direct.waker()
            && !self.outbox.sleep_elsewhere(waker)
        {
            wait = Wait::No;
        }
        direct.poll(wait, &mut self.intake.queued);
        // What the device did not give, or gave otherwise than it should.
        self.post();
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
        self.hand_over();
        self.poll_direct(Wait::No);
    }

    fn kick_in_place(&mut self) {
        if !self.try_in_place() {
            self.kick();
        }
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        if timeout == Some(Duration::ZERO) {
            self.kick();
            self.take(out);
            return;
        }
        if !self.try_in_place() {
            self.hand_over();
        }
        if self.take(out) || self.intake.outstanding == 0 {
            self.poll_direct(Wait::No);
            return;
        }
        self.shared.assert_may_wait();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while self.direct.get_mut().in_flight() > 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            self.poll_direct(left.map_or(Wait::Forever, Wait::For));
            if self.take(out) || left == Some(Duration::ZERO) {
                return;
            }
        }
        let is_any = self.intake.take(out, |out| self.outbox.wait(out, deadline));
        if !is_any && self.outbox.is_over() {
            // Lost in a loop that failed: it could not even say so one by one.
            self.intake.outstanding = 0;
        }
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        let ready = self.shared.ready.as_fd();
        let mut direct = self.direct.borrow_mut();
        if self.intake.has_refused() || !direct.done.is_empty() {
            return ready;
        }
        if direct.in_flight() > 0 {
            let waker = direct.waker().expect("a ring has what is under way");
            if !self.outbox.sleep_elsewhere(waker) {
                return ready;
            }
            // SAFETY: the ring keeps it, and stays while reads are under way, which end only in calls
            // that the borrow of this session excludes.
            return direct.arm().map_or(ready, |fd| unsafe { lasting(fd) });
        }
        if self.intake.outstanding == 0 && self.outbox.is_over() {
            self.shared.quiet.as_fd()
        } else {
            self.outbox.arm().unwrap_or(ready)
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

impl Drop for VolumeSession {
    fn drop(&mut self) {
        if let Some(id) = self.intake.session() {
            // A loop that has ended needs no goodbye.
            let _ = self.shared.mailbox.try_send(Message::Disconnect(id));
        }
    }
}
