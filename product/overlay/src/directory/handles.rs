//! File handles of the kernel: what names a file whatever its paths, and how it is opened by that.

use crate::lower::Outcome;
use coulter_format::overlay::{HANDLE_SIZE_MAX, Handle};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ffi::CStr;

/// The kernel's structure, with room for the longest handle that is kept.
#[repr(C)]
struct Raw {
    size: u32,
    kind: i32,
    bytes: [u8; HANDLE_SIZE_MAX],
}

fn last_error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The handle of `name` in `directory`; of the directory itself if the name is empty. Links are not followed.
pub(super) fn handle_of(directory: impl AsFd, name: &CStr) -> Outcome<Handle> {
    let mut raw = Raw { size: HANDLE_SIZE_MAX as u32, kind: 0, bytes: [0; HANDLE_SIZE_MAX] };
    let mut mount = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let directory = directory.as_fd().as_raw_fd();
    // SAFETY: `raw` has the layout of the kernel's structure with `size` bytes of room behind it, and the
    // name is terminated; both live over the call.
    let result = unsafe {
        libc::name_to_handle_at(
            directory,
            name.as_ptr(),
            (&raw mut raw).cast(),
            &raw mut mount,
            flags,
        )
    };
    if result != 0 {
        return Err(last_error());
    }
    let bytes = raw.bytes.get(..raw.size as usize).ok_or(libc::EOVERFLOW)?;
    Handle::new(raw.kind, bytes).ok_or(libc::EOVERFLOW)
}

/// Opens what a handle names, on the file system that `anchor` is on.
pub(super) fn open(anchor: impl AsFd, handle: &Handle, flags: i32) -> Outcome<OwnedFd> {
    let mut raw =
        Raw { size: handle.bytes().len() as u32, kind: handle.kind(), bytes: [0; HANDLE_SIZE_MAX] };
    raw.bytes[..handle.bytes().len()].copy_from_slice(handle.bytes());
    // SAFETY: `raw` has the layout of the kernel's structure and lives over the call.
    let descriptor = unsafe {
        libc::open_by_handle_at(
            anchor.as_fd().as_raw_fd(),
            (&raw mut raw).cast(),
            flags | libc::O_CLOEXEC,
        )
    };
    if descriptor < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just made it, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
