//! More devices on what a device stores, which only read: for threads that read side by side.
//!
//! Nothing orders them and the device that writes. Whoever uses both makes sure that nothing is written
//! where somebody reads.

use crate::command::CommandKind;
use crate::contract::Device;
use crate::device_error::{DeviceError, DeviceErrorKind};
use crate::medium::Target;
use crate::transfer::{Progress, Step};
use std::io;

/// What further devices for reading are made from. It holds a descriptor of its own, and no lock: the
/// device that writes may be closed, and the file opened by another, while it is kept.
#[derive(Debug)]
pub struct ReadSource {
    target: Target,
    open: Open,
}

/// Makes a device with this queue depth.
type Open = fn(Target, usize) -> io::Result<Box<dyn Device>>;

impl ReadSource {
    /// A source for a file or a disk; `None` if it cannot be opened a second time.
    pub(crate) fn of(target: &Target, open: Open) -> Option<ReadSource> {
        Some(ReadSource { target: target.reopened_to_read().ok()?, open })
    }

    /// Bytes of which offset, length and memory of a read are multiples.
    pub fn alignment(&self) -> u64 {
        self.target.alignment()
    }

    /// A device that reads, executes `queue_depth` commands at once, and need not stay on one thread, as
    /// long as one uses it at a time.
    ///
    /// # Errors
    /// When the system refuses io_uring, or has no descriptor left.
    pub fn open(&self, queue_depth: usize) -> io::Result<Box<dyn Device>> {
        (self.open)(self.target.reopened_to_read()?, queue_depth)
    }

    /// Reads `length` bytes from `offset` to `memory`, on this thread, which waits for it.
    ///
    /// # Errors
    /// [`DeviceError`], as a command would complete.
    ///
    /// # Safety
    /// `memory` is valid for so many bytes and nobody else uses it meanwhile.
    pub unsafe fn read_at(
        &self,
        memory: *mut u8,
        length: usize,
        offset: u64,
    ) -> Result<(), DeviceError> {
        let mut progress = Progress::default();
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.target.size());
        if end.is_none() || length == 0 {
            return Err(DeviceError::of(DeviceErrorKind::OutOfRange));
        }
        loop {
            let done = progress.done as usize;
            let (start, left) = (memory.wrapping_add(done), length - done);
            let at = offset as libc::off64_t + done as libc::off64_t;
            // SAFETY: the caller's promise, of what is left of it.
            let moved = unsafe { libc::pread64(self.target.fd(), start.cast(), left, at) };
            let answer = match u64::try_from(moved) {
                Ok(moved) => Ok(moved),
                Err(_) => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
            };
            let alignment = self.target.alignment();
            match progress.advance(CommandKind::Read, length as u64, alignment, answer) {
                Step::Finish => return Ok(()),
                Step::Continue => {}
                Step::Fail(error) => return Err(error),
            }
        }
    }
}
