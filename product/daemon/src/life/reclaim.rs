//! Clearing away what a killed daemon left behind: its device, its FUSE mount, its files.
//!
//! Everything is found from the entry's name, so that a daemon that was killed before it could
//! write down what it had made is cleared away as well.
//!
//! A file system that is still mounted from the dead device does not stand in the way: all it gets
//! is errors, and nothing that it does can reach the store any more. Its owner unmounts it.

use crate::error::Error;
use crate::life::daemon_state::OnFile;
use crate::life::device;
use crate::life::device_link;
use crate::life::state::{Entry, StateDirectory, StateLock};
use crate::points;
use coulter_system::mounts;

/// Removes everything of `entry`, whose process has ended, a device that waits included; nothing if
/// somebody did so since the entry was read, when it may be another daemon's by now.
///
/// # Errors
/// When the system refuses a step.
pub fn reclaim(state: &StateDirectory, lock: &StateLock, entry: &Entry) -> Result<(), Error> {
    if state.on_file(entry) != OnFile::Own {
        return Ok(());
    }
    assert!(!state.is_alive(entry), "the state of a running daemon is its own");
    log::info!(name = entry.name; "clearing away what its ended daemon left");
    device::remove_waiting(entry)?;
    for device in points::of(entry).release_leftovers(state, &entry.name)? {
        for mount in mounts::mounts_of(&device).unwrap_or_default() {
            let path = mount.mount_point.display();
            log::warn!(path:%; "the file system is dead; `coulter umount` takes it away");
        }
    }
    device_link::remove(entry);
    state.remove(lock, &entry.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_system::process::Process;

    #[test]
    fn what_another_daemon_has_by_now_is_left_to_it() {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let state = StateDirectory::open(Some(parent.path().join("s"))).expect("it can be made");
        let lock = state.lock().expect("nobody holds the lock");
        let dead = Entry::sample("a", Process { pid: 1, start_ticks: u64::MAX });
        let alive = Entry::sample("a", Process::current());
        state.write(&lock, &alive).expect("the directory is writable");
        reclaim(&state, &lock, &dead).expect("there is nothing to do");
        assert_eq!(state.entries().expect("it is readable"), [alive]);
        state.write(&lock, &dead).expect("the directory is writable");
        reclaim(&state, &lock, &dead).expect("nobody uses it");
        assert_eq!(state.entries().expect("it is readable"), []);
    }
}
