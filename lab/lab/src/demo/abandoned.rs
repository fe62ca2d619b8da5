//! What demonstrations that were killed have left behind, and clearing it away.
//!
//! A directory is abandoned if it is ours by its name and its owner, and nobody holds its lock. Then
//! its daemons are ended, what is mounted below it and the loop devices over its files are taken
//! away, and it is removed. What cannot be taken away is told, and stays for the next.
//!
//! Invariants:
//! - nothing is done to a directory of another user, who could have it name any process;
//! - a process is ended only if an entry names it, it has not changed since, and its command line
//!   has the state directory;
//! - the lock is held while a directory is cleared, so two never clear the same.

use crate::error::LabError;
use crate::terminal;
use coulter_block::loop_device;
use coulter_cli::tool;
use coulter_daemon::reclaim;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_system::mounts;
use coulter_system::process::Process;
use rustix::mount::UnmountFlags;
use rustix::process::{Signal, geteuid};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the names of all such directories begin with.
pub(super) const PREFIX: &str = "coulter-demo-";
pub(super) const LOCK_NAME: &str = ".coulter-demo-lock";
pub(super) const STATE_NAME: &str = "state";

/// How long a process or a device may take to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kinds of file systems behind an attach point, which go with it.
const ATTACH_POINT_KIND: &str = "fuse";

/// Clears away what is abandoned in `parent`, which must be canonical, and tells of it.
pub(super) fn clear_below(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let named = name.to_string_lossy().starts_with(PREFIX);
        if !named || !is_ours(&path) {
            continue;
        }
        let Ok(lock) = File::open(path.join(LOCK_NAME)) else { continue };
        if lock.try_lock().is_err() {
            continue;
        }
        let path = path.display();
        match clear(&entry.path()) {
            Ok(()) => terminal::note(&format!("cleared away {path}, left by a killed demo")),
            Err(error) => terminal::note(&format!("left behind by a killed demo: {path}: {error}")),
        }
    }
}

/// Whether it is a directory, and this user's.
fn is_ours(path: &Path) -> bool {
    let ours = |there: fs::Metadata| there.is_dir() && there.uid() == geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(ours)
}

fn clear(directory: &Path) -> Result<(), LabError> {
    let state = directory.join(STATE_NAME);
    let state = state.exists().then(|| StateDirectory::open(Some(state))).transpose()?;
    if let Some(state) = &state {
        end_daemons(state)?;
    }
    let below = mounts_below(directory)?.into_iter().rev();
    let (attach_points, on_volumes): (Vec<_>, Vec<_>) =
        below.partition(|mount| mount.kind.starts_with(ATTACH_POINT_KIND));
    on_volumes.iter().for_each(|mount| unmount(&mount.mount_point));
    if let Some(state) = &state {
        let lock = state.lock()?;
        for entry in state.entries()?.iter().filter(|entry| !state.is_alive(entry)) {
            reclaim::reclaim(state, &lock, entry)?;
        }
    }
    for device in loops_over(directory) {
        // One that somebody still has open goes with its last user.
        let _ = tool::run("losetup", "mount", &["--detach".as_ref(), device.as_os_str()]);
    }
    // Those of the demonstration itself, which had no entry.
    attach_points.iter().for_each(|mount| unmount(&mount.mount_point));
    let busy = |source| LabError::io("clear away", directory, source);
    if !settles(|| loops_over(directory).is_empty()) || !mounts_below(directory)?.is_empty() {
        return Err(busy(io::ErrorKind::ResourceBusy.into()));
    }
    fs::remove_dir_all(directory).map_err(busy)
}

/// Ends the daemons that still run, at once: nobody wants what they have.
fn end_daemons(state: &StateDirectory) -> Result<(), LabError> {
    let entries = state.entries()?;
    let runs = |entry: &&Entry| entry.process.is_alive() && is_told_of(entry.process, state.path());
    for entry in entries.iter().filter(runs) {
        let _ = entry.process.signal(Signal::KILL);
        state.wait_for_end(entry, PATIENCE);
    }
    Ok(())
}

/// Whether a path at or below `directory` is on the command line of the process.
fn is_told_of(process: Process, directory: &Path) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).map(OsStr::from_bytes);
    words.any(|word| Path::new(word).starts_with(directory))
}

/// What is mounted below `directory`, in the order of mounting.
fn mounts_below(directory: &Path) -> Result<Vec<mounts::Mount>, LabError> {
    let mut mounts = mounts::mounts()
        .map_err(|source| LabError::io("read", "/proc/self/mountinfo".as_ref(), source))?;
    mounts.retain(|mount| mount.mount_point.starts_with(directory));
    Ok(mounts)
}

fn unmount(mount_point: &Path) {
    // Whether it is gone is seen afterwards. Those that still use it keep it for themselves.
    let _ = rustix::mount::unmount(mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// Loop devices over files below `directory`.
fn loops_over(directory: &Path) -> Vec<PathBuf> {
    let over = loop_device::all().into_iter().filter(|(_, file)| file.starts_with(directory));
    over.map(|(device, _)| device).collect()
}

/// Waits for a while until something holds that the kernel brings about by itself.
fn settles(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::*;
    use coulter_daemon::points::{Kind, NbdServer};
    use std::process::Command;

    /// As a demonstration that was killed leaves it: with a file, and with an entry of a daemon.
    fn leave(parent: &Path, name: &str, process: Process) -> PathBuf {
        let directory = parent.join(name);
        let path = directory.join(STATE_NAME);
        fs::create_dir(&directory).expect("the directory is writable");
        let state = StateDirectory::open(Some(path)).expect("it can be made");
        File::create(directory.join(LOCK_NAME)).expect("the directory is writable");
        fs::write(directory.join("plain.img"), b"x").expect("the directory is writable");
        let entry = Entry {
            store: directory.join("demo.store"),
            device: Some("nbd+unix:///demo".to_owned()),
            via: NbdServer.via(),
            ..Entry::sample("demo", process)
        };
        let lock = state.lock().expect("nobody holds the lock");
        state.write(&lock, &entry).expect("the directory is writable");
        directory
    }

    fn dead() -> Process {
        Process { pid: 1, start_ticks: u64::MAX }
    }

    #[test]
    fn what_is_abandoned_goes_and_what_is_held_stays() {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let path = parent.path().canonicalize().expect("it exists");
        let alive = Scratch::new(&path, 1).expect("there is room for a byte");
        let abandoned = leave(&path, "coulter-demo-7", dead());
        let others = leave(&path, "coulter-demonstration", dead());
        let unlocked = path.join("coulter-demo-of-mine");
        fs::create_dir(&unlocked).expect("the directory is writable");
        let next = Scratch::new(&path, 1).expect("there is room for a byte");
        assert!(!abandoned.exists());
        for directory in [alive.directory(), next.directory(), &others, &unlocked] {
            assert!(directory.exists(), "{}", directory.display());
        }
    }

    #[test]
    fn the_daemons_of_the_dead_are_ended_and_nobody_elses() {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let path = parent.path().canonicalize().expect("it exists");
        let start = |place: &Path| {
            let watched = Command::new("tail").arg("-f").arg("/dev/null").arg(place).spawn();
            let child = watched.expect("it can be started");
            let process = Process::with_pid(child.id()).expect("it runs");
            // The kernel lets its parent go on before it has a command line.
            assert!(settles(|| is_told_of(process, place)), "it is told of its place");
            (child, process)
        };
        let state = path.join("coulter-demo-7").join(STATE_NAME).join("lock");
        let (mut daemon, ours) = start(&state);
        // Another process that has the number of a daemon by now.
        let (mut other, theirs) = start(&path);
        leave(&path, "coulter-demo-7", ours);
        leave(&path, "coulter-demo-8", theirs);
        let reaper = std::thread::spawn(move || daemon.wait());
        clear_below(&path);
        let (ended, left) = (!ours.is_alive(), theirs.is_alive());
        other.kill().expect("it is our child");
        other.wait().expect("it is our child");
        if !ended {
            let _ = ours.signal(Signal::KILL);
        }
        reaper.join().expect("no panic").expect("it is our child");
        assert!(ended && left, "ended: {ended}, the other left alone: {left}");
    }
}
