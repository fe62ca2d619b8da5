//! What is already on a file or disk, known by its magic bytes, or at least that there is anything.
//!
//! This guards `create` against overwriting somebody's data, tells `mount` whether a volume holds
//! a file system yet, and lets `create --force` erase the old marks so that no tool takes the new
//! store for what was there before. It is not a validator: a damaged file system counts as one.
//!
//! Invariants:
//! - the target is only read, save by [`erase`];
//! - a target that is too short for a signature cannot carry it: no row ever reads out of range;
//! - every row lies in the first or the last mebibyte, so two reads see all of them.

mod table;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use table::{Place, ROWS, Row};

/// Bytes at either end that are looked at.
const WINDOW_SIZE: u64 = 1 << 20;

const _: () = {
    let mut index = 0;
    while index < ROWS.len() {
        let size = ROWS[index].magic.len() as u64;
        assert!(size > 0, "a signature without a byte");
        assert!(ROWS[index].place.reach(size) <= WINDOW_SIZE, "a signature outside of the windows");
        index += 1;
    }
};

/// What a store's own signature is called.
pub const COULTER: &str = "a Coulter store";

/// The words for a file system of Coulter's own on a volume.
pub const COULTER_FILES: &str = "a Coulter file system";

/// The words for the data of an overlay on a volume.
pub const COULTER_OVERLAY: &str = "data of a Coulter overlay";

/// A signature that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What it stands for, with its article: `an XFS file system`.
    pub what: &'static str,
    /// The name that `mount -t` knows, for a file system that can be mounted as it is.
    pub mount_type: Option<&'static str>,
    /// First byte of the magic in the target.
    pub offset: u64,
    /// Bytes of the magic.
    pub length: u64,
}

/// The two ends of a target, as the table's checks see them.
pub struct Ends {
    size: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Ends {
    fn read(file: &File, size: u64) -> io::Result<Ends> {
        let length = size.min(WINDOW_SIZE);
        let mut ends =
            Ends { size, head: vec![0; length as usize], tail: vec![0; length as usize] };
        file.read_exact_at(&mut ends.head, 0)?;
        file.read_exact_at(&mut ends.tail, size - length)?;
        Ok(ends)
    }

    /// The bytes from `offset` on, if both ends of the range are in one of the windows.
    pub fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        assert!(length as u64 <= WINDOW_SIZE, "more bytes than a window has");
        let tail_start = self.size - self.tail.len() as u64;
        let (window, start) =
            if offset >= tail_start { (&self.tail, tail_start) } else { (&self.head, 0) };
        let first = usize::try_from(offset - start).ok()?;
        window.get(first..first.checked_add(length)?)
    }

    /// A little-endian 32-bit number, or 0 beyond the target.
    pub fn u32_at(&self, offset: u64) -> u32 {
        let bytes = self.bytes(offset, 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or([0; 4]))
    }

    /// The first byte of the windows that is not zero.
    fn first_in_use(&self) -> Option<u64> {
        let in_use = |window: &[u8]| window.iter().position(|&byte| byte != 0);
        let tail_start = self.size - self.tail.len() as u64;
        let head = in_use(&self.head).map(|at| at as u64);
        head.or_else(|| in_use(&self.tail).map(|at| tail_start + at as u64))
    }

    fn holds(&self, offset: u64, row: &Row) -> bool {
        self.bytes(offset, row.magic.len()) == Some(row.magic)
            && row.plausible.is_none_or(|plausible| plausible(self))
    }
}

impl Place {
    /// Bytes from the nearer end of a target that hold all of a magic of `size` bytes.
    const fn reach(self, size: u64) -> u64 {
        match self {
            Place::Start(offset) => offset + size,
            Place::End(back) => back,
            Place::EndAligned { back, alignment } => back + 2 * alignment,
        }
    }

    /// The byte where the magic has to be in a target of `size` bytes.
    fn offset(self, size: u64) -> Option<u64> {
        match self {
            Place::Start(offset) => Some(offset),
            Place::End(back) => size.checked_sub(back),
            Place::EndAligned { back, alignment } => {
                (size - size % alignment).checked_sub(back).map(|at| at - at % alignment)
            }
        }
    }
}

/// Every known signature in the first `size` bytes of `file`, most telling first.
///
/// # Errors
/// When either end of the target cannot be read.
pub fn detect(file: &File, size: u64) -> io::Result<Vec<Signature>> {
    Ok(known(&Ends::read(file, size)?))
}

/// The same, and the first byte that is not zero within a mebibyte of either end: what carries no
/// known signature may be somebody's data all the same.
///
/// # Errors
/// When either end of the target cannot be read.
pub fn detect_anything(file: &File, size: u64) -> io::Result<(Vec<Signature>, Option<u64>)> {
    let ends = Ends::read(file, size)?;
    Ok((known(&ends), ends.first_in_use()))
}

fn known(ends: &Ends) -> Vec<Signature> {
    let found = ROWS.iter().filter_map(|row| {
        let offset = row.place.offset(ends.size)?;
        ends.holds(offset, row).then_some(Signature {
            what: row.what,
            mount_type: row.mount_type,
            offset,
            length: row.magic.len() as u64,
        })
    });
    found.chain(table::zfs_uberblocks(ends)).collect()
}

/// Zeroes the magic bytes of `signatures` and makes that durable.
///
/// # Errors
/// When the target cannot be written.
pub fn erase(file: &File, signatures: &[Signature]) -> io::Result<()> {
    for signature in signatures {
        assert!(signature.length > 0, "{}: nothing to erase", signature.what);
        file.write_all_at(&vec![0; signature.length as usize], signature.offset)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests;
