//! Where metrics are served, as people write it: an address and a port, or a port of the loopback.

use std::net::{Ipv4Addr, SocketAddr};

/// Reads `ADDRESS:PORT`, or `PORT` for one of 127.0.0.1.
pub(crate) fn parse(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| "write ADDRESS:PORT, such as 127.0.0.1:9640, or a port".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_of_the_loopback() {
        assert_eq!(parse("9640").unwrap().to_string(), "127.0.0.1:9640");
        assert_eq!(parse("127.0.0.2:9640").unwrap().to_string(), "127.0.0.2:9640");
        assert_eq!(parse("[::1]:0").unwrap().to_string(), "[::1]:0");
        for text in ["", "70000", "localhost", ":9640", "127.0.0.1", "-1"] {
            assert!(parse(text).unwrap_err().contains("127.0.0.1:9640"), "{text}");
        }
    }
}
