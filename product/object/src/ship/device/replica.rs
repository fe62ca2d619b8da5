//! How a copy stands, told to any thread.

use crate::names::CommitId;
use crate::ship::shipper::{Ack, Counts, Lag, Pace};
use crate::ship::uploader::{Health, Outlook, Worker};
use coulter_device::Waker;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How it stands.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// How far the remote copy is behind.
    pub lag: Lag,
    /// The last commit.
    pub last: Option<CommitId>,
    /// Counters.
    pub counts: Counts,
    /// What the bucket does.
    pub health: Health,
    /// Another host has taken the volume over.
    pub is_fenced: bool,
    /// The device cannot be read back any more, so nothing is shipped: the copy stays what it was.
    pub has_stopped: bool,
    /// The bucket did not answer while the volume was being closed, so the rest is shipped at the next opening.
    pub has_left: bool,
    /// All that completed is in a commit.
    pub is_idle: bool,
    /// A thread that has ended by a panic, so that nothing is shipped any more.
    pub ended: Option<Worker>,
    /// What waits for the copy.
    pub waiting: Waiting,
    /// What a flush waits for.
    pub ack: Option<Ack>,
}

/// What of the host waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Flushes that are not answered.
    pub flushes: usize,
    /// Writes that are not passed on: too much waits to be shipped, or a mark is not durable.
    pub writes: usize,
}

/// A handle on a [`ShippedDevice`](super::ShippedDevice), from any thread.
#[derive(Clone, Debug)]
pub struct Replica {
    shared: Arc<Mutex<Shared>>,
    outlook: Outlook,
    waker: Waker,
}

/// What the device's thread and the handles share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) status: Status,
    pub(super) wants_commit: bool,
    pub(super) leaving: Leaving,
    pub(super) ack: Option<Ack>,
    pub(super) pace: Option<Pace>,
}

/// Whether the volume is being closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    /// It is not.
    #[default]
    No,
    /// What is left is shipped until then.
    Until(Instant),
    /// It was, and goes on.
    Stays,
}

impl Replica {
    pub(super) fn new(outlook: Outlook, waker: Waker) -> Replica {
        Replica { shared: Arc::default(), outlook, waker }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let status = self.lock().status.clone();
        // The device's thread may be asleep while the bucket fails.
        Status { health: self.outlook.health(), ..status }
    }

    /// The volume is being closed, and no host uses it: what is not shipped within `patience` from
    /// now on is left, and flushes are answered by the local device alone. [`Status::has_left`]
    /// tells; the next opening ships the rest.
    pub fn leave_within(&self, patience: Duration) {
        self.lock().leaving = Leaving::Until(Instant::now() + patience);
        self.waker.wake();
    }

    /// It is not closed after all. If it has left by then, the copy cannot be kept: flushes fail from then on.
    pub fn stay(&self) {
        self.lock().leaving = Leaving::Stays;
        self.waker.wake();
    }

    /// What a flush waits for from now on, those that wait already included.
    pub fn acknowledge(&self, ack: Ack) {
        self.lock().ack = Some(ack);
        self.waker.wake();
    }

    /// How often it commits from now on, and how much may wait.
    pub fn adjust(&self, pace: Pace) {
        self.lock().pace = Some(pace);
        self.waker.wake();
    }

    /// Asks for a commit now. Everything that had completed before is in one once [`Status::is_idle`] says so again.
    pub fn commit(&self) {
        let mut shared = self.lock();
        shared.wants_commit = true;
        // A status from before this call cannot answer it.
        shared.status.is_idle = false;
        drop(shared);
        self.waker.wake();
    }
}
