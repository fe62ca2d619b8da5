//! An event descriptor: something for `poll` and `epoll` to sleep on that a program can make
//! readable.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, RawFd};

/// An event descriptor.
#[derive(Debug)]
pub(crate) struct Event {
    file: File,
}

impl Event {
    /// A descriptor that is not readable, and says so to whoever reads it.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn new() -> io::Result<Event> {
        Event::with(libc::EFD_NONBLOCK)
    }

    /// A descriptor that is not readable, and makes readers wait. A ring wants one of this kind: it
    /// answers for others at once that there is nothing to read.
    ///
    /// # Errors
    /// As for [`Event::new`].
    pub(crate) fn blocking() -> io::Result<Event> {
        Event::with(0)
    }

    fn with(flags: libc::c_int) -> io::Result<Event> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and nothing else owns it.
        Ok(Event { file: unsafe { File::from_raw_fd(fd) } })
    }

    /// Makes it readable.
    pub(crate) fn ring(&self) {
        // Fails only if it holds 2^64 - 2, and then it is readable.
        let _ = (&self.file).write(&1u64.to_ne_bytes());
    }

    /// Makes it unreadable. Not for one that makes readers wait.
    pub(crate) fn silence(&self) {
        // Fails only if it was not readable.
        let _ = (&self.file).read(&mut [0; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
