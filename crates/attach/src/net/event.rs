//! What happens to the clients of a server.

use super::malformed::Malformed;
use rustix::io::Errno;
use std::fmt;
use std::io;

/// Something that happened to a client.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// It connected, as the connection of this number.
    Opened(u64),
    /// It was hung up on because there are too many, or no thread could be had.
    Refused,
    /// The connection of this number ended.
    Closed(u64, CloseReason),
}

/// Why a connection ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client said goodbye.
    Disconnected,
    /// The client went away without a word.
    Lost,
    /// The server ends.
    Shutdown,
    /// The client did not say in time what it wants.
    HandshakeTimeout,
    /// The client did not prove who it is.
    Unproved,
    /// The client gave no sign of life for as long as it had promised one.
    Silent,
    /// The client sent what no answer could mend.
    Protocol(Malformed),
    /// The socket failed.
    Io(io::Error),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Disconnected => write!(f, "the client disconnected"),
            CloseReason::Lost => write!(f, "the client went away"),
            CloseReason::Shutdown => write!(f, "the server is shutting down"),
            CloseReason::HandshakeTimeout => {
                write!(f, "the client did not say in time what it wants")
            }
            CloseReason::Unproved => write!(f, "the client did not prove who it is"),
            CloseReason::Silent => write!(f, "the client gave no sign of life"),
            CloseReason::Protocol(malformed) => write!(f, "protocol error: {malformed}"),
            CloseReason::Io(error) => write!(f, "the socket failed: {error}"),
        }
    }
}

impl From<Errno> for CloseReason {
    fn from(error: Errno) -> CloseReason {
        match error {
            Errno::PIPE | Errno::CONNRESET => CloseReason::Lost,
            error => CloseReason::Io(error.into()),
        }
    }
}

/// What a server has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Clients now.
    pub connections: u64,
    /// Clients that were let in.
    pub opened: u64,
    /// Clients that were hung up on at once.
    pub refused: u64,
    /// Connections that ended because the client broke the protocol.
    pub protocol_errors: u64,
}
