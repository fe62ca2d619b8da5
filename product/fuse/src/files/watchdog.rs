//! Ends a daemon whose mount waits for itself.
//!
//! The thread of a mount that asks the kernel something which only the mount can answer waits for ever, and everybody
//! who uses the mount waits with it, `df` of the whole machine included. It is known by where the kernel lets it
//! sleep. What it served for must not be such a mount itself.

use rustix::thread::Pid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// How often the thread is looked at.
const PAUSE: Duration = Duration::from_secs(1);
/// How often in succession it has to be found in the same sleep.
const PAUSES: u32 = 5;
/// What the process ends with.
const EXIT_CODE: i32 = 1;

/// Watches a thread until it is dropped.
pub(super) struct Watchdog {
    _ends: SyncSender<()>,
}

/// A sleep of a thread: how often it had slept before.
type Sleep = u64;

impl Watchdog {
    /// Watches the calling thread, which serves the overlay at `mount_point`.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(super) fn of_this_thread(mount_point: PathBuf) -> io::Result<Watchdog> {
        let (ends, ended) = sync_channel(0);
        let thread = rustix::thread::gettid();
        let work = move || {
            let mut found: Option<(Sleep, u32)> = None;
            while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                found = waits_for_a_mount(thread).map(|sleep| match found {
                    Some((before, count)) if before == sleep => (sleep, count + 1),
                    _ => (sleep, 1),
                });
                if found.is_some_and(|(_, count)| count >= PAUSES) {
                    end(&mount_point);
                }
            }
        };
        thread::Builder::new().name("watchdog".to_owned()).stack_size(256 << 10).spawn(work)?;
        Ok(Watchdog { _ends: ends })
    }
}

/// The sleep in which a thread waits for the answer of a FUSE mount.
fn waits_for_a_mount(thread: Pid) -> Option<Sleep> {
    let folder = format!("/proc/self/task/{}", thread.as_raw_nonzero());
    let place = fs::read_to_string(format!("{folder}/wchan")).ok()?;
    if place != "request_wait_answer" && !place.starts_with("fuse_") {
        return None;
    }
    let status = fs::read_to_string(format!("{folder}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// Ends the process: the kernel then answers everybody who waits with an error. The mount stays, so that no program
/// goes on in the plain directory.
fn end(mount_point: &Path) -> ! {
    let shown = mount_point.display();
    eprintln!(
        "coulter: the mount at {shown} waits for itself, so this daemon ends; what was synced is safe. \
         `coulter overlay {shown}` mounts it again. This is a fault of Coulter: please report it"
    );
    // No destructor may run: each would wait for the same mount.
    // SAFETY: it ends the process, and touches nothing.
    unsafe { libc::_exit(EXIT_CODE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_systems::requirement::{Need, has};
    use rustix::fs::{Mode, OFlags};
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn a_thread_that_asks_a_mount_which_does_not_answer_is_known_by_its_sleep() {
        if !has("a mount that does not answer", &[Need::Root, Need::Fuse]) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: this thread gets mounts of its own; it has no descriptors or memory of its own.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).unwrap();
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR, Mode::empty()).unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = std::ffi::CString::new(data).unwrap();
        let kind = MountFlags::empty();
        rustix::mount::mount("none", folder.path(), "fuse", kind, data.as_c_str()).unwrap();
        assert_eq!(waits_for_a_mount(rustix::thread::gettid()), None);

        let (told, thread) = channel();
        let path = folder.path().join("name");
        let asks = thread::spawn(move || {
            told.send(rustix::thread::gettid()).unwrap();
            fs::metadata(path).map(drop)
        });
        let thread = thread.recv().unwrap();
        let limit = Instant::now() + Duration::from_secs(30);
        while waits_for_a_mount(thread).is_none() {
            assert!(Instant::now() < limit, "it waits for the mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Its end is what the daemon's end would bring: everybody hears of an error.
        drop(device);
        assert!(asks.join().unwrap().is_err());
        rustix::mount::unmount(folder.path(), UnmountFlags::DETACH).unwrap();
    }
}
