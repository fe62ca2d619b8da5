//! The way from the loop to a session: completions in batches, and a wake only for a session that
//! sleeps.
//!
//! A session sleeps in one of two ways: on the condition here (`complete` with a timeout), or in a
//! `poll` of its caller on the event descriptor. The descriptor is made when it is first asked
//! for, and written to only if it was asked for since the last delivery, so a session that is busy
//! costs no system call.
//!
//! Invariants:
//! - `ready_count` equals the number of completions that wait whenever the lock is free;
//! - when the descriptor is armed, the next delivery writes to it; what is written is read back
//!   when completions are taken.

use crate::service::Completion;
use coulter_device::Waker;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Completions for one session.
#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Mutex<OutboxState>,
    /// For a look without the lock.
    ready_count: AtomicUsize,
    delivered: Condvar,
    event: OnceLock<Option<OwnedFd>>,
}

#[derive(Default)]
struct OutboxState {
    ready: Vec<Completion>,
    /// The session sleeps on the condition.
    is_asleep: bool,
    /// Or in its own ring, or is about to: this ends that.
    elsewhere: Option<Waker>,
    /// The next delivery is to be written to the descriptor.
    is_armed: bool,
    /// The descriptor is readable.
    is_signalled: bool,
    /// There will be no more deliveries.
    is_closed: bool,
}

impl Outbox {
    /// Hands completions over; `completions` is empty afterwards. For the loop.
    pub(crate) fn deliver(&self, completions: &mut Vec<Completion>) {
        let mut waiting = self.lock();
        if waiting.ready.is_empty() {
            std::mem::swap(&mut waiting.ready, completions);
        } else {
            waiting.ready.append(completions);
        }
        self.ready_count.store(waiting.ready.len(), Ordering::Release);
        if waiting.is_armed {
            waiting.is_armed = false;
            self.signal(&mut waiting);
        }
        let is_asleep = waiting.is_asleep;
        let elsewhere = waiting.elsewhere.take();
        drop(waiting);
        if let Some(waker) = elsewhere {
            waker.wake();
        }
        if is_asleep {
            self.delivered.notify_one();
        }
    }

    /// Declares that there will be no more deliveries: nobody waits any longer.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.is_closed = true;
        self.signal(&mut waiting);
        let elsewhere = waiting.elsewhere.take();
        drop(waiting);
        if let Some(waker) = elsewhere {
            waker.wake();
        }
        self.delivered.notify_one();
    }

    /// Whether there will be no more deliveries and everything was taken.
    pub(crate) fn is_over(&self) -> bool {
        let waiting = self.lock();
        waiting.is_closed && waiting.ready.is_empty()
    }

    /// Moves what is there to `out`, without waiting.
    #[inline]
    pub(crate) fn take(&self, out: &mut Vec<Completion>) {
        if self.ready_count.load(Ordering::Acquire) > 0 {
            self.take_locked(&mut self.lock(), out);
        }
    }

    /// The same, but waits for the first completion until `deadline`, or for ever.
    pub(crate) fn wait(&self, out: &mut Vec<Completion>, deadline: Option<Instant>) {
        let mut waiting = self.lock();
        while waiting.ready.is_empty() && !waiting.is_closed {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            waiting.is_asleep = true;
            waiting = match left {
                None => self.delivered.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.delivered.wait_timeout(waiting, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            waiting.is_asleep = false;
        }
        self.take_locked(&mut waiting, out);
    }

    /// Has the next delivery end a sleep elsewhere. False if completions wait already, or none will come.
    pub(crate) fn sleep_elsewhere(&self, waker: &Waker) -> bool {
        let mut waiting = self.lock();
        let may_sleep = waiting.ready.is_empty() && !waiting.is_closed;
        waiting.elsewhere = may_sleep.then(|| waker.clone());
        may_sleep
    }

    /// The descriptor, readable when completions wait now, or else from the next delivery on.
    /// `None` if the process has no descriptor left.
    pub(crate) fn arm(&self) -> Option<BorrowedFd<'_>> {
        let make = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        let event = self.event.get_or_init(make).as_ref()?;
        let mut waiting = self.lock();
        if waiting.ready.is_empty() && !waiting.is_closed {
            waiting.is_armed = true;
        } else {
            self.signal(&mut waiting);
        }
        drop(waiting);
        Some(event.as_fd())
    }

    fn take_locked(&self, waiting: &mut OutboxState, out: &mut Vec<Completion>) {
        out.append(&mut waiting.ready);
        self.ready_count.store(0, Ordering::Release);
        if waiting.is_signalled && !waiting.is_closed {
            waiting.is_signalled = false;
            let event = self.event.get().and_then(Option::as_ref);
            let event = event.expect("what is signalled was made");
            // It holds one, so this neither blocks nor fails.
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }

    fn signal(&self, waiting: &mut OutboxState) {
        if let Some(Some(event)) = self.event.get()
            && !waiting.is_signalled
        {
            waiting.is_signalled = true;
            // It holds nothing, so this neither blocks nor fails.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        // The list is whole whenever the lock is free.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;

    fn completion(tag: u64) -> Completion {
        Completion { tag, result: Ok(()), buffer: Buffer::empty(), extents: Vec::new() }
    }

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).expect("the descriptor is open") == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_completions_wait_and_no_longer() {
        let outbox = Outbox::default();
        let fd = outbox.arm().expect("a descriptor is left");
        assert!(!is_readable(fd));
        outbox.deliver(&mut vec![completion(1)]);
        assert!(is_readable(fd));
        outbox.deliver(&mut vec![completion(2)]);
        let mut out = Vec::new();
        outbox.take(&mut out);
        assert_eq!(out.iter().map(|completion| completion.tag).collect::<Vec<_>>(), [1, 2]);
        assert!(!is_readable(fd));
        // Not asked for anew, so not armed; asking arms it at once.
        outbox.deliver(&mut vec![completion(3)]);
        assert!(!is_readable(fd));
        assert!(is_readable(outbox.arm().expect("a descriptor is left")));
        outbox.take(&mut out);
        assert!(!is_readable(outbox.arm().expect("a descriptor is left")));
    }

    #[test]
    fn a_wait_ends_with_its_time_or_with_a_delivery() {
        let outbox = Arc::new(Outbox::default());
        let mut out = Vec::new();
        outbox.wait(&mut out, Some(Instant::now() + Duration::from_millis(5)));
        assert!(out.is_empty());
        let other = outbox.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            other.deliver(&mut vec![completion(7)]);
        });
        outbox.wait(&mut out, None);
        assert_eq!(out.len(), 1);
        thread.join().expect("the delivering thread ends well");
    }

    /// Whoever comes after the end must not sleep until a delivery that never comes.
    #[test]
    fn nobody_waits_for_an_outbox_that_is_closed() {
        let outbox = Outbox::default();
        outbox.deliver(&mut vec![completion(1)]);
        outbox.close();
        assert!(!outbox.is_over(), "one completion is left");
        assert!(is_readable(outbox.arm().expect("a descriptor is left")));
        let mut out = Vec::new();
        outbox.take(&mut out);
        assert_eq!(out.len(), 1);
        assert!(outbox.is_over());
        let far = Instant::now() + Duration::from_secs(20);
        outbox.wait(&mut out, Some(far));
        assert!(Instant::now() < far, "the wait ends at once");
        assert!(is_readable(outbox.arm().expect("a descriptor is left")), "and stays so");
        let other = Outbox::default();
        other.close();
        assert!(is_readable(other.arm().expect("a descriptor is left")));
    }

    #[test]
    fn closing_wakes_whoever_sleeps_already() {
        let outbox = Arc::new(Outbox::default());
        let fd = outbox.arm().expect("a descriptor is left");
        assert!(!is_readable(fd));
        let other = outbox.clone();
        let far = Instant::now() + Duration::from_secs(20);
        let thread = std::thread::spawn(move || other.wait(&mut Vec::new(), Some(far)));
        while !outbox.lock().is_asleep {
            std::thread::yield_now();
        }
        outbox.close();
        thread.join().expect("the waiting thread ends well");
        assert!(Instant::now() < far, "the wait ends at once");
        assert!(is_readable(fd));
    }

    #[test]
    fn no_delivery_is_slept_over_under_contention() {
        const COUNT: u64 = 20_000;
        let outbox = Arc::new(Outbox::default());
        let other = outbox.clone();
        let thread = std::thread::spawn(move || {
            for tag in 0..COUNT {
                other.deliver(&mut vec![completion(tag)]);
            }
        });
        let (mut out, mut next) = (Vec::new(), 0);
        while next < COUNT {
            outbox.wait(&mut out, None);
            for completion in out.drain(..) {
                assert_eq!(completion.tag, next);
                next += 1;
            }
        }
        thread.join().expect("the delivering thread ends well");
    }
}
