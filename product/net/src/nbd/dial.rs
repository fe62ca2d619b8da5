//! Reaching an NBD server: connect, negotiate, and leave the socket to the caller.

use super::client_handshake::negotiate;
use crate::{Address, Malformed};
use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// What a client asks for when it connects.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The export; empty for the server's default.
    pub export: String,
    /// Ask for structured replies, and with them for block status.
    pub structured_replies: bool,
    /// Time for connecting and negotiating.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        let timeout = Duration::from_secs(10);
        ClientOptions { export: String::new(), structured_replies: true, timeout }
    }
}

/// Why a client could not connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket failed, or the time was over.
    Io(io::Error),
    /// The server does not speak the protocol.
    Protocol(Malformed),
    /// The server refused the export.
    Refused {
        /// One of [`super::wire::option_reply`].
        kind: u32,
        /// The server's words.
        text: String,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Io(error) => write!(f, "cannot reach the NBD server: {error}"),
            ClientError::Protocol(malformed) => write!(f, "protocol error: {malformed}"),
            ClientError::Refused { kind, text } => {
                write!(f, "the NBD server refused the export (reply {kind:#x}): {text}")
            }
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::Io(error) => Some(error),
            ClientError::Protocol(malformed) => Some(malformed),
            ClientError::Refused { .. } => None,
        }
    }
}

impl From<Malformed> for ClientError {
    fn from(malformed: Malformed) -> ClientError {
        ClientError::Protocol(malformed)
    }
}

/// A connection that has finished the handshake, for a client that only goes on from there.
pub struct Connected {
    /// Its socket.
    pub socket: OwnedFd,
    /// Bytes of the export.
    pub size: u64,
    /// Its transmission flags.
    pub flags: u16,
}

/// Connects and negotiates simple replies, and nothing more.
///
/// # Errors
/// As [`negotiate`].
pub fn handshake_only(address: &Address, export: &str) -> Result<Connected, ClientError> {
    let options = ClientOptions {
        export: export.to_owned(),
        structured_replies: false,
        ..ClientOptions::default()
    };
    let socket = open(address).map_err(ClientError::Io)?;
    let terms = negotiate(&socket, &options, Instant::now() + options.timeout)?;
    Ok(Connected { socket, size: terms.size, flags: terms.flags })
}

/// Connects a socket that does not block.
///
/// # Errors
/// When the server cannot be reached.
pub fn open(address: &Address) -> io::Result<OwnedFd> {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            Ok(stream.into())
        }
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream.into())
        }
    }
}
