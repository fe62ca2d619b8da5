//! `coulter umount`: takes back what `mount` did.

use crate::error::{CliError, MountError};
use crate::file_system;
use crate::mounts;
use crate::reclaim;
use crate::state::{Entry, StateDirectory};
use crate::verbs::detach::detach;
use clap::Args;
use std::path::{Path, PathBuf};

/// Unmount a file system and detach its volume.
///
/// It is refused, with the names of the processes, while somebody uses a file of it. The volume
/// stays attached if it is mounted elsewhere too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter umount /mnt")]
pub(crate) struct Umount {
    /// Directory that the file system is mounted on
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

impl Umount {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        // A dead daemon's file system cannot be looked at, only its path be normalised.
        let directory = match self.directory.canonicalize() {
            Ok(directory) => directory,
            Err(_) => std::path::absolute(&self.directory)
                .map_err(|source| CliError::io("find", &self.directory, source))?,
        };
        let proc_failed = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
        let mount = mounts::mount_at(&directory).map_err(proc_failed)?;
        let not_ours = |source| MountError::NotOurMount { directory: directory.clone(), source };
        let Some(mount) = mount else { return Err(not_ours(None).into()) };
        let Some(entry) = entry_of(state, &mount.source)? else {
            return Err(not_ours(Some(mount.source)).into());
        };
        file_system::unmount(&directory)?;
        if !mounts::mounts_of(&mount.source).map_err(proc_failed)?.is_empty() {
            return Ok(());
        }
        if entry.process.is_alive() {
            return detach(state, &entry, false);
        }
        let lock = state.lock()?;
        reclaim::reclaim(state, &lock, &entry)
    }
}

/// The entry whose device is `source`, stale ones included.
fn entry_of(state: &StateDirectory, source: &Path) -> Result<Option<Entry>, CliError> {
    let entries = state.entries()?;
    Ok(entries.into_iter().find(|entry| entry.device.as_deref().map(Path::new) == Some(source)))
}
