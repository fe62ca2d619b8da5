//! The demonstration's place on the disk, and the taking back of everything that it sets up.
//!
//! Each step that changes the machine leaves a note of how to undo it. When the scratch is
//! dropped, after success, failure, Ctrl-C or a panic, the notes are followed in reverse. What
//! cannot be undone is told. A note whose matter is settled already does nothing, so a step may
//! leave the same note twice.
//!
//! If the demonstration is killed, nobody follows them. The directory has a lock that is held while
//! its owner lives; what is left without one, the next demonstration clears away (`abandoned`).

use super::abandoned;
use crate::error::{LabError, SystemError};
use crate::terminal;
use coulter_block::loop_device::path_below;
use coulter_cli::room;
use coulter_cli::tool;
use coulter_daemon::reclaim;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_system::mounts;
use coulter_system::process::Process;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a daemon may take to end cleanly before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A note of how to take something back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    /// Unmount what is mounted there.
    Unmount(PathBuf),
    /// Detach a plain loop device, while it is over that file.
    Loop { device: PathBuf, file: PathBuf },
    /// End a daemon and clear away what it leaves.
    Daemon(Process),
}

/// A directory of its own, and the notes.
pub(crate) struct Scratch {
    directory: PathBuf,
    state: StateDirectory,
    notes: Vec<Undo>,
    /// Held for its drop, after which the directory counts as abandoned.
    _lock: File,
}

impl Scratch {
    /// Makes a directory below `parent` that has `room` bytes, after clearing away what killed
    /// demonstrations have left there.
    ///
    /// # Errors
    /// When it cannot be made, or the disk has less room than that.
    pub(crate) fn new(parent: &Path, room: u64) -> Result<Scratch, LabError> {
        let failed = |source| LabError::io("work in", parent, source);
        let parent = parent.canonicalize().map_err(failed)?;
        abandoned::clear_below(&parent);
        let free = room::bytes_left(&parent).map_err(failed)?;
        if free < room {
            return Err(SystemError::NoRoom { path: parent, free, room }.into());
        }
        // Unique among living processes by the first number, within this one by the second.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{count}", abandoned::PREFIX, std::process::id());
        let (nameless, directory) = (parent.join(format!(".{name}")), parent.join(&name));
        fs::create_dir(&nameless).map_err(failed)?;
        // It gets its name when it is locked: nobody may take it for an abandoned one before.
        let locked = lock(&nameless)
            .and_then(|lock| fs::rename(&nameless, &directory).map(|()| lock))
            .map_err(failed);
        let made = locked.and_then(|lock| {
            Ok((lock, StateDirectory::open(Some(directory.join(abandoned::STATE_NAME)))?))
        });
        match made {
            Ok((_lock, state)) => Ok(Scratch { directory, state, notes: Vec::new(), _lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&nameless);
                let _ = fs::remove_dir_all(&directory);
                Err(error)
            }
        }
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes a directory in the directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn make_directory(&self, name: &str) -> Result<PathBuf, LabError> {
        let path = self.path(name);
        fs::create_dir(&path).map_err(|source| LabError::io("make", &path, source))?;
        Ok(path)
    }

    /// The state directory of the daemons that are started here.
    pub(crate) fn state(&self) -> &StateDirectory {
        &self.state
    }

    /// Leaves a note.
    pub(crate) fn note(&mut self, undo: Undo) {
        self.notes.push(undo);
    }

    fn follow(&self, note: &Undo) -> Result<(), LabError> {
        match note {
            Undo::Unmount(path) if !is_mounted(path) => Ok(()),
            Undo::Unmount(path) => unmount(path, UnmountFlags::NOFOLLOW)
                .or_else(|_| unmount(path, UnmountFlags::DETACH))
                .map_err(|errno| LabError::io("unmount", path, errno.into())),
            // Its number may be somebody else's by now.
            Undo::Loop { device, file } if !is_over(device, file) => Ok(()),
            Undo::Loop { device, .. } => {
                tool::run("losetup", "mount", &["--detach".as_ref(), device.as_os_str()])?;
                Ok(())
            }
            Undo::Daemon(process) => {
                end(*process);
                self.reclaim_all()
            }
        }
    }

    /// Clears away what killed daemons have left.
    ///
    /// # Errors
    /// When something of it stays.
    pub(crate) fn reclaim_all(&self) -> Result<(), LabError> {
        let lock = self.state.lock()?;
        let ended = |entry: &Entry| !self.state.is_alive(entry);
        let entries = self.state.entries()?;
        let mut ended = entries.iter().filter(|entry| ended(entry));
        Ok(ended.try_for_each(|entry| reclaim::reclaim(&self.state, &lock, entry))?)
    }
}

fn lock(directory: &Path) -> io::Result<File> {
    let file = File::create_new(directory.join(abandoned::LOCK_NAME))?;
    file.try_lock()?;
    Ok(file)
}

fn is_mounted(path: &Path) -> bool {
    matches!(mounts::mount_at(path), Ok(Some(_)))
}

/// Whether the loop device gives what is in the file.
fn is_over(device: &Path, file: &Path) -> bool {
    path_below(device).is_some_and(|below| below == file)
}

/// Ends a process of ours, cleanly if it lets us.
fn end(process: Process) {
    for signal in [Signal::TERM, Signal::KILL] {
        if !process.is_alive() {
            return;
        }
        let _ = process.signal(signal);
        process.wait_for_end(PATIENCE);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        while let Some(note) = self.notes.pop() {
            if let Err(error) = self.follow(&note) {
                terminal::note(&format!("left behind: {error}"));
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            terminal::note(&format!(
                "left behind: {}: {error}; remove it with `rm -r`",
                self.directory.display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_behind() {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it can run");
        let process = Process::with_pid(child.id()).expect("it runs");
        let mut scratch = Scratch::new(parent.path(), 1).expect("there is room for a byte");
        scratch.make_directory("a").expect("it can be made");
        fs::write(scratch.path("a/file"), b"x").expect("it is writable");
        scratch.note(Undo::Daemon(process));
        let reaper = std::thread::spawn(move || child.wait());
        drop(scratch);
        assert!(!process.is_alive());
        assert_eq!(fs::read_dir(parent.path()).expect("it is readable").count(), 0);
        reaper.join().expect("no panic").expect("the child can be reaped");
    }

    #[test]
    fn too_little_room_is_told_before_anything_is_made() {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        assert!(Scratch::new(parent.path(), u64::MAX).is_err());
        assert_eq!(fs::read_dir(parent.path()).expect("it is readable").count(), 0);
    }
}
