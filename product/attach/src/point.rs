//! The contract that all attach points keep, whatever their height in the system.
//!
//! # Contract
//! - An attach point serves the blocks of one or more services from the moment it exists.
//! - It answers every request once, and never says that something is durable before the service
//!   has.
//! - [`AttachPoint::detach`] leaves nothing behind: no mount, no device, no socket, no thread.
//!   Requests that hosts had made are finished first.
//! - Dropping it does what [`Detach::Always`] does.
//! - [`AttachPoint::end`] ends it with the process, without asking the users. What they use must
//!   fail then, and must not show them something else: a mount in use stays, and answers nothing.
//! - [`AttachPoint::hand_over`] stops serving without letting hosts know: they wait, and another
//!   process that resumes with the descriptor goes on.
//! - It never flushes or closes the service; the owner of the service does that afterwards.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

/// Whether the users of an attach point have a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Refuse while the device is in use.
    IfIdle,
    /// Detach even if the device is in use; for its users it is as if a disk were pulled out.
    Always,
}

/// Something that hosts talk to.
pub trait AttachPoint: Send {
    /// The word for it: `nbd`, `file` or `loop`.
    fn kind(&self) -> &'static str;

    /// What a host opens: an NBD URI, or a path.
    fn address(&self) -> String;

    /// Ends it. Once it has succeeded, or when there is nothing left to end, it does nothing.
    fn detach(&mut self, how: Detach) -> Result<(), DetachError>;

    /// Ends it with its process, used or not. What is in use fails from then on.
    ///
    /// # Errors
    /// [`DetachError::LeftDead`] when it is over and something of it stays to be seen.
    fn end(&mut self) -> Result<(), DetachError> {
        self.detach(Detach::Always)
    }

    /// Whether it has ended by itself, for example because another process unmounted it.
    fn has_ended(&self) -> bool {
        false
    }

    /// The figures of an overlay, if it is one.
    fn overlay_figures(&self) -> Option<coulter_overlay::Figures> {
        None
    }

    /// Finishes what hosts had asked for and stops, but leaves everything that they see in its place.
    /// The descriptor is what another process, or this one, resumes with; until then requests wait.
    /// Afterwards this does nothing any more, dropping it included.
    ///
    /// # Errors
    /// When it cannot be left behind like that; it serves on then.
    fn hand_over(&mut self) -> io::Result<OwnedFd>;
}

/// Why an attach point could not be ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum DetachError {
    /// Somebody uses it.
    Busy {
        /// What is used.
        address: String,
        /// Who uses it, for people to read; never empty.
        holders: Vec<String>,
    },
    /// It is gone, but what hosts had written last could not be made durable. Whoever waited for
    /// that, by `fsync` for one, was told so already.
    Unflushed {
        /// What it was.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// It is over, and all of it is durable. It stays to be seen, since it is in use, and answers
    /// nothing.
    LeftDead {
        /// The place that stays.
        address: String,
        /// Its users, for people to read.
        holders: Vec<String>,
    },
    /// The system refused a step.
    System {
        /// Which step.
        step: &'static str,
        /// On what.
        target: String,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DetachError::Busy { address, holders } => {
                write!(f, "{address} is in use: {}", holders.join("; "))
            }
            DetachError::LeftDead { address, holders } => {
                write!(
                    f,
                    "{address} is over, and stays dead, as it is in use: {}",
                    holders.join("; ")
                )
            }
            DetachError::Unflushed { address, source } => {
                write!(f, "{address} is detached, but its last writes were not flushed: {source}")
            }
            DetachError::System { step, target, source } => {
                write!(f, "cannot {step} {target}: {source}")
            }
        }
    }
}

impl std::error::Error for DetachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DetachError::Busy { .. } | DetachError::LeftDead { .. } => None,
            DetachError::Unflushed { source, .. } | DetachError::System { source, .. } => {
                Some(source)
            }
        }
    }
}
