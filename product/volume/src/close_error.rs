//! Why a volume did not end in order.

use std::fmt;
use std::io;

/// Why a volume did not end in order. All that was acknowledged as durable is safe all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseError {
    /// The last checkpoint could not be written, now or since an earlier failure.
    Device {
        /// The operating system's error number.
        errno: i32,
    },
    /// The program has a bug; what it said.
    Bug(String),
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseError::Device { errno } => write!(
                f,
                "the volume could not be closed in order, the device failed: {}; what was \
                 flushed is safe, and opening the store again recovers it",
                io::Error::from_raw_os_error(*errno)
            ),
            CloseError::Bug(message) => write!(
                f,
                "the volume had stopped because of a bug in coulter: {message}; what was flushed \
                 is safe, and opening the store again recovers it"
            ),
        }
    }
}

impl std::error::Error for CloseError {}
