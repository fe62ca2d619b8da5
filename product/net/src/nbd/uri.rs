//! The NBD URI by which other tools reach an export.

use crate::Address;

/// The URI of the export `name` of a server at `address`.
pub fn uri(address: &Address, name: &str) -> String {
    let name = percent_encoded(name.as_bytes(), b"");
    match address {
        Address::Unix(path) => {
            let path = percent_encoded(path.as_os_str().as_encoded_bytes(), b"/");
            format!("nbd+unix:///{name}?socket={path}")
        }
        Address::Tcp { host, port } if host.contains(':') => {
            format!("nbd://[{host}]:{port}/{name}")
        }
        Address::Tcp { host, port } => format!("nbd://{host}:{port}/{name}"),
    }
}

fn percent_encoded(bytes: &[u8], kept: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || kept.contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_encoded() {
        let unix = Address::Unix("/run/a b.sock".into());
        assert_eq!(uri(&unix, "x/y"), "nbd+unix:///x%2Fy?socket=/run/a%20b.sock");
        assert_eq!(uri(&"tcp:[::1]:5".parse().unwrap(), ""), "nbd://[::1]:5/");
    }
}
