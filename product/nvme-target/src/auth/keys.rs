//! Keys, as `nvme gen-dhchap-key` spells them, and which host has which.

use super::response::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use coulter_nvme::auth::{Group, Hash};
use crc::{CRC_32_ISO_HDLC, Crc};
use std::fmt;
use std::str::FromStr;

const CHECKSUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// What is mixed into a key besides the name of its owner.
const PURPOSE: &str = "NVMe-over-Fabrics";

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeysError {
    /// Not `DHHC-1:HASH:BASE64:`, with a hash of 0 to 3.
    Spelling,
    /// The key is not 32, 48 or 64 bytes, or not as long as its hash wants.
    Length,
    /// The key does not match its checksum.
    Checksum,
    /// A line of a file, counted from one, is not `HOST KEY [CONTROLLER-KEY]`.
    Line(usize, Box<KeysError>),
    /// A file has no keys.
    Empty,
}

impl fmt::Display for KeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeysError::Spelling => f.write_str("a key has the form DHHC-1:HASH:BASE64:"),
            KeysError::Length => f.write_str("a key has 32, 48 or 64 bytes, as its hash has"),
            KeysError::Checksum => f.write_str("the key does not match its checksum"),
            KeysError::Line(number, reason) => write!(f, "line {number}: {reason}"),
            KeysError::Empty => f.write_str("there is no key"),
        }
    }
}

impl std::error::Error for KeysError {}

/// A key that two sides share. Its text form is that of `nvme gen-dhchap-key`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Vec<u8>,
    /// The hash that binds it to its owner's name; none if it is used as it is.
    transform: Option<Hash>,
}

impl fmt::Debug for Secret {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.bytes.len())
    }
}

impl Secret {
    /// The key as its owner, with this qualified name, uses it.
    pub fn of(&self, owner: &str) -> Vec<u8> {
        match self.transform {
            None => self.bytes.clone(),
            Some(hash) => hmac(hash, &self.bytes, &[owner.as_bytes(), PURPOSE.as_bytes()]),
        }
    }
}

impl FromStr for Secret {
    type Err = KeysError;

    fn from_str(text: &str) -> Result<Secret, KeysError> {
        let fields: Vec<&str> = text.trim().split(':').collect();
        let &["DHHC-1", hash, encoded, ""] = &fields[..] else { return Err(KeysError::Spelling) };
        let transform = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(KeysError::Spelling),
        };
        let mut bytes = STANDARD.decode(encoded).map_err(|_| KeysError::Spelling)?;
        let size = bytes.len().checked_sub(4).ok_or(KeysError::Length)?;
        let is_wanted = transform.is_none_or(|hash| hash.size() == size);
        if !matches!(size, 32 | 48 | 64) || !is_wanted {
            return Err(KeysError::Length);
        }
        let checksum = bytes.split_off(size);
        if checksum != CHECKSUM.checksum(&bytes).to_le_bytes() {
            return Err(KeysError::Checksum);
        }
        Ok(Secret { bytes, transform })
    }
}

/// A host that is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey {
    /// Its qualified name; none for any host.
    pub host: Option<String>,
    /// The key that the host must know.
    pub secret: Secret,
    /// The key that the controller knows, for hosts that ask it to prove that.
    pub controller: Option<Secret>,
}

/// Which hosts are let in, and what they must agree to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    hosts: Vec<HostKey>,
    /// The smallest group that is taken.
    pub group: Group,
}

impl Keys {
    /// Lets these hosts in, by this group or a larger one.
    ///
    /// # Errors
    /// [`KeysError::Empty`] if there are none.
    pub fn new(hosts: Vec<HostKey>, group: Group) -> Result<Keys, KeysError> {
        match hosts.is_empty() {
            true => Err(KeysError::Empty),
            false => Ok(Keys { hosts, group }),
        }
    }

    /// What a file says: lines of `HOST KEY [CONTROLLER-KEY]`, where `*` is any host that has no line of
    /// its own. Lines that are empty or begin with `#` are passed over.
    ///
    /// # Errors
    /// The first line that is wrong, or that there is none.
    pub fn parse(text: &str, group: Group) -> Result<Keys, KeysError> {
        let mut hosts = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let at = |reason| KeysError::Line(index + 1, Box::new(reason));
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (host, secret, controller) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [host, secret] => (host, secret, None),
                [host, secret, controller] => (host, secret, Some(controller)),
                _ => return Err(at(KeysError::Spelling)),
            };
            hosts.push(HostKey {
                host: (host != "*").then(|| host.to_owned()),
                secret: secret.parse().map_err(at)?,
                controller: controller.map(str::parse).transpose().map_err(at)?,
            });
        }
        Keys::new(hosts, group)
    }

    /// The key of a host. A line with its name goes before one for any host.
    pub(crate) fn of(&self, host: &str) -> Option<&HostKey> {
        let named = self.hosts.iter().find(|found| found.host.as_deref() == Some(host));
        named.or_else(|| self.hosts.iter().find(|found| found.host.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nvme gen-dhchap-key --hmac=N --secret=…` prints it.
    const PLAIN: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    const HASHED: &str = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

    #[test]
    fn a_key_is_read_as_nvme_cli_spells_it() {
        let plain: Secret = PLAIN.parse().expect("it is a key");
        assert_eq!(plain.bytes.len(), 32);
        assert_eq!(plain.of("nqn.host"), plain.bytes, "a key without a hash is used as it is");
        let hashed: Secret = HASHED.parse().expect("it is a key");
        assert_ne!(hashed.of("nqn.a"), hashed.of("nqn.b"), "a key is bound to its owner");
        assert_eq!(format!("{hashed:?}"), "Secret(32 bytes)");
    }

    #[test]
    fn what_is_wrong_with_a_key_is_named() {
        let parsed = |text: &str| text.parse::<Secret>().expect_err("it is wrong");
        for text in ["", "DHHC-1:00:", "DHHC-2:00:aaaa:", "DHHC-1:04:aaaa:", "DHHC-1:00:a*aa:"] {
            assert_eq!(parsed(text), KeysError::Spelling, "{text}");
        }
        assert_eq!(parsed("DHHC-1:00:aaaa:"), KeysError::Length);
        assert_eq!(parsed(&PLAIN.replace(":00:", ":02:")), KeysError::Length);
        assert_eq!(parsed(&PLAIN.replace("ia6z", "ia6a")), KeysError::Checksum);
    }

    #[test]
    fn a_file_names_hosts_and_its_wrong_lines() {
        let text = format!("# hosts\n\nnqn.a {PLAIN} {HASHED}\n* {HASHED}\n");
        let keys = Keys::parse(&text, Group::Null).expect("it is right");
        assert!(keys.of("nqn.a").is_some_and(|key| key.controller.is_some()));
        assert!(keys.of("nqn.b").is_some_and(|key| key.controller.is_none()));
        let parsed = |text: &str| Keys::parse(text, Group::Null).expect_err("it is wrong");
        assert_eq!(parsed("# none"), KeysError::Empty);
        let wrong = parsed(&format!("\nnqn.a {PLAIN} and more"));
        assert_eq!(wrong.to_string(), "line 2: a key has the form DHHC-1:HASH:BASE64:");
        let named = Keys::parse(&format!("nqn.a {PLAIN}"), Group::Null).expect("it is right");
        assert_eq!(named.of("nqn.b"), None, "a host without a key is not let in");
    }
}
