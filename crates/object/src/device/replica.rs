//! How a copy stands, told to any thread.

use crate::courier::{Outlook, Weather};
use crate::names::CommitId;
use crate::shipper::{Counts, Lag};
use coulter_device::Waker;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    pub weather: Weather,
    /// Another host has taken the volume over.
    pub is_fenced: bool,
    /// The device cannot be read back any more, so nothing is shipped: the copy stays what it was.
    pub has_stopped: bool,
    /// All that completed is in a commit.
    pub is_idle: bool,
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
        Status { weather: self.outlook.weather(), ..status }
    }

    /// Asks for a commit now. [`Replica::status`] tells when it is there.
    pub fn commit(&self) {
        self.lock().wants_commit = true;
        self.waker.wake();
    }
}
