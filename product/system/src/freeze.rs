//! A mounted file system holds still: what was written is on its device as if it were unmounted, and writers wait.
//!
//! It stays so until it is thawed, whoever froze it has ended or not. So whoever freezes must make sure that it is thawed.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `_IOWR('X', 119, int)` and the one after it, of `linux/fs.h`. The argument is not read.
const FIFREEZE: libc::Ioctl = 0xc004_5877_u32 as libc::Ioctl;
const FITHAW: libc::Ioctl = 0xc004_5878_u32 as libc::Ioctl;

/// A directory of a mounted file system that can be frozen.
#[derive(Debug)]
pub struct Freezer {
    directory: File,
}

impl Freezer {
    /// The file system at `directory`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(directory: &Path) -> io::Result<Freezer> {
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_DIRECTORY);
        let directory = options.open(directory)?;
        Ok(Freezer { directory })
    }

    /// Writes out what is in memory for it, so that the freeze itself is short.
    ///
    /// # Errors
    /// When that fails.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.directory)?)
    }

    /// From now on writers wait. Returns when what was written before is on the device.
    ///
    /// # Errors
    /// `EBUSY` if it is frozen already; `EOPNOTSUPP` if it cannot be frozen; `EPERM` without root.
    pub fn freeze(&self) -> io::Result<()> {
        self.order(FIFREEZE)
    }

    /// Lets writers go on.
    ///
    /// # Errors
    /// `EINVAL` if it is not frozen.
    pub fn thaw(&self) -> io::Result<()> {
        self.order(FITHAW)
    }

    fn order(&self, order: libc::Ioctl) -> io::Result<()> {
        // SAFETY: the descriptor is open; the kernel neither reads nor writes the argument, which is a null pointer.
        match unsafe { libc::ioctl(self.directory.as_raw_fd(), order, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_directory_cannot_be_frozen() {
        assert!(Freezer::open(Path::new("/proc/self/exe")).is_err());
        assert!(Freezer::open(Path::new("/nowhere")).is_err());
        // Thawing what is not frozen does nothing, and says so.
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let freezer = Freezer::open(directory.path()).expect("a directory");
        freezer.sync().expect("it can be written out");
        freezer.thaw().expect_err("it is not frozen");
    }
}
