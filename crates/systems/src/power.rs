//! Whether an acknowledgement counts.
//!
//! When a machine loses its power nothing on it acknowledges anything any more. Here only the
//! disk loses it, and the kernel lives on with a disk that fails; then it may say that something
//! is durable when it has merely given up. XFS does: `fsync` of a directory succeeds if the
//! directory waits for nothing, and a log that was shut down waits for nothing. So whoever gets an
//! acknowledgement asks afterwards whether there was power; errors are told only after it is gone.

use crate::machine::Channel;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The power of one [`Running`](crate::Running), or a switch.
#[derive(Clone, Debug)]
pub struct Power {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// Whom to ask.
    Disk(Channel),
    /// Whether it is on.
    Switch(Arc<AtomicBool>),
}

impl Power {
    /// Power that is on until [`Power::turn_off`]: for workloads whose daemon is killed instead.
    pub fn switch() -> Power {
        Power { source: Source::Switch(Arc::new(AtomicBool::new(true))) }
    }

    /// Turns a switch off; to be called before the daemon is killed.
    ///
    /// # Panics
    /// When it is no switch.
    pub fn turn_off(&self) {
        match &self.source {
            Source::Switch(is_on) => is_on.store(false, Ordering::SeqCst),
            Source::Disk(_) => panic!("the disk's power is cut by its machine"),
        }
    }

    pub(crate) fn of(channel: Channel) -> Power {
        Power { source: Source::Disk(channel) }
    }

    /// Whether an acknowledgement that came before this call counts.
    pub fn is_on(&self) -> bool {
        match &self.source {
            Source::Disk(channel) => channel.has_power(),
            Source::Switch(is_on) => is_on.load(Ordering::SeqCst),
        }
    }

    /// The same as a result.
    ///
    /// # Errors
    /// `NotConnected` when the power is gone.
    pub fn check(&self) -> io::Result<()> {
        self.is_on().then_some(()).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}
