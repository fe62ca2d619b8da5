//! Waiting until a file takes or gives bytes.

pub use rustix::event::PollFlags;
use rustix::event::{PollFd, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Waits until `file` is ready for `flags`, has failed or was closed by the other end; `false` if
/// nothing of that happened within `limit`.
///
/// # Errors
/// `EINTR` if a signal was handled meanwhile; when the system cannot wait for such a file.
pub fn is_ready_within(file: impl AsFd, flags: PollFlags, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).ok();
    Ok(poll(&mut [PollFd::new(&file, flags)], limit.as_ref())? > 0)
}
