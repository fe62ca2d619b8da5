//! What space a file has: all of it, or only for what was written.
//!
//! It decides what preparing a range means, and needs no note of its own: the file system remembers
//! which blocks a file has, and which of them were never written.
//!
//! - A file of which every block is allocated stays so: nothing is punched out of it. A block that was
//!   never written is marked so in the file system's metadata; its first write changes the mark, and the
//!   next flush of the file commits that to a journal. So such blocks are written ahead of time.
//! - A file with holes gets space for a range before anything in it counts.

use crate::command::Prepare;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Bytes of the unit in which `stat` counts.
const STAT_UNIT: u64 = 512;

/// What preparing a range of a file of `size` bytes means.
pub(super) fn of_file(file: &File, size: u64) -> io::Result<Prepare> {
    if is_on_btrfs(file) {
        return Ok(Prepare::Nothing);
    }
    let allocated = file.metadata()?.blocks().saturating_mul(STAT_UNIT);
    Ok(if allocated >= size { Prepare::Blocks } else { Prepare::Space })
}

/// Whether part of a range was never written. If the file system does not tell, it counts as written.
pub(super) fn has_hole(file: &File, offset: u64, length: u64) -> bool {
    let Ok(at) = i64::try_from(offset) else { return false };
    // SAFETY: no pointers; the descriptor is open. Its position is used by nobody.
    let hole = unsafe { libc::lseek64(file.as_raw_fd(), at, libc::SEEK_HOLE) };
    u64::try_from(hole).is_ok_and(|hole| hole < offset + length)
}

/// Whether each write gets a new place, whatever was allocated or written before.
fn is_on_btrfs(file: &File) -> bool {
    let mut facts = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and `facts` has room for what the kernel writes.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), facts.as_mut_ptr()) };
    // SAFETY: zeroed at first, which is a valid value, and filled in by the kernel.
    let kind = unsafe { facts.assume_init() }.f_type;
    // The types differ from one C library to the next; the number does not.
    result == 0 && i128::from(kind) == i128::from(libc::BTRFS_SUPER_MAGIC)
}
