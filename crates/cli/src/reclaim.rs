//! Clearing away what a killed daemon left behind: its loop device, its FUSE mount, its files.
//!
//! Everything is found from the entry's name, so that a daemon that was killed before it could
//! write down what it had made is cleared away as well.

use crate::attach_point;
use crate::error::{CliError, StateError};
use crate::state::{Entry, StateDirectory, StateLock};

/// Removes everything of `entry`, whose process has ended.
///
/// # Errors
/// [`StateError::StaleMount`] while a file system is still mounted from the dead device: only
/// its owner may unmount that.
pub(crate) fn reclaim(
    state: &StateDirectory,
    lock: &StateLock,
    entry: &Entry,
) -> Result<(), CliError> {
    assert!(!entry.process.is_alive(), "the state of a running daemon is its own");
    log::info!("clearing away what the ended daemon of '{}' left", entry.name);
    let holders = attach_point::release_leftovers(&state.file(&entry.name, "mount"))?;
    if !holders.is_empty() {
        return Err(StateError::StaleMount { name: entry.name.clone(), holders }.into());
    }
    state.remove(lock, &entry.name)
}
