//! `coulter detach`: ends the daemon of a volume cleanly.

use super::umount::{check_only_there, leave_it};
use crate::error::{CliError, DaemonError, Error, StateError};
use crate::interrupt::Left;
use crate::terminal;
use clap::Args;
use coulter_daemon::attach_point;
use coulter_daemon::detach::detach;
use coulter_daemon::points;
use coulter_daemon::reclaim;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_system::mounts;
use std::time::Duration;

/// How long a daemon that ends may take to be gone.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Detach a volume: flush it, write a checkpoint, end its daemon.
///
/// Refused while the device is in use, and if the file of the store was deleted, because its data
/// would be lost. Removes the files that a killed daemon left.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter detach disk                      by name
  coulter detach disk.img                  by store
  coulter detach /dev/loop0                by device
  coulter detach /mnt                      a Coulter file system or an overlay, by directory")]
pub(crate) struct Detach {
    /// Name, store, device or directory of the volume
    #[arg(value_name = "NAME|PATH|DEVICE")]
    pub(crate) volume: String,

    /// Detach even if the device is in use (its users get I/O errors) or its store was deleted
    #[arg(long)]
    pub(crate) force: bool,
}

impl Detach {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        match state.find(&self.volume) {
            Ok(entry) => {
                if entry.device.as_ref() == Some(&self.volume) {
                    attach_point::check_device(state, &entry)?;
                }
                // As `umount` does.
                if let Some(directory) = entry.directory()
                    && !self.force
                {
                    check_only_there(directory)?;
                }
                let overlay = entry.directory().filter(|_| points::is_overlay(&entry));
                leave_it();
                let why = format!("'{}' is attached as before", entry.name);
                let left = Left::take_over(why, "run the same command again".to_owned())?;
                let is_told = overlay.is_some_and(super::overlay::before_unmount);
                left.is_asked_of(&entry.name, "end");
                match detach(state, &entry, self.force) {
                    // It ended while it was asked: in order, or because it was killed.
                    Err(not_attached @ Error::State(StateError::NotAttached { .. })) => {
                        state.wait_for_end(&entry, END_PATIENCE);
                        self.clear_away(state, &entry.name, not_attached)
                    }
                    detached => {
                        detached?;
                        overlay
                            .filter(|_| is_told)
                            .into_iter()
                            .for_each(super::overlay::tell_of_store);
                        Ok(())
                    }
                }
            }
            Err(not_attached @ Error::State(StateError::NotAttached { .. })) => {
                self.clear_away(state, &self.volume, not_attached)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes away what a daemon that ended left, if it left anything.
    fn clear_away(
        &self,
        state: &StateDirectory,
        volume: &str,
        not_attached: Error,
    ) -> Result<(), CliError> {
        if state.entries()?.is_empty() {
            return Err(not_attached.into());
        }
        let lock = state.lock()?;
        let Some(ended) = state.find_ended(&lock, volume)? else {
            return Err(not_attached.into());
        };
        if !self.force {
            refuse_if_mounted(&ended)?;
        }
        reclaim::reclaim(state, &lock, &ended)?;
        terminal::note(&format!("the daemon of '{}' had ended before", ended.name));
        Ok(())
    }
}

/// A device that waits may have a file system on it that would be lost with it, in part.
fn refuse_if_mounted(ended: &Entry) -> Result<(), CliError> {
    let Some(device) = attach_point::waiting_device(ended) else { return Ok(()) };
    match mounts::mounts_of_everywhere(&device).first() {
        None => Ok(()),
        Some(mount) => {
            let why = mount.mount_point.clone();
            let (name, store) = (ended.name.clone(), ended.store.clone());
            Err(DaemonError::WaitsMounted { name, store, mount_point: why }.into())
        }
    }
}
