//! What the volume, its sessions and its loop have in common.

use crate::bytes::Bytes;
use crate::description::Watchers;
use crate::direct::Direct;
use crate::failures::Failures;
use crate::mailbox::Mailbox;
use crate::statistics::Statistics;
use coulter_device::{Device, Revocation};
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// What a volume can do at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Everything.
    Running,
    /// Everything, but something was damaged beyond repair when it was opened: reading what is in doubt is an error until
    /// it is written or discarded.
    Degraded {
        /// Bytes of host addresses of which the newest content is unknown.
        in_doubt_bytes: u64,
    },
    /// Reading only.
    ReadOnly(ReadOnlyReason),
    /// Nothing: it was closed.
    Closed,
    /// Nothing: the device or the program failed; why.
    Failed(String),
}

/// Why a volume refuses writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadOnlyReason {
    /// It was opened so.
    Opened,
    /// Something is damaged beyond repair, and it is opened all the same. Reading what is in doubt is an error.
    Degraded {
        /// Bytes of host addresses of which nobody knows the newest content.
        in_doubt_bytes: u64,
    },
    /// A write or a flush failed. What was acknowledged before as durable still is; what was
    /// written after it may be lost. Opening the store anew recovers what the device kept.
    Failed {
        /// The operating system's error number.
        errno: i32,
    },
}

impl State {
    /// Whether writes are taken.
    pub fn takes_writes(&self) -> bool {
        matches!(self, State::Running | State::Degraded { .. })
    }

    /// Bytes in doubt, of a volume that is degraded.
    pub fn in_doubt_bytes(&self) -> Option<u64> {
        match self {
            State::Degraded { in_doubt_bytes }
            | State::ReadOnly(ReadOnlyReason::Degraded { in_doubt_bytes }) => Some(*in_doubt_bytes),
            _ => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Running => write!(f, "running"),
            State::Degraded { in_doubt_bytes } => write!(
                f,
                "degraded: metadata was damaged beyond repair; {} are in doubt, and reading them fails until they are written",
                Bytes(*in_doubt_bytes)
            ),
            State::ReadOnly(ReadOnlyReason::Opened) => write!(f, "read-only: opened so"),
            State::ReadOnly(ReadOnlyReason::Degraded { in_doubt_bytes: 0 }) => {
                write!(
                    f,
                    "degraded: metadata is damaged beyond repair; all data can be read; read-only"
                )
            }
            State::ReadOnly(ReadOnlyReason::Degraded { in_doubt_bytes }) => write!(
                f,
                "degraded: metadata is damaged beyond repair; {} are in doubt, and reading them fails; read-only",
                Bytes(*in_doubt_bytes)
            ),
            State::ReadOnly(ReadOnlyReason::Failed { errno }) => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "read-only since the device failed to write: {error}")
            }
            State::Closed => write!(f, "closed"),
            State::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// What is shared between threads.
pub(crate) struct Shared {
    pub(crate) mailbox: Mailbox,
    /// A descriptor that is always readable.
    pub(crate) ready: OwnedFd,
    /// A descriptor that never is.
    pub(crate) quiet: OwnedFd,
    /// Whether the loop's thread has a guest, or is about to.
    has_guest: AtomicBool,
    /// The loop's thread, if it has one.
    thread: OnceLock<ThreadId>,
    epoch: Instant,
    /// Since when requests have waited of which none was answered, by the volume's clock; 0 if none waits.
    unanswered_since_ns: AtomicU64,
    /// Writes have waited for space below the store for longer than they may.
    lacks_space: AtomicBool,
    state: Mutex<State>,
    /// Told of every change of state.
    pub(crate) watchers: Watchers,
    failures: Mutex<Failures>,
    last: Mutex<Statistics>,
    /// What clients need to read by themselves, while the volume is open.
    direct: Mutex<Option<Arc<Direct>>>,
    /// Tells that the content has become another host's.
    revocation: Option<Revocation>,
}

impl Shared {
    /// The state that the loop on a device shares with others.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn new(device: &dyn Device) -> io::Result<Shared> {
        Ok(Shared {
            mailbox: Mailbox::new(device.waker()),
            ready: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            quiet: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            has_guest: AtomicBool::new(false),
            thread: OnceLock::new(),
            epoch: Instant::now(),
            unanswered_since_ns: AtomicU64::new(0),
            lacks_space: AtomicBool::new(false),
            state: Mutex::new(State::Running),
            watchers: Watchers::default(),
            failures: Mutex::default(),
            last: Mutex::default(),
            direct: Mutex::default(),
            revocation: device.revocation(),
        })
    }

    /// Tells whether writes have waited for space below the store for longer than they may.
    pub(crate) fn set_lacks_space(&self, lacks_space: bool) {
        self.lacks_space.store(lacks_space, Ordering::Relaxed);
    }

    /// True while writes have waited for space below the store for longer than they may.
    pub(crate) fn lacks_space(&self) -> bool {
        self.lacks_space.load(Ordering::Relaxed)
    }

    /// Reserves the loop's thread for a guest; false if it has one.
    pub(crate) fn try_reserve_guest(&self) -> bool {
        !self.has_guest.swap(true, Ordering::SeqCst)
    }

    /// The guest is gone, or never came.
    pub(crate) fn release_guest(&self) {
        self.has_guest.store(false, Ordering::SeqCst);
    }

    /// Whether the loop's thread has a guest, or is about to.
    pub(crate) fn has_guest(&self) -> bool {
        self.has_guest.load(Ordering::SeqCst)
    }

    /// The calling thread is the one that the loop has for itself.
    pub(crate) fn set_thread(&self) {
        let set = self.thread.set(thread::current().id());
        assert!(set.is_ok(), "a loop stays on its thread");
    }

    /// Whether the calling thread is the one that the loop has for itself.
    pub(crate) fn is_loop_thread(&self) -> bool {
        self.thread.get() == Some(&thread::current().id())
    }

    /// Stops a guest that would wait for the thread that it runs on.
    ///
    /// # Panics
    /// On the loop's own thread.
    pub(crate) fn assert_may_wait(&self) {
        assert!(!self.is_loop_thread(), "a guest waits for its volume by its own session only");
    }

    /// Nanoseconds of the volume's clock.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        // 2^64 nanoseconds are 584 years.
        self.epoch.elapsed().as_nanos() as u64
    }

    /// The loop sleeps, with requests that wait or without.
    #[inline]
    pub(crate) fn note_sleep(&self, has_requests: bool) {
        let since = self.unanswered_since_ns.load(Ordering::Relaxed);
        match (has_requests, since) {
            (false, _) => self.unanswered_since_ns.store(0, Ordering::Relaxed),
            (true, 0) => self.unanswered_since_ns.store(self.now_ns(), Ordering::Relaxed),
            (true, _) => {}
        }
    }

    /// The loop answers: whoever waits has seen an answer now.
    #[inline]
    pub(crate) fn note_answer(&self, now_ns: u64) {
        if self.unanswered_since_ns.load(Ordering::Relaxed) > 0 {
            self.unanswered_since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// How long requests have waited of which none was answered.
    pub(crate) fn unanswered_for(&self) -> Option<Duration> {
        let since = self.unanswered_since_ns.load(Ordering::Relaxed);
        (since > 0).then(|| Duration::from_nanos(self.now_ns().saturating_sub(since)))
    }

    /// What clients need to read by themselves; `None` if they cannot.
    pub(crate) fn direct(&self) -> Option<Arc<Direct>> {
        lock(&self.direct).clone()
    }

    /// Lets clients read by themselves, or no longer.
    pub(crate) fn set_direct(&self, direct: Option<Arc<Direct>>) {
        *lock(&self.direct) = direct;
    }

    /// Tells that the content has become another host's; `None` if that cannot happen.
    pub(crate) fn revocation(&self) -> Option<Revocation> {
        self.revocation.clone()
    }

    pub(crate) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    pub(crate) fn set_state(&self, state: State) {
        *lock(&self.state) = state;
        self.watchers.notify();
    }

    pub(crate) fn failures(&self) -> Failures {
        *lock(&self.failures)
    }

    pub(crate) fn set_failures(&self, failures: Failures) {
        *lock(&self.failures) = failures;
    }

    /// The counters when the loop was last able to tell them.
    pub(crate) fn last_statistics(&self) -> Statistics {
        *lock(&self.last)
    }

    pub(crate) fn set_last_statistics(&self, statistics: Statistics) {
        *lock(&self.last) = statistics;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values are replaced as a whole, so they are whole whenever the lock is free.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
