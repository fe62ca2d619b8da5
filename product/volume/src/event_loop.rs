//! The life of a volume in turns: takes requests from sessions, lets the driver work, hands
//! completions back, and sleeps when there is nothing to do.
//!
//! ```text
//! mailbox ──► driver.accept ──► driver.work ──► outboxes, or whoever takes
//!    ▲                              │
//!    └── sleep in device.poll ◄─────┘   woken by a completion, or by a message
//! ```
//!
//! Who runs it is not its business: a thread of its own ([`crate::loop_thread`]), or the thread
//! that makes the requests ([`crate::local`]). Sessions on other threads reach it through the
//! mailbox, sessions on the same thread call it.
//!
//! Invariants:
//! - every request that was posted or accepted is completed, whatever happens to this loop;
//! - memory of a request is handed back only when the device has let go of it. Should even that
//!   fail, the process is aborted: going on would let the kernel write into foreign memory;
//! - no call panics because of the driver: that ends the volume, and is told as the outcome.

use crate::abort::AbortOnUnwind;
use crate::close_error::CloseError;
use crate::delivery::Outbox;
use crate::descriptors::Descriptors;
use crate::direct::Direct;
use crate::driver::{Driver, Finished};
use crate::failures::Failures;
use crate::geometry::Geometry;
use crate::governor::Governor;
use crate::message::{Ending, Message, SessionId, Submission};
use crate::open_error::OpenErrorKind;
use crate::open_options::Settings;
use crate::scrub::{Scrub, ScrubOrder};
use crate::service::{Completion, Guest, Operation, RequestError};
use crate::state::{ReadOnlyReason, Shared, State};
use crate::statistics::{Latencies, LoopCounts, Statistics, Waiting, gather};
use crate::tuning::{Retuning, Tuning};
use crate::turn::take_of;
use coulter_device::{Device, Wait};
use coulter_engine::Failure;
use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How a volume has ended.
pub(crate) type Outcome = Result<(), CloseError>;

/// A session as the loop knows it.
struct Correspondent {
    /// Where completions go; `None` for a session on this thread, which takes them itself.
    outbox: Option<Arc<Outbox>>,
    /// Requests taken and not completed.
    outstanding: usize,
    /// Completions to be delivered at the end of the turn, or to be taken.
    done: Vec<Completion>,
    /// Nobody takes completions any more.
    is_gone: bool,
}

/// A volume at work, until it ends.
pub(crate) struct EventLoop {
    /// `None` once it has ended.
    driver: Option<Driver>,
    geometry: Geometry,
    shared: Arc<Shared>,
    /// By number.
    sessions: Vec<Option<Correspondent>>,
    /// Messages taken from the mailbox.
    inbox: VecDeque<Message>,
    /// Sessions with something in `done`.
    touched: Vec<SessionId>,
    ending: Option<Ending>,
    is_shutting_down: bool,
    /// How it has ended.
    outcome: Option<Outcome>,
    /// Who is told how it has ended, as soon as it has.
    listener: Option<SyncSender<Outcome>>,
    /// What is to run on this thread.
    guest: Option<Guest>,
    /// Whether a sleep was prepared that somebody else sleeps.
    is_armed: bool,
    /// What was last told: see [`Driver::read_only`] and [`Driver::in_doubt_bytes`].
    known: (Option<i32>, Option<u64>),
    /// What was last told to have failed.
    failures: Failures,
    latencies: Latencies,
    counts: LoopCounts,
    /// What the clock has to say about cleaning.
    governor: Governor,
    /// What clients read by themselves.
    direct: Option<Arc<Direct>>,
    /// How many reads that were when it was last looked at.
    direct_hits: u64,
}

impl EventLoop {
    /// Opens the store on `device`.
    ///
    /// # Errors
    /// As [`Driver::new`] and [`Driver::recover`], and `Bug` when they panic.
    pub(crate) fn open(
        device: Box<dyn Device>,
        settings: &Settings,
        shared: Arc<Shared>,
    ) -> Result<EventLoop, OpenErrorKind> {
        let mut governor = Governor::default();
        let now_ns = shared.now_ns();
        let source = if settings.read_cache > 0 { device.read_source() } else { None };
        let open = || {
            let mut driver = Driver::new(device, settings.config)?;
            driver.acknowledge(settings.acknowledge);
            let tuning = driver.tune(settings.tuning);
            governor.tune(settings.tuning, tuning, driver.engine(), now_ns);
            driver.recover()
        };
        let driver = catch_unwind(AssertUnwindSafe(open));
        let driver = driver.unwrap_or_else(|panic| Err(OpenErrorKind::Bug(message_of(&*panic))))?;
        let mut driver = driver;
        let direct = source.and_then(|source| driver.share_reads(settings.read_cache, source));
        shared.set_direct(direct.clone());
        let mut event_loop = EventLoop {
            geometry: driver.geometry(),
            driver: Some(driver),
            shared,
            sessions: Vec::new(),
            inbox: VecDeque::new(),
            touched: Vec::new(),
            ending: None,
            is_shutting_down: false,
            outcome: None,
            listener: None,
            guest: None,
            is_armed: false,
            known: (None, None),
            failures: Failures::default(),
            latencies: Latencies::default(),
            counts: LoopCounts::default(),
            governor,
            direct,
            direct_hits: 0,
        };
        event_loop.note_state();
        Ok(event_loop)
    }

    /// Identity and sizes.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How it has ended, if it has.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Has `listener` told how it ends, as soon as it does.
    pub(crate) fn report_to(&mut self, listener: SyncSender<Outcome>) {
        self.listener = Some(listener);
    }

    /// What is to run on this thread, once.
    pub(crate) fn take_guest(&mut self) -> Option<Guest> {
        self.guest.take()
    }

    /// Does all that can be done without waiting for the device. The device learns of it at the
    /// next [`EventLoop::wait`] or [`EventLoop::arm`].
    pub(crate) fn work(&mut self) {
        // The sleep that was prepared is over. What ended it may lie with the device, which calls again and
        // again until it is taken.
        if self.is_armed {
            self.wait(Wait::No);
        }
        self.guarded(|event_loop| Ok(event_loop.try_work()));
    }

    /// Lets the device go on; sleeps according to `wait` if it has nothing and nobody says
    /// anything.
    pub(crate) fn wait(&mut self, wait: Wait) {
        self.guarded(|event_loop| event_loop.try_wait(wait).map(|()| None));
    }

    /// Lets the device go on, and prepares one sleep of somebody who waits for other things too, on
    /// the descriptor that is returned: readable as soon as there is something to do again. `None` if
    /// there is already, or if there can be no descriptor.
    pub(crate) fn arm<'d>(&mut self, descriptors: &'d Descriptors) -> Option<BorrowedFd<'d>> {
        self.counts.turns += 1;
        let may_sleep = self.driver.as_ref().is_some_and(|driver| !driver.has_completions());
        if !may_sleep || !self.inbox.is_empty() || !self.shared.mailbox.try_sleep() {
            self.wait(Wait::No);
            return None;
        }
        self.is_armed = true;
        self.note_sleep();
        let due = self.nap().and_then(|nap| Instant::now().checked_add(nap));
        let mut armed = None;
        self.guarded(|event_loop| {
            // What else may be wrong with the device is told when it is polled.
            armed = event_loop.driver().arm_device(descriptors, due).ok();
            Ok(None)
        });
        armed
    }

    /// Begins to end it. What was taken or posted before is still carried out, or, if the end is
    /// abrupt, told that it was not.
    pub(crate) fn begin_end(&mut self, ending: Ending) {
        self.shared.set_last_statistics(self.statistics());
        self.ending = Some(ending);
        self.shared.mailbox.close(&mut self.inbox);
    }

    /// What the volume has done so far; once it has ended: until then.
    pub(crate) fn statistics(&self) -> Statistics {
        let Some(driver) = &self.driver else { return self.shared.last_statistics() };
        let engine = driver.engine_statistics();
        let age_ns = |begun_ns| self.shared.now_ns().saturating_sub(begun_ns);
        let (oldest_ns, for_space) =
            (driver.oldest_job_ns().map_or(0, age_ns), driver.lacks_space());
        let waiting = Waiting { requests: driver.job_count() as u64, oldest_ns, for_space };
        let (governor, mut latencies) = (self.governor.counts(), self.latencies.clone());
        let reads = self.direct.as_ref().map(|direct| direct.gather(&mut latencies.read));
        gather(&driver.counters, &engine, &latencies, self.counts, governor, waiting, reads)
    }

    // Sessions on this thread.

    /// A number for a session on this thread; `None` once it ends.
    pub(crate) fn connect(&mut self) -> Option<SessionId> {
        let session = self.shared.mailbox.try_number()?;
        connect(&mut self.sessions, session, None);
        Some(session)
    }

    /// The session takes nothing any more.
    pub(crate) fn disconnect(&mut self, session: SessionId) {
        let correspondent = self.correspondent(session);
        correspondent.is_gone = true;
        correspondent.done.clear();
        if correspondent.outstanding == 0 {
            self.retire(session);
        }
    }

    /// Takes the requests of a session on this thread and does what can be done for them. Those
    /// that are left in `queued` are not taken, for the volume has ended.
    pub(crate) fn accept(&mut self, queued: &mut VecDeque<Submission>) {
        self.counts.batches += 1;
        while !queued.is_empty() && self.ending.is_none() && self.outcome.is_none() {
            self.guarded(|event_loop| {
                let is_write_out = event_loop.driver().is_write_out();
                for _ in 0..take_of(queued.len(), is_write_out) {
                    // One by one, so that a panic loses none.
                    let submission = queued.pop_front().expect("no more are taken than wait");
                    event_loop.take_submission(submission);
                }
                Ok(None)
            });
            self.work();
            if !queued.is_empty() {
                self.wait(Wait::No);
            }
        }
    }

    /// Whether the session has completions to take.
    pub(crate) fn has_completions(&self, session: SessionId) -> bool {
        let correspondent = self.sessions[session.0 as usize].as_ref();
        correspondent.is_some_and(|correspondent| !correspondent.done.is_empty())
    }

    /// Moves the session's completions to `out`.
    pub(crate) fn take(&mut self, session: SessionId, out: &mut Vec<Completion>) {
        let correspondent = self.correspondent(session);
        if !correspondent.done.is_empty() {
            out.append(&mut correspondent.done);
            self.counts.deliveries += 1;
        }
    }

    // Turns.

    /// Runs a step, and ends the volume if that says so, or fails, or panics.
    fn guarded(&mut self, step: impl FnOnce(&mut EventLoop) -> Step) {
        if self.driver.is_none() {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| step(self))) {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(end))) => self.finish(Ok(Ok(end))),
            Ok(Err(error)) => self.finish(Ok(Err(error))),
            Err(panic) => self.finish(Err(panic)),
        }
    }

    fn driver(&mut self) -> &mut Driver {
        self.driver.as_mut().expect("no step is taken after the end")
    }

    fn try_work(&mut self) -> Option<Result<(), Failure>> {
        if self.is_armed {
            self.is_armed = false;
            self.shared.mailbox.awake();
        }
        self.receive();
        self.govern();
        loop {
            if self.ending == Some(Ending::Abrupt) {
                return Some(Ok(()));
            }
            self.driver().work();
            self.note_state();
            self.deliver();
            if self.ending != Some(Ending::Orderly) {
                return None;
            }
            if let Some(result) = self.driver().ended() {
                return Some(result);
            }
            if self.driver().stands_still_for_space() {
                // As after a power cut: what was flushed is there, and opening replays the log.
                return Some(Err(Failure::Device(libc::ENOSPC)));
            }
            let is_idle = self.inbox.is_empty() && self.driver().job_count() == 0;
            if self.is_shutting_down || !is_idle {
                return None;
            }
            self.is_shutting_down = true;
            self.driver().shut_down();
        }
    }

    /// Tells the engine what the time allows.
    fn govern(&mut self) {
        if self.driver().was_short_of_space() {
            let now_ns = self.shared.now_ns();
            self.driver().seek_space(now_ns);
            self.shared.set_lacks_space(self.driver.as_ref().is_some_and(Driver::is_patience_over));
        }
        if self.governor.is_at_work() {
            self.note_direct_reads();
            let now_ns = self.shared.now_ns();
            let driver = self.driver.as_mut().expect("no step is taken after the end");
            let is_busy = driver.job_count() > 0;
            self.governor.turn(driver.engine(), now_ns, is_busy);
        }
    }

    /// Clients that read by themselves are hosts that are not idle.
    fn note_direct_reads(&mut self) {
        let Some(direct) = &self.direct else { return };
        let hits = direct.hits();
        if std::mem::replace(&mut self.direct_hits, hits) != hits {
            let driver = self.driver.as_mut().expect("no step is taken after the end");
            self.governor.note_request(driver.engine());
        }
    }

    /// How long there is to sleep although nothing happens, for the sake of what the clock allows.
    fn nap(&mut self) -> Option<Duration> {
        let driver = self.driver.as_mut()?;
        if !self.governor.is_at_work() && !driver.lacks_space() {
            return None;
        }
        let now_ns = self.shared.now_ns();
        let for_space = driver.seek_space(now_ns);
        let for_cleaning = match self.governor.is_at_work() {
            true => self.governor.nap_ns(driver.engine(), now_ns),
            false => None,
        };
        let naps = [for_space, for_cleaning].into_iter().flatten();
        naps.min().map(Duration::from_nanos)
    }

    fn note_sleep(&mut self) {
        self.counts.sleeps += 1;
        let has_jobs = self.driver().job_count() > 0;
        self.shared.note_sleep(has_jobs);
    }

    fn try_wait(&mut self, wait: Wait) -> io::Result<()> {
        self.counts.turns += 1;
        let is_idle = self.inbox.is_empty() && !self.driver().has_completions();
        let may_sleep = wait != Wait::No && is_idle;
        if !may_sleep || !self.shared.mailbox.try_sleep() {
            return self.driver().poll_device(Wait::No);
        }
        self.note_sleep();
        let wait = match (wait, self.nap()) {
            (Wait::For(time), Some(nap)) => Wait::For(time.min(nap)),
            (_, Some(nap)) => Wait::For(nap),
            (wait, None) => wait,
        };
        let polled = self.driver().poll_device(wait);
        self.shared.mailbox.awake();
        polled
    }

    /// Takes what other threads have to say.
    fn receive(&mut self) {
        if self.inbox.is_empty() {
            self.shared.mailbox.take(&mut self.inbox);
            self.counts.batches += u64::from(!self.inbox.is_empty());
        }
        let is_write_out = self.driver().is_write_out();
        for _ in 0..take_of(self.inbox.len(), is_write_out) {
            // One by one, so that a panic loses none.
            let message = self.inbox.pop_front().expect("no more are taken than wait");
            self.handle_message(message);
        }
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => self.take_submission(submission),
            Message::Connect(session, outbox) => {
                connect(&mut self.sessions, session, Some(outbox));
            }
            Message::Disconnect(session) => self.disconnect(session),
            // Each receiver may have given up.
            Message::Statistics(sender) => drop(sender.send(self.statistics())),
            Message::Tune(retuning, sender) => {
                let _ = sender.send(self.tune(retuning));
            }
            Message::Scrub(order, sender) => {
                let _ = sender.send(self.scrub(order));
            }
            Message::RefuseWrites(errno) => self.driver().refuse_writes(errno),
            Message::Host(guest) => self.guest = Some(guest),
            Message::End(ending) => self.begin_end(ending),
        }
    }

    fn take_submission(&mut self, submission: Submission) {
        self.correspondent(submission.session).outstanding += 1;
        let driver = self.driver.as_mut().expect("no step is taken after the end");
        self.governor.note_request(driver.engine());
        driver.accept(submission);
    }

    fn tune(&mut self, retuning: Retuning) -> Tuning {
        let now_ns = self.shared.now_ns();
        let driver = self.driver.as_mut().expect("no step is taken after the end");
        let tuning = driver.tune(retuning);
        self.governor.tune(retuning, tuning, driver.engine(), now_ns)
    }

    fn scrub(&mut self, order: ScrubOrder) -> Scrub {
        let now_ns = self.shared.now_ns();
        let driver = self.driver.as_mut().expect("no step is taken after the end");
        self.governor.scrub(order, driver.engine(), now_ns);
        Scrub::of(driver.engine())
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
        if self.driver().finished.is_empty() {
            return;
        }
        let now_ns = self.shared.now_ns();
        self.shared.note_answer(now_ns);
        let mut finished = std::mem::take(&mut self.driver().finished);
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
            if matches!(finished.operation, Operation::Write { .. }) {
                self.governor.note_write(now_ns.saturating_sub(finished.begun_ns));
            }
            self.sort(finished);
        }
        self.driver().finished = finished;
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
            if correspondent.is_gone {
                correspondent.done.clear();
                if correspondent.outstanding == 0 {
                    self.retire(session);
                }
            } else if let Some(outbox) = &correspondent.outbox {
                outbox.deliver(&mut correspondent.done);
                self.counts.deliveries += 1;
            }
        }
        self.touched = touched;
    }

    /// Tells others when something has failed, when writing becomes impossible, and when less is in doubt.
    fn note_state(&mut self) {
        let failures = self.driver().failures();
        if failures != self.failures {
            self.failures = failures;
            self.shared.set_failures(failures);
        }
        let known = (self.driver().read_only(), self.driver().in_doubt_bytes());
        if known == self.known {
            return;
        }
        self.known = known;
        self.shared.set_state(match known {
            (None, None | Some(0)) => State::Running,
            (None, Some(in_doubt_bytes)) => State::Degraded { in_doubt_bytes },
            (Some(0), None) => State::ReadOnly(ReadOnlyReason::Opened),
            (Some(0), Some(in_doubt_bytes)) => {
                State::ReadOnly(ReadOnlyReason::Degraded { in_doubt_bytes })
            }
            (Some(errno), _) => State::ReadOnly(ReadOnlyReason::Failed { errno }),
        });
    }

    /// Completes whatever is left, and notes how it ended.
    fn finish(&mut self, served: Served) {
        let finishing = AbortOnUnwind::new("a volume's loop could not be given up in order");
        if served.is_ok() {
            self.shared.set_last_statistics(self.statistics());
        }
        let (state, error, outcome) = judge(served);
        self.shared.set_state(state);
        self.shared.mailbox.close(&mut self.inbox);
        if let Some(direct) = &self.direct {
            direct.close();
        }
        self.shared.set_direct(None);
        let driver = self.driver.take().expect("it ends once");
        for finished in driver.abandon(error) {
            let session = finished.session.0 as usize;
            if let Some(Some(correspondent)) = self.sessions.get_mut(session) {
                correspondent.outstanding = 0;
                correspondent.done.push(finished.completion);
            }
        }
        for message in std::mem::take(&mut self.inbox) {
            self.refuse(message, error);
        }
        for correspondent in self.sessions.iter_mut().flatten() {
            if let Some(outbox) = &correspondent.outbox {
                outbox.deliver(&mut correspondent.done);
                outbox.close();
            }
        }
        if let Some(listener) = self.listener.take() {
            // Nobody may care; and there is room for one.
            let _ = listener.send(outcome.clone());
        }
        self.outcome = Some(outcome);
        finishing.end();
    }

    /// Answers a message that comes too late.
    fn refuse(&mut self, message: Message, error: RequestError) {
        match message {
            Message::Submit(submission) => {
                let session = submission.session.0 as usize;
                if let Some(Some(correspondent)) = self.sessions.get_mut(session) {
                    correspondent.done.push(submission.refused(error));
                }
            }
            Message::Connect(session, outbox) => {
                connect(&mut self.sessions, session, Some(outbox));
            }
            Message::Statistics(sender) => {
                // Whoever asked may have given up.
                let _ = sender.send(self.shared.last_statistics());
            }
            // It runs all the same: somebody counts on that.
            Message::Host(guest) => self.guest = Some(guest),
            Message::Disconnect(_) | Message::Tune(..) | Message::Scrub(..) => {}
            Message::RefuseWrites(_) | Message::End(_) => {}
        }
    }
}

/// What a step leads to: it fails, or the volume has ended in this way, or it goes on.
type Step = io::Result<Option<Result<(), Failure>>>;

/// How serving went: it panicked, the device gave up, or there was an end that was asked for.
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

fn connect(
    sessions: &mut Vec<Option<Correspondent>>,
    session: SessionId,
    outbox: Option<Arc<Outbox>>,
) {
    let index = session.0 as usize;
    if sessions.len() <= index {
        sessions.resize_with(index + 1, || None);
    }
    assert!(sessions[index].is_none(), "a number belongs to one session");
    let correspondent = Correspondent { outbox, outstanding: 0, done: Vec::new(), is_gone: false };
    sessions[index] = Some(correspondent);
}

/// What a panic said.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_string())
}
