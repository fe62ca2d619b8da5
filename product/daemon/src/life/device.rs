//! The device, the mount or the address of an entry, as the kernel has it.
//!
//! Nothing here knows whether the daemon of the entry lives, save that a kind of attach point may
//! ask it where no other way tells whose a device is.

use crate::error::{DaemonError, Error};
use crate::life::state::{Entry, StateDirectory};
use crate::points::{self, Afterlife};
use coulter_system::mounts::Mount;
use coulter_terminal as terminal;
use std::path::{Path, PathBuf};

/// Whether the device that `entry` names is still its own: one that somebody has detached by other
/// means may lead to another store or file by now. Asks the daemon, if it is alive.
pub fn has_its_device(state: &StateDirectory, entry: &Entry) -> bool {
    let device = entry.device.as_deref().map(Path::new);
    device.is_some_and(|device| points::of(entry).has_its_device(state, entry, device))
}

/// Whether the device that this process serves for `entry` is still there and its own. Does not ask
/// the device, which would ask this process.
pub(crate) fn is_still_there(state: &StateDirectory, entry: &Entry) -> bool {
    let device = entry.device.as_deref().map(Path::new);
    device.is_none_or(|device| points::of(entry).is_still_there(state, entry, device))
}

/// The device of `entry`, whose daemon has ended, if it waits for another one.
pub fn waiting_device(entry: &Entry) -> Option<PathBuf> {
    // Until it has a store it has no device.
    if entry.uuid.is_empty() {
        return None;
    }
    let kind = points::of(entry);
    let device = kind.waiting_device(entry);
    assert!(
        device.is_none() || kind.afterlife() != Afterlife::None,
        "{kind:?}: its devices do not outlive a daemon"
    );
    device
}

/// True if a dead mount of `entry`, whose daemon has ended, covers a directory of the user's.
pub(crate) fn covers_a_directory(entry: &Entry) -> bool {
    let covers = points::of(entry).covers_a_directory(entry);
    assert!(!covers || points::gives_directory(entry), "a device covers no directory");
    covers
}

/// Takes away the device of `entry` that waits, if there is one. What uses it gets I/O errors.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn remove_waiting(entry: &Entry) -> Result<(), Error> {
    points::of(entry)
        .remove_waiting(entry)
        .map_err(|reason| DaemonError::Attach { store: entry.store.clone(), reason }.into())
}

/// The command that takes away a mount of a file system that lies on `device`. A partition is not
/// ours to unmount, and the device is in use by others then, perhaps.
pub fn unmount_command(mount: &Mount, device: &Path) -> String {
    let program = if mount.source == device { "coulter umount" } else { "umount" };
    format!("{program} {}", terminal::word(&mount.mount_point))
}
