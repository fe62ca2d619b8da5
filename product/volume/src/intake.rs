//! A session's requests on their way in: checked, gathered, and either handed over or refused.
//! What is senseless completes here, without troubling the loop.
//!
//! # Invariants
//! - Once the device's content is another host's ([`Revocation`]) no completion is a success: also
//!   of what needs no device, such as a read of blocks that are not mapped, and of what was under
//!   way then.

use crate::many::Many;
use crate::memory::Memory;
use crate::message::{SessionId, Submission};
use crate::service::{BLOCK_SIZE, Change, Completion, Operation, RequestError, Session};
use crate::validity::{self, ByteRange};
use coulter_device::{DeviceError, DeviceErrorKind, Revocation};
use std::collections::VecDeque;
use std::sync::Arc;

/// Requests since the last kick, and completions of those that go no further.
pub(crate) struct Intake {
    /// Bytes of the volume.
    size: u64,
    /// `None` when the volume was closed already.
    session: Option<SessionId>,
    /// To be handed over.
    pub(crate) queued: VecDeque<Submission>,
    /// Completions of requests that never reach the loop.
    refused: Vec<Completion>,
    /// Requests whose completions were not taken.
    pub(crate) outstanding: usize,
    /// See [`Session::hold_writes`].
    pub(crate) holds_writes: bool,
    revocation: Option<Revocation>,
}

impl Intake {
    /// For a session with a volume of so many bytes.
    pub(crate) fn new(
        session: Option<SessionId>,
        size: u64,
        revocation: Option<Revocation>,
    ) -> Intake {
        let (queued, refused) = (VecDeque::new(), Vec::new());
        let (outstanding, holds_writes) = (0, false);
        Intake { size, session, queued, refused, outstanding, holds_writes, revocation }
    }

    /// Fails if the content has become another host's.
    fn check_is_ours(&self) -> Result<(), RequestError> {
        match self.revocation.as_ref().is_some_and(Revocation::is_revoked) {
            true => {
                let errno = DeviceError::of(DeviceErrorKind::Gone).errno;
                Err(RequestError::Device { errno })
            }
            false => Ok(()),
        }
    }

    /// The number of the session, if the volume has given it one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Queues a request. With `exact` a read or a question tells exactly which blocks are mapped.
    pub(crate) fn enqueue(
        &mut self,
        tag: u64,
        operation: Operation,
        exact: bool,
        range: ByteRange,
        memory: Memory,
    ) {
        self.outstanding += 1;
        let checked = validity::check(operation, range, memory.length() as u64, self.size);
        let exact = exact && matches!(operation, Operation::Read | Operation::Extents);
        let ByteRange { offset, length } = match operation {
            Operation::Flush => ByteRange { offset: 0, length: 0 },
            _ => range,
        };
        // Without a number there is nobody to hand it to, and it is refused at the next kick.
        let session = self.session.unwrap_or(SessionId(u32::MAX));
        let submission = Submission {
            session,
            tag,
            operation,
            exact,
            offset,
            length,
            memory,
            many: None,
            begun_ns: 0,
            is_held: self.holds_writes,
        };
        match checked.and_then(|()| self.check_is_ours()) {
            Ok(()) => self.queued.push_back(submission),
            Err(error) => self.refused.push(submission.refused(error)),
        }
    }

    /// Queues a write of several ranges.
    pub(crate) fn enqueue_many(&mut self, tag: u64, changes: &[Change], fua: bool, memory: Memory) {
        self.outstanding += 1;
        let session = self.session.unwrap_or(SessionId(u32::MAX));
        let length = memory.length() as u64;
        let checked = Many::new(changes, length, self.size);
        let (many, refusal) = match self.check_is_ours().and(checked) {
            Ok(many) => (Some(Arc::new(many)), None),
            Err(error) => (None, Some(error)),
        };
        let offset = many.as_ref().map_or(0, |many| many.hull().0 * BLOCK_SIZE);
        let operation = Operation::Write { fua };
        let submission = Submission {
            session,
            tag,
            operation,
            exact: false,
            offset,
            length,
            memory,
            many,
            begun_ns: 0,
            is_held: self.holds_writes,
        };
        match refusal {
            None => self.queued.push_back(submission),
            Some(error) => self.refused.push(submission.refused(error)),
        }
    }

    /// Notes when what is queued was handed over, in nanoseconds of the volume's clock.
    pub(crate) fn stamp(&mut self, now_ns: u64) {
        for submission in &mut self.queued {
            submission.begun_ns = now_ns;
        }
    }

    /// There is nobody to hand it to.
    pub(crate) fn refuse_queued(&mut self) {
        let refused = |submission: Submission| submission.refused(RequestError::Closed);
        self.refused.extend(self.queued.drain(..).map(refused));
    }

    /// Whether something was refused and not taken yet.
    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Moves completions of what was refused to `out`, then what `others` adds.
    pub(crate) fn take(
        &mut self,
        out: &mut Vec<Completion>,
        others: impl FnOnce(&mut Vec<Completion>),
    ) -> bool {
        let before = out.len();
        out.append(&mut self.refused);
        others(out);
        if let Err(error) = self.check_is_ours() {
            for completion in out[before..].iter_mut().filter(|one| one.result.is_ok()) {
                completion.result = Err(error);
                completion.extents.clear();
            }
        }
        self.outstanding -= out.len() - before;
        out.len() > before
    }
}

/// A session that takes memory of any kind.
pub(crate) trait AnyMemory: Session {
    /// To be called before memory is lent for a call that waits.
    ///
    /// # Panics
    /// On the volume's own thread, where nobody may wait.
    fn assert_may_wait(&self);

    /// Queues a request. With `exact` a read or a question tells exactly which blocks are mapped.
    fn enqueue(
        &mut self,
        tag: u64,
        operation: Operation,
        exact: bool,
        range: ByteRange,
        memory: Memory,
    );

    /// Queues a write of several ranges.
    fn enqueue_many(&mut self, tag: u64, changes: &[Change], fua: bool, memory: Memory);
}
