//! Why a command failed.
//!
//! Two words: a stable kind to decide by, and the operating system's number to report. Small and
//! `Copy`, because every completion carries room for one.

use std::fmt;
use std::io;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// The operating system's error number, or the nearest one that fits.
    pub errno: i32,
    /// What to decide by.
    pub kind: DeviceErrorKind,
}

/// Kinds of [`DeviceError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// Refused: offset, length or memory is not a multiple of the alignment, or the command is
    /// empty.
    Misaligned,
    /// Refused: the command ends past the end of the device.
    OutOfRange,
    /// Refused: the device is, or has become, read-only.
    ReadOnly,
    /// There are fewer bytes than the device had when it was opened: it was truncated.
    ShortRead,
    /// The device took fewer bytes than it was given, and takes no more.
    ShortWrite,
    /// A file has no room left beneath it: disk full, quota used up, or file size limit.
    NoSpace,
    /// The medium cannot give back, or keep, these sectors.
    Medium,
    /// No answer in time.
    Timeout,
    /// The device is gone: unplugged, disconnected, or without power.
    Gone,
    /// Any other input or output error.
    Io,
}

impl DeviceError {
    /// The error of a kind, with the error number that fits it best.
    pub fn of(kind: DeviceErrorKind) -> DeviceError {
        let errno = match kind {
            DeviceErrorKind::Misaligned | DeviceErrorKind::OutOfRange => libc::EINVAL,
            DeviceErrorKind::ReadOnly => libc::EROFS,
            DeviceErrorKind::NoSpace => libc::ENOSPC,
            DeviceErrorKind::Medium => libc::ENODATA,
            DeviceErrorKind::Timeout => libc::ETIMEDOUT,
            DeviceErrorKind::Gone => libc::ENODEV,
            DeviceErrorKind::ShortRead | DeviceErrorKind::ShortWrite | DeviceErrorKind::Io => {
                libc::EIO
            }
        };
        DeviceError { errno, kind }
    }

    /// The error that the operating system reported as `errno`.
    pub fn from_errno(errno: i32) -> DeviceError {
        let kind = match errno {
            libc::EROFS => DeviceErrorKind::ReadOnly,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => DeviceErrorKind::NoSpace,
            // What the block layer makes of medium, target and protection errors.
            libc::ENODATA | libc::EREMOTEIO | libc::EILSEQ | libc::EUCLEAN => {
                DeviceErrorKind::Medium
            }
            libc::ETIMEDOUT | libc::ETIME => DeviceErrorKind::Timeout,
            libc::ENODEV
            | libc::ENXIO
            | libc::ENOTCONN
            | libc::ENOLINK
            | libc::ESHUTDOWN
            | libc::ESTALE => DeviceErrorKind::Gone,
            _ => DeviceErrorKind::Io,
        };
        DeviceError { errno, kind }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DeviceErrorKind::Misaligned => "the command is not made of whole sectors",
            DeviceErrorKind::OutOfRange => "the command ends past the end of the device",
            DeviceErrorKind::ReadOnly => "the device is read-only",
            DeviceErrorKind::ShortRead => "the device is shorter than when it was opened",
            DeviceErrorKind::ShortWrite => "the device took less than it was given",
            DeviceErrorKind::NoSpace => "there is no space left beneath the device",
            DeviceErrorKind::Medium => "the medium is damaged there",
            DeviceErrorKind::Timeout => "the device does not answer",
            DeviceErrorKind::Gone => "the device is gone",
            DeviceErrorKind::Io => "the device failed",
        };
        write!(f, "{what} ({})", io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for DeviceError {}

impl From<DeviceError> for io::Error {
    fn from(error: DeviceError) -> io::Error {
        io::Error::from_raw_os_error(error.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_finds_its_kind() {
        assert_eq!(DeviceError::from_errno(libc::EDQUOT).kind, DeviceErrorKind::NoSpace);
        assert_eq!(DeviceError::from_errno(libc::EILSEQ).kind, DeviceErrorKind::Medium);
        assert_eq!(DeviceError::from_errno(libc::ENXIO).kind, DeviceErrorKind::Gone);
        assert_eq!(DeviceError::from_errno(libc::EIO).kind, DeviceErrorKind::Io);
        assert_eq!(DeviceError::from_errno(libc::EPERM).errno, libc::EPERM);
    }

    #[test]
    fn a_completion_stays_small() {
        assert!(size_of::<Result<(), DeviceError>>() <= 8);
    }

    #[test]
    fn the_message_says_what_and_keeps_the_number() {
        let text = DeviceError::from_errno(libc::ENOSPC).to_string();
        assert!(text.contains("no space left"), "{text}");
        assert!(text.contains("os error 28"), "{text}");
    }
}
