//! Why a measurement came to no result.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a measurement came to no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum BenchError {
    /// An option makes no sense, or not with another one.
    Option {
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// What was measured did something that it must never do.
    Misbehaved {
        /// What it did.
        what: String,
    },
    /// A file to measure on could not be made.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file to measure on could not be opened as a device.
    OpenDevice(coulter_device::OpenError),
    /// A command to the bare file failed.
    Device(coulter_device::DeviceError),
    /// A store could not be made.
    Create(coulter::CreateError),
    /// A store could not be opened.
    Open(coulter::OpenError),
    /// A request to the volume failed.
    Request(coulter::service::RequestError),
    /// A store could not be shipped, or not be brought back.
    Replica(coulter_object::ReplicaError),
    /// A volume could not be closed in order.
    Close(coulter::CloseError),
    /// A trace could not be read.
    Trace(io::Error),
    /// A line of a trace could not be understood, and none was to be left out.
    BadLine {
        /// Its number, from 1.
        number: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A trace was read, and there is nothing in it to be replayed.
    NothingToReplay {
        /// Why.
        reason: String,
    },
    /// What was read of a trace could not be kept in a temporary file.
    Spool(io::Error),
    /// The system refused something.
    System {
        /// What was being done.
        doing: &'static str,
        /// Why it was refused.
        source: io::Error,
    },
}

impl BenchError {
    pub(crate) fn option(reason: impl Into<String>) -> BenchError {
        BenchError::Option { reason: reason.into() }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Option { reason } => write!(f, "{reason}"),
            BenchError::Misbehaved { what } => write!(f, "the measurement found a fault: {what}"),
            BenchError::File { path, .. } => write!(f, "{} cannot be written", path.display()),
            BenchError::OpenDevice(_) => write!(f, "the file to measure on cannot be opened"),
            BenchError::Device(_) => write!(f, "the file to measure on failed"),
            BenchError::Create(_) => write!(f, "no store can be made to measure on"),
            BenchError::Open(_) => write!(f, "the store to measure on cannot be opened"),
            BenchError::Request(_) => write!(f, "a request to the volume failed"),
            BenchError::Replica(_) => write!(f, "the store could not be shipped or brought back"),
            BenchError::Close(_) => write!(f, "the volume could not be closed"),
            BenchError::Trace(source) => write!(f, "the trace cannot be read: {source}"),
            BenchError::BadLine { number, reason } => write!(f, "line {number}: {reason}"),
            BenchError::NothingToReplay { reason } => {
                write!(f, "there is nothing to replay in the trace: {reason}")
            }
            BenchError::Spool(source) => {
                write!(f, "what was read cannot be kept in a temporary file: {source}")
            }
            BenchError::System { doing, .. } => write!(f, "{doing} failed"),
        }
    }
}

impl Error for BenchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BenchError::Option { .. }
            | BenchError::Misbehaved { .. }
            | BenchError::BadLine { .. }
            | BenchError::NothingToReplay { .. } => None,
            BenchError::Trace(source) | BenchError::Spool(source) => Some(source),
            BenchError::File { source, .. } | BenchError::System { source, .. } => Some(source),
            BenchError::OpenDevice(source) => Some(source),
            BenchError::Device(source) => Some(source),
            BenchError::Create(source) => Some(source),
            BenchError::Open(source) => Some(source),
            BenchError::Request(source) => Some(source),
            BenchError::Replica(source) => Some(source),
            BenchError::Close(source) => Some(source),
        }
    }
}

impl From<crate::standin::RigError> for BenchError {
    fn from(error: crate::standin::RigError) -> BenchError {
        BenchError::Misbehaved { what: error.0 }
    }
}
