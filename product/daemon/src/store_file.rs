//! The file or disk of a store, as far as it tells of itself without being opened as a store.

use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block};
use coulter_system::seekable;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes from the start of a store in which a superblock is looked for.
const SUPERBLOCK_WITHIN: u64 = 8 << 20;

/// Bytes of the file or disk at `path`, as it is now.
///
/// # Errors
/// When it cannot be looked at.
pub(crate) fn size_of(path: &Path) -> io::Result<u64> {
    seekable::open(path)?.seek(SeekFrom::End(0))
}

/// The UUID of the store at `path`.
pub(crate) fn uuid_of(path: &Path) -> Option<[u8; 16]> {
    let file = seekable::open(path).ok()?;
    let mut bytes = [0; BLOCK_SIZE];
    let mut offset = 0;
    while offset < SUPERBLOCK_WITHIN {
        file.read_exact_at(&mut bytes, offset).ok()?;
        let block: &Block = &bytes;
        if let Ok(superblock) = Superblock::decode(block) {
            return Some(superblock.store.uuid);
        }
        offset += BLOCK_SIZE as u64;
    }
    None
}
