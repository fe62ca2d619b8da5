//! Why a measurement came to no result.

use std::fmt;

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
        }
    }
}

impl std::error::Error for BenchError {}

impl From<crate::standin::RigError> for BenchError {
    fn from(error: crate::standin::RigError) -> BenchError {
        BenchError::Misbehaved { what: error.0 }
    }
}
