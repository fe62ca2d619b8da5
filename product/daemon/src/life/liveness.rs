//! Tells if a daemon lives, also to callers that cannot see its process: from another PID or time
//! namespace, such as that of a container which shares the state directory, its numbers mean
//! nothing or somebody else.
//!
//! A daemon holds a lock on `NAME.lock`. It belongs to the open file, so it goes with the process,
//! however that ends, and stays while that becomes another program.

use coulter_system::{private, raw};
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The proof that this process lives.
pub(crate) struct Liveness {
    path: PathBuf,
    file: Option<File>,
}

impl Liveness {
    /// Holds the lock at `path`, unless this process does so already: the program that it was
    /// before has passed it on.
    ///
    /// # Errors
    /// When the file cannot be made or locked.
    pub(crate) fn hold(path: PathBuf) -> io::Result<Liveness> {
        let mut held = Liveness { path, file: None };
        held.restore()?;
        Ok(held)
    }

    /// Holds it again if somebody has deleted the file.
    ///
    /// # Errors
    /// As [`Liveness::hold`].
    pub(crate) fn restore(&mut self) -> io::Result<()> {
        if is_held(&self.path) {
            return Ok(());
        }
        let file = private::open(&self.path)?;
        raw::lock_open_file(&file)?;
        self.file = Some(file);
        Ok(())
    }

    /// Lets the program that this process becomes have the lock without knowing of it.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn pass_on(&self) -> io::Result<()> {
        if let Some(file) = &self.file {
            fcntl_setfd(file, FdFlags::empty())?;
        }
        Ok(())
    }
}

/// Whether some process holds the lock at `path`. It is only asked for, not taken.
pub(crate) fn is_held(path: &Path) -> bool {
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let Ok(file) = file else { return false };
    raw::is_open_file_locked(&file).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_for_as_long_as_its_holder_lives() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("a.lock");
        assert!(!is_held(&path), "there is none");
        let mut held = Liveness::hold(path.clone()).expect("the directory is writable");
        assert!(is_held(&path) && is_held(&path), "asking takes nothing");
        let again = Liveness::hold(path.clone()).expect("it is held already");
        drop(again);
        assert!(is_held(&path), "it was not the other's to give up");
        std::fs::remove_file(&path).expect("it is there");
        assert!(!is_held(&path));
        held.restore().expect("the directory is writable");
        assert!(is_held(&path));
        drop(held);
        assert!(!is_held(&path), "the file that is left proves nothing");
    }

    #[test]
    fn a_program_that_is_started_does_not_hold_it_unless_that_is_wanted() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("a.lock");
        for is_passed_on in [false, true] {
            let held = Liveness::hold(path.clone()).expect("the directory is writable");
            if is_passed_on {
                held.pass_on().expect("it is open");
            }
            let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it runs");
            drop(held);
            // A process that another test is starting has all descriptors for a moment.
            let mut looks = 0..1000;
            while is_held(&path) && !is_passed_on && looks.next().is_some() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let is_held = is_held(&path);
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            assert_eq!(is_held, is_passed_on);
        }
    }
}
