//! What can go wrong around daemons, and how it is told: what, why, and what to do.
//!
//! Invariants:
//! - every error names the thing it happened to;
//! - the exit code follows from the variant: 2 when another command line would be needed, else 1.

mod daemon;
mod open;
mod state;

pub use daemon::{DaemonError, MetricsFault};
pub use open::OpenError;
pub use state::StateError;

use coulter_terminal::Report;
use std::io;
use std::path::{Path, PathBuf};

/// An error with its context.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// About the state directory and the names of volumes.
    State(StateError),
    /// About opening and closing stores.
    Open(OpenError),
    /// About attach points and the processes that serve them.
    Daemon(DaemonError),
    /// What a part of the program around reports, such as a [`Source`](crate::Source) of its own.
    Told(Report),
    /// An operation of the system failed on a path.
    Io {
        /// What was tried, as a verb phrase that the path completes: `open`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// An operating-system error on a path. `action` is a verb phrase that the path completes.
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            Error::State(error) => error.report(),
            Error::Open(error) => error.report(),
            Error::Daemon(error) => error.report(),
            Error::Told(report) => report.clone(),
            Error::Io { action, path, source } => Report::io(action, path, source),
        }
    }
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Error {
        Error::State(error)
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        Error::Open(error)
    }
}

impl From<DaemonError> for Error {
    fn from(error: DaemonError) -> Error {
        Error::Daemon(error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report().fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
