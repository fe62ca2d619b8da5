//! What follows when the kernel has moved some of a command's bytes: the one place that decides
//! whether a transfer is whole, goes on or has failed, for every engine.

use crate::command::CommandKind;
use crate::device_error::{DeviceError, DeviceErrorKind};

/// The largest piece of a transfer that the kernel is given at once, in bytes. It takes a little
/// less than 2 GiB, and a registered buffer has at most 1 GiB.
pub(crate) const PIECE_SIZE_MAX: u64 = 1 << 30;

/// Bytes of zeros that are written at once.
pub(crate) const ZEROS_SIZE: u64 = 1 << 20;

/// How often a transfer that the kernel did not even begin is begun anew.
const ATTEMPTS_MAX: u8 = 64;

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes moved.
    pub(crate) done: u64,
    /// Times that it was begun in vain.
    attempts: u8,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is whole.
    Finish,
    /// Move the rest, from [`Progress::done`] on.
    Continue,
    /// It has failed.
    Fail(DeviceError),
}

impl Progress {
    /// Takes note of the kernel's answer to a read or write of all that was left: bytes moved, or
    /// an error number.
    pub(crate) fn advance(
        &mut self,
        kind: CommandKind,
        length: u64,
        alignment: u64,
        answer: Result<u64, i32>,
    ) -> Step {
        let moved = match answer {
            Ok(moved) => moved,
            // Not begun: a signal came first, or a resource was short for a moment.
            Err(libc::EINTR | libc::EAGAIN) if self.attempts < ATTEMPTS_MAX => {
                self.attempts += 1;
                return Step::Continue;
            }
            Err(errno) => return Step::Fail(DeviceError::from_errno(errno)),
        };
        assert!(moved <= length - self.done, "the kernel moves no more than it was asked to");
        let done = self.done + moved;
        if done == length {
            self.done = done;
            return Step::Finish;
        }
        // Direct transfers go on at whole sectors. Less than a sector is no progress: the file
        // ends there, and asking again would only show the same.
        let done = done - done % alignment;
        if done == self.done {
            let short = match kind {
                CommandKind::Read => DeviceErrorKind::ShortRead,
                _ => DeviceErrorKind::ShortWrite,
            };
            return Step::Fail(DeviceError::of(short));
        }
        self.done = done;
        Step::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(progress: &mut Progress, answer: Result<u64, i32>) -> Step {
        progress.advance(CommandKind::Read, 4096, 512, answer)
    }

    #[test]
    fn a_short_transfer_goes_on_at_a_whole_sector() {
        let mut progress = Progress::default();
        assert_eq!(read(&mut progress, Ok(1300)), Step::Continue);
        assert_eq!(progress.done, 1024);
        assert_eq!(read(&mut progress, Ok(3072)), Step::Finish);
    }

    #[test]
    fn the_end_of_the_file_is_an_error() {
        let mut progress = Progress::default();
        assert_eq!(read(&mut progress, Ok(1300)), Step::Continue);
        let short = DeviceError::of(DeviceErrorKind::ShortRead);
        assert_eq!(read(&mut progress, Ok(276)), Step::Fail(short));
        let mut progress = Progress::default();
        let short = DeviceError::of(DeviceErrorKind::ShortWrite);
        let step = progress.advance(CommandKind::Write, 4096, 512, Ok(0));
        assert_eq!(step, Step::Fail(short));
    }

    #[test]
    fn what_was_not_begun_is_begun_anew_but_not_for_ever() {
        let mut progress = Progress::default();
        for _ in 0..ATTEMPTS_MAX {
            assert_eq!(read(&mut progress, Err(libc::EINTR)), Step::Continue);
        }
        let error = DeviceError::from_errno(libc::EAGAIN);
        assert_eq!(read(&mut progress, Err(libc::EAGAIN)), Step::Fail(error));
    }

    #[test]
    fn an_error_is_final() {
        let mut progress = Progress::default();
        let error = DeviceError::from_errno(libc::ENOSPC);
        assert_eq!(read(&mut progress, Err(libc::ENOSPC)), Step::Fail(error));
    }
}
