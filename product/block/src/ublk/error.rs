//! What keeps a ublk device from being had, in words that say what to do.

use crate::block_device::{ForeignDevice, StepFailed};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a ublk device could not be attached or taken over.
#[derive(Debug)]
#[non_exhaustive]
pub enum UblkError {
    /// There is no `/dev/ublk-control`.
    NoDriver(io::Error),
    /// This process may not use it.
    NoPermission(io::Error),
    /// The kernel, or whoever confines this process, gives no io_uring.
    NoRing(io::Error),
    /// The driver lacks something that is needed.
    Lacks {
        /// What.
        feature: &'static str,
        /// The first Linux that has it.
        since: &'static str,
    },
    /// There are as many devices as the driver allows.
    NoDeviceLeft(io::Error),
    /// The device that is to be taken over is served by a living process.
    Served {
        /// The device.
        device: PathBuf,
        /// The process.
        pid: i32,
    },
    /// The device that is to be taken over was made for something else.
    Foreign(ForeignDevice),
    /// The system refused a step.
    System(StepFailed),
}

impl UblkError {
    /// What it means that the control device cannot be opened.
    pub(super) fn of_open(error: io::Error) -> UblkError {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => UblkError::NoPermission(error),
            _ => UblkError::NoDriver(error),
        }
    }
}

impl fmt::Display for UblkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UblkError::NoDriver(error) => write!(
                f,
                "cannot open /dev/ublk-control: {error}; load the driver (modprobe ublk_drv; Linux \
                 6.5 or newer has what is needed)"
            ),
            UblkError::NoPermission(error) => {
                write!(f, "cannot open /dev/ublk-control: {error}; a ublk device takes root")
            }
            UblkError::NoRing(error) => write!(
                f,
                "ublk needs io_uring, which cannot be had: {error}; see \
                 /proc/sys/kernel/io_uring_disabled"
            ),
            UblkError::Lacks { feature, since } => {
                write!(f, "this kernel's ublk driver lacks {feature}, which Linux {since} has")
            }
            UblkError::NoDeviceLeft(error) => {
                write!(f, "all ublk devices are taken ({error}); detach one")
            }
            UblkError::Served { device, pid } => {
                write!(f, "{} is served by process {pid}", device.display())
            }
            UblkError::Foreign(error) => error.fmt(f),
            UblkError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for UblkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            UblkError::NoDriver(source)
            | UblkError::NoPermission(source)
            | UblkError::NoRing(source)
            | UblkError::NoDeviceLeft(source) => Some(source),
            UblkError::System(error) => Some(&error.source),
            _ => None,
        }
    }
}
