//! The log of a discovery service.

use crate::bytes::{put, put_text, text_at, u16_at, u64_at};

/// Bytes of the log's header, and of an entry.
pub const ENTRY_SIZE: usize = 1024;

/// Where a subsystem can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What is there.
    pub kind: EntryKind,
    /// Whether the address has four bytes, or sixteen.
    pub is_ipv4: bool,
    /// The port.
    pub port: &'a str,
    /// The address.
    pub address: &'a str,
    /// The subsystem.
    pub subsystem: &'a str,
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Another discovery service.
    Referral = 1,
    /// A subsystem with namespaces.
    Nvm = 2,
    /// This very discovery service.
    Current = 3,
}

impl<'a> Entry<'a> {
    /// Writes it.
    ///
    /// # Panics
    /// When `out` is not [`ENTRY_SIZE`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        assert_eq!(out.len(), ENTRY_SIZE, "an entry has its size");
        out.fill(0);
        // TCP; the address family.
        out[..3].copy_from_slice(&[3, if self.is_ipv4 { 1 } else { 2 }, self.kind as u8]);
        // No secure channel is asked for; flow control may be left out.
        out[3] = 1 << 2;
        put(out, 4, &1u16.to_le_bytes());
        put(out, 6, &crate::fabrics::CNTLID_ANY.to_le_bytes());
        put(out, 8, &32u16.to_le_bytes());
        put_text(out, 32, 32, self.port, b' ');
        put_text(out, 256, 256, self.subsystem, 0);
        put_text(out, 512, 256, self.address, b' ');
    }

    /// What is in `bytes`, if it is about a kind of thing, over TCP, in text.
    pub fn decode(bytes: &'a [u8]) -> Option<Entry<'a>> {
        if bytes.len() < ENTRY_SIZE || bytes[0] != 3 {
            return None;
        }
        let kind = match bytes[2] {
            1 => EntryKind::Referral,
            2 => EntryKind::Nvm,
            3 => EntryKind::Current,
            _ => return None,
        };
        Some(Entry {
            kind,
            is_ipv4: bytes[1] == 1,
            port: text_at(bytes, 32, 32)?,
            address: text_at(bytes, 512, 256)?,
            subsystem: text_at(bytes, 256, 256)?,
        })
    }
}

/// Writes the header of a log of so many entries.
///
/// # Panics
/// When `out` is not [`ENTRY_SIZE`] bytes.
pub fn encode_header(generation: u64, entry_count: u64, out: &mut [u8]) {
    assert_eq!(out.len(), ENTRY_SIZE, "the header has its size");
    out.fill(0);
    put(out, 0, &generation.to_le_bytes());
    put(out, 8, &entry_count.to_le_bytes());
}

/// Generation and number of entries, of a log in a format that is known.
pub fn decode_header(bytes: &[u8]) -> Option<(u64, u64)> {
    let known = bytes.len() >= 18 && u16_at(bytes, 16) == 0;
    known.then(|| (u64_at(bytes, 0), u64_at(bytes, 8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure "Discovery Log Page Entry Data Structure".
    #[test]
    fn an_entry_lies_in_its_bytes_as_specified() {
        let entry = Entry {
            kind: EntryKind::Nvm,
            is_ipv4: true,
            port: "4420",
            address: "127.0.0.1",
            subsystem: "nqn.y",
        };
        let mut out = [0xff; ENTRY_SIZE];
        entry.encode(&mut out);
        assert_eq!(out[..10], [3, 1, 2, 4, 1, 0, 0xff, 0xff, 32, 0]);
        assert_eq!(&out[32..38], b"4420  ");
        assert_eq!(&out[256..262], b"nqn.y\0");
        assert_eq!(&out[512..523], b"127.0.0.1  ");
        assert_eq!(Entry::decode(&out), Some(entry));
        encode_header(3, 1, &mut out);
        assert_eq!(decode_header(&out), Some((3, 1)));
    }
}
