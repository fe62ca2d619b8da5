//! Loop devices of daemons that have ended, and whose entry is gone: a file system was mounted when
//! a signal ended the daemon, or when what a killed one left was cleared away.
//!
//! All that is known of them is what the kernel says.

use crate::life::device;
use crate::life::state::{Entry, StateDirectory};
use coulter_block::loop_device::{self, name_of, path_below};
use coulter_fuse::FILE_NAME;
use coulter_system::mounts;
use coulter_terminal as terminal;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether `device` is such a loop device.
pub fn is_left_over(state: &StateDirectory, device: &Path) -> bool {
    path_below(device)
        .is_some_and(|backing| is_cut_off(&backing) || backing.starts_with(state.path()))
}

/// With its mount taken away, the kernel names the file below a device by what is left of its path.
fn is_cut_off(backing: &Path) -> bool {
    backing == Path::new("/").join(FILE_NAME)
}

/// Whether it was set up from this state directory, as far as its name is kept.
fn is_from_here(state: &StateDirectory, device: &Path) -> bool {
    let Some(name) = name_of(device) else { return false };
    let directory = name.parent().and_then(Path::parent).map(Path::as_os_str).unwrap_or_default();
    name.file_name() == Some(OsStr::new(FILE_NAME))
        && state.path().as_os_str().as_bytes().ends_with(directory.as_bytes())
}

/// What is still mounted from such devices, and what takes it away. `entries` are all there are.
/// That an entry is missing proves nothing: somebody may have deleted it, and its daemon lives.
pub fn dead_mounts(state: &StateDirectory, entries: &[Entry]) -> Vec<String> {
    let is_of = |entry: &Entry, device: &Path| {
        state.is_alive(entry) && entry.device.as_deref().map(Path::new) == Some(device)
    };
    let mut told = Vec::new();
    for (device, backing) in loop_device::all() {
        let is_alive = entries.iter().any(|entry| is_of(entry, &device));
        if is_alive || !is_cut_off(&backing) || !is_from_here(state, &device) {
            continue;
        }
        for mount in mounts::mounts_of(&device).unwrap_or_default() {
            told.push(format!(
                "the daemon behind {}, mounted on {}, has ended, and it gives errors: `{}` takes it away",
                mount.source.display(),
                terminal::path(&mount.mount_point),
                device::unmount_command(&mount, &device)
            ));
        }
    }
    told
}
