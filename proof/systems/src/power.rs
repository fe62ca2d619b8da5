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

/// The power of one [`Running`](crate::Running), a switch, or several of them.
#[derive(Clone, Debug)]
pub struct Power {
    sources: Vec<Source>,
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
        Power { sources: vec![Source::Switch(Arc::new(AtomicBool::new(true)))] }
    }

    /// Power that is on while all of these are.
    pub fn all(powers: impl IntoIterator<Item = Power>) -> Power {
        Power { sources: powers.into_iter().flat_map(|power| power.sources).collect() }
    }

    /// Turns a switch off; to be called before the daemon is killed.
    ///
    /// # Panics
    /// When it is no switch.
    pub fn turn_off(&self) {
        for source in &self.sources {
            match source {
                Source::Switch(is_on) => is_on.store(false, Ordering::SeqCst),
                Source::Disk(_) => panic!("the disk's power is cut by its machine"),
            }
        }
    }

    pub(crate) fn of(channel: Channel) -> Power {
        Power { sources: vec![Source::Disk(channel)] }
    }

    /// Whether an acknowledgement that came before this call counts.
    pub fn is_on(&self) -> bool {
        self.sources.iter().all(|source| match source {
            Source::Disk(channel) => channel.has_power(),
            Source::Switch(is_on) => is_on.load(Ordering::SeqCst),
        })
    }

    /// The same as a result.
    ///
    /// # Errors
    /// `NotConnected` when the power is gone.
    pub fn check(&self) -> io::Result<()> {
        self.is_on().then_some(()).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}
