//! Clearing away what a killed daemon left behind: its device, its FUSE mount, its files.
//!
//! Everything is found from the entry's name, so that a daemon that was killed before it could
//! write down what it had made is cleared away as well.
//!
//! A file system that is still mounted from the dead device does not stand in the way: all it gets
//! is errors, and nothing that it does can reach the store any more. Its owner unmounts it.

use crate::attach_point;
use crate::error::CliError;
use crate::state::{Entry, StateDirectory, StateLock};
use coulter_attach::mounts;

/// Removes everything of `entry`, whose process has ended, a device that waits included.
///
/// # Errors
/// When the system refuses a step.
pub(crate) fn reclaim(
    state: &StateDirectory,
    lock: &StateLock,
    entry: &Entry,
) -> Result<(), CliError> {
    assert!(!entry.process.is_alive(), "the state of a running daemon is its own");
    log::info!(name = entry.name; "clearing away what its ended daemon left");
    attach_point::remove_waiting(entry)?;
    for device in attach_point::release_leftovers(&state.file(&entry.name, "mount"))? {
        for mount in mounts::mounts_of(&device).unwrap_or_default() {
            let path = mount.mount_point.display();
            log::warn!(path:%; "the file system is dead; `coulter umount` takes it away");
        }
    }
    state.remove(lock, &entry.name)
}
