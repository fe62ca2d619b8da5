//! A directory of one's own that leaves nothing behind, even if its owner is killed.
//!
//! The owner holds a lock on a file in the directory. Whoever makes the next scratch looks for
//! directories whose lock is free: their owners are dead, and everything below them is taken away,
//! the file systems first, then the attach points, then the files.
//!
//! What it does not do: end processes. Those that use the directory ask the kernel to be ended
//! with their parent ([`end_with_parent`]).

use crate::error::SystemsError;
use coulter_attach::fuse::FILE_NAME;
use coulter_attach::loop_device::cleanup_stale;
use rustix::fs::FlockOperation;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the names of all such directories begin with.
const PREFIX: &str = "coulter-systems-";
const LOCK_NAME: &str = "lock";

/// A directory of one's own.
#[derive(Debug)]
pub struct Scratch {
    directory: PathBuf,
    /// Held for its lock.
    _lock: File,
}

impl Scratch {
    /// Clears away what dead owners have left in `parent`, and makes a new directory there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(parent: &Path) -> Result<Scratch, SystemsError> {
        clear_abandoned(parent);
        // Unique among living processes by the first number, within this one by the second.
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = parent.join(format!("{PREFIX}{}-{count}", std::process::id()));
        let failed = |source| SystemsError::io("make", &directory, source);
        fs::create_dir(&directory).map_err(failed)?;
        let lock = File::create(directory.join(LOCK_NAME)).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(error.into()))?;
        Ok(Scratch { directory, _lock: lock })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes a directory in the directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make_directory(&self, name: &str) -> Result<PathBuf, SystemsError> {
        let path = self.path(name);
        fs::create_dir(&path).map_err(|source| SystemsError::io("make", &path, source))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        clear(&self.directory);
    }
}

/// Has `command`, once it runs, killed when the thread that starts it ends.
pub(crate) fn end_with_parent(command: &mut Command) -> &mut Command {
    let ask = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: the closure makes one system call and touches no memory of the parent's.
    unsafe { command.pre_exec(ask) }
}

fn clear_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let Ok(lock) = File::open(entry.path().join(LOCK_NAME)) else { continue };
        let exclusively = FlockOperation::NonBlockingLockExclusive;
        if ours && rustix::fs::flock(&lock, exclusively).is_ok() {
            clear(&entry.path());
        }
    }
}

/// Takes away all that is mounted below `directory`, and then the directory. What cannot be taken
/// away is told, and stays for the next.
fn clear(directory: &Path) {
    let mounts = mounts_below(directory);
    let (files, on_volumes): (Vec<_>, Vec<_>) =
        mounts.into_iter().partition(|point| point.join(FILE_NAME).exists() || is_dead(point));
    for point in on_volumes.iter().rev() {
        let _ = unmount(point, UnmountFlags::DETACH);
    }
    for point in &files {
        // A living attach point would be taken away by its owner, before this.
        if let Err(error) = cleanup_stale(Some(point)) {
            eprintln!("left behind: {}: {error}", point.display());
        }
    }
    let below = mounts_below(directory);
    if !below.is_empty() {
        eprintln!("left behind: {below:?} is mounted");
        return;
    }
    if let Err(error) = fs::remove_dir_all(directory) {
        eprintln!("left behind: {}: {error}", directory.display());
    }
}

fn is_dead(point: &Path) -> bool {
    let gone = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotConnected;
    fs::metadata(point).is_err_and(gone)
}

/// Mount points below `directory`, in the order of mounting.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    points.filter(|point| point.starts_with(directory)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_owner_keeps_its_directory_and_a_dead_one_loses_it() {
        let parent = std::env::temp_dir().join(format!("scratch-test-{}", std::process::id()));
        fs::create_dir(&parent).expect("it is new");
        let alive = Scratch::new(&parent).expect("it can be made");
        let dead = Scratch::new(&parent).expect("it can be made");
        fs::write(dead.path("file"), b"x").expect("it is writable");
        // As if it was killed: the lock goes, the directory stays.
        let Scratch { directory, _lock } = &dead;
        rustix::fs::flock(_lock, FlockOperation::Unlock).expect("it is locked");
        let directory = directory.clone();
        let next = Scratch::new(&parent).expect("it can be made");
        assert!(!directory.exists());
        assert!(alive.directory().exists());
        std::mem::forget(dead);
        drop((alive, next));
        assert_eq!(fs::read_dir(&parent).expect("it is readable").count(), 0);
        fs::remove_dir(&parent).expect("it is empty");
    }
}
