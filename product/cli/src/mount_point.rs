//! Directories that nothing can be mounted on, and what to do about that.

use crate::error::MountError;
use crate::terminal;
use coulter_daemon::left_over;
use coulter_daemon::state::StateDirectory;
use coulter_system::mounts::Mount;
use std::path::{Path, PathBuf};

/// There is nothing to mount on.
pub(crate) fn no_directory(directory: &Path) -> MountError {
    let help = format!("check the path, or run `mkdir -p {}` first", terminal::word(directory));
    let reason = "there is no such directory";
    MountError::MountPointUnfit { directory: directory.to_owned(), reason, help }
}

/// The mount point is no directory; perhaps the arguments are swapped.
pub(crate) fn not_a_directory(directory: &Path, store: &Path) -> MountError {
    let help = match store.is_dir() {
        true => "the store comes first, and then the directory",
        false => "name a directory that nothing is mounted on",
    };
    let (directory, help) = (directory.to_owned(), help.to_owned());
    MountError::MountPointUnfit { directory, reason: "it is not a directory", help }
}

/// Something is mounted there.
pub(crate) fn taken(state: &StateDirectory, directory: PathBuf, mount: Mount) -> MountError {
    let device = Some(mount.source.as_path());
    let entries = state.entries().unwrap_or_default();
    let is_ours = mount.kind == "fuse.coulter"
        || entries.iter().any(|entry| entry.device.as_deref().map(Path::new) == device)
        || left_over::is_left_over(state, &mount.source);
    let (kind, source) = (mount.kind, mount.source);
    MountError::MountPointTaken { directory, kind, source, is_ours }
}
