//! What `sync(2)` does not do for a mount: the kernel does not tell FUSE of it.

use super::message::SYNC_IOCTL;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{NoArg, ioctl};
use std::io;
use std::path::Path;

/// Makes durable what programs have written to the mount that `path` is on.
///
/// With the page cache writing through, that is everything that `write` has returned for. With
/// write-back, what the kernel has begun to write out by then.
///
/// # Errors
/// ENOTTY when the path is on no mount of a file system of Coulter's own; EIO when something is lost.
pub fn sync(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::syncfs(&file)?;
    // SAFETY: this command takes no argument, and touches no memory of ours whatever file gets it.
    unsafe { ioctl(&file, NoArg::<SYNC_IOCTL>::new()) }?;
    Ok(())
}
