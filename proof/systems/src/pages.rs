//! Pages as databases write them: with `RWF_ATOMIC`, so that each is there whole, as it was or as it became,
//! whenever the power is cut. Every sector of a page tells which page and which version it belongs to.

use crate::error::SystemsError;
use coulter::buffer::Buffer;
use rustix::io::{ReadWriteFlags, pwritev2};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a sector, the least that a disk writes whole.
const SECTOR_SIZE: usize = 512;
/// What marks a sector of a page.
const MAGIC: u64 = 0x7061_6765_2d6d_6172;
/// `RWF_ATOMIC`, since Linux 6.11.
const ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);
/// `O_DIRECT`: atomic writes are no others.
const DIRECT: i32 = 0o40000;
/// Writes between two that are made durable.
const WRITES_PER_SYNC: u64 = 32;

/// A page that is neither as it was nor as it became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Which.
    pub page: u64,
    /// The first sector that does not go with the first one of the page.
    pub sector: usize,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} is torn at its sector {}", self.page, self.sector)
    }
}

/// What was found in a file of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Pages that are torn.
    pub torn: Vec<Torn>,
    /// Pages that were written.
    pub written: u64,
}

/// A file of pages.
#[derive(Debug)]
pub struct Pages {
    path: PathBuf,
    file: File,
    page_size: usize,
    count: u64,
}

impl Pages {
    /// Opens a file of `count` pages, or makes it.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// When a page is no power of two of at least 4096 bytes, or there is none.
    pub fn open(path: &Path, page_size: usize, count: u64) -> Result<Pages, SystemsError> {
        assert!(page_size.is_power_of_two() && page_size >= 4096, "a page is a power of two");
        assert!(count > 0, "there are pages");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(DIRECT);
        let file = options.open(path).map_err(|error| SystemsError::io("open", path, error))?;
        Ok(Pages { path: path.to_owned(), file, page_size, count })
    }

    /// Writes every page once.
    ///
    /// # Errors
    /// What the system says; that it knows no atomic writes of this size, for one.
    pub fn fill(&self, version: u64) -> Result<(), SystemsError> {
        let mut buffer = Buffer::zeroed(self.page_size);
        for page in 0..self.count {
            stamp(&mut buffer, page, version);
            self.write(page, &buffer)?;
        }
        self.sync()
    }

    /// Overwrites pages in an order that `seed` gives, until an error. Every so often all are durable.
    ///
    /// # Errors
    /// What the system says.
    pub fn overwrite(&self, seed: u64, writes: u64) -> Result<(), SystemsError> {
        let mut random = coulter_workload::Random::new(seed);
        let mut buffer = Buffer::zeroed(self.page_size);
        for number in 1..=writes {
            let page = random.bits() % self.count;
            stamp(&mut buffer, page, seed << 32 | number);
            self.write(page, &buffer)?;
            if number.is_multiple_of(WRITES_PER_SYNC) {
                self.sync()?;
            }
        }
        self.sync()
    }

    /// Reads every page; those that are torn, and how many were written by seeds from `since` on: of each seed as
    /// many as its last one that can still be seen says.
    ///
    /// # Errors
    /// What the system says.
    pub fn check(&self, since: u64) -> Result<Checked, SystemsError> {
        let mut buffer = Buffer::zeroed(self.page_size);
        let (mut torn, mut last) = (Vec::new(), BTreeMap::new());
        for page in 0..self.count {
            let offset = page * self.page_size as u64;
            let read = self.file.read_exact_at(&mut buffer, offset);
            read.map_err(|error| self.failed("read", error))?;
            torn.extend(torn_sector(&buffer, page).map(|sector| Torn { page, sector }));
            let version = version_of(&buffer);
            let (seed, number) = (version >> 32, version & u64::from(u32::MAX));
            if seed >= since {
                let last = last.entry(seed).or_insert(number);
                *last = number.max(*last);
            }
        }
        Ok(Checked { torn, written: last.values().sum() })
    }

    fn write(&self, page: u64, bytes: &[u8]) -> Result<(), SystemsError> {
        let offset = page * self.page_size as u64;
        let written = pwritev2(&self.file, &[IoSlice::new(bytes)], offset, ATOMIC);
        match written.map_err(io::Error::from) {
            Ok(size) if size == bytes.len() => Ok(()),
            Ok(_) => Err(self.failed("write whole pages to", io::ErrorKind::WriteZero.into())),
            Err(error) => Err(self.failed("write atomically to", error)),
        }
    }

    fn sync(&self) -> Result<(), SystemsError> {
        self.file.sync_data().map_err(|error| self.failed("sync", error))
    }

    fn failed(&self, action: &'static str, error: io::Error) -> SystemsError {
        SystemsError::io(action, &self.path, error)
    }
}

/// Makes every sector tell page and version.
fn stamp(buffer: &mut [u8], page: u64, version: u64) {
    for sector in buffer.chunks_exact_mut(SECTOR_SIZE) {
        for (index, word) in sector.chunks_exact_mut(8).enumerate() {
            let value = [MAGIC, page, version][index % 3];
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// The version that the first sector of a page tells.
fn version_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes[16..].first_chunk().expect("a page has more"))
}

/// The first sector that is not of the same page and version as the first one.
fn torn_sector(bytes: &[u8], page: u64) -> Option<usize> {
    let version = version_of(bytes);
    let mut expected = [0; SECTOR_SIZE];
    stamp(&mut expected, page, version);
    bytes.chunks_exact(SECTOR_SIZE).position(|sector| sector != expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_page_is_found_wherever_it_is_torn() {
        let (mut old, mut new) = (vec![0; 16384], vec![0; 16384]);
        stamp(&mut old, 7, 1);
        stamp(&mut new, 7, 2);
        assert_eq!(torn_sector(&old, 7), None);
        assert_eq!(torn_sector(&old, 8), Some(0), "it is another page");
        assert_eq!(torn_sector(&vec![0; 16384], 7), Some(0), "it was never written");
        for sector in 1..32 {
            let torn = [&new[..sector * SECTOR_SIZE], &old[sector * SECTOR_SIZE..]].concat();
            assert_eq!(torn_sector(&torn, 7), Some(sector));
        }
    }
}
