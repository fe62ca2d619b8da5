//! Why a volume did not end in order.

use std::io;

/// Why a volume did not end in order. All that was acknowledged as durable is safe all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The last checkpoint could not be written, now or since an earlier failure.
    #[error(
        "the volume could not be closed in order, the device failed: {}; what was flushed is safe, \
         and opening the store again recovers it", io::Error::from_raw_os_error(*.errno)
    )]
    Device {
        /// The operating system's error number.
        errno: i32,
    },
    /// The program has a bug; what it said.
    #[error(
        "the volume had stopped because of a bug in coulter: {0}; what was flushed is safe, and \
         opening the store again recovers it"
    )]
    Bug(String),
}
