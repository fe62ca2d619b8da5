//! Why a server could not start.

use super::address::Address;
use std::fmt;
use std::io;

/// Why a server could not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The server could not listen on the address.
    Bind {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The address can be reached from other machines, and that was not allowed.
    Remote {
        /// The address.
        address: Address,
    },
    /// The options or exports make no sense.
    Options(&'static str),
    /// The system has no more descriptors or threads.
    System(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Bind { address, source } => {
                // Without the number that the system has for it.
                let reason = source.to_string();
                let reason = reason.split(" (os error").next().unwrap_or_default();
                write!(f, "cannot listen on {address}: {reason}")
            }
            ServeError::Remote { address } => write!(
                f,
                "{address} can be reached from other machines, and this server has neither TLS nor \
                 passwords; listen on 127.0.0.1, or allow remote clients (`--allow-remote`)"
            ),
            ServeError::Options(text) => f.write_str(text),
            ServeError::System(error) => write!(f, "cannot start the server: {error}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServeError::Bind { source, .. } | ServeError::System(source) => Some(source),
            _ => None,
        }
    }
}
