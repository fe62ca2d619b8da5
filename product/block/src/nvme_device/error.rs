//! What keeps a device of the kernel's NVMe/TCP initiator from being had, in words that say what to do.

use crate::block_device::{ForeignDevice, StepFailed};
use coulter_net::ServeError;
use std::fmt;
use std::io;

/// Why an NVMe device could not be attached or taken over.
#[derive(Debug)]
#[non_exhaustive]
pub enum NvmeDeviceError {
    /// This kernel has no NVMe/TCP initiator, or its module is not loaded.
    NoDriver(io::Error),
    /// It takes root.
    NoPermission,
    /// The target below could not be started.
    Target(ServeError),
    /// All ports that are tried are in use, or open to every user.
    NoPort,
    /// The kernel has connected, and there is no block device.
    NoDevice,
    /// The device that is to be taken over is not as it has to be.
    Foreign(ForeignDevice),
    /// The system refused a step.
    System(StepFailed),
}

impl fmt::Display for NvmeDeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NvmeDeviceError::NoDriver(error) => write!(
                f,
                "this kernel's NVMe/TCP initiator does not answer: {error}; load it (modprobe nvme-tcp)"
            ),
            NvmeDeviceError::NoPermission => write!(f, "it takes root"),
            NvmeDeviceError::Target(error) => error.fmt(f),
            NvmeDeviceError::NoPort => write!(
                f,
                "of the ports 272 to 343, none is free at which only root may listen; look at \
                 `ss -lt` and net.ipv4.ip_unprivileged_port_start (1024 is usual)"
            ),
            NvmeDeviceError::NoDevice => {
                write!(f, "the kernel's NVMe/TCP initiator has connected, but made no block device")
            }
            NvmeDeviceError::Foreign(foreign) => foreign.fmt(f),
            NvmeDeviceError::System(failed) => failed.fmt(f),
        }
    }
}

impl std::error::Error for NvmeDeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NvmeDeviceError::NoDriver(error) => Some(error),
            NvmeDeviceError::Target(error) => Some(error),
            NvmeDeviceError::System(failed) => Some(&failed.source),
            _ => None,
        }
    }
}
