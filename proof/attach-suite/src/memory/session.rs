//! A session of a memory service: requests are carried out as they are submitted, and their
//! completions shown when the configured latency is over.
//!
//! The descriptor is a timer that is armed by [`Session::completion_fd`] itself, because a caller
//! that sleeps asks for it just before; a caller that never sleeps pays no system call.

use super::Shared;
use coulter::buffer::Buffer;
use coulter::service::{
    Completion, Extent, Operation, REQUEST_SIZE_MAX, Request, RequestError, SECTOR_SIZE, Session,
};
use fastrand::Rng;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs that one `Extents` request reports at most.
const EXTENTS_MAX: usize = 1024;

pub(super) struct MemorySession {
    shared: Arc<Shared>,
    /// In the order of submission, hence of readiness.
    waiting: VecDeque<Waiting>,
    timer: OwnedFd,
    timer_armed: Cell<bool>,
    random: Option<Rng>,
}

struct Waiting {
    /// `None` when ready at once, which spares the clock.
    ready_at: Option<Instant>,
    completion: Completion,
}

impl MemorySession {
    pub(super) fn new(shared: Arc<Shared>) -> MemorySession {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .expect("a process that may open no descriptor cannot test anything");
        let random = shared.options.shuffle_seed.map(Rng::with_seed);
        MemorySession {
            shared,
            waiting: VecDeque::new(),
            timer,
            timer_armed: Cell::new(false),
            random,
        }
    }

    fn set_timer(&self, delay: Option<Duration>) {
        // A zero would disarm the timer, so the least delay is one nanosecond.
        let delay = delay.map_or(Duration::ZERO, |delay| delay.max(Duration::from_nanos(1)));
        let it_value =
            Timespec { tv_sec: delay.as_secs() as i64, tv_nsec: i64::from(delay.subsec_nanos()) };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)
            .expect("the arguments are valid");
        self.timer_armed.set(delay > Duration::ZERO);
    }

    /// Time until the first completion is ready; `None` when nothing waits.
    fn delay(&self) -> Option<Duration> {
        let first = self.waiting.front()?;
        let now = || Instant::now();
        Some(first.ready_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now())))
    }

    fn take_ready(&mut self, out: &mut Vec<Completion>) {
        let start = out.len();
        let now = self.waiting.front().and_then(|first| first.ready_at).map(|_| Instant::now());
        while let Some(first) = self.waiting.front() {
            if first.ready_at > now {
                break;
            }
            let Some(first) = self.waiting.pop_front() else { break };
            let mut completion = first.completion;
            completion.result = self.shared.result_at_completion(completion.result);
            out.push(completion);
        }
        if let Some(random) = &mut self.random {
            random.shuffle(&mut out[start..]);
        }
    }

    fn carry_out(&self, request: &mut Request) -> Result<Vec<Extent>, RequestError> {
        let shared = &self.shared;
        check(request, shared.options.size)?;
        let (offset, length) = (request.offset, request.length);
        let changes = !matches!(request.operation, Operation::Read | Operation::Extents);
        let writes = changes && request.operation != Operation::Flush;
        if writes && shared.read_only.load(Ordering::SeqCst) {
            return Err(RequestError::ReadOnly);
        }
        if let Some(error) = shared.faults.strike(request.operation, offset..offset + length) {
            if changes {
                shared.read_only.store(true, Ordering::SeqCst);
                shared.watchers.notify();
            }
            return Err(error);
        }
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let (counters, storage) = (&shared.counters, &shared.storage);
        match request.operation {
            Operation::Read => {
                count(&counters.reads);
                storage.read(offset, &mut request.buffer);
            }
            Operation::Write { fua } => {
                count(&counters.writes);
                counters.fua.fetch_add(u64::from(fua), Ordering::Relaxed);
                storage.write(offset, &request.buffer, fua);
            }
            Operation::Flush => {
                count(&counters.flushes);
                storage.flush();
            }
            Operation::Discard => {
                count(&counters.discards);
                storage.clear(offset, length, false);
            }
            Operation::WriteZeroes { fua } => {
                count(&counters.write_zeroes);
                counters.fua.fetch_add(u64::from(fua), Ordering::Relaxed);
                storage.clear(offset, length, fua);
            }
            Operation::Extents => {
                count(&counters.extents);
                return Ok(storage.extents(offset, length, EXTENTS_MAX));
            }
        }
        Ok(Vec::new())
    }
}

impl Session for MemorySession {
    fn submit(&mut self, mut request: Request) {
        let outcome = self.carry_out(&mut request);
        let latency = self.shared.options.latency;
        let ready_at = (latency > Duration::ZERO).then(|| Instant::now() + latency);
        let (result, extents) = match outcome {
            Ok(extents) => (Ok(()), extents),
            Err(error) => (Err(error), Vec::new()),
        };
        let buffer: Buffer = request.buffer;
        let completion = Completion { tag: request.tag, result, buffer, extents };
        self.waiting.push_back(Waiting { ready_at, completion });
    }

    fn kick(&mut self) {}

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        if self.timer_armed.get() {
            self.set_timer(None);
        }
        self.take_ready(out);
        let limit = timeout.map(|timeout| Instant::now() + timeout);
        while out.is_empty() && timeout != Some(Duration::ZERO) {
            let Some(delay) = self.delay() else { return };
            let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            std::thread::sleep(left.map_or(delay, |left| left.min(delay)));
            self.take_ready(out);
        }
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        if !self.timer_armed.get()
            && let Some(delay) = self.delay()
        {
            self.set_timer(Some(delay));
            if delay == Duration::ZERO {
                // The timer fires a moment after it is set; "ready" must be true by the return.
                let mut fds = [PollFd::new(&self.timer, PollFlags::IN)];
                let _ = poll(&mut fds, None);
            }
        }
        self.timer.as_fd()
    }

    fn outstanding(&self) -> usize {
        self.waiting.len()
    }
}

fn check(request: &Request, size: u64) -> Result<(), RequestError> {
    if request.operation == Operation::Flush {
        return Ok(());
    }
    let carries_data = matches!(request.operation, Operation::Read | Operation::Write { .. });
    if !request.offset.is_multiple_of(SECTOR_SIZE) || !request.length.is_multiple_of(SECTOR_SIZE) {
        return Err(RequestError::Invalid);
    }
    let buffer_length = request.buffer.len() as u64;
    if carries_data && (request.length > REQUEST_SIZE_MAX || buffer_length != request.length) {
        return Err(RequestError::Invalid);
    }
    match request.offset.checked_add(request.length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(RequestError::OutOfRange),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, FaultKind, MemoryOptions, MemoryService};
    use super::*;
    use coulter::service::BlockService;

    fn request(tag: u64, operation: Operation, offset: u64, buffer: Buffer) -> Request {
        Request { tag, operation, offset, length: buffer.len() as u64, buffer }
    }

    fn run(session: &mut dyn Session, request: Request) -> Completion {
        session.submit(request);
        session.kick();
        let mut out = Vec::new();
        session.complete(&mut out, None);
        assert_eq!(out.len(), 1);
        out.remove(0)
    }

    fn readable(session: &dyn Session) -> bool {
        let fd = session.completion_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&zero)).unwrap() == 1
    }

    #[test]
    fn what_is_written_reads_back() {
        let service = MemoryService::new(MemoryOptions::new(1 << 20));
        let mut session = service.connect();
        let write =
            request(1, Operation::Write { fua: false }, 512, Buffer::copied_from(&[7; 1024]));
        assert_eq!(run(&mut *session, write).result, Ok(()));
        let read = run(&mut *session, request(2, Operation::Read, 0, Buffer::zeroed(2048)));
        assert!(read.buffer[512..1536].iter().all(|byte| *byte == 7));
        assert!(read.buffer[1536..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_descriptor_is_readable_while_completions_wait_and_only_then() {
        for latency in [Duration::ZERO, Duration::from_millis(20)] {
            let options = MemoryOptions { latency, ..MemoryOptions::new(1 << 20) };
            let mut session = MemoryService::new(options).connect();
            assert!(!readable(&*session));
            session.submit(request(1, Operation::Read, 0, Buffer::zeroed(4096)));
            session.kick();
            assert_eq!(readable(&*session), latency == Duration::ZERO);
            std::thread::sleep(latency);
            assert!(readable(&*session));
            let mut out = Vec::new();
            session.complete(&mut out, Some(Duration::ZERO));
            assert_eq!(out.len(), 1);
            assert!(!readable(&*session));
            assert_eq!(session.outstanding(), 0);
        }
    }

    #[test]
    fn a_failed_write_makes_the_service_read_only() {
        let service = MemoryService::new(MemoryOptions::new(1 << 20));
        let error = RequestError::Device { errno: libc::EIO };
        service.inject(Fault { kind: FaultKind::Write, range: 0..4096, error, count: 1 });
        let mut session = service.connect();
        let write = || request(1, Operation::Write { fua: false }, 0, Buffer::zeroed(4096));
        assert_eq!(run(&mut *session, write()).result, Err(error));
        assert_eq!(run(&mut *session, write()).result, Err(RequestError::ReadOnly));
        assert!(service.read_only());
        let read = request(1, Operation::Read, 0, Buffer::zeroed(4096));
        assert_eq!(run(&mut *session, read).result, Ok(()));
    }

    #[test]
    fn bad_requests_and_closed_services_are_refused() {
        let service = MemoryService::new(MemoryOptions::new(1 << 20));
        let mut session = service.connect();
        let odd = request(1, Operation::Read, 100, Buffer::zeroed(512));
        assert_eq!(run(&mut *session, odd).result, Err(RequestError::Invalid));
        let beyond = request(1, Operation::Read, 1 << 20, Buffer::zeroed(512));
        assert_eq!(run(&mut *session, beyond).result, Err(RequestError::OutOfRange));
        service.close();
        let late = request(1, Operation::Read, 0, Buffer::zeroed(512));
        assert_eq!(run(&mut *session, late).result, Err(RequestError::Closed));
    }

    #[test]
    fn shuffling_loses_and_repeats_nothing() {
        let options = MemoryOptions { shuffle_seed: Some(7), ..MemoryOptions::new(1 << 20) };
        let mut session = MemoryService::new(options).connect();
        for tag in 0..32 {
            session.submit(request(tag, Operation::Read, 0, Buffer::zeroed(512)));
        }
        let mut out = Vec::new();
        session.complete(&mut out, Some(Duration::ZERO));
        let mut tags: Vec<u64> = out.iter().map(|completion| completion.tag).collect();
        assert!(!tags.is_sorted());
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..32));
    }
}
