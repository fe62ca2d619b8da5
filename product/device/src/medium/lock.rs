//! Locks on files, and who holds them.
//!
//! `flock` first: it belongs to the open file, works within one process too, and the kernel names
//! its holder. Others, QEMU for one, lock ranges of a file (`fcntl`), of which `flock` knows nothing. So
//! a range that somebody has locked counts as a lock of the file, and who writes locks all of it that
//! way too.

use crate::open_error::OpenError;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a lock is waited for that nobody alive holds. The kernel takes down the ring of a
/// process that was killed, and with it the file, only once its last transfers have ended.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often it is tried in that time.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// A regular file, locked against everybody else just as an open device is, until this is dropped.
///
/// Invariant: the lock ends with this value, and not with the last copy of the descriptor: a process that
/// another thread is about to start has one until it becomes another program.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Locks `file`, which lies at `path`.
    ///
    /// # Errors
    /// [`OpenError::InUse`], or whatever keeps it from being locked.
    pub fn lock(file: File, path: &Path) -> Result<LockedFile, OpenError> {
        let metadata = file.metadata().map_err(|source| OpenError::Io {
            path: path.to_path_buf(),
            doing: "look at",
            source,
        })?;
        lock(&file, path, &metadata, false)?;
        Ok(LockedFile(file))
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

/// Locks a file against everybody, or only against writers if it is for reading.
pub(super) fn lock(
    file: &File,
    path: &Path,
    metadata: &Metadata,
    read_only: bool,
) -> Result<(), OpenError> {
    let mode = if read_only { libc::LOCK_SH } else { libc::LOCK_EX };
    let start = Instant::now();
    loop {
        let path = path.to_path_buf();
        if !is_locked_in_part(file) {
            // SAFETY: no pointers; the descriptor is open.
            if unsafe { libc::flock(file.as_raw_fd(), mode | libc::LOCK_NB) } == 0 {
                if !read_only {
                    lock_range(file, libc::F_WRLCK);
                }
                return Ok(());
            }
            let source = io::Error::last_os_error();
            if source.kind() != io::ErrorKind::WouldBlock {
                return Err(OpenError::Io { path, doing: "lock", source });
            }
        }
        let by = holder(metadata);
        if by.is_some() || start.elapsed() > PATIENCE {
            return Err(OpenError::InUse { path, by });
        }
        thread::sleep(PAUSE);
    }
}

/// Gives the lock up, whoever else still has a copy of the descriptor.
pub(super) fn unlock(file: &File) {
    lock_range(file, libc::F_UNLCK);
    // SAFETY: no pointers; the descriptor is open. It cannot fail for a lock that is held.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

/// Whether somebody else has locked a range of the file. Where that cannot be told, nobody has.
fn is_locked_in_part(file: &File) -> bool {
    let mut range = whole_file(libc::F_WRLCK);
    // SAFETY: `range` outlives the call, which may write to it; the descriptor is open.
    let told = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    told == 0 && i32::from(range.l_type) != libc::F_UNLCK
}

/// Locks or unlocks all of the file for this open file. Where that fails, `flock` has to do: some
/// network file systems turn that into a lock of the range, which is then in the way of this one.
fn lock_range(file: &File, kind: libc::c_int) {
    let mut range = whole_file(kind);
    // SAFETY: `range` outlives the call; the descriptor is open.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range) };
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        // As these locks have no process.
        l_pid: 0,
    }
}

/// The process alive that holds a lock on the file, such as `process 17 (coulter)`.
fn holder(metadata: &Metadata) -> Option<String> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let process = holder_in(&locks, &format!("{major:02x}:{minor:02x}:{}", metadata.ino()))?;
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (name, is_alive) = name_and_life_in(&status)?;
    is_alive.then(|| format!("process {process} ({name})"))
}

/// The name in a line such as `17 (coulter) S 1 …`, and whether that process still runs.
fn name_and_life_in(status: &str) -> Option<(&str, bool)> {
    // A name may hold parentheses itself.
    let (before, behind) = status.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let is_alive = !matches!(behind.trim_start().as_bytes().first(), Some(b'Z' | b'X'));
    Some((name, is_alive))
}

/// Finds the number of the process in lines such as
/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`.
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // A line of one who waits has an arrow here; the lock of an open file's range has no process.
        if !matches!(words.next()?, "FLOCK" | "POSIX") {
            return None;
        }
        let process = words.nth(2)?;
        if words.next()? == file { process.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_among_other_locks() {
        let locks = "\
1: OFDLCK ADVISORY  WRITE -1 fe:00:42 0 EOF
1: POSIX  ADVISORY  WRITE 11 fe:00:43 0 EOF
2: FLOCK  ADVISORY  WRITE 12 fe:00:41 0 EOF
2: -> FLOCK  ADVISORY  WRITE 13 fe:00:42 0 EOF
3: FLOCK  ADVISORY  READ  14 fe:00:42 0 EOF
";
        assert_eq!(holder_in(locks, "fe:00:42"), Some(14));
        assert_eq!(holder_in(locks, "fe:00:43"), Some(11));
        assert_eq!(holder_in(locks, "fe:00:44"), None);
        assert_eq!(holder_in("nonsense\n\n", "fe:00:42"), None);
    }

    #[test]
    fn a_dead_process_is_told_from_a_live_one() {
        assert_eq!(name_and_life_in("17 (a (b) c) S 1 17"), Some(("a (b) c", true)));
        assert_eq!(name_and_life_in("17 (a) Z 1 17"), Some(("a", false)));
        assert_eq!(name_and_life_in(""), None);
    }
}
