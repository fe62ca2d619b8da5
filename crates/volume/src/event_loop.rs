//! The thread of a volume: takes requests from sessions, lets the driver work, hands completions
//! back, and sleeps when there is nothing to do.
//!
//! ```text
//! mailbox ──► driver.accept ──► driver.work ──► outboxes
//!    ▲                              │
//!    └── sleep in device.poll ◄─────┘   woken by a completion, or by a message
//! ```
//!
//! Invariants:
//! - every request that was posted is completed, whatever happens to this thread;
//! - memory of a request is handed back only when the device has let go of it. Should even that
//!   fail, the process is aborted: going on would let the kernel write into foreign memory.

use crate::abort::AbortOnUnwind;
use crate::close_error::CloseError;
use crate::delivery::Outbox;
use crate::driver::{Driver, Finished, Settings};
use crate::geometry::Geometry;
use crate::message::{Ending, Message, SessionId};
use crate::open_error::OpenErrorKind;
use crate::service::{Completion, Operation, RequestError};
use crate::state::{ReadOnlyReason, Shared, State};
use crate::statistics::{Latencies, LoopCounts, Statistics, gather};
use coulter_device::{Device, Wait};
use coulter_engine::Failure;
use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Messages that are taken before the device gets what they led to: as many as fill a record. So
/// the device works on the first while the next are copied.
const MESSAGES_PER_TURN_MAX: usize = 256;

/// How the thread ends.
pub(crate) type Outcome = Result<(), CloseError>;

/// The thread's body: opens the store, says so, serves until the end.
pub(crate) fn run(
    device: Box<dyn Device>,
    settings: &Settings,
    shared: &Arc<Shared>,
    opened: &SyncSender<Result<Geometry, OpenErrorKind>>,
) -> Outcome {
    let driver = catch_unwind(AssertUnwindSafe(|| Driver::open(device, settings)));
    let driver = driver.unwrap_or_else(|panic| Err(OpenErrorKind::Bug(message_of(&*panic))));
    let driver = match driver {
        Ok(driver) => driver,
        Err(kind) => {
            // Nobody waits only if the opening thread has died.
            let _ = opened.send(Err(kind));
            return Ok(());
        }
    };
    let geometry = driver.geometry();
    let mut event_loop = EventLoop::new(driver, shared.clone());
    event_loop.note_state();
    if opened.send(Ok(geometry)).is_err() {
        return Ok(());
    }
    let served = catch_unwind(AssertUnwindSafe(|| event_loop.serve()));
    event_loop.finish(served)
}

/// A session as the loop knows it.
struct Correspondent {
    outbox: Arc<Outbox>,
    /// Requests taken and not completed.
    outstanding: usize,
    /// Completions to be delivered at the end of the turn.
    done: Vec<Completion>,
    /// Nobody takes completions any more.
    is_gone: bool,
}

struct EventLoop {
    driver: Driver,
    shared: Arc<Shared>,
    /// By number.
    sessions: Vec<Option<Correspondent>>,
    /// Messages taken from the mailbox.
    inbox: VecDeque<Message>,
    /// Sessions with something in `done`.
    touched: Vec<SessionId>,
    ending: Option<Ending>,
    /// What was last told about writing; see [`Driver::read_only`].
    read_only: Option<i32>,
    latencies: Latencies,
    counts: LoopCounts,
}

impl EventLoop {
    fn new(driver: Driver, shared: Arc<Shared>) -> EventLoop {
        EventLoop {
            driver,
            shared,
            sessions: Vec::new(),
            inbox: VecDeque::new(),
            touched: Vec::new(),
            ending: None,
            read_only: None,
            latencies: Latencies::default(),
            counts: LoopCounts::default(),
        }
    }

    /// Works until the end that was asked for; then how a shutdown ended.
    fn serve(&mut self) -> io::Result<Result<(), Failure>> {
        let mut is_shutting_down = false;
        loop {
            self.receive();
            if self.ending == Some(Ending::Abrupt) {
                return Ok(Ok(()));
            }
            self.driver.work();
            self.note_state();
            self.deliver();
            if self.ending == Some(Ending::Orderly) {
                if let Some(result) = self.driver.ended() {
                    return Ok(result);
                }
                let is_idle = self.inbox.is_empty() && self.driver.job_count() == 0;
                if !is_shutting_down && is_idle {
                    is_shutting_down = true;
                    self.driver.shut_down();
                    continue;
                }
            }
            self.wait()?;
        }
    }

    /// Lets the device go on, asleep if there is nothing else to do.
    fn wait(&mut self) -> io::Result<()> {
        self.counts.turns += 1;
        if !self.inbox.is_empty() || !self.shared.mailbox.try_sleep() {
            return self.driver.poll_device(Wait::No);
        }
        self.counts.sleeps += 1;
        let polled = self.driver.poll_device(Wait::Forever);
        self.shared.mailbox.awake();
        polled
    }

    /// Takes what sessions and the volume have to say.
    fn receive(&mut self) {
        if self.inbox.is_empty() {
            self.shared.mailbox.take(&mut self.inbox);
            self.counts.batches += u64::from(!self.inbox.is_empty());
        }
        for _ in 0..MESSAGES_PER_TURN_MAX {
            // One by one, so that a panic loses none.
            let Some(message) = self.inbox.pop_front() else { break };
            self.handle_message(message);
        }
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => {
                self.correspondent(submission.session).outstanding += 1;
                self.driver.accept(submission);
            }
            Message::Connect(session, outbox) => connect(&mut self.sessions, session, outbox),
            Message::Disconnect(session) => {
                let correspondent = self.correspondent(session);
                correspondent.is_gone = true;
                if correspondent.outstanding == 0 {
                    self.retire(session);
                }
            }
            Message::Statistics(sender) => {
                // Whoever asked may have given up.
                let _ = sender.send(self.statistics());
            }
            Message::End(ending) => {
                self.shared.set_last_statistics(self.statistics());
                self.ending = Some(ending);
                // What was posted before this moment is still carried out.
                self.shared.mailbox.close(&mut self.inbox);
            }
        }
    }

    fn correspondent(&mut self, session: SessionId) -> &mut Correspondent {
        self.sessions[session.0 as usize].as_mut().expect("a session connects first")
    }

    /// The session is gone and nothing of it is left.
    fn retire(&mut self, session: SessionId) {
        self.sessions[session.0 as usize] = None;
        self.shared.mailbox.release(session);
    }

    /// Hands finished requests to their sessions.
    fn deliver(&mut self) {
        if self.driver.finished.is_empty() {
            return;
        }
        let now_ns = self.shared.now_ns();
        let mut finished = std::mem::take(&mut self.driver.finished);
        for finished in finished.drain(..) {
            let latency = match finished.operation {
                Operation::Read => Some(&mut self.latencies.read),
                Operation::Flush => Some(&mut self.latencies.flush),
                Operation::Extents => None,
                _ => Some(&mut self.latencies.write),
            };
            if let Some(latency) = latency {
                latency.record(now_ns.saturating_sub(finished.begun_ns));
            }
            self.sort(finished);
        }
        self.driver.finished = finished;
        self.hand_over();
    }

    /// Puts a completion to the others of its session.
    fn sort(&mut self, finished: Finished) {
        let correspondent = self.sessions[finished.session.0 as usize].as_mut();
        let correspondent = correspondent.expect("a session stays until its requests are done");
        if correspondent.done.is_empty() {
            self.touched.push(finished.session);
        }
        correspondent.outstanding -= 1;
        correspondent.done.push(finished.completion);
    }

    fn hand_over(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for session in touched.drain(..) {
            let correspondent = self.correspondent(session);
            if !correspondent.is_gone {
                correspondent.outbox.deliver(&mut correspondent.done);
                self.counts.deliveries += 1;
                continue;
            }
            correspondent.done.clear();
            if correspondent.outstanding == 0 {
                self.retire(session);
            }
        }
        self.touched = touched;
    }

    /// Tells others when writing becomes impossible.
    fn note_state(&mut self) {
        let read_only = self.driver.read_only();
        if read_only == self.read_only {
            return;
        }
        self.read_only = read_only;
        let reason = match read_only {
            None => return,
            Some(0) => ReadOnlyReason::Opened,
            Some(errno) => ReadOnlyReason::Failed { errno },
        };
        self.shared.set_state(State::ReadOnly(reason));
    }

    fn statistics(&self) -> Statistics {
        let engine = self.driver.engine_statistics();
        gather(&self.driver.counters, &engine, &self.latencies, self.counts)
    }

    /// Completes whatever is left, and says how it ended.
    fn finish(self, served: Served) -> Outcome {
        let _guard = AbortOnUnwind("a volume's loop could not be given up in order");
        if served.is_ok() {
            self.shared.set_last_statistics(self.statistics());
        }
        let (state, error, outcome) = judge(served);
        self.shared.set_state(state);
        let EventLoop { driver, shared, mut sessions, mut inbox, .. } = self;
        shared.mailbox.close(&mut inbox);
        for finished in driver.abandon(error) {
            let session = finished.session.0 as usize;
            if let Some(Some(correspondent)) = sessions.get_mut(session) {
                correspondent.done.push(finished.completion);
            }
        }
        for message in inbox {
            refuse(message, error, &mut sessions, &shared);
        }
        for correspondent in sessions.iter_mut().flatten() {
            correspondent.outbox.deliver(&mut correspondent.done);
            correspondent.outbox.close();
        }
        outcome
    }
}

/// How serving went: it panicked, the device gave up, or there was an orderly end.
type Served = Result<io::Result<Result<(), Failure>>, Box<dyn Any + Send>>;

/// The state that an end leaves, what to tell those who still wait, and what to tell who closes.
fn judge(served: Served) -> (State, RequestError, Outcome) {
    match served {
        Ok(Ok(Ok(()))) => (State::Closed, RequestError::Closed, Ok(())),
        Ok(Ok(Err(failure))) => {
            let errno = match failure {
                Failure::Device(errno) => errno,
                _ => libc::EIO,
            };
            (State::Closed, RequestError::Closed, Err(CloseError::Device { errno }))
        }
        Ok(Err(error)) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let why = format!("the device is of no use any more: {error}");
            let outcome = Err(CloseError::Device { errno });
            (State::Failed(why), RequestError::Device { errno }, outcome)
        }
        Err(panic) => {
            let why = message_of(&*panic);
            (State::Failed(why.clone()), RequestError::Closed, Err(CloseError::Bug(why)))
        }
    }
}

/// Answers a message that comes too late.
fn refuse(
    message: Message,
    error: RequestError,
    sessions: &mut Vec<Option<Correspondent>>,
    shared: &Shared,
) {
    match message {
        Message::Submit(submission) => {
            let session = submission.session.0 as usize;
            if let Some(Some(correspondent)) = sessions.get_mut(session) {
                correspondent.done.push(submission.refused(error));
            }
        }
        Message::Connect(session, outbox) => connect(sessions, session, outbox),
        Message::Statistics(sender) => {
            // Whoever asked may have given up.
            let _ = sender.send(shared.last_statistics());
        }
        Message::Disconnect(_) | Message::End(_) => {}
    }
}

fn connect(sessions: &mut Vec<Option<Correspondent>>, session: SessionId, outbox: Arc<Outbox>) {
    let index = session.0 as usize;
    if sessions.len() <= index {
        sessions.resize_with(index + 1, || None);
    }
    assert!(sessions[index].is_none(), "a number belongs to one session");
    let correspondent = Correspondent { outbox, outstanding: 0, done: Vec::new(), is_gone: false };
    sessions[index] = Some(correspondent);
}

/// What a panic said.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_string())
}
