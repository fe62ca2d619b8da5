//! Which chunks of the device may differ from the remote copy, kept beside the store.
//!
//! A chunk's mark is durable before the chunk is first written, and taken off when its content has been
//! in a commit for a while and a flush of the device has come after it. So after a crash the marked
//! chunks, and no others, may differ, and are shipped anew as a whole.
//!
//! ```text
//! offset bytes
//!   0      8   magic: "CLTRMARK"
//!   8      4   version: 1
//!  12      4   bytes of a chunk
//!  16     16   the volume
//!  32      8   bytes of the device
//!  40      8   the epoch in which this host ships
//!  48      4   CRC-32C of the bytes before it
//! 128     2+n  how the store is replicated, in words for people, or nothing
//!         4    CRC-32C of the words
//! 4096         one bit a chunk, the lowest first; 1: it may differ
//! ```
//!
//! If any of this cannot be believed, every chunk may differ.
//!
//! The signature is durable before the file is used. An owner in the volume's record ends with it, so a store
//! recognizes a claim of its own that a crash cut short, and no other store takes that claim for its own.

use crate::layout::{VolumeId, checksum, nonce};
use coulter_system::private;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: &[u8; 8] = b"CLTRMARK";
const VERSION: u32 = 1;
const SIGNATURE_OFFSET: u64 = 64;
const WORDS_OFFSET: u64 = 128;
const WORDS_SIZE_MAX: usize = 2048;
const BITMAP_OFFSET: u64 = 4096;

/// What the marks belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The volume.
    pub volume: VolumeId,
    /// Bytes of the device.
    pub device_size: u64,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// The epoch in which this host ships.
    pub epoch: u64,
}

/// The marks of one store.
#[derive(Debug)]
pub struct Marks {
    /// `None`: in memory only, so that after an end of any kind everything may differ.
    file: Option<File>,
    bits: Vec<u8>,
    owner: Option<Owner>,
    signature: [u8; 16],
}

impl Marks {
    /// Marks that nothing survives: for tests.
    pub fn in_memory() -> Marks {
        Marks { file: None, bits: Vec::new(), owner: None, signature: nonce() }
    }

    /// The marks in a file of the user alone, which is made if there is none.
    ///
    /// # Errors
    /// When it cannot be opened or read. A file that makes no sense counts as none.
    pub fn open(path: &Path) -> io::Result<Marks> {
        let file = private::open(path)?;
        let size = file.metadata()?.len();
        let mut header = [0; 52];
        let signature = signature(&file)?;
        let mut marks = Marks { file: None, bits: Vec::new(), owner: None, signature };
        if size >= BITMAP_OFFSET {
            file.read_exact_at(&mut header, 0)?;
            if let Some(owner) = decode_header(&header) {
                let bytes = bitmap_size(&owner);
                if size >= BITMAP_OFFSET + bytes as u64 {
                    marks.bits = vec![0; bytes];
                    file.read_exact_at(&mut marks.bits, BITMAP_OFFSET)?;
                    marks.owner = Some(owner);
                }
            }
        }
        marks.file = Some(file);
        Ok(marks)
    }

    /// What they belong to, if that is known.
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Keeps in words how the store is replicated, durably; of words that are too long none.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remember(&mut self, words: &str) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let words = if words.len() <= WORDS_SIZE_MAX { words.as_bytes() } else { &[] };
        let size = (words.len() as u16).to_le_bytes();
        let bytes = [&size[..], words, &checksum(words).to_le_bytes()].concat();
        file.write_all_at(&bytes, WORDS_OFFSET)?;
        file.sync_all()
    }

    /// How the store was replicated last, if it is to be.
    pub fn remembered(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        let mut size = [0; 2];
        file.read_exact_at(&mut size, WORDS_OFFSET).ok()?;
        let size = usize::from(u16::from_le_bytes(size));
        let mut bytes = vec![0; size.min(WORDS_SIZE_MAX) + 4];
        file.read_exact_at(&mut bytes, WORDS_OFFSET + 2).ok()?;
        let (words, sum) = bytes.split_last_chunk::<4>()?;
        let is_sound = size <= WORDS_SIZE_MAX && checksum(words) == u32::from_le_bytes(*sum);
        let words = String::from_utf8(words.to_vec()).ok().filter(|_| is_sound);
        words.filter(|words| !words.is_empty())
    }

    /// How a claim with these marks is signed.
    pub fn signature(&self) -> String {
        let digits: String = self.signature.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("marks {digits}")
    }

    /// Chunks that may differ.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let bits = self.bits.iter().enumerate();
        bits.flat_map(|(index, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| index as u64 * 8 + bit)
        })
    }

    /// Whether a chunk may differ.
    pub fn is_set(&self, chunk: u64) -> bool {
        self.bits.get((chunk / 8) as usize).is_some_and(|byte| byte >> (chunk % 8) & 1 == 1)
    }

    /// Begins anew: they belong to `owner`, and every chunk may differ if `all`. Durable when it returns.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn adopt(&mut self, owner: Owner, all: bool) -> io::Result<()> {
        if all {
            self.bits.clear();
        }
        // Of a device that has grown, nothing was written to the new chunks yet.
        self.bits.resize(bitmap_size(&owner), if all { 0xff } else { 0 });
        for chunk in chunk_count(&owner)..self.bits.len() as u64 * 8 {
            self.bits[(chunk / 8) as usize] &= !(1 << (chunk % 8));
        }
        self.owner = Some(owner);
        let Some(file) = &self.file else { return Ok(()) };
        // The bits first: a header of the new epoch over bits of an older one would claim too much.
        file.write_all_at(&self.bits, BITMAP_OFFSET)?;
        file.sync_data()?;
        file.write_all_at(&encode_header(&owner), 0)?;
        file.sync_all()
    }

    /// Sets marks. Durable when it returns.
    ///
    /// # Errors
    /// When the file cannot be written: the chunks must not be.
    pub fn set(&mut self, chunks: &[u64]) -> io::Result<()> {
        for chunk in chunks {
            self.bits[(chunk / 8) as usize] |= 1 << (chunk % 8);
        }
        self.write(chunks)?;
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// Takes marks off. Whether that is durable matters to nobody.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn clear(&mut self, chunks: &[u64]) -> io::Result<()> {
        for chunk in chunks {
            self.bits[(chunk / 8) as usize] &= !(1 << (chunk % 8));
        }
        self.write(chunks)
    }

    /// Makes durable what was taken off, for marks to which that matters.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    fn write(&self, chunks: &[u64]) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        for chunk in chunks {
            let index = (chunk / 8) as usize;
            file.write_all_at(&self.bits[index..=index], BITMAP_OFFSET + index as u64)?;
        }
        Ok(())
    }
}

/// The signature in a file of marks; a file without one gets one, durably.
fn signature(file: &File) -> io::Result<[u8; 16]> {
    let mut bytes = [0; 20];
    let is_read = file.read_exact_at(&mut bytes, SIGNATURE_OFFSET).is_ok();
    let (signature, sum) = bytes.split_last_chunk::<4>().expect("20 bytes have 4 at their end");
    let found: [u8; 16] = signature.try_into().expect("16 bytes are left");
    if is_read && checksum(&found) == u32::from_le_bytes(*sum) {
        return Ok(found);
    }
    let made = nonce();
    let bytes = [&made[..], &checksum(&made).to_le_bytes()].concat();
    file.write_all_at(&bytes, SIGNATURE_OFFSET)?;
    file.sync_all()?;
    Ok(made)
}

fn chunk_count(owner: &Owner) -> u64 {
    owner.device_size.div_ceil(owner.chunk_size.into())
}

fn bitmap_size(owner: &Owner) -> usize {
    chunk_count(owner).div_ceil(8) as usize
}

fn encode_header(owner: &Owner) -> [u8; 52] {
    let mut bytes = Vec::with_capacity(52);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&owner.chunk_size.to_le_bytes());
    bytes.extend_from_slice(&owner.volume.0);
    bytes.extend_from_slice(&owner.device_size.to_le_bytes());
    bytes.extend_from_slice(&owner.epoch.to_le_bytes());
    bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
    bytes.try_into().expect("the fields make 52 bytes")
}

fn decode_header(header: &[u8; 52]) -> Option<Owner> {
    let (fields, sum) = header.split_last_chunk::<4>()?;
    let is_ours = fields.starts_with(MAGIC) && fields.get(8..12)? == VERSION.to_le_bytes();
    if !is_ours || checksum(fields) != u32::from_le_bytes(*sum) {
        return None;
    }
    let u64_at = |offset: usize| Some(u64::from_le_bytes(*fields.get(offset..)?.first_chunk()?));
    let owner = Owner {
        volume: VolumeId(*fields.get(16..)?.first_chunk()?),
        device_size: u64_at(32)?,
        chunk_size: u32::from_le_bytes(*fields.get(12..)?.first_chunk()?),
        epoch: u64_at(40)?,
    };
    (owner.chunk_size > 0).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    const OWNER: Owner =
        Owner { volume: VolumeId([7; 16]), device_size: 100 << 20, chunk_size: 8 << 20, epoch: 3 };

    #[test]
    fn marks_survive_and_damage_means_that_all_may_differ() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("marks");
        let mut marks = Marks::open(&path).expect("a file");
        assert_eq!(marks.owner(), None, "an empty file belongs to nothing");
        marks.adopt(OWNER, true).expect("the file is written");
        assert_eq!(marks.iter().count(), 13, "100 MiB are 13 chunks of 8 MiB");
        marks.clear(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).expect("the file is written");
        marks.set(&[3, 12]).expect("the file is written");
        let grown = Owner { device_size: 200 << 20, ..OWNER };
        marks.adopt(grown, false).expect("the file is written");
        assert_eq!(marks.iter().collect::<Vec<_>>(), [3, 12], "what has grown keeps its marks");
        marks.adopt(OWNER, false).expect("the file is written");
        let signature = marks.signature();
        assert_eq!(marks.remembered(), None);
        marks.remember("--replicate s3://one/two").expect("the file is written");
        drop(marks);
        let marks = Marks::open(&path).expect("a file");
        assert_eq!(marks.signature(), signature);
        assert_eq!(marks.remembered().as_deref(), Some("--replicate s3://one/two"));
        assert_eq!(marks.owner(), Some(OWNER));
        assert_eq!(marks.iter().collect::<Vec<_>>(), [3, 12]);
        assert!(marks.is_set(12) && !marks.is_set(11) && !marks.is_set(1000));
        drop(marks);
        let file = OpenOptions::new().write(true).open(&path).expect("a file");
        file.write_all_at(b"x", 20).expect("the file is written");
        assert_eq!(Marks::open(&path).expect("a file").owner(), None, "a damaged header is none");
    }
}
