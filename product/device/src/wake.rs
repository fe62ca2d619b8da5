//! Sleeping, and being woken from other threads.
//!
//! One thread sleeps in `poll`; any number hold a [`Waker`]. Whoever hands over work stores it
//! first and wakes second; the sleeper goes to sleep first (in this state word) and looks for work
//! after it woke. A wake that meets nobody asleep costs one atomic operation and no system call.
//!
//! Invariants:
//! - a wake is never lost: it ends the sleep in progress, or else the next one before it begins;
//! - the bell is rung only while the sleeper is asleep, and once per sleep for each reason.
//!
//! # Why no wake is lost
//! Both sides change the state word by read-modify-write, and these have one order. If the waker's
//! comes first, the sleeper finds `WOKEN` and does not sleep, and having read the waker's store
//! it sees the work. If the sleeper's comes first, the waker finds `ASLEEP` and rings.

use crate::command::Wait;
use crate::event::Event;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The sleeper sleeps, or is about to.
const ASLEEP: u32 = 1;
/// Somebody used a [`Waker`].
const WOKEN: u32 = 2;
/// A worker of the device itself has a completion.
const READY: u32 = 4;
/// The sleeper sleeps on the descriptor that [`Sleeper::arm`] gave, or is about to.
const ELSEWHERE: u32 = 8;

/// Ends a sleep in [`Device::poll`](crate::Device::poll), or one that
/// [`Device::arm`](crate::Device::arm) has prepared, from any thread.
#[derive(Clone)]
pub struct Waker {
    shared: Arc<Shared>,
}

impl Waker {
    /// Ends the sleep in progress, or else the next one before it begins.
    pub fn wake(&self) {
        self.shared.raise(WOKEN);
    }

    /// The same, for the device's own workers: only those who sleep for completions care.
    pub(crate) fn announce(&self) {
        self.shared.raise(READY);
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waker(state {})", self.shared.state.load(Ordering::Relaxed))
    }
}

struct Shared {
    state: AtomicU32,
    bell: Bell,
    /// Readable when a sleeper elsewhere is to wake up. Made, if at all, by the sleeper before it
    /// declares itself to be there.
    call: OnceLock<Event>,
}

/// How a sleeper is reached.
enum Bell {
    /// The sleeper waits on the condition.
    Condition(Mutex<()>, Condvar),
    /// The sleeper waits until the event descriptor is readable.
    Event(Arc<Event>),
}

impl Shared {
    fn raise(&self, reason: u32) {
        let before = self.state.fetch_or(reason, Ordering::AcqRel);
        if before & reason != 0 {
            return;
        }
        if before & ASLEEP != 0 {
            self.ring();
        }
        if before & ELSEWHERE != 0
            && let Some(call) = self.call.get()
        {
            call.ring();
        }
    }

    fn ring(&self) {
        match &self.bell {
            Bell::Condition(mutex, condition) => {
                // Taken and let go, so that the sleeper is either before its look at the state
                // or already waiting: nothing rings in between unheard.
                drop(mutex.lock().unwrap_or_else(PoisonError::into_inner));
                condition.notify_one();
            }
            Bell::Event(event) => event.ring(),
        }
    }
}

/// Until when a caller of `poll` is ready to sleep. Reads the clock only if it has to.
#[derive(Clone, Copy, Debug)]
pub enum Deadline {
    /// Never asleep.
    Past,
    /// Asleep until then.
    At(Instant),
    /// Asleep without end.
    Never,
}

impl Deadline {
    /// The deadline that `wait` means from now on.
    pub fn after(wait: Wait) -> Deadline {
        match wait {
            Wait::No => Deadline::Past,
            Wait::For(time) if time.is_zero() => Deadline::Past,
            Wait::For(time) => {
                Instant::now().checked_add(time).map_or(Deadline::Never, Deadline::At)
            }
            Wait::Forever => Deadline::Never,
        }
    }

    /// How long there is left to sleep.
    pub fn left(self) -> Wait {
        match self {
            Deadline::Past => Wait::No,
            Deadline::Never => Wait::Forever,
            Deadline::At(instant) => match instant.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Wait::No,
                left => Wait::For(left),
            },
        }
    }
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awake {
    /// A [`Waker`] was used.
    Woken,
    /// The device's own workers have something.
    Ready,
    /// The time was over.
    TimedOut,
}

/// The sleeper's side. For devices that have nothing better to sleep on.
#[derive(Debug)]
pub struct Sleeper {
    waker: Waker,
    /// Whether it sleeps elsewhere.
    is_armed: Cell<bool>,
}

impl Default for Sleeper {
    fn default() -> Sleeper {
        Sleeper::new()
    }
}

impl Sleeper {
    /// A sleeper that nobody has woken yet.
    pub fn new() -> Sleeper {
        Sleeper::with(Bell::Condition(Mutex::new(()), Condvar::new()))
    }

    /// A sleeper that is reached by an event descriptor.
    pub(crate) fn with_event(event: Arc<Event>) -> Sleeper {
        Sleeper::with(Bell::Event(event))
    }

    fn with(bell: Bell) -> Sleeper {
        let shared = Shared { state: AtomicU32::new(0), bell, call: OnceLock::new() };
        let waker = Waker { shared: Arc::new(shared) };
        Sleeper { waker, is_armed: Cell::new(false) }
    }

    /// A handle that ends this sleeper's sleep.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Declares the sleeper asleep on a descriptor, until [`Sleeper::disarm`]. It is readable if
    /// there is a reason to wake on, and as soon as there is one; the same each time.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn arm(&self) -> io::Result<BorrowedFd<'_>> {
        self.arm_event().map(Event::as_fd)
    }

    /// The same, for devices that have reasons of their own.
    pub(crate) fn arm_event(&self) -> io::Result<&Event> {
        let shared = &self.waker.shared;
        let call = match shared.call.get() {
            Some(call) => call,
            None => {
                let made = Event::new()?;
                shared.call.get_or_init(|| made)
            }
        };
        call.silence();
        self.is_armed.set(true);
        if shared.state.swap(ELSEWHERE, Ordering::AcqRel) & (WOKEN | READY) != 0 {
            call.ring();
        }
        Ok(call)
    }

    /// The descriptor of sleeps elsewhere, if there was one.
    pub(crate) fn call(&self) -> Option<&Event> {
        self.waker.shared.call.get()
    }

    /// Ends a sleep elsewhere. The reasons for it are kept, for they may have come after it ended;
    /// at worst they end one sleep more.
    #[inline]
    pub fn disarm(&self) {
        if self.is_armed.replace(false) {
            self.waker.shared.state.fetch_and(!ELSEWHERE, Ordering::AcqRel);
        }
    }

    /// Declares the intention to sleep. Where it returns a reason there is to be no sleep; where
    /// it returns `None` the bell will be rung, and [`Sleeper::end`] must follow.
    pub(crate) fn begin(&self) -> Option<Awake> {
        let state = &self.waker.shared.state;
        match state.compare_exchange(0, ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => None,
            Err(_) => Some(self.end()),
        }
    }

    /// Ends the sleep and takes the reasons for it.
    pub(crate) fn end(&self) -> Awake {
        reason_in(self.waker.shared.state.swap(0, Ordering::AcqRel))
    }

    /// The reason to end the sleep in progress, if there is one already.
    pub(crate) fn is_called(&self) -> bool {
        self.waker.shared.state.load(Ordering::Acquire) & (WOKEN | READY) != 0
    }

    /// Sleeps. Returns at once, and takes no wake, if `wait` does not allow sleep.
    pub fn sleep(&self, wait: Wait) -> Awake {
        self.disarm();
        let deadline = Deadline::after(wait);
        if matches!(deadline, Deadline::Past) {
            return Awake::TimedOut;
        }
        let Bell::Condition(mutex, condition) = &self.waker.shared.bell else {
            unreachable!("a sleeper on an event descriptor is waited for by its ring");
        };
        let mut guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(awake) = self.begin() {
            return awake;
        }
        while !self.is_called() {
            guard = match deadline.left() {
                Wait::No => break,
                Wait::Forever => condition.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Wait::For(left) => {
                    let waited = condition.wait_timeout(guard, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        self.end()
    }
}

fn reason_in(state: u32) -> Awake {
    if state & WOKEN != 0 {
        Awake::Woken
    } else if state & READY != 0 {
        Awake::Ready
    } else {
        Awake::TimedOut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_sleep_is_kept() {
        let sleeper = Sleeper::new();
        sleeper.waker().wake();
        assert_eq!(sleeper.sleep(Wait::No), Awake::TimedOut);
        assert_eq!(sleeper.sleep(Wait::Forever), Awake::Woken);
        assert_eq!(sleeper.sleep(Wait::For(Duration::from_millis(1))), Awake::TimedOut);
    }

    #[test]
    fn a_wake_ends_a_sleep() {
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        assert_eq!(sleeper.sleep(Wait::Forever), Awake::Woken);
        thread.join().expect("the waking thread ends well");
    }

    #[test]
    fn no_wake_is_lost_under_contention() {
        // Each side hands a turn to the other and would sleep for ever if one wake were lost.
        const TURNS: u32 = 20_000;
        let (ping, pong) = (Sleeper::new(), Sleeper::new());
        let (to_ping, to_pong) = (ping.waker(), pong.waker());
        let turn = Arc::new(AtomicU32::new(0));
        let other_turn = turn.clone();
        let thread = std::thread::spawn(move || {
            for expected in (1..TURNS).step_by(2) {
                while other_turn.load(Ordering::Relaxed) != expected {
                    pong.sleep(Wait::Forever);
                }
                other_turn.store(expected + 1, Ordering::Relaxed);
                to_ping.wake();
            }
        });
        for expected in (0..TURNS).step_by(2) {
            while turn.load(Ordering::Relaxed) != expected {
                ping.sleep(Wait::Forever);
            }
            turn.store(expected + 1, Ordering::Relaxed);
            to_pong.wake();
        }
        thread.join().expect("the other side ends well");
    }
}
