//! What can go wrong in the laboratory, beside what can in the product.

mod emulation;
mod trial;

pub(crate) use coulter_cli::error::SystemError;
pub(crate) use emulation::EmulationError;
pub(crate) use trial::TrialError;

use coulter_cli::error::CliError;
use coulter_daemon::Error;
use coulter_daemon::error::OpenError;
use coulter_terminal::Report;
use std::io;
use std::path::Path;

/// An error with its context.
#[derive(Debug)]
pub(crate) enum LabError {
    /// The product's.
    Product(CliError),
    /// About emulated drives.
    Emulation(EmulationError),
    /// About measurements, simulations and the demonstration.
    Trial(TrialError),
}

impl LabError {
    /// An operating-system error on a path. `action` is a verb phrase that the path completes.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> LabError {
        LabError::Product(CliError::io(action, path, source))
    }

    /// What, why, and what to do.
    pub(crate) fn report(&self) -> Report {
        match self {
            LabError::Product(error) => error.report(),
            LabError::Emulation(error) => error.report(),
            LabError::Trial(error) => error.report(),
        }
    }
}

impl From<CliError> for LabError {
    fn from(error: CliError) -> LabError {
        LabError::Product(error)
    }
}

impl From<Error> for LabError {
    fn from(error: Error) -> LabError {
        LabError::Product(error.into())
    }
}

impl From<OpenError> for LabError {
    fn from(error: OpenError) -> LabError {
        LabError::Product(error.into())
    }
}

impl From<SystemError> for LabError {
    fn from(error: SystemError) -> LabError {
        LabError::Product(error.into())
    }
}

impl From<EmulationError> for LabError {
    fn from(error: EmulationError) -> LabError {
        LabError::Emulation(error)
    }
}

impl From<TrialError> for LabError {
    fn from(error: TrialError) -> LabError {
        LabError::Trial(error)
    }
}

/// For what a daemon calls back.
impl From<LabError> for Error {
    fn from(error: LabError) -> Error {
        match error {
            LabError::Product(error) => error.into(),
            other => Error::Told(other.report()),
        }
    }
}

impl std::fmt::Display for LabError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report().fmt(f)
    }
}
