//! What keeps a device of the kernel's NBD client from being had, in words that say what to do.

use crate::block_device::{ForeignDevice, StepFailed};
use coulter_net::nbd::{ClientError, ServeError};
use std::fmt;
use std::io;

/// Why an NBD device could not be attached or taken over.
#[derive(Debug)]
#[non_exhaustive]
pub enum NbdDeviceError {
    /// This kernel has no NBD client, or its module is not loaded.
    NoDriver(io::Error),
    /// It takes root.
    NoPermission(io::Error),
    /// There are as many devices as the driver allows.
    NoDeviceLeft(io::Error),
    /// The server below could not be started.
    Server(ServeError),
    /// The server below did not answer.
    Handshake(ClientError),
    /// The device that is to be taken over was made for something else.
    Foreign(ForeignDevice),
    /// The system refused a step.
    System(StepFailed),
}

impl NbdDeviceError {
    /// What it means that a device cannot be made.
    pub(super) fn of_connect(error: io::Error) -> NbdDeviceError {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => NbdDeviceError::NoPermission(error),
            Some(libc::ENOSPC | libc::EBUSY) => NbdDeviceError::NoDeviceLeft(error),
            _ => {
                let target = "the kernel's NBD client".into();
                NbdDeviceError::System(StepFailed {
                    step: "make a device of",
                    target,
                    source: error,
                })
            }
        }
    }
}

impl fmt::Display for NbdDeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdDeviceError::NoDriver(error) => write!(
                f,
                "this kernel's NBD client does not answer: {error}; load it (modprobe nbd)"
            ),
            NbdDeviceError::NoPermission(error) => {
                write!(f, "the kernel's NBD client refuses: {error}; it takes root")
            }
            NbdDeviceError::NoDeviceLeft(error) => write!(
                f,
                "all NBD devices are taken ({error}); detach one, or load the module with a larger \
                 nbds_max"
            ),
            NbdDeviceError::Server(error) => error.fmt(f),
            NbdDeviceError::Handshake(error) => error.fmt(f),
            NbdDeviceError::Foreign(error) => error.fmt(f),
            NbdDeviceError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NbdDeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NbdDeviceError::Server(source) => Some(source),
            NbdDeviceError::Handshake(source) => Some(source),
            NbdDeviceError::Foreign(_) => None,
            NbdDeviceError::NoDriver(source)
            | NbdDeviceError::NoPermission(source)
            | NbdDeviceError::NoDeviceLeft(source) => Some(source),
            NbdDeviceError::System(error) => Some(&error.source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel makes a device when none is free, and has numbers for 4096 at least; so in a
    /// guest they cannot all be taken.
    #[test]
    fn a_refusal_to_make_a_device_says_what_to_do() {
        let said = |errno| NbdDeviceError::of_connect(io::Error::from_raw_os_error(errno));
        for errno in [libc::ENOSPC, libc::EBUSY] {
            let text = said(errno).to_string();
            assert!(text.contains("all NBD devices are taken"), "{text}");
            assert!(text.contains("detach one") && text.contains("nbds_max"), "{text}");
        }
        for errno in [libc::EPERM, libc::EACCES] {
            assert!(said(errno).to_string().contains("it takes root"));
        }
        assert!(said(libc::EIO).to_string().contains("the kernel's NBD client"));
    }
}
