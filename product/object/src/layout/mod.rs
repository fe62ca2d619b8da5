//! The bytes of the objects; `docs/objects.md` describes them.
//!
//! Every object of ours but data objects begins with the same 48 bytes and ends with a checksum:
//!
//! ```text
//! offset bytes
//!  0      8    magic: "CLTRVOLU", "CLTRPINS", "CLTRCOMM", "CLTRMANI"
//!  8      4    version: 1
//! 12      4    incompatible features: of `volume` bit 0, a clone; an unknown bit is refused
//! 16     16    the volume
//! 32     16    nonce: no two objects have the same
//! 48           fields of the kind
//! -4      4    CRC-32C of all bytes before it
//! ```
//!
//! A data object ends with a checksum only: [`data`]. Numbers are little-endian. Decoders are total: damaged bytes give [`Corrupt`], never a panic.

mod bytes;
pub mod commit;
pub mod data;
pub mod manifest;
pub mod pins;
pub mod volume;

pub use commit::{Commit, Entry};
pub use manifest::Manifest;
pub use pins::{Pin, Pins};
pub use volume::{Epoch, Stage, VolumeRecord};

pub(crate) use bytes::COUNTED_MAX;
use bytes::{Reader, Writer};
use std::fmt;

/// The version of all of them.
pub const VERSION: u32 = 1;

/// Identity of a replicated volume: one history of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeId(pub [u8; 16]);

impl VolumeId {
    /// A new one.
    pub fn random() -> VolumeId {
        VolumeId(crate::random::random_bytes())
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Makes one object unlike every other.
pub type Nonce = [u8; 16];

/// A new nonce.
pub fn nonce() -> Nonce {
    crate::random::random_bytes()
}

/// An object whose bytes make no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// Which structure: `commit`, `manifest`, `volume`, `pins`, `data`.
    pub structure: &'static str,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It ends too early.
    Short,
    /// Bytes follow its end.
    Long,
    /// It is another kind of object.
    Magic,
    /// Its version is not ours.
    Version(u32),
    /// It uses features that we do not know; their bits.
    Features(u32),
    /// Its checksum does not match.
    Checksum,
    /// It belongs to another volume.
    Volume,
    /// It is not what its name says.
    Name,
    /// A field has a value that it cannot have: its name.
    Field(&'static str),
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let structure = self.structure;
        match self.reason {
            Reason::Short => write!(f, "{structure}: it ends too early"),
            Reason::Long => write!(f, "{structure}: bytes follow its end"),
            Reason::Magic => write!(f, "{structure}: it is not one"),
            Reason::Version(version) => {
                write!(f, "{structure}: version {version}; this program knows version {VERSION}")
            }
            Reason::Features(bits) => write!(f, "{structure}: unknown features {bits:#x}"),
            Reason::Checksum => write!(f, "{structure}: the checksum does not match"),
            Reason::Volume => write!(f, "{structure}: it belongs to another volume"),
            Reason::Name => write!(f, "{structure}: it is not the object that its name says"),
            Reason::Field(field) => write!(f, "{structure}: impossible value of '{field}'"),
        }
    }
}

impl std::error::Error for Corrupt {}

/// The first bytes of an object.
fn header(magic: &[u8; 8], volume: VolumeId, nonce: &Nonce) -> Writer {
    header_with(magic, 0, volume, nonce)
}

/// The same of an object that uses incompatible features.
fn header_with(magic: &[u8; 8], features: u32, volume: VolumeId, nonce: &Nonce) -> Writer {
    let mut writer = Writer::default();
    writer.bytes(magic);
    writer.u32(VERSION);
    writer.u32(features);
    writer.bytes(&volume.0);
    writer.bytes(nonce);
    writer
}

/// Ends an object: appends the checksum.
fn seal(mut writer: Writer) -> Vec<u8> {
    let checksum = checksum(&writer.taken);
    writer.u32(checksum);
    writer.taken
}

/// Checks first bytes and checksum of an object; returns its fields, volume and nonce.
fn open<'a>(
    structure: &'static str,
    magic: &[u8; 8],
    bytes: &'a [u8],
) -> Result<(Reader<'a>, VolumeId, Nonce), Corrupt> {
    let (reader, _, volume, nonce) = open_with(structure, magic, 0, bytes)?;
    Ok((reader, volume, nonce))
}

/// The same of an object that may use the features `known`; returns those that it uses, too.
fn open_with<'a>(
    structure: &'static str,
    magic: &[u8; 8],
    known: u32,
    bytes: &'a [u8],
) -> Result<(Reader<'a>, u32, VolumeId, Nonce), Corrupt> {
    let (rest, sum) =
        bytes.split_last_chunk::<4>().ok_or(Corrupt { structure, reason: Reason::Short })?;
    let mut reader = Reader { structure, rest };
    if &reader.array::<8>()? != magic {
        return Err(reader.corrupt(Reason::Magic));
    }
    // Before the checksum: what a later version sums up, this one cannot know.
    let version = reader.u32()?;
    if version != VERSION {
        return Err(reader.corrupt(Reason::Version(version)));
    }
    if checksum(rest) != u32::from_le_bytes(*sum) {
        return Err(reader.corrupt(Reason::Checksum));
    }
    let features = reader.u32()?;
    if features & !known != 0 {
        return Err(reader.corrupt(Reason::Features(features & !known)));
    }
    let volume = VolumeId(reader.array()?);
    let nonce = reader.array()?;
    Ok((reader, features, volume, nonce))
}

/// CRC-32C.
pub fn checksum(bytes: &[u8]) -> u32 {
    // The algorithm's result is 32 bits wide; the library returns every width in 64.
    crc_fast::crc32_iscsi(bytes)
}
