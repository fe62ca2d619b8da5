//! `coulter umount`: takes back what `mount` did.

use crate::answering;
use crate::error::{CliError, DaemonError, DoorError, Error, MountError, StateError};
use crate::file_system;
use crate::interrupt::Left;
use crate::terminal;
use crate::verbs::list::mount_points;
use clap::Args;
use coulter_daemon::attach_point;
use coulter_daemon::control::{self, Request};
use coulter_daemon::daemon_state::DaemonState;
use coulter_daemon::detach::detach;
use coulter_daemon::left_over;
use coulter_daemon::points;
use coulter_daemon::reclaim;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::verbs::{Course, Verb};
use coulter_system::mounts::{self, Mount};
use coulter_system::{dead_mounts, holders};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon that ends may take to be gone.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long a file system may be mounted elsewhere, and how often that is looked at.
const HELD_PATIENCE: Duration = Duration::from_secs(1);
const HELD_PAUSE: Duration = Duration::from_millis(50);

/// Unmount a file system and detach its volume.
///
/// Refused while processes use its files; the error names them. The volume stays attached if it is
/// mounted elsewhere too, and of a bind mount only that is unmounted.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter umount /mnt
  coulter umount disk                      by name")]
pub(crate) struct Umount {
    /// Directory that the file system is mounted on, or the name of a volume that is mounted once
    #[arg(value_name = "DIR|NAME")]
    pub(crate) directory: PathBuf,
}

impl Umount {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        answering::check(state, &self.directory)?;
        let directory = self.mount_point(state)?;
        leave_it();
        let left = mounted_yet(&directory)?;
        let proc_failed = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
        let mount = mounts::mount_at(&directory).map_err(proc_failed)?;
        if let Some(entry) = fs_entry(state, &directory)? {
            if state.is_alive(&entry) {
                check_only_there(&directory)?;
            }
            let is_overlay = super::overlay::before_unmount(&directory);
            left.is_asked_of(&entry.name, "unmount it and end");
            unmount_fs(state, &entry)?;
            if is_overlay {
                super::overlay::tell_of_store(&directory);
            }
            return Ok(());
        }
        if mount.as_ref().is_some_and(super::overlay::is_dead_mount) {
            // Its daemon was killed before it had an entry.
            let failed = |source| CliError::io("unmount", &directory, source);
            return dead_mounts::take_away(&directory).map_err(failed);
        }
        let not_ours = |source| MountError::NotOurMount { directory: directory.clone(), source };
        let Some(mount) = mount else { return Err(not_ours(None).into()) };
        if is_bound(state, &mount)? {
            return file_system::unmount(&directory);
        }
        let entry = entry_of(state, &mount.source)?;
        if entry.is_none() && !left_over::is_left_over(state, &mount.source) {
            // Another command may have unmounted it, and detached its volume, since it was read.
            let is_there_yet = mounts::mount_at(&directory).map_err(proc_failed)?.is_some();
            return Err(not_ours(is_there_yet.then_some(mount.source)).into());
        }
        if let Some(entry) = &entry
            && DaemonState::look(state, entry).course(Verb::Umount) == Course::Refuse
        {
            // To unmount is to write, and nobody serves that.
            let (name, store) = (entry.name.clone(), entry.store.clone());
            return Err(DaemonError::WaitsMounted { name, store, mount_point: directory }.into());
        }
        if let Some(entry) = &entry {
            // The kernel goes on with a call that it has begun.
            let name = &entry.name;
            let why = format!("'{name}' stays attached, whether it is unmounted by now or not");
            left.is_now(
                why,
                format!("`coulter detach {name}` ends its daemon, once it is unmounted"),
            );
        }
        file_system::unmount(&directory)?;
        if let Some(entry) = &entry {
            left.is_asked_of(&entry.name, "end");
        }
        let is_last = mounts::mounts_of(&mount.source).map_err(proc_failed)?.is_empty();
        match entry {
            Some(entry) if !state.is_alive(&entry) => {
                Ok(reclaim::reclaim(state, &state.lock()?, &entry)?)
            }
            Some(entry) if is_last => match detach(state, &entry, false) {
                Err(Error::State(StateError::NotAttached { .. })) => ended(state, &entry),
                detached => Ok(detached?),
            },
            _ => Ok(()),
        }
    }
}

/// From now on an interrupt says that the directory is mounted.
pub(super) fn mounted_yet(directory: &Path) -> Result<Left, CliError> {
    let why = format!("{} is mounted and served as before", terminal::path(directory));
    Left::take_over(why, "run the same command again".to_owned())
}

/// Leaves the directory that the command was started in, for it may lie in what is to be unmounted.
/// Every path is absolute by then.
pub(super) fn leave_it() {
    if let Err(error) = std::env::set_current_dir("/") {
        log::debug!(error:%; "the working directory stays");
    }
}

/// That a file system is mounted nowhere else, where it would go on being used.
pub(super) fn check_only_there(directory: &Path) -> Result<(), CliError> {
    let limit = Instant::now() + HELD_PATIENCE;
    let holders = loop {
        let holders = holders::elsewhere(directory);
        if holders.is_empty() {
            return Ok(());
        }
        // A namespace that is just being made, or ends, is no user.
        if Instant::now() >= limit {
            break holders;
        }
        std::thread::sleep(HELD_PAUSE);
    };
    Err(MountError::MountBusy { directory: directory.to_owned(), holders }.into())
}

impl Umount {
    /// The directory to unmount, absolute.
    fn mount_point(&self, state: &StateDirectory) -> Result<PathBuf, CliError> {
        // A dead daemon's file system cannot be looked at, only its path be normalised.
        let directory = match self.directory.canonicalize() {
            Ok(directory) => directory,
            Err(_) => std::path::absolute(&self.directory)
                .map_err(|source| CliError::io("find", &self.directory, source))?,
        };
        let failed = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
        if mounts::mount_at(&directory).map_err(failed)?.is_some() {
            return Ok(directory);
        }
        let named = self.directory.to_str().and_then(|name| state.find(name).ok());
        match named.map(|entry| (mount_points(&entry), entry)) {
            Some((points, _)) if points.len() == 1 => Ok(points[0].clone()),
            Some((directories, entry)) if directories.len() > 1 => {
                Err(DoorError::MountedOften { name: entry.name, directories }.into())
            }
            Some((_, entry)) => Err(DoorError::NotMounted { name: entry.name }.into()),
            None => Ok(directory),
        }
    }
}

/// True of a mount of a part of a Coulter file system or overlay: its daemon goes on without it.
fn is_bound(state: &StateDirectory, mount: &Mount) -> Result<bool, CliError> {
    let serves = |entry: &Entry| {
        points::gives_directory(entry) && entry.store == mount.source && state.is_alive(entry)
    };
    Ok(mount.kind == "fuse.coulter" && state.entries()?.iter().any(serves))
}

/// The entry of the volume whose own file system is mounted there.
fn fs_entry(state: &StateDirectory, directory: &Path) -> Result<Option<Entry>, CliError> {
    let is_it = |entry: &Entry| points::is_at(entry, directory);
    Ok(state.entries()?.into_iter().find(is_it))
}

/// Unmounts it, and waits until its store is closed.
fn unmount_fs(state: &StateDirectory, entry: &Entry) -> Result<(), CliError> {
    if DaemonState::look(state, entry).course(Verb::Umount) != Course::Ask {
        return Ok(reclaim::reclaim(state, &state.lock()?, entry)?);
    }
    match detach(state, entry, false) {
        Err(Error::State(StateError::NotAttached { .. })) => ended(state, entry),
        detached => Ok(detached?),
    }
}

/// The daemon of `entry` ended while this command looked: by another command, and took all of its own along,
/// or because it was killed, and then it left some.
fn ended(state: &StateDirectory, entry: &Entry) -> Result<(), CliError> {
    if !state.wait_for_end(entry, END_PATIENCE) {
        return Err(Error::from(DaemonError::ending(entry)).into());
    }
    Ok(reclaim::reclaim(state, &state.lock()?, entry)?)
}

/// The entry whose device is `source`, stale ones included; not one whose device has become that of
/// somebody else.
fn entry_of(state: &StateDirectory, source: &Path) -> Result<Option<Entry>, CliError> {
    for entry in state.entries()? {
        if entry.device.as_deref().map(Path::new) != Some(source) {
            continue;
        }
        if state.is_alive(&entry) {
            // Whoever does not answer does not say what lies below a device either.
            match control::ask(state, &entry, &Request::Status) {
                // It has ended since.
                Err(error) if control::is_about_ended(&error) => {}
                asked => drop(asked?),
            }
        }
        if attach_point::has_its_device(state, &entry) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}
