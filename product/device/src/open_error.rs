//! Why a file or disk cannot be opened as a device. Every message says what, where and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a device cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// There is nothing at the path.
    NotFound {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The operating system does not allow it.
    PermissionDenied {
        /// What was to be opened.
        path: PathBuf,
        /// Whether writing was asked for.
        writing: bool,
    },
    /// Somebody else has it open.
    InUse {
        /// What was to be opened.
        path: PathBuf,
        /// Who, as far as one can tell.
        by: Option<String>,
    },
    /// Writing was asked for and the medium or the file system is read-only.
    ReadOnlyMedium {
        /// What was to be opened.
        path: PathBuf,
    },
    /// It is a directory, a pipe, a socket or a character device.
    NotABlockDeviceOrFile {
        /// What was to be opened.
        path: PathBuf,
    },
    /// It has less room than is needed.
    TooSmall {
        /// What was to be opened.
        path: PathBuf,
        /// What it has, in bytes.
        size: u64,
        /// What is needed, in bytes.
        size_min: u64,
    },
    /// The disk's logical blocks are larger than the 4096 bytes that are mapped at once.
    BlocksTooLarge {
        /// What was to be opened.
        path: PathBuf,
        /// Bytes per logical block.
        logical_block_size: u64,
    },
    /// io_uring was demanded and the system has none.
    NoIoUring {
        /// What was to be opened.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else that the operating system reports.
    Io {
        /// What was to be opened.
        path: PathBuf,
        /// What was being done, such as `lock`.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// The operating system's error number that fits best.
    pub fn errno(&self) -> i32 {
        match self {
            OpenError::NotFound { .. } => libc::ENOENT,
            OpenError::PermissionDenied { .. } => libc::EACCES,
            OpenError::InUse { .. } => libc::EBUSY,
            OpenError::ReadOnlyMedium { .. } => libc::EROFS,
            OpenError::NotABlockDeviceOrFile { .. } => libc::ENOTBLK,
            OpenError::TooSmall { .. } => libc::ENOSPC,
            OpenError::BlocksTooLarge { .. } => libc::EINVAL,
            OpenError::NoIoUring { source, .. } | OpenError::Io { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotFound { path } => {
                write!(f, "{}: there is no such file or disk; check the path", path.display())
            }
            OpenError::PermissionDenied { path, writing } => {
                let what = if *writing { "read and write" } else { "read" };
                let path = path.display();
                write!(f, "{path}: no permission to {what} it; run as its owner or as root")
            }
            OpenError::InUse { path, by } => {
                let by = by.as_deref().unwrap_or("something else");
                write!(f, "{}: in use by {by}; stop or detach that first", path.display())
            }
            OpenError::ReadOnlyMedium { path } => write!(
                f,
                "{}: it is read-only; open it for reading only, or make it writable",
                path.display()
            ),
            OpenError::NotABlockDeviceOrFile { path } => {
                let path = path.display();
                write!(f, "{path}: neither a file nor a block device; name one of these")
            }
            OpenError::TooSmall { path, size, size_min } => write!(
                f,
                "{}: it has {size} bytes and {size_min} are needed; enlarge it or use another",
                path.display()
            ),
            OpenError::BlocksTooLarge { path, logical_block_size } => write!(
                f,
                "{}: its logical blocks of {logical_block_size} bytes exceed 4096; \
                 put it into a mode with smaller blocks, or use a file on it",
                path.display()
            ),
            OpenError::NoIoUring { path, source } => write!(
                f,
                "{}: this system refuses io_uring ({source}); allow it or use threads",
                path.display()
            ),
            OpenError::Io { path, doing, source } => {
                write!(f, "{}: cannot {doing} it: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::NoIoUring { source, .. } | OpenError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}
