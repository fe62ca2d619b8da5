//! Where a server listens: `unix:/path` or `tcp:host:port`, which `host:port` stands for, too.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The place of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// A name or a numeric address, without brackets.
        host: String,
        /// The port; zero lets the system choose when listening.
        port: u16,
    },
}

/// A text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressError { text, reason } = self;
        write!(f, "'{text}': {reason}; expected unix:/path/to/socket or tcp:host:port")
    }
}

impl std::error::Error for AddressError {}

/// Maximum length in bytes of a socket's path, without the final zero.
const UNIX_PATH_SIZE_MAX: usize = 107;

/// The first size that is too large.
const SIZE_ABOVE_MAX: usize = UNIX_PATH_SIZE_MAX + 1;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let error = |reason| AddressError { text: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => Err(error("the path is missing")),
                SIZE_ABOVE_MAX.. => Err(error("a socket's path has at most 107 bytes")),
                _ => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        let is_plain = !text.contains('/') && text.contains(':');
        let Some(rest) = text.strip_prefix("tcp:").or(is_plain.then_some(text)) else {
            return Err(error("no such kind of address"));
        };
        let Some((host, port)) = rest.rsplit_once(':') else {
            return Err(error("the port is missing"));
        };
        let port = port.parse().map_err(|_| error("the port is not a number below 65536"))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(|| error("']' is missing"))?,
            None if host.contains(':') => return Err(error("an IPv6 address needs brackets")),
            None => host,
        };
        if host.is_empty() {
            return Err(error("the host is missing"));
        }
        Ok(Address::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_text() {
        for text in ["unix:/run/c.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:0", "tcp:localhost:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_host_and_a_port_are_a_tcp_address() {
        for (text, full) in [
            ("127.0.0.1:4420", "tcp:127.0.0.1:4420"),
            ("[::1]:0", "tcp:[::1]:0"),
            ("localhost:1", "tcp:localhost:1"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), full);
        }
    }

    #[test]
    fn what_is_not_an_address_is_refused_with_a_reason() {
        let long = format!("unix:/{}", "a".repeat(UNIX_PATH_SIZE_MAX));
        for (text, reason) in [
            ("/run/c.sock", "no such kind"),
            ("/run/c.sock:5", "no such kind"),
            ("http://host:5", "no such kind"),
            ("4420", "no such kind"),
            ("host:port", "below 65536"),
            ("unix:", "path is missing"),
            (&long, "at most"),
            ("tcp:host", "port is missing"),
            ("tcp:host:70000", "below 65536"),
            ("tcp:::1:5", "brackets"),
            ("tcp:[::1:5", "']'"),
            ("tcp::5", "host is missing"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
