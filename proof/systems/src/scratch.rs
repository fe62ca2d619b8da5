//! A directory of one's own that leaves nothing behind, even if its owner is ended by a signal
//! ([`crate::interrupted`]) or killed.
//!
//! The owner holds a lock on a file in the directory. Whoever makes the next scratch looks for
//! directories whose lock is free: their owners are dead, and everything below them is taken away:
//! the daemons that have it in a variable `COULTER_…` of their environment, then the file systems,
//! the attach points, loop devices over its files, and the files.
//!
//! What it does not do: end other processes. Those that use the directory ask the kernel to be
//! ended with their parent ([`end_with_parent`]).

use crate::error::SystemsError;
use crate::interrupted;
use crate::interrupted::processes;
use coulter_block::loop_device::{self, cleanup_stale};
use coulter_fuse::FILE_NAME;
use coulter_system::mounts::mounts;
use rustix::fs::FlockOperation;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the names of all such directories begin with.
const PREFIX: &str = "coulter-systems-";
const LOCK_NAME: &str = "lock";

/// The directories of this process that are there.
static LIVING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A directory of one's own.
#[derive(Debug)]
pub struct Scratch {
    directory: PathBuf,
    /// Held for its lock.
    _lock: File,
}

impl Scratch {
    /// A directory for mounts of a test, in `/var/tmp`.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn on_disk() -> Scratch {
        Scratch::new(Path::new("/var/tmp")).expect("a directory in /var/tmp can be made")
    }

    /// Clears away what dead owners have left in `parent`, and makes a new directory there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(parent: &Path) -> Result<Scratch, SystemsError> {
        clear_abandoned(parent);
        interrupted::clear_on_signals();
        // Unique among living processes by the first number, within this one by the second.
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{count}", std::process::id());
        let directory = parent.join(&name);
        let failed = |source| SystemsError::io("make", &directory, source);
        let mut living = living();
        if interrupted::is_ending() {
            return Err(failed(std::io::ErrorKind::Interrupted.into()));
        }
        // It gets its name when it is locked: nobody may take it for an abandoned one before.
        let nameless = parent.join(format!(".{name}"));
        fs::create_dir(&nameless).map_err(failed)?;
        let lock = File::create(nameless.join(LOCK_NAME)).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(error.into()))?;
        fs::rename(&nameless, &directory).map_err(failed)?;
        living.push(directory.clone());
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
        living().retain(|directory| *directory != self.directory);
        interrupted::stay_if_ending();
    }
}

fn living() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process has directories.
pub(crate) fn is_any_left() -> bool {
    !living().is_empty()
}

/// Clears away the directories of this process that are left.
pub(crate) fn clear_all() {
    living().iter().for_each(|directory| clear(directory));
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

/// Ends the daemons of `directory`, takes away all that is mounted below it, and then itself. What
/// cannot be taken away is told, and stays for the next.
fn clear(directory: &Path) {
    end_daemons_of(directory);
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
    for device in loop_devices_over(directory) {
        let _ = Command::new("losetup").arg("--detach").arg(device).output();
    }
    // The last user of a device may be a file system that is only now being let go of.
    settle(|| loop_devices_over(directory).is_empty());
    let below = (mounts_below(directory), loop_devices_over(directory));
    if below != (Vec::new(), Vec::new()) {
        eprintln!("left behind: {below:?}");
        return;
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            eprintln!("left behind: {}: {error}", directory.display());
        }
        _ => {}
    }
}

/// Ends the processes that were given a place below `directory` in a variable `COULTER_…`.
fn end_daemons_of(directory: &Path) {
    let daemons = daemons_of(directory);
    for &pid in &daemons {
        let _ = kill_process(pid, Signal::KILL);
    }
    settle(|| daemons_of(directory).is_empty());
}

fn daemons_of(directory: &Path) -> Vec<Pid> {
    let is_told = |variable: &[u8]| {
        let value = variable.iter().position(|&byte| byte == b'=').map(|at| &variable[at + 1..]);
        let below = |value| Path::new(std::ffi::OsStr::from_bytes(value)).starts_with(directory);
        variable.starts_with(b"COULTER_") && value.is_some_and(below)
    };
    let pids = processes().filter(|pid| {
        // One that has ended and is not waited for yet has no environment any more.
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        *pid != rustix::process::getpid()
            && environment.is_ok_and(|text| text.split(|&byte| byte == 0).any(is_told))
    });
    pids.collect()
}

/// Waits for a while until something holds that the kernel brings about by itself.
fn settle(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Loop devices over files below `directory`.
fn loop_devices_over(directory: &Path) -> Vec<PathBuf> {
    let over = loop_device::all().into_iter().filter(|(_, file)| file.starts_with(directory));
    over.map(|(device, _)| device).collect()
}

fn is_dead(point: &Path) -> bool {
    let gone = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotConnected;
    fs::metadata(point).is_err_and(gone)
}

/// Mount points below `directory`, in the order of mounting.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let points = mounts().unwrap_or_default().into_iter().map(|mount| mount.mount_point);
    points.filter(|point| point.starts_with(directory)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if its owner was killed: the lock goes, the directory stays.
    fn abandon(scratch: Scratch) -> PathBuf {
        let Scratch { directory, _lock } = &scratch;
        rustix::fs::flock(_lock, FlockOperation::Unlock).expect("it is locked");
        let directory = directory.clone();
        std::mem::forget(scratch);
        directory
    }

    fn parent(name: &str) -> PathBuf {
        let parent = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&parent).expect("it is new");
        parent
    }

    #[test]
    fn a_living_owner_keeps_its_directory_and_a_dead_one_loses_it() {
        let parent = parent("scratch-test");
        let alive = Scratch::new(&parent).expect("it can be made");
        let dead = Scratch::new(&parent).expect("it can be made");
        fs::write(dead.path("file"), b"x").expect("it is writable");
        let directory = abandon(dead);
        let next = Scratch::new(&parent).expect("it can be made");
        assert!(!directory.exists());
        assert!(alive.directory().exists());
        drop((alive, next));
        assert_eq!(fs::read_dir(&parent).expect("it is readable").count(), 0);
        fs::remove_dir(&parent).expect("it is empty");
    }

    #[test]
    fn a_dead_owners_daemons_are_ended_and_nobody_elses() {
        let parent = parent("scratch-daemons");
        let (alive, dead) = (Scratch::new(&parent), Scratch::new(&parent));
        let (alive, dead) = (alive.expect("it can be made"), dead.expect("it can be made"));
        let daemon = |variable: &str, place: &Path| {
            let mut command = Command::new("sleep");
            command.arg("60").env(variable, place);
            end_with_parent(&mut command).spawn().expect("it can be started")
        };
        let mut of_the_dead = daemon("COULTER_STATE_DIRECTORY", &dead.path("state"));
        let mut others = [
            daemon("COULTER_STATE_DIRECTORY", &alive.path("state")),
            daemon("OLDPWD", dead.directory()),
        ];
        abandon(dead);
        let next = Scratch::new(&parent).expect("it can be made");
        let end = of_the_dead.wait().expect("it is our child");
        assert!(!end.success(), "it slept to its end");
        for other in &mut others {
            assert_eq!(other.try_wait().expect("it is our child"), None, "it was ended");
            other.kill().expect("it runs");
            other.wait().expect("it is our child");
        }
        drop((alive, next));
        fs::remove_dir(&parent).expect("it is empty");
    }
}
