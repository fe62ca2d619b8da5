//! What can go wrong on the command line, and how it is told: what, why, and what to do.
//!
//! Invariants:
//! - every error names the thing it happened to;
//! - the exit code follows from the variant: 2 when another command line would be needed, else 1.

mod daemon;
mod emulation;
mod mount;
mod report;
mod state;
mod store;
mod system;

pub(crate) use daemon::{DaemonError, MetricsFault};
pub(crate) use emulation::EmulationError;
pub(crate) use mount::MountError;
pub(crate) use report::{Report, reason_of};
pub(crate) use state::StateError;
pub(crate) use store::StoreError;
pub(crate) use system::SystemError;

use std::io;
use std::path::Path;

/// An error with its context.
#[derive(Debug)]
pub(crate) enum CliError {
    /// About the state directory and the names of volumes.
    State(StateError),
    /// About making and opening stores.
    Store(StoreError),
    /// About attach points and the processes that serve them.
    Daemon(DaemonError),
    /// About emulated drives.
    Emulation(EmulationError),
    /// About file systems on volumes.
    Mount(MountError),
    /// About the system around the program.
    System(SystemError),
}

impl CliError {
    /// An operating-system error on a path. `action` is a verb phrase that the path completes.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> CliError {
        SystemError::Io { action, path: path.to_owned(), source }.into()
    }

    /// Something that only root may do.
    pub(crate) fn needs_root(what: &'static str, help: &'static str) -> CliError {
        SystemError::NeedsRoot { what, help }.into()
    }

    /// What, why, and what to do.
    pub(crate) fn report(&self) -> Report {
        match self {
            CliError::State(error) => error.report(),
            CliError::Store(error) => error.report(),
            CliError::Daemon(error) => error.report(),
            CliError::Emulation(error) => error.report(),
            CliError::Mount(error) => error.report(),
            CliError::System(error) => error.report(),
        }
    }
}

impl From<StateError> for CliError {
    fn from(error: StateError) -> CliError {
        CliError::State(error)
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> CliError {
        CliError::Store(error)
    }
}

impl From<DaemonError> for CliError {
    fn from(error: DaemonError) -> CliError {
        CliError::Daemon(error)
    }
}

impl From<EmulationError> for CliError {
    fn from(error: EmulationError) -> CliError {
        CliError::Emulation(error)
    }
}

impl From<MountError> for CliError {
    fn from(error: MountError) -> CliError {
        CliError::Mount(error)
    }
}

impl From<SystemError> for CliError {
    fn from(error: SystemError) -> CliError {
        CliError::System(error)
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report().fmt(f)
    }
}

impl std::error::Error for CliError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CliError::System(SystemError::Io { source, .. }) => Some(source),
            _ => None,
        }
    }
}
