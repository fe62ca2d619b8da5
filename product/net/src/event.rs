//! Events of the clients of a server.

use super::malformed::Malformed;
use rustix::io::Errno;
use std::fmt;
use std::io;

/// An event of a client.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// It connected, as the connection of this number.
    Opened(u64),
    /// It was refused, because there are too many clients, it may not come, or no thread could be
    /// started.
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
    /// The client closed the connection without a disconnect request.
    Lost,
    /// The server ends.
    Shutdown,
    /// The client did not finish the negotiation in time.
    HandshakeTimeout,
    /// The client had not said what it wants, and others came.
    Displaced,
    /// The client did not prove who it is.
    Unproved,
    /// The client's keep-alive expired.
    Silent,
    /// The client sent bytes that leave the stream out of step.
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
            CloseReason::Displaced => {
                write!(f, "the client had not said what it wants, and others came")
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

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Clients now.
    pub connections: u64,
    /// Clients that were accepted.
    pub opened: u64,
    /// Clients that were refused, or hung up on before they had said what they want because others
    /// came.
    pub refused: u64,
    /// Connections that ended because the client broke the protocol.
    pub protocol_errors: u64,
}
