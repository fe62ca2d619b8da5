//! Why an initiator got no further.

use coulter_nvme::Cqe;
use std::fmt;
use std::io;

/// Why an initiator got no further.
#[derive(Debug)]
#[non_exhaustive]
pub enum InitiatorError {
    /// The socket failed, or the time was over.
    Io(io::Error),
    /// The target does not speak the protocol.
    Protocol(&'static str),
    /// The target ended the connection, for this reason, if it gave one.
    Ended(Option<u16>),
    /// The target did not believe this host, for this reason.
    Refused(u8),
    /// The target refused a command.
    Status(Cqe),
}

impl fmt::Display for InitiatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitiatorError::Io(error) => write!(f, "cannot reach the NVMe target: {error}"),
            InitiatorError::Protocol(what) => write!(f, "protocol error: {what}"),
            InitiatorError::Ended(None) => write!(f, "the NVMe target hung up"),
            InitiatorError::Ended(Some(status)) => {
                write!(f, "the NVMe target hung up with fatal error {status}")
            }
            InitiatorError::Refused(reason) => {
                write!(f, "the NVMe target does not believe this host: reason {reason}")
            }
            InitiatorError::Status(cqe) => {
                write!(f, "the NVMe target refused a command: {}", cqe.status)
            }
        }
    }
}

impl std::error::Error for InitiatorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            InitiatorError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for InitiatorError {
    fn from(error: io::Error) -> InitiatorError {
        InitiatorError::Io(error)
    }
}
