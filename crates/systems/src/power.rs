//! Whether an acknowledgement counts.
//!
//! When a machine loses its power nothing on it acknowledges anything any more. Here only the
//! disk loses it, and the kernel lives on with a disk that fails; then it may say that something
//! is durable when it has merely given up. XFS does: `fsync` of a directory succeeds if the
//! directory waits for nothing, and a log that was shut down waits for nothing. So whoever gets an
//! acknowledgement asks afterwards whether there was power; errors are told only after it is gone.

use crate::machine::Channel;
use std::io;

/// The power of one [`Running`](crate::Running).
#[derive(Clone, Debug)]
pub struct Power {
    /// Whom to ask; `None` if it cannot be cut.
    channel: Option<Channel>,
}

impl Power {
    /// Power that never goes; for workloads whose daemon is killed instead.
    pub fn endless() -> Power {
        Power { channel: None }
    }

    pub(crate) fn of(channel: Channel) -> Power {
        Power { channel: Some(channel) }
    }

    /// Whether an acknowledgement that came before this call counts.
    pub fn is_on(&self) -> bool {
        self.channel.as_ref().is_none_or(Channel::has_power)
    }

    /// The same as a result.
    ///
    /// # Errors
    /// `NotConnected` when the power is gone.
    pub fn check(&self) -> io::Result<()> {
        self.is_on().then_some(()).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}
