//! What direct transfers to a file must be aligned to.

use crate::aligned::AlignedMemory;
use crate::command::{ALIGNMENT_MAX, SECTOR_SIZE};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// The alignment of offset, length and memory for a file that was opened with `O_DIRECT`, or
/// `None` if no direct transfer of at most 4096 bytes' alignment is possible after all.
pub(super) fn of_direct(file: &File) -> Option<u64> {
    match said_by_kernel(file) {
        Some(0) => None,
        Some(alignment) if alignment > ALIGNMENT_MAX => None,
        Some(alignment) if alignment > SECTOR_SIZE => Some(ALIGNMENT_MAX),
        Some(_) => Some(SECTOR_SIZE),
        None => [SECTOR_SIZE, ALIGNMENT_MAX].into_iter().find(|size| is_readable_by(file, *size)),
    }
}

/// What `statx` says (Linux 6.1, and not every file system); zero if direct is impossible.
fn said_by_kernel(file: &File) -> Option<u64> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the empty path with `AT_EMPTY_PATH` names the open descriptor, and `status` has room
    // for what the kernel writes.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            status.as_mut_ptr(),
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: zeroed at first, which is a valid value, and filled in by the kernel.
    let status = unsafe { status.assume_init() };
    if status.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    if status.stx_dio_offset_align == 0 {
        return Some(0);
    }
    Some(u64::from(status.stx_dio_offset_align.max(status.stx_dio_mem_align)))
}

/// Whether a direct read of `size` bytes, from memory aligned to no more than that, is taken.
fn is_readable_by(file: &File, size: u64) -> bool {
    let mut memory = AlignedMemory::zeroed(2 * ALIGNMENT_MAX as usize);
    // Memory at an odd multiple of `size`, lest a stricter demand be met by luck.
    let bytes = &mut memory[size as usize..2 * size as usize];
    // SAFETY: `bytes` has room for what is read.
    let read = unsafe {
        libc::pread64(file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), size as i64)
    };
    // Any other error has nothing to do with alignment and will show itself again.
    read >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}
